//! Targets that only messages reach: what is known of them, and waiting for answers. S-F1 S-G8
use super::Window;
use super::dynamic::ADDRESSES;
use crate::completion::{Cause, Failure, On, Pending, Wait, WaitError};
use crate::error::RmaError;
use crate::execute::{Touched, Unanswered};
use crate::memory::target::held;
use crate::protocol::message::{Card, Head, Status};
use crate::rank::Rank;
use crate::transport::{ImportError, WorldRank};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::current;

/// What this rank knows of far targets.
pub(crate) struct Far {
    /// Size and unit of every target, where they are the same.
    pub(crate) symmetric: Option<(u64, u32)>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// What other targets said of their parts; the oldest is forgotten first.
    known: FxHashMap<Rank, Card>,
    order: VecDeque<Rank>,
    /// What a flush of a target waits for: its puts and accumulates, and gets that a request owns.
    pending: FxHashMap<Rank, Outstanding>,
    /// How this rank may operate on targets, where it may.
    held: FxHashMap<Rank, u32>,
    /// Slots of the requests by which this rank was granted locks.
    granted: FxHashMap<Rank, u64>,
}

#[derive(Default)]
struct Outstanding {
    /// Since the last flush, those of each thread together.
    puts: Vec<Arc<Pending>>,
    /// Those before it, gets and accumulates.
    others: Unanswered,
    /// What the device has put since the last flush.
    unflushed: Vec<Unflushed>,
    /// That flush, while it lasts.
    flushing: Option<Arc<Pending>>,
}

/// Puts of one thread that a queue of the device has to flush.
pub(crate) struct Unflushed {
    /// Its bit.
    pub(crate) queue: u32,
    /// What it had lost when the first of them returned.
    pub(crate) losses: u64,
    /// What they are counted in.
    pub(crate) puts: Arc<Pending>,
}

/// A flush of what the device has put at a target.
pub(crate) struct Flushing<'w> {
    window: &'w Window,
    target: Rank,
    /// What nobody has made sure of yet: the next flush tries again.
    pub(crate) unflushed: Vec<Unflushed>,
    over: Arc<Pending>,
}

impl Drop for Flushing<'_> {
    fn drop(&mut self) {
        let mut state = self.window.far.state();
        let outstanding = state.pending.entry(self.target).or_default();
        outstanding.flushing = None;
        self.unflushed.drain(..).for_each(|it| outstanding.add_unflushed(it));
        drop(state);
        self.over.release();
        let transport = &self.window.process().transport;
        transport.sleep.ring(transport.job.rank);
    }
}

impl Outstanding {
    /// Whether no flush has anything to wait for, or to tell.
    fn is_over(&self) -> bool {
        self.puts.iter().all(|puts| puts.is_over())
            && self.others.is_empty()
            && self.unflushed.is_empty()
            && self.flushing.is_none()
    }

    /// One entry for each queue and thread, with the earlier count.
    fn add_unflushed(&mut self, new: Unflushed) {
        let same = |it: &&mut Unflushed| it.queue == new.queue && Arc::ptr_eq(&it.puts, &new.puts);
        match self.unflushed.iter_mut().find(same) {
            Some(it) => it.losses = it.losses.min(new.losses),
            None => self.unflushed.push(new),
        }
    }
}

/// What counts a put: until the value is dropped it is not done.
pub(crate) struct Putting<'w> {
    window: &'w Window,
    pub(crate) pending: Arc<Pending>,
}

impl Drop for Putting<'_> {
    fn drop(&mut self) {
        if self.pending.release() {
            // A flush of another thread may have gone to sleep.
            let transport = &self.window.process().transport;
            transport.sleep.ring(transport.job.rank);
        }
    }
}

impl Far {
    pub(crate) fn new(symmetric: Option<(u64, u32)>) -> Self {
        Self { symmetric, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn held(&self, target: Rank) -> u32 {
        self.state().held.get(&target).copied().unwrap_or(held::NOT)
    }

    pub(crate) fn set_held(&self, target: Rank, how: u32) {
        let mut state = self.state();
        if how == held::NOT {
            state.held.remove(&target);
        } else {
            state.held.insert(target, how);
        }
    }

    /// As [`set_held`](Self::set_held), unless the target is held: of several threads, one does.
    pub(crate) fn claim(&self, target: Rank, how: u32) -> bool {
        let mut state = self.state();
        let free = !state.held.contains_key(&target);
        if free {
            state.held.insert(target, how);
        }
        free
    }

    pub(super) fn add_granted(&self, key: Rank, slot: u64) {
        self.state().granted.insert(key, slot);
    }

    pub(super) fn take_granted(&self, key: Rank) -> Option<u64> {
        self.state().granted.remove(&key)
    }

    /// Whether a target is held such that others are kept out.
    pub(crate) fn keeps_out(&self) -> bool {
        self.state().held.values().any(|how| held::keeps_out(*how))
    }

    /// Whether a target other than `own` is locked.
    pub(crate) fn any_locked_but(&self, own: Rank) -> bool {
        let locked = |(target, how): (&Rank, &u32)| *target != own && held::is_open(*how);
        self.state().held.iter().any(locked)
    }

    /// Makes a flush of `target` wait for a get.
    pub(crate) fn add_get(&self, target: Rank, get: &Arc<Pending>) {
        self.state().pending.entry(target).or_default().others.add(None, get.clone());
    }

    /// Whether nothing is outstanding.
    pub(crate) fn is_idle(&self) -> bool {
        let idle = |all: &Outstanding| {
            let puts = all.puts.iter().all(|puts| puts.is_done());
            puts && all.others.is_idle() && all.unflushed.is_empty() && all.flushing.is_none()
        };
        self.state().pending.values().all(idle)
    }

    /// What a flush of `target` waits for. It stays here until it is over: a flush of another
    /// thread waits for it too. Puts from now on are the next flush's.
    fn outstanding(&self, target: Rank) -> (Option<Arc<Pending>>, Vec<Arc<Pending>>) {
        let mut state = self.state();
        let Some(Outstanding { puts, others, .. }) = state.pending.get_mut(&target) else {
            return (None, Vec::new());
        };
        if let [mine] = &puts[..]
            && others.is_empty()
            && mine.by() == Some(current().id())
        {
            // In this order: whether it has failed is known when it is done.
            let done = mine.is_done();
            if mine.failure().is_none() {
                // It ends, though it stays here: this thread puts nothing meanwhile.
                return ((!done).then(|| mine.clone()), Vec::new());
            }
        }
        puts.drain(..).for_each(|puts| others.add(None, puts));
        others.flush()
    }

    /// A flush of `target` is to make sure that these puts are there.
    pub(crate) fn add_unflushed(&self, target: Rank, puts: Unflushed) {
        self.state().pending.entry(target).or_default().add_unflushed(puts);
    }

    /// Asks again before the next operation.
    pub(crate) fn forget_cards(&self) {
        let mut state = self.state();
        state.known.clear();
        state.order.clear();
    }

    /// Makes a flush of `target` wait for an accumulate, and later ones on the same bytes.
    pub(crate) fn add_accumulate(&self, target: Rank, touched: Touched, pending: &Arc<Pending>) {
        self.state().pending.entry(target).or_default().others.add(Some(touched), pending.clone());
    }

    /// Unanswered accumulates that `next` must not overtake.
    pub(crate) fn accumulates_before(
        &self,
        target: Rank,
        next: &Touched,
        ordering: u32,
    ) -> Vec<Arc<Pending>> {
        let state = self.state();
        let before = |all: &Outstanding| all.others.before(next, ordering);
        state.pending.get(&target).map_or_else(Vec::new, before)
    }
}

impl Window {
    /// Before a put is sent to `target`.
    pub(crate) fn putting(&self, target: Rank) -> Putting<'_> {
        let mut state = self.far.state();
        let Outstanding { puts, others, .. } = state.pending.entry(target).or_default();
        let me = Some(current().id());
        // What has failed is left to the next flush.
        let mine = puts.iter().find(|puts| puts.by() == me && puts.failure().is_none()).cloned();
        let pending = mine.unwrap_or_else(|| {
            let pending = others.take_unused(me);
            let pending = pending.unwrap_or_else(|| Arc::new(Pending::of_this_thread()));
            puts.push(pending.clone());
            pending
        });
        // While the state is locked: a flush leaves what is not done to the next one, too.
        pending.hold();
        Putting { window: self, pending }
    }

    /// Size and displacement unit of a target's part.
    pub(crate) fn part_of(&self, target: Rank, world: WorldRank) -> Result<(u64, u32), RmaError> {
        if let Some(entry) = self.targets.near(target) {
            let dynamic = self.part.regions.is_some();
            let size = self.peers.get(target).map_or(0, |peer| peer.size);
            return Ok((if dynamic { ADDRESSES } else { size }, entry.disp_unit()));
        }
        if let Some(part) = self.far.symmetric {
            return Ok(part);
        }
        let card = self.card_of(target, world)?;
        Ok((card.size.get(), card.disp_unit.get()))
    }

    /// What a target says of its part, asked at most once while it is remembered.
    pub(crate) fn card_of(&self, target: Rank, world: WorldRank) -> Result<Card, RmaError> {
        let known = self.far.state().known.get(&target).copied();
        if let Some(card) = known {
            return Ok(card);
        }
        let card = self.ask_card(target, world)?;
        let mut state = self.far.state();
        if state.known.insert(target, card).is_none() {
            state.order.push_back(target);
        }
        if state.order.len() > self.process().config.target_cache.max(1) {
            let oldest = state.order.pop_front();
            oldest.map(|oldest| state.known.remove(&oldest));
        }
        Ok(card)
    }

    /// Begins a flush of what the device has put at a target, if there is anything; flushes of
    /// other threads wait until the value is dropped.
    ///
    /// # Errors
    ///
    /// Another thread is at it: what is done when that is over.
    pub(crate) fn begin_flush(&self, target: Rank) -> Result<Option<Flushing<'_>>, Arc<Pending>> {
        let mut state = self.far.state();
        let Some(outstanding) = state.pending.get_mut(&target) else { return Ok(None) };
        if let Some(over) = &outstanding.flushing {
            return Err(over.clone());
        }
        if outstanding.unflushed.is_empty() {
            return Ok(None);
        }
        let unflushed = core::mem::take(&mut outstanding.unflushed);
        let over = Arc::<Pending>::default();
        over.hold();
        outstanding.flushing = Some(over.clone());
        Ok(Some(Flushing { window: self, target, unflushed, over }))
    }

    /// Sends a question with one value as its answer, and waits for that.
    pub(crate) fn ask(
        &self,
        what: &'static str,
        target: Rank,
        world: WorldRank,
        head: Head,
        body: &[u8],
    ) -> Result<u64, RmaError> {
        let pending = Arc::<Pending>::default();
        let wait = self.wait_for(what, target);
        self.issue(wait, world, head, body, &pending)?;
        self.drain(what, target, &pending)?;
        Ok(pending.value())
    }

    /// Waits until `pending` is done; if that fails, takes its buffers back.
    pub(crate) fn drain(
        &self,
        what: &'static str,
        target: Rank,
        pending: &Arc<Pending>,
    ) -> Result<(), RmaError> {
        let process = self.process();
        let debtor = |turn: usize| {
            let answers = process.slots.debtor(pending, turn / 2);
            let transfers = process.queues.debtor(pending, turn / 2);
            if turn.is_multiple_of(2) { answers.or(transfers) } else { transfers.or(answers) }
        };
        let wait = Wait { what, on: On::Whoever(&debtor), recheck: None, until: None };
        let done = || pending.is_done().then_some(());
        // wait: answer
        if let Err(error) = process.wait_until(wait, done) {
            process.cancel(pending);
            pending.set_told();
            return Err(self.wait_failed(error));
        }
        self.check_failure(what, target, pending)
    }

    /// Waits until every operation on `target` that was issued before is done there.
    #[cold]
    #[inline(never)]
    pub(crate) fn flush_far_cold(&self, target: Rank) -> Result<(), RmaError> {
        self.flush_local(target)?;
        let flushed = self.flush_device(target);
        let (first, others) = self.far.outstanding(target);
        let all = first.iter().chain(&others);
        flushed.and(each(all.map(|pending| self.drain("a flush", target, pending))))
    }

    /// As [`flush_far_cold`](Self::flush_far_cold), of all targets.
    pub(crate) fn flush_far_all(&self) -> Result<(), RmaError> {
        let state = self.far.state();
        let some = state.pending.iter().filter(|(_, all)| !all.is_over());
        let mut targets: Vec<Rank> = some.map(|(target, _)| *target).collect();
        drop(state);
        // Whom to wait for first is no matter of chance: a seed of the simulator decides all.
        targets.sort_unstable();
        each(targets.into_iter().map(|target| self.flush_far_cold(target)))
    }

    /// `target` may be null, where `pending` counts operations to several.
    fn check_failure(
        &self,
        what: &'static str,
        target: Rank,
        pending: &Pending,
    ) -> Result<(), RmaError> {
        let Some(failure) = pending.failure() else { return Ok(()) };
        pending.set_told();
        if let Failure::Device(error, peer) = failure {
            let target = self.group().rank_of(peer).unwrap_or(target);
            return Err(self.device_failed(target, error));
        }
        let Failure::Answered(status, by) = failure else {
            // The flush of another thread gave up, and cancelled everything that it waited for.
            let wait = self.wait_for(what, target);
            let cause = self.process().trouble(wait).unwrap_or(Cause::Timeout);
            return Err(self.wait_failed(self.process().given_up(wait, cause)));
        };
        if status == Status::HolderLeft {
            let wait = Wait { what, on: On::Peer(by), recheck: None, until: None };
            return Err(self.wait_failed(self.process().given_up(wait, Cause::PeerLeft(by))));
        }
        let target = self.group().rank_of(by).unwrap_or(target);
        // It gave the window up before it left, or because of somebody who failed.
        let wait = self.wait_for(what, target);
        if status == Status::Freed
            && let Some(cause) = self.process().trouble(wait)
        {
            return Err(self.wait_failed(self.process().given_up(wait, cause)));
        }
        match status {
            Status::Ok => Ok(()),
            Status::OutOfRange if self.part.regions.is_some() => {
                Err(RmaError::NotAttached { window: self.id(), target, range: None })
            }
            Status::Misaligned => Err(RmaError::MisalignedThere { window: self.id(), target }),
            // The range was checked here against what the target said: it has another window now.
            Status::Freed
            | Status::OutOfRange
            | Status::Malformed
            | Status::HolderLeft
            | Status::Busy => Err(RmaError::Freed { window: self.id(), target }),
        }
    }

    /// A peer's memory was not mapped, perhaps because the peer is gone.
    pub(crate) fn import_failed(&self, error: ImportError) -> RmaError {
        let ImportError::PeerGone(peer) = error else {
            return RmaError::Import { window: self.id(), error };
        };
        // Who went without a word has failed, whether that has been noticed otherwise or not.
        // A peer that left because another failed has said so first.
        let failed = self.process().transport.members.failed().map(Cause::PeerFailed);
        let cause = failed.or_else(|| self.process().gone(peer));
        let cause = cause.unwrap_or(Cause::PeerFailed(peer));
        let wait = Wait {
            what: "mapping a peer's memory",
            on: On::Peer(peer),
            recheck: None,
            until: None,
        };
        self.wait_failed(self.process().given_up(wait, cause))
    }

    /// The error of a window that a wait ended in; whoever ended that wait, the launcher hears whom
    /// this rank missed.
    pub(crate) fn wait_failed(&self, WaitError { what, cause }: WaitError) -> RmaError {
        let window = self.id();
        self.process().misses(cause);
        match cause {
            Cause::PeerFailed(world) => RmaError::PeerFailed { window, world, what },
            Cause::PeerLeft(world) => RmaError::PeerLeft { window, world, what },
            Cause::GaveUp(world) => {
                let by = self.group().rank_of(world).unwrap_or(Rank::NULL);
                RmaError::RefusedBy { window, by, asked: what }
            }
            Cause::Left => RmaError::Left { window },
            Cause::Import(error) => RmaError::Import { window, error },
            Cause::Timeout => RmaError::Timeout { window, what },
        }
    }
}

/// Waits for one after the other, and says how the first fared that failed. Others are waited for
/// all the same, unless that would be in vain, or once more as long: the next flush finds them.
fn each(waits: impl Iterator<Item = Result<(), RmaError>>) -> Result<(), RmaError> {
    let mut first = Ok(());
    for waited in waits {
        first = first.and(waited);
        if let Err(RmaError::Timeout { .. } | RmaError::PeerFailed { .. } | RmaError::Left { .. }) =
            waited
        {
            break;
        }
    }
    first
}

#[cfg(test)]
#[path = "far_tests.rs"]
mod tests;
