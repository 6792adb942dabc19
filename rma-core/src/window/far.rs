//! Targets that only messages reach: what is known of them, and waiting for answers. S-F1 S-G8
use super::Window;
use crate::completion::{Cause, On, Pending, Wait, WaitError};
use crate::error::RmaError;
use crate::execute::{Touched, Unanswered};
use crate::memory::target::held;
use crate::protocol::message::{Head, Kind, Status};
use crate::rank::Rank;
use crate::serve::query;
use crate::transport::{ImportError, WorldRank};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What this rank knows of far targets.
pub(crate) struct Far {
    /// Size and unit of every target, where they are the same.
    pub(crate) symmetric: Option<(u64, u32)>,
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

    /// Whether a target is held such that others are kept out.
    pub(crate) fn keeps_out(&self) -> bool {
        self.state().held.values().any(|how| held::keeps_out(*how))
    }

    /// Whether a target other than `own` is locked.
    pub(crate) fn any_locked_but(&self, own: Rank) -> bool {
        let locked = |(target, how): (&Rank, &u32)| *target != own && held::is_locked(*how);
        self.state().held.iter().any(locked)
    }

    pub(crate) fn puts(&self, target: Rank) -> Arc<Pending> {
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
    pub(crate) fn add_accumulate(&self, target: Rank, touched: Touched, pending: &Arc<Pending>) {
        self.state().pending.entry(target).or_default().accumulates.add(touched, pending);
    }

    /// Unanswered accumulates that `next` must not overtake.
    pub(crate) fn accumulates_before(
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
    /// Size and displacement unit of a target's part.
    pub(crate) fn part_of(&self, target: Rank, world: WorldRank) -> Result<(u64, u32), RmaError> {
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
        self.flush_local(target)?;
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
    pub(crate) fn import_failed(&self, error: ImportError) -> RmaError {
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
