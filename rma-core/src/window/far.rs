//! Targets that only messages reach: what is known of them, gets, and waiting for answers.
//! S-F1 S-G1 S-G2 S-G8 S-G10
use super::Window;
use super::accumulate_far::{Touched, Unanswered};
use super::choice::Path;
use super::serve::query;
use crate::completion::{Buffer, Cause, Expected, On, Pending, SlotId, Wait, WaitError};
use crate::error::RmaError;
use crate::memory::target::held;
use crate::protocol::message::{Head, Kind, Status};
use crate::rank::Rank;
use crate::transport::{ImportError, WorldRank};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that one slot asks a target for: with the credit, this bounds what is on its way here.
pub(super) const GET_BYTES: usize = 64 << 10;

/// What this rank knows of far targets.
pub(crate) struct Far {
    /// Size and unit of every target, where they are the same.
    pub(super) symmetric: Option<(u64, u32)>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Sizes and units of other targets; the oldest is forgotten first.
    known: HashMap<Rank, (u64, u32)>,
    order: VecDeque<Rank>,
    /// What a flush of a target waits for: its puts and accumulates, and gets that a request owns.
    pending: HashMap<Rank, Outstanding>,
    /// How this rank may operate on targets, where it may.
    held: HashMap<Rank, u32>,
}

#[derive(Default)]
struct Outstanding {
    puts: Arc<Pending>,
    gets: Vec<Arc<Pending>>,
    accumulates: Unanswered,
}

impl Far {
    pub(super) fn new(symmetric: Option<(u64, u32)>) -> Self {
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

    /// Whether a target is held such that others are kept out.
    pub(super) fn keeps_out(&self) -> bool {
        self.state().held.values().any(|how| held::keeps_out(*how))
    }

    /// Whether a target other than `own` is locked.
    pub(crate) fn any_locked_but(&self, own: Rank) -> bool {
        let locked = |(target, how): (&Rank, &u32)| *target != own && held::is_locked(*how);
        self.state().held.iter().any(locked)
    }

    pub(super) fn puts(&self, target: Rank) -> Arc<Pending> {
        self.state().pending.entry(target).or_default().puts.clone()
    }

    /// Makes a flush of `target` wait for a get.
    pub(crate) fn add_get(&self, target: Rank, get: &Arc<Pending>) {
        let mut state = self.state();
        let gets = &mut state.pending.entry(target).or_default().gets;
        gets.retain(|get| !get.is_done());
        gets.push(get.clone());
    }

    /// Whether nothing is outstanding.
    pub(crate) fn is_idle(&self) -> bool {
        let idle = |all: &Outstanding| {
            let gets = all.gets.iter().all(|get| get.is_done());
            all.puts.is_done() && gets && all.accumulates.is_idle()
        };
        self.state().pending.values().all(idle)
    }

    fn outstanding(&self, target: Rank) -> Vec<Arc<Pending>> {
        let mut state = self.state();
        let Some(mut outstanding) = state.pending.remove(&target) else { return Vec::new() };
        let mut all = outstanding.gets;
        all.push(outstanding.puts);
        all.append(&mut outstanding.accumulates.flush());
        if !outstanding.accumulates.is_empty() {
            let accumulates = outstanding.accumulates;
            let kept = Outstanding { accumulates, ..Outstanding::default() };
            state.pending.insert(target, kept);
        }
        all
    }

    /// Makes a flush of `target` wait for an accumulate, and later ones on the same bytes.
    pub(super) fn add_accumulate(&self, target: Rank, touched: Touched, pending: &Arc<Pending>) {
        self.state().pending.entry(target).or_default().accumulates.add(touched, pending);
    }

    /// Unanswered accumulates that `next` must not overtake.
    pub(super) fn accumulates_before(
        &self,
        target: Rank,
        next: &Touched,
        ordering: u32,
    ) -> Vec<Arc<Pending>> {
        let state = self.state();
        let before = |all: &Outstanding| all.accumulates.before(next, ordering);
        state.pending.get(&target).map_or_else(Vec::new, before)
    }
}

impl Window {
    /// A target that is not in the table of near ones: far, null, or none at all. `None` if null.
    pub(super) fn far_target<const LAZY: bool>(
        &self,
        target: Rank,
    ) -> Result<Option<WorldRank>, RmaError> {
        if target == Rank::NULL {
            return Ok(None);
        }
        let world = self.group().world_rank(target).ok_or_else(|| self.no_such_rank(target))?;
        if LAZY && self.held(target) == held::NOT {
            self.admit_cold(target)?;
        }
        Ok(Some(world))
    }

    /// The offset of `len` bytes at `disp`, if they lie inside the target's part.
    pub(super) fn far_offset(
        &self,
        target: Rank,
        world: WorldRank,
        disp: u64,
        len: usize,
    ) -> Result<u64, RmaError> {
        let (size, disp_unit) = self.part_of(target, world)?;
        let offset = disp.checked_mul(u64::from(disp_unit));
        let inside = |offset: &u64| len as u64 <= size.saturating_sub(*offset) && *offset <= size;
        offset.filter(inside).ok_or(RmaError::OutOfRange {
            window: self.id(),
            target,
            disp,
            disp_unit,
            len: len as u64,
            size,
        })
    }

    /// Size and displacement unit of a target's part.
    pub(super) fn part_of(&self, target: Rank, world: WorldRank) -> Result<(u64, u32), RmaError> {
        if let Some(entry) = self.targets.get(target) {
            return Ok((entry.size(), entry.disp_unit()));
        }
        let known = || self.far.state().known.get(&target).copied();
        if let Some(part) = self.far.symmetric.or_else(known) {
            return Ok(part);
        }
        // Two values: the size, then the unit.
        let ask = |which: u64| {
            let mut head = Head::new(Kind::Query, self.id().0, 0);
            head.offset = which.into();
            self.ask("asking for a target's size", target, world, head, &[])
        };
        let unit = ask(query::DISP_UNIT)?;
        let part = (ask(query::SIZE)?, u32::try_from(unit).unwrap_or(u32::MAX));
        let mut state = self.far.state();
        if state.known.insert(target, part).is_none() {
            state.order.push_back(target);
        }
        if state.order.len() > self.process().config.target_cache.max(1) {
            let oldest = state.order.pop_front();
            oldest.map(|oldest| state.known.remove(&oldest));
        }
        Ok(part)
    }

    /// Sends a request, waiting for a slot, for credit at its target and for room.
    ///
    /// # Safety
    ///
    /// As [`Slots::start`](crate::completion::Slots::start).
    #[allow(unsafe_code)]
    pub(super) unsafe fn issue(
        &self,
        wait: Wait<'_>,
        world: WorldRank,
        mut head: Head,
        body: &[u8],
        buffer: Buffer,
        pending: &Arc<Pending>,
    ) -> Result<SlotId, RmaError> {
        let (process, expected) = (self.process(), Expected::of(&head, buffer));
        // SAFETY: forwarded to the caller.
        let start = || unsafe { process.slots.start(world, expected, pending) };
        // Those that keep slots and credit.
        let debtor = |turn| process.slots.debtor(None, turn);
        let place = Wait { on: On::Whoever(&debtor), ..wait };
        // wait: slot
        let slot = process.wait_until(place, start).map_err(|error| self.wait_failed(error))?;
        head.slot = slot.0.into();
        if let Err(error) = process.send(world, &head, body, wait) {
            process.cancel_one(slot);
            return Err(self.wait_failed(error));
        }
        Ok(slot)
    }

    /// Sends a question with one value as its answer, and waits for that.
    #[allow(unsafe_code)]
    pub(super) fn ask(
        &self,
        what: &'static str,
        target: Rank,
        world: WorldRank,
        head: Head,
        body: &[u8],
    ) -> Result<u64, RmaError> {
        let pending = Arc::<Pending>::default();
        let wait = self.wait_for(what, target);
        // SAFETY: no buffer.
        unsafe { self.issue(wait, world, head, body, Buffer::NONE, &pending) }?;
        self.drain(what, target, &pending)?;
        Ok(pending.value())
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn get_far_cold<const LAZY: bool>(
        &self,
        target: Rank,
        disp: u64,
        origin: &mut [u8],
    ) -> Result<(), RmaError> {
        let pending = Arc::default();
        let buffer = Buffer { at: origin.as_mut_ptr(), len: origin.len() };
        // SAFETY: `origin` is borrowed until `drain` returns, which is on every way out.
        #[allow(unsafe_code)]
        let started = unsafe { self.start_get_far_cold::<LAZY>(target, disp, buffer, &pending) };
        started.and(self.drain("a get", target, &pending))
    }

    /// Asks for bytes that will be in `buffer` when `pending` is done. Must be followed by
    /// [`drain`](Self::drain), in success and failure.
    ///
    /// # Safety
    ///
    /// As [`Slots::start`](crate::completion::Slots::start).
    #[cold]
    #[inline(never)]
    #[allow(unsafe_code)]
    pub(crate) unsafe fn start_get_far_cold<const LAZY: bool>(
        &self,
        target: Rank,
        disp: u64,
        buffer: Buffer,
        pending: &Arc<Pending>,
    ) -> Result<(), RmaError> {
        let Some(world) = self.far_target::<LAZY>(target)? else { return Ok(()) };
        let offset = self.far_offset(target, world, disp, buffer.len)?;
        if let Some(direct) = self.direct(target, world, offset, buffer.len)? {
            // SAFETY: the caller vouches for the buffer, and nobody else has it.
            let origin = unsafe { core::slice::from_raw_parts_mut(buffer.at, buffer.len) };
            return direct.read(origin);
        }
        self.counts.add(Path::Messages);
        let wait = self.wait_for("a get", target);
        for start in (0..buffer.len).step_by(GET_BYTES) {
            let len = GET_BYTES.min(buffer.len - start);
            let piece = Buffer { at: buffer.at.wrapping_add(start), len };
            let mut head = Head::new(Kind::Get, self.id().0, 0);
            head.offset = (offset + start as u64).into();
            head.length = (len as u64).into();
            // SAFETY: a part of the buffer that the caller vouches for.
            unsafe { self.issue(wait, world, head, &[], piece, pending) }?;
        }
        Ok(())
    }

    /// Waits until `pending` is done; if that fails, takes its buffers back.
    pub(crate) fn drain(
        &self,
        what: &'static str,
        target: Rank,
        pending: &Arc<Pending>,
    ) -> Result<(), RmaError> {
        let process = self.process();
        let debtor = |turn| process.slots.debtor(Some(pending), turn);
        let wait = Wait { what, on: On::Whoever(&debtor), recheck: None };
        let done = || pending.is_done().then_some(());
        // wait: answer
        if let Err(error) = process.wait_until(wait, done) {
            process.cancel(pending);
            return Err(self.wait_failed(error));
        }
        self.check_status(what, target, pending)
    }

    /// Waits until every put to `target` has arrived.
    #[cold]
    #[inline(never)]
    pub(crate) fn flush_far_cold(&self, target: Rank) -> Result<(), RmaError> {
        if self.far_target::<false>(target)?.is_none() {
            return Ok(());
        }
        // Taken out first: what is issued from now on is another flush's.
        let outstanding = self.far.outstanding(target);
        outstanding.iter().try_for_each(|pending| self.drain("a flush", target, pending))
    }

    /// Waits until every put to any far target has arrived.
    pub(crate) fn flush_far_all(&self) -> Result<(), RmaError> {
        let mut targets: Vec<Rank> = self.far.state().pending.keys().copied().collect();
        // Whom to wait for first is no matter of chance: a seed of the simulator decides all.
        targets.sort_unstable();
        targets.into_iter().try_for_each(|target| self.flush_far_cold(target))
    }

    /// `target` may be null, where `pending` counts operations to several.
    fn check_status(
        &self,
        what: &'static str,
        target: Rank,
        pending: &Pending,
    ) -> Result<(), RmaError> {
        let Some((status, by)) = pending.take_failure() else { return Ok(()) };
        let target = self.group().rank_of(by).unwrap_or(target);
        // It gave the window up before it left.
        if status == Status::Freed
            && let Some(cause) = self.process().gone(by)
        {
            return Err(self.wait_failed(WaitError { what, cause }));
        }
        match status {
            Status::Ok => Ok(()),
            Status::OutOfRange if self.part.regions.is_some() => {
                Err(RmaError::NotAttached { window: self.id(), target, range: None })
            }
            // The range was checked here against what the target said: it has another window now.
            Status::Freed | Status::OutOfRange | Status::Malformed => {
                Err(RmaError::Freed { window: self.id(), target })
            }
        }
    }

    /// A peer's memory was not mapped, perhaps because the peer is gone.
    pub(super) fn import_failed(&self, error: ImportError) -> RmaError {
        let ImportError::PeerGone(peer) = error else {
            return RmaError::Import { window: self.id(), error };
        };
        // Who went without a word has failed, whether that has been noticed otherwise or not.
        let cause = self.process().gone(peer).unwrap_or(Cause::PeerFailed(peer));
        self.wait_failed(WaitError { what: "mapping a peer's memory", cause })
    }

    pub(crate) fn wait_failed(&self, WaitError { what, cause }: WaitError) -> RmaError {
        let window = self.id();
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
