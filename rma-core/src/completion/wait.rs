//! Waiting: nothing in this crate waits anywhere else. S-D5 S-E14 S-M6 S-M7
use crate::group::Group;
use crate::transport::{PeerState, Transport, WorldRank};
use crate::universe::Process;
use crate::window::STRIPE_RECHECK;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;

/// What is waited for; says who is to blame if it does not come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wait {
    /// As it stands in an error.
    pub(crate) what: &'static str,
    /// The process that is waited for, where there is just one.
    pub(crate) peer: Option<WorldRank>,
    /// How often to look although nobody rang; `None` where every change rings.
    pub(crate) recheck: Option<Duration>,
}

/// A wait that ended without what it waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WaitError {
    pub(crate) what: &'static str,
    pub(crate) cause: Cause,
}

/// Why a wait failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    PeerFailed(WorldRank),
    PeerLeft(WorldRank),
    Timeout,
}

impl<T: Transport> Process<T> {
    /// Makes progress until `done` gives a value: first awake, then asleep.
    pub(crate) fn wait_until<R>(
        &self,
        wait: Wait,
        done: impl FnMut() -> Option<R>,
    ) -> Result<R, WaitError> {
        self.wait_with(wait, || self.trouble(wait), done)
    }

    /// As [`wait_until`](Self::wait_until), for what each of a group has to do.
    pub(crate) fn wait_for_all<R>(
        &self,
        wait: Wait,
        group: &Group,
        done: impl FnMut() -> Option<R>,
    ) -> Result<R, WaitError> {
        let left = || group.members().find(|peer| self.transport.has_left(*peer));
        // Before asking who failed, as in `trouble`.
        let trouble = || {
            let left = left().map(Cause::PeerLeft);
            self.trouble(wait).or(left)
        };
        self.wait_with(wait, trouble, done)
    }

    fn wait_with<R>(
        &self,
        wait: Wait,
        trouble: impl Fn() -> Option<Cause>,
        mut done: impl FnMut() -> Option<R>,
    ) -> Result<R, WaitError> {
        if let Some(value) = done() {
            return Ok(value);
        }
        let _attending = self.attend();
        let (mut deadline, mut round) = (None, 0);
        loop {
            if self.progress() > 0 {
                // More may follow at once.
                round = 0;
            } else if self.transport.relax(round) {
                round += 1;
            } else if let Some(end) = self.sleep(wait, &trouble, &mut deadline, &mut done) {
                return end;
            }
            if let Some(value) = done() {
                return Ok(value);
            }
        }
    }

    /// Sleeps, unless the wait is over already.
    fn sleep<R>(
        &self,
        wait: Wait,
        trouble: impl Fn() -> Option<Cause>,
        deadline: &mut Option<Duration>,
        mut done: impl FnMut() -> Option<R>,
    ) -> Option<Result<R, WaitError>> {
        let ticket = self.transport.arm();
        // Asked before the last look: what a peer did before it left has arrived by then.
        let trouble = trouble();
        let worked = self.progress() > 0;
        if let Some(value) = done() {
            self.transport.disarm(ticket);
            return Some(Ok(value));
        }
        let timeout = self.time_left(deadline);
        let cause = trouble.or((timeout == Some(Duration::ZERO)).then_some(Cause::Timeout));
        if worked || cause.is_some() {
            self.transport.disarm(ticket);
            let failed = cause.filter(|_| !worked);
            if let Some(Cause::PeerLeft(peer)) = failed {
                self.transport.missed(peer);
            }
            return failed.map(|cause| Err(WaitError { what: wait.what, cause }));
        }
        self.counters.parked.fetch_add(1, Relaxed);
        let deferred = (!self.deferred.is_empty()).then_some(STRIPE_RECHECK);
        let nap = timeout.into_iter().chain(wait.recheck).chain(deferred).min();
        self.transport.park(ticket, nap);
        None
    }

    /// Why `wait` cannot end well, as far as is known.
    pub(crate) fn trouble(&self, wait: Wait) -> Option<Cause> {
        let peer = wait.peer.filter(|peer| *peer != self.transport.rank());
        // Before asking who failed: a peer that left because of that has said so first.
        let state = peer.map(|peer| (self.transport.peer_state(peer), peer));
        if let Some(failed) = self.transport.failed() {
            return Some(Cause::PeerFailed(failed));
        }
        match state? {
            (PeerState::Alive, _) => None,
            (PeerState::Departed, peer) => Some(Cause::PeerLeft(peer)),
            (PeerState::Failed, peer) => Some(Cause::PeerFailed(peer)),
        }
    }

    fn time_left(&self, deadline: &mut Option<Duration>) -> Option<Duration> {
        let limit = self.config.wait_timeout?;
        let now = self.transport.now();
        Some(deadline.get_or_insert(now.saturating_add(limit)).saturating_sub(now))
    }
}
