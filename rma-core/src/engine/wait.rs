//! Waiting: nothing in this crate waits anywhere else.
use crate::engine::Engine;
use crate::group::Group;
use crate::rank::{Rank, WorldRank};
use crate::transport::{About, Count, ImportError, PeerState, Telling, Whom};
use core::hint;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use rustc_hash::FxHashMap;
use std::sync::{Mutex, PoisonError};

/// What is waited for, and which ranks are to do it.
#[derive(Clone, Copy)]
pub(crate) struct Wait<'a> {
    /// As it stands in an error.
    pub(crate) what: &'static str,
    pub(crate) on: On<'a>,
    /// The object that it is about, as the launcher is told.
    pub(crate) about: About,
    /// How often to look although no rank rang; `None` where every change rings.
    pub(crate) recheck: Option<Duration>,
    /// The first of these looks come sooner, each after half as long again as the one before: what
    /// did not come soon may as well come late.
    pub(crate) soon: bool,
    /// When it ends at the latest, by the transport's clock, whatever the configuration says.
    pub(crate) until: Option<Duration>,
}

impl<'a> Wait<'a> {
    /// One that every change rings for, and that the configuration alone bounds.
    pub(crate) fn new(what: &'static str, on: On<'a>) -> Self {
        Self { what, on, about: About::Rank, recheck: None, soon: false, until: None }
    }

    /// One that is about that object.
    pub(crate) fn about(self, about: About) -> Self {
        Self { about, ..self }
    }
}

impl On<'_> {
    /// As the launcher is told.
    fn whom(self) -> Whom {
        match self {
            On::Peer(peer) | On::Member(peer, _) => Whom::Rank(peer.0),
            On::Named(named) => named(0).map_or(Whom::Unknown, |peer| Whom::Rank(peer.0)),
            On::All(group, _) => Whom::All(group.some()),
            On::Holders(group, home) => Whom::Holders(group.some(), home.map(|home| home.0)),
            On::AnyOf(group) => Whom::Any(group.some()),
        }
    }
}

/// The ranks that are to make true what is waited for: their death or departure ends the wait.
#[derive(Clone, Copy)]
pub(crate) enum On<'a> {
    /// That process.
    Peer(WorldRank),
    /// That process, in a collective operation that may be known to be in vain.
    Member(WorldRank, &'a dyn Fn() -> Option<Cause>),
    /// The one that the words or tables name when they are looked at: a holder, a debtor. The
    /// number grows from look to look, to choose one of several.
    Named(&'a dyn Fn(usize) -> Option<WorldRank>),
    /// Every process of the group, in a collective operation that may be known to be in vain.
    All(&'a Group, &'a dyn Fn() -> Option<Cause>),
    /// Processes of the group that hold locks, and no words say which: all that died, and those
    /// that left without giving theirs back. Also the home of the lock, if it takes its words along
    /// when it leaves.
    Holders(&'a Group, Option<WorldRank>),
    /// Any other process of the group: as long as one of them is there, it may come. A process that
    /// is alone waits for its own threads.
    AnyOf(&'a Group),
}

/// A wait that ended without what it waited for. [`Engine::given_up`] makes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WaitError {
    pub(crate) what: &'static str,
    pub(crate) cause: Cause,
}

/// What a wait remembers while it lasts.
#[derive(Default)]
pub(crate) struct Asleep {
    deadline: Option<Duration>,
    looks: usize,
    /// Rounds in which messages were served.
    served: usize,
    /// After what time it looked again, the last time.
    rechecked: Duration,
    /// Since it slept for the first time.
    told: Option<Telling>,
}

impl Asleep {
    /// After what time to look again, if no rank rings.
    pub(super) fn recheck(&mut self, wait: Wait<'_>) -> Option<Duration> {
        let most = wait.recheck?;
        if !wait.soon {
            return Some(most);
        }
        let longer = self.rechecked + self.rechecked / 2;
        self.rechecked = longer.max(FIRST_RECHECK).min(most);
        Some(self.rechecked)
    }
}

/// For each peer that this rank has found to have left: below it lies all that the peer sent. Taken
/// once, for a later one would never be reached while others go on sending.
#[derive(Debug, Default)]
pub(crate) struct LeftMarks(Mutex<FxHashMap<WorldRank, u64>>);

/// Rounds of progress in which a call that does not wait comes past a mark, if nothing is in
/// another thread's hands: a round may leave a part of the queue.
const ROUNDS: usize = 4;

/// Rounds of serving after which a wait looks whether it is in vain. Each serves a message or ends
/// a transfer, and every second one looks for messages, so these are more than any queue holds.
const BUSY: usize = 1 << 14;

/// Looks at a word before the first round of progress: together a few microseconds at most.
const GLANCES: u32 = 256;

/// After so many such waits one makes progress before it looks.
pub(super) const GLANCED: u32 = 64;

/// Members of a group that are looked at before each nap.
const LOOKS: usize = 8;

/// The first look of a wait that looks sooner at first: about as long as a wait spins, at least.
const FIRST_RECHECK: Duration = Duration::from_micros(20);

/// Why a wait failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    PeerFailed(WorldRank),
    PeerLeft(WorldRank),
    /// A member of a communicator could not go on with an operation.
    GaveUp(WorldRank),
    /// This rank has left: no peer answers it any more.
    Left,
    /// A peer's memory could not be mapped.
    Import(ImportError),
    Timeout,
}

impl Engine {
    /// Whether a word of this rank, which a peer on another CPU writes, says within a moment what a
    /// wait would be for: a look takes less time than a round of progress. Ranks that always come
    /// at the same time make progress all the same, once in a while.
    #[inline]
    pub(crate) fn comes_at_once(&self, come: impl Fn() -> bool) -> bool {
        if self.transport.sleep.is_crowded() {
            return false;
        }
        // Threads may overwrite each other's number: one of them comes to the next multiple.
        let number = self.glanced.load(Relaxed).wrapping_add(1);
        self.glanced.store(number, Relaxed);
        if number.is_multiple_of(GLANCED) {
            self.progress_in_passing();
        }
        (0..GLANCES).any(|_| {
            // A pause: looks without one take the line away from the peer that is to write there.
            come() || {
                hint::spin_loop();
                false
            }
        })
    }

    /// Makes progress until `done` gives a value: first awake, then asleep. S-D5 S-E14 S-M6 S-M7
    pub(crate) fn wait_until<R>(
        &self,
        wait: Wait<'_>,
        mut done: impl FnMut() -> Option<R>,
    ) -> Result<R, WaitError> {
        if let Some(value) = done() {
            return Ok(value);
        }
        let mut value = None;
        let ended = self.wait_on(wait, &mut || {
            value = done();
            value.is_some()
        });
        match (value, ended) {
            (Some(value), _) => Ok(value),
            (None, Err(error)) => Err(error),
            (None, Ok(())) => unreachable!("{} came without a value", wait.what),
        }
    }

    /// The rest of [`wait_until`](Self::wait_until), once for all that is waited for.
    fn wait_on(&self, wait: Wait<'_>, done: &mut dyn FnMut() -> bool) -> Result<(), WaitError> {
        let _attending = self.attend();
        let (mut asleep, mut round) = (Asleep::default(), 0);
        loop {
            if self.progress() > 0 {
                // More may follow at once.
                round = 0;
                if let Some(cause) = self.busy(wait, &mut asleep) {
                    // Peers never stopped asking.
                    return if done() { Ok(()) } else { Err(self.given_up(wait, cause)) };
                }
            } else if self.transport.sleep.relax(round) {
                round += 1;
            } else if let Some(end) = self.sleep(wait, &mut asleep, done) {
                return end;
            }
            if done() {
                return Ok(());
            }
        }
    }

    /// As [`wait_until`](Self::wait_until), for a call that does not wait: looks, and once more
    /// after some progress, without which calls that only try would never come to an end. `None` if
    /// it is not done then; an error if it never will be.
    pub(crate) fn try_once<R>(
        &self,
        wait: Wait<'_>,
        mut done: impl FnMut() -> Option<R>,
    ) -> Result<Option<R>, WaitError> {
        if let Some(value) = done() {
            return Ok(Some(value));
        }
        let cause = self.progress_or_trouble(wait);
        match (done(), cause) {
            (Some(value), _) => Ok(Some(value)),
            (None, Some(cause)) => Err(self.given_up(wait, cause)),
            (None, None) => Ok(None),
        }
    }

    /// Waits until all that has arrived is handled, by whichever thread.
    pub(crate) fn handle_arrived(&self, wait: Wait<'_>) -> Result<(), WaitError> {
        let mark = self.transport.messages.arrived();
        self.wait_until(wait, || self.is_all_handled(Some(mark)).then_some(()))
    }

    /// Makes progress, and sleeps until a rank rings or it is time to look again: a step of a wait
    /// whose caller looks by itself. `asleep` lasts as long as that wait.
    pub(crate) fn nap(&self, wait: Wait<'_>, asleep: &mut Asleep) -> Result<(), WaitError> {
        let _attending = self.attend();
        if let Some(cause) = self.busy(wait, asleep) {
            return Err(self.given_up(wait, cause));
        }
        self.sleep(wait, asleep, &mut || false).unwrap_or(Ok(()))
    }

    /// Why the wait is over, although messages keep coming: looks once in a while.
    fn busy(&self, wait: Wait<'_>, asleep: &mut Asleep) -> Option<Cause> {
        asleep.served += 1;
        if !asleep.served.is_multiple_of(BUSY) {
            return None;
        }
        if self.time_left(wait, &mut asleep.deadline) == Some(Duration::ZERO) {
            return Some(Cause::Timeout);
        }
        let cause = self.look(wait, &mut asleep.looks)?;
        self.is_all_handled(self.mark_of(cause)).then_some(cause)
    }

    /// What has to be handled before `cause`, just found, ends a wait: all that a peer sent before
    /// it left. It may be in the hands of another thread, or behind a message that its sender has
    /// not finished.
    fn mark_of(&self, cause: Cause) -> Option<u64> {
        let Cause::PeerLeft(peer) = cause else { return None };
        let mut marks = self.marks.0.lock().unwrap_or_else(PoisonError::into_inner);
        Some(*marks.entry(peer).or_insert_with(|| self.transport.messages.arrived()))
    }

    fn is_all_handled(&self, mark: Option<u64>) -> bool {
        mark.is_none_or(|mark| self.transport.messages.is_handled(mark))
    }

    /// Sleeps, unless the wait is over already.
    fn sleep(
        &self,
        wait: Wait<'_>,
        asleep: &mut Asleep,
        done: &mut dyn FnMut() -> bool,
    ) -> Option<Result<(), WaitError>> {
        let ticket = self.transport.sleep.arm();
        let seen = self.look(wait, &mut asleep.looks);
        let seen = seen.map(|cause| (cause, self.mark_of(cause)));
        let worked = self.progress() > 0;
        // Before `done`: what a peer did before it left can be seen by then.
        let trouble = seen.filter(|(_, mark)| self.is_all_handled(*mark)).map(|(cause, _)| cause);
        if done() {
            self.transport.sleep.disarm(ticket);
            return Some(Ok(()));
        }
        let timeout = self.time_left(wait, &mut asleep.deadline);
        let late = timeout == Some(Duration::ZERO);
        let cause = trouble.or(late.then_some(Cause::Timeout));
        if worked || cause.is_some() {
            self.transport.sleep.disarm(ticket);
            let failed = cause.filter(|_| !worked || late);
            return failed.map(|cause| Err(self.given_up(wait, cause)));
        }
        if seen.is_some() {
            // The sender that was to finish its message may have been killed, and no wait here be
            // on it.
            self.look_at_some(&Group::world(self.transport.job.size), asleep.looks);
        }
        self.counters.add(Count::Parked, 1);
        self.tell_wait(wait, asleep);
        let recheck = asleep.recheck(wait);
        let nap = timeout.into_iter().chain(recheck).chain(self.recheck()).min();
        self.transport.sleep.park(ticket, nap);
        None
    }

    /// Has the launcher see what a thread is about to sleep for. A wait that spins is short, and
    /// not told of.
    fn tell_wait(&self, wait: Wait<'_>, asleep: &mut Asleep) {
        let Some(bulletin) = &self.bulletin else { return };
        match (&asleep.told, wait.on) {
            (None, on) => {
                let now = self.transport.sleep.now();
                asleep.told = bulletin.tell(wait.what, wait.about, on.whom(), now);
            }
            (Some(told), On::Named(named)) => told.set_peer(named(asleep.looks / LOOKS)),
            (Some(_), _) => {}
        }
    }

    /// The end of a wait, told to the launcher, which finds out why ranks fail.
    pub(crate) fn given_up(&self, wait: Wait<'_>, cause: Cause) -> WaitError {
        self.misses(cause);
        // Where the caller has set a time, there is nothing wrong.
        if cause != Cause::Left && wait.until.is_none() {
            self.transport.members.gave_up(cause == Cause::Timeout);
        }
        WaitError { what: wait.what, cause }
    }

    /// Tells which peer this rank missed, if that is why something failed. To say so again is no
    /// harm.
    pub(crate) fn misses(&self, cause: Cause) {
        if let Cause::PeerLeft(peer) | Cause::PeerFailed(peer) = cause {
            self.transport.members.missed(peer);
        }
    }

    /// Why `wait` cannot end well, as far as is known.
    pub(crate) fn trouble(&self, wait: Wait<'_>) -> Option<Cause> {
        self.look(wait, &mut 0)
    }

    /// Makes progress; then why `wait` cannot end well, if that is known. What the peer did that
    /// it waits for is visible afterwards, if it left.
    pub(crate) fn progress_or_trouble(&self, wait: Wait<'_>) -> Option<Cause> {
        // Another call looks at others.
        let mut looks = self.looks.fetch_add(LOOKS, Relaxed);
        let Some(cause) = self.look(wait, &mut looks) else {
            self.progress_in_passing();
            return None;
        };
        let mark = self.mark_of(cause);
        let handled = (0..ROUNDS).any(|_| {
            self.progress_in_passing();
            self.is_all_handled(mark)
        });
        handled.then_some(cause)
    }

    fn look(&self, wait: Wait<'_>, looks: &mut usize) -> Option<Cause> {
        let first = *looks;
        *looks = first.wrapping_add(LOOKS);
        if self.has_left() {
            return Some(Cause::Left);
        }
        // Before asking which rank failed: a peer that left because of that has said so first.
        let gone = match wait.on {
            On::Peer(peer) => self.gone(peer),
            // A member that gave up said so before it left.
            On::Member(peer, in_vain) => in_vain().or_else(|| self.gone(peer)),
            On::Named(named) => named(first / LOOKS).and_then(|peer| {
                // It may have done its part between the two looks.
                self.gone(peer).filter(|_| named(first / LOOKS) == Some(peer))
            }),
            On::All(group, in_vain) => {
                self.look_at_some(group, first);
                let left =
                    |peer: &WorldRank| self.transport.members.told(*peer) != PeerState::Alive;
                group.members().find(left).map(Cause::PeerLeft).or_else(in_vain)
            }
            On::Holders(group, home) => {
                self.look_at_some(group, first);
                let holds =
                    |peer: &WorldRank| self.transport.members.told(*peer) == PeerState::Holding;
                let holder = group.members().find(holds).map(Cause::PeerLeft);
                holder.or_else(|| home.and_then(|home| self.gone(home)))
            }
            On::AnyOf(group) => {
                self.look_at_some(group, first);
                self.last_of(group)
            }
        };
        self.transport.members.failed().map(Cause::PeerFailed).or(gone)
    }

    /// If all other members have left: the one that was seen to do so last, so that all that they
    /// sent lies below its mark.
    fn last_of(&self, group: &Group) -> Option<Cause> {
        let own = self.transport.job.rank;
        let others = || group.members().filter(|peer| *peer != own);
        if others().any(|peer| self.transport.members.told(peer) == PeerState::Alive) {
            return None;
        }
        others().map(Cause::PeerLeft).max_by_key(|cause| self.mark_of(*cause))
    }

    /// Asks the system about members in turn: a process that was killed tells no rank. The rank
    /// that finds out tells all.
    fn look_at_some(&self, group: &Group, first: usize) {
        let size = group.size();
        for i in 0..LOOKS.min(size as usize) {
            let rank = Rank((first.wrapping_add(i) % size as usize) as u32);
            if let Some(peer) =
                group.world_rank(rank).filter(|peer| *peer != self.transport.job.rank)
            {
                _ = self.transport.members.peer_state(peer);
            }
        }
    }

    /// Whether another process has left, and all that it sent before is handled.
    pub(crate) fn is_all_heard(&self, peer: WorldRank) -> bool {
        self.gone(peer).is_some_and(|cause| self.is_all_handled(self.mark_of(cause)))
    }

    /// How another process left, if it did.
    pub(crate) fn gone(&self, peer: WorldRank) -> Option<Cause> {
        if peer == self.transport.job.rank {
            return None;
        }
        match self.transport.members.peer_state(peer) {
            PeerState::Alive => None,
            PeerState::Departed | PeerState::Holding => Some(Cause::PeerLeft(peer)),
            PeerState::Failed => Some(Cause::PeerFailed(peer)),
        }
    }

    fn time_left(&self, wait: Wait<'_>, deadline: &mut Option<Duration>) -> Option<Duration> {
        let limit = self.config.wait_timeout;
        limit.or(wait.until)?;
        let now = self.transport.sleep.now();
        let limit = limit.map(|limit| *deadline.get_or_insert(now.saturating_add(limit)));
        let end = limit.into_iter().chain(wait.until).min();
        end.map(|end| end.saturating_sub(now))
    }
}
