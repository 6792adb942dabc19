//! Targets that only messages reach: what is known of them, and waiting for answers.
use super::queried::QueriedTargets;
use super::{Ungranted, Window};
use crate::config::Hint;
use crate::engine::{Losses, Pending};
use crate::error::RmaError;
use crate::memory::target::held;
use crate::operation::Operation;
use crate::protocol::message::Card;
use crate::rank::{Rank, WorldRank};
use crate::thread;
use crate::window::ADDRESSES;
use crate::window::order::{Touched, Unanswered};
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

/// What this rank knows of far targets.
pub(crate) struct Far {
    /// Size and unit of every target, where they are the same.
    pub(crate) symmetric: Option<(u64, u32)>,
    /// How many locks were asked for that no thread has seen granted.
    ungranted: AtomicUsize,
    state: Mutex<FarState>,
    /// Targets that were asked by operations that did not wait for the answer.
    pub(super) queried: QueriedTargets,
}

#[derive(Default)]
struct FarState {
    /// What other targets said of their parts, or of regions, by where these begin; the oldest is
    /// forgotten first.
    known: BTreeMap<(Rank, u64), Card>,
    order: VecDeque<(Rank, u64)>,
    /// What a flush of a target waits for: its puts and accumulates, and gets that a request owns.
    pending: FxHashMap<Rank, Outstanding>,
    /// How this rank may operate on targets, where it may.
    held: FxHashMap<Rank, u16>,
    /// Slots of the requests by which this rank was granted locks.
    granted: FxHashMap<Rank, u64>,
    /// Locks that have guards already.
    ungranted: FxHashMap<Rank, Arc<Ungranted>>,
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
    pub(crate) losses: Losses,
    /// What they are counted in.
    pub(crate) puts: Arc<Pending>,
    pub(crate) places: Places,
}

/// Regions that something was put to, by where they begin; or the part, which begins at 0.
#[derive(Default)]
pub(crate) struct Places {
    last: u64,
    others: BTreeSet<u64>,
}

impl Places {
    pub(crate) fn new(place: u64) -> Self {
        Self { last: place, others: BTreeSet::new() }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u64> {
        let others = self.others.iter().copied().filter(|place| *place != self.last);
        core::iter::once(self.last).chain(others)
    }

    /// Mostly the same again.
    fn add(&mut self, place: u64) {
        if self.last != place {
            self.others.insert(core::mem::replace(&mut self.last, place));
        }
    }
}

/// A flush of what the device has put at a target.
pub(crate) struct Flushing<'w> {
    window: &'w Window,
    target: Rank,
    /// What is not made sure of yet: the next flush tries again.
    pub(crate) unflushed: Vec<Unflushed>,
    over: Arc<Pending>,
}

impl Drop for Flushing<'_> {
    fn drop(&mut self) {
        let mut state = self.window.far.state();
        let outstanding = state.pending.entry(self.target).or_default();
        outstanding.flushing = None;
        for Unflushed { queue, losses, puts, places } in self.unflushed.drain(..) {
            let its = &mut outstanding.unflushed((queue, losses), &puts, places.last).places;
            places.iter().for_each(|place| its.add(place));
        }
        drop(state);
        self.over.release();
        let transport = &self.window.engine().transport;
        transport.sleep.ring(transport.job.rank);
    }
}

impl FarState {
    /// What is remembered that [`Window::card_of`] asks for, and where it begins.
    fn card(&self, target: Rank, address: u64) -> Option<((Rank, u64), Card)> {
        if address == 0 {
            return self.known.get(&(target, 0)).map(|card| ((target, 0), *card));
        }
        let below = self.known.range((target, 0)..=(target, address)).next_back();
        below.map(|(key, card)| (*key, *card)).filter(|(_, card)| card.has(address, 1))
    }

    /// Remembers `most` at most.
    fn learn(&mut self, key: (Rank, u64), card: Card, most: u64) {
        if self.known.insert(key, card).is_none() {
            self.order.push_back(key);
        }
        if self.order.len() as u64 > most {
            let oldest = self.order.pop_front();
            oldest.map(|oldest| self.known.remove(&oldest));
        }
    }
}

impl Outstanding {
    /// Whether no flush has anything to wait for, or to tell. S-F5
    fn is_over(&self) -> bool {
        self.puts.iter().all(|puts| puts.is_over())
            && self.others.is_empty()
            && self.unflushed.is_empty()
            && self.flushing.is_none()
    }

    /// Those puts of that queue: one entry for each queue and thread, with the earlier count.
    fn unflushed(
        &mut self,
        (queue, losses): (u32, Losses),
        puts: &Arc<Pending>,
        place: u64,
    ) -> &mut Unflushed {
        let same = |it: &Unflushed| it.queue == queue && Arc::ptr_eq(&it.puts, puts);
        let at = self.unflushed.iter().position(same).unwrap_or_else(|| {
            let (puts, places) = (puts.clone(), Places::new(place));
            self.unflushed.push(Unflushed { queue, losses, puts, places });
            self.unflushed.len() - 1
        });
        let its = &mut self.unflushed[at];
        its.losses = its.losses.min(losses);
        its
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
            let transport = &self.window.engine().transport;
            transport.sleep.ring(transport.job.rank);
        }
    }
}

impl Far {
    pub(crate) fn new(symmetric: Option<(u64, u32)>) -> Self {
        let (state, queried) = (Mutex::default(), QueriedTargets::default());
        Self { symmetric, ungranted: AtomicUsize::new(0), state, queried }
    }

    fn state(&self) -> MutexGuard<'_, FarState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn held(&self, target: Rank) -> u16 {
        self.state().held.get(&target).copied().unwrap_or(held::NOT)
    }

    pub(crate) fn set_held(&self, target: Rank, how: u16) {
        let mut state = self.state();
        if how == held::NOT {
            state.held.remove(&target);
        } else {
            state.held.insert(target, how);
        }
    }

    /// As [`set_held`](Self::set_held), unless the target is held: of several threads, one does.
    pub(crate) fn claim(&self, target: Rank, how: u16) -> bool {
        let mut state = self.state();
        let free = !state.held.contains_key(&target);
        if free {
            state.held.insert(target, how);
        }
        free
    }

    pub(crate) fn add_granted(&self, key: Rank, slot: u64) {
        self.state().granted.insert(key, slot);
    }

    pub(crate) fn take_granted(&self, key: Rank) -> Option<u64> {
        self.state().granted.remove(&key)
    }

    /// Operations under the lock of that target wait for its grant from now on.
    pub(crate) fn add_ungranted(&self, ungranted: Arc<Ungranted>) {
        if self.state().ungranted.insert(ungranted.target, ungranted).is_none() {
            self.ungranted.fetch_add(1, Relaxed);
        }
    }

    /// The lock of a target that was asked for, unless it was seen granted.
    #[inline]
    pub(crate) fn ungranted(&self, target: Rank) -> Option<Arc<Ungranted>> {
        // A thread that has the guard from another one sees what that one did.
        if self.ungranted.load(Relaxed) == 0 {
            return None;
        }
        self.state().ungranted.get(&target).cloned()
    }

    /// Operations under that lock do not wait any more.
    pub(crate) fn take_ungranted(&self, target: Rank) -> Option<Arc<Ungranted>> {
        let ungranted = self.state().ungranted.remove(&target)?;
        self.ungranted.fetch_sub(1, Relaxed);
        Some(ungranted)
    }

    /// A put of that thread to `target` was given up by this one: a flush of its own is to tell.
    pub(crate) fn add_lost(&self, target: Rank, by: ThreadId) {
        self.state().pending.entry(target).or_default().puts.push(Arc::new(Pending::lost(by)));
    }

    /// Whether a target is held such that others are kept out.
    pub(crate) fn keeps_out(&self) -> bool {
        self.state().held.values().any(|how| held::keeps_out(*how))
    }

    /// Whether a target other than `own` is locked.
    pub(crate) fn any_locked_but(&self, own: Rank) -> bool {
        let locked = |(target, how): (&Rank, &u16)| *target != own && held::is_open(*how);
        self.state().held.iter().any(locked)
    }

    /// Makes a flush of `target` wait for a get.
    pub(crate) fn add_get(&self, target: Rank, get: &Arc<Pending>) {
        self.state().pending.entry(target).or_default().others.add(None, get.clone());
    }

    /// As [`add_get`](Self::add_get), of a get that is the first that this counts, and the last.
    pub(crate) fn add_request(&self, target: Rank, get: &Arc<Pending>) {
        self.state().pending.entry(target).or_default().others.add_new(None, get.clone());
    }

    /// A request to `target` was dropped: it keeps its buffer until it is answered.
    pub(crate) fn set_keeping(&self, target: Rank) {
        if let Some(all) = self.state().pending.get_mut(&target) {
            all.others.set_keeping();
        }
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
    /// thread waits for it too. Puts from now on are the next flush's. S-F1 S-F7
    pub(crate) fn outstanding(&self, target: Rank) -> (Option<Arc<Pending>>, Vec<Arc<Pending>>) {
        let mut state = self.state();
        let Some(Outstanding { puts, others, .. }) = state.pending.get_mut(&target) else {
            return (None, Vec::new());
        };
        if let [mine] = &puts[..]
            && others.is_empty()
            && mine.by() == Some(thread::id())
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

    /// Targets that a flush has something to do at, in the order of their ranks: which it waits for
    /// first is no matter of chance, so that a seed of the simulator decides all. S-F4
    pub(crate) fn flushable(&self) -> Vec<Rank> {
        let state = self.state();
        let some = state.pending.iter().filter(|(_, all)| !all.is_over());
        let mut targets: Vec<Rank> = some.map(|(target, _)| *target).collect();
        targets.sort_unstable();
        targets
    }

    /// A flush of `target` is to make sure that puts are there which that queue was given after it
    /// had lost so many, to what begins at `place`.
    pub(crate) fn add_unflushed(
        &self,
        target: Rank,
        of: (u32, Losses),
        puts: &Arc<Pending>,
        place: u64,
    ) {
        let mut state = self.state();
        state.pending.entry(target).or_default().unflushed(of, puts, place).places.add(place);
    }

    /// Asks again before the next operation.
    pub(crate) fn forget_cards(&self) {
        let mut state = self.state();
        state.known.clear();
        state.order.clear();
        drop(state);
        self.queried.clear();
    }

    /// Asks again before the next operation on the region with the byte at that address.
    pub(crate) fn forget_card(&self, target: Rank, address: u64) {
        let mut state = self.state();
        if let Some((key, _)) = state.card(target, address) {
            state.known.remove(&key);
            state.order.retain(|known| *known != key);
        }
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
    /// Before a put of that thread is sent to `target`.
    pub(crate) fn putting(&self, target: Rank, by: ThreadId) -> Putting<'_> {
        let mut state = self.far.state();
        let Outstanding { puts, others, .. } = state.pending.entry(target).or_default();
        // What has failed is left to the next flush.
        let open = |puts: &&Arc<Pending>| puts.by() == Some(by) && puts.failure().is_none();
        let pending = puts.iter().find(open).cloned().unwrap_or_else(|| {
            let pending = others.take_unused(Some(by));
            let pending = pending.unwrap_or_else(|| Arc::new(Pending::of(by)));
            puts.push(pending.clone());
            pending
        });
        // While the state is locked: a flush leaves what is not done to the next one, too.
        pending.hold();
        Putting { window: self, pending }
    }

    /// Size and displacement unit of a target's part; an operation that does not wait may have to
    /// be tried again. S-G8
    pub(crate) fn part_of(
        &self,
        (target, world): (Rank, WorldRank),
        trying: Option<&Operation<'_>>,
    ) -> Result<(u64, u32), RmaError> {
        if let Some(entry) = self.targets.near(target) {
            let dynamic = self.part.regions.is_some();
            let size = self.peers.get(target).map_or(0, |peer| peer.size);
            return Ok((if dynamic { ADDRESSES } else { size }, entry.disp_unit()));
        }
        if let Some(part) = self.far.symmetric {
            return Ok(part);
        }
        let card = self.card_of((target, world), 0, trying)?;
        Ok((card.size.get(), card.disp_unit.get()))
    }

    /// What a target says of its part, for `address` 0, or of the region with the byte at that
    /// address; asked at most once while it is remembered.
    pub(crate) fn card_of(
        &self,
        (target, world): (Rank, WorldRank),
        address: u64,
        trying: Option<&Operation<'_>>,
    ) -> Result<Card, RmaError> {
        if let Some((_, card)) = self.far.state().card(target, address) {
            return Ok(card);
        }
        let card = match trying {
            None => self.query_card(target, world, address)?,
            Some(operation) => self.try_query_card(operation, world, address)?,
        };
        self.learn_card(target, card);
        Ok(card)
    }

    /// Remembers what a target said.
    pub(crate) fn learn_card(&self, target: Rank, card: Card) {
        let most = self.settings.hints.get(Hint::TargetCache).max(1);
        self.far.state().learn((target, card.start.get()), card, most);
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
}

#[cfg(test)]
#[path = "far_tests.rs"]
mod tests;
