//! The lock of a part where all ranks reach all control words.
use crate::engine::{Asleep, On, Wait};
use crate::error::RmaError;
use crate::memory::control_block::ControlBlock;
use crate::protocol::lock::{self, Acquire, At, Mode, NODES, QueueNode, Release, Step, phase};
use crate::rank::Rank;
use crate::transport::PeerState;
use crate::window::{NodePool, Window};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::time::Duration;

/// Whether others may hold the lock at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LockKind {
    /// Others that hold it shared may.
    Shared,
    /// No others may.
    Exclusive,
}

impl LockKind {
    pub(crate) fn mode(self) -> Mode {
        match self {
            Self::Shared => Mode::Shared,
            Self::Exclusive => Mode::Exclusive,
        }
    }
}

/// How often a thread that is not in line looks again whether the lock is free: no rank wakes it
/// for that.
const RECHECK: Duration = Duration::from_millis(1);

/// How long a rank goes past those in line before it stands there again itself, in nanoseconds: a
/// few times what it takes to wake one of them, so that this is a small part of the time.
const PASSING_NS: u64 = 20_000;

/// What a thread that has to wait for a lock goes on with.
enum TakenNode {
    Node(QueueNode),
    /// The lock became free while all nodes were in use.
    Lock,
}

impl NodePool {
    /// Whether this rank may go past those in line.
    fn may_pass(&self, now: Duration) -> bool {
        // More nanoseconds than 64 bits hold are 500 years.
        let now = now.as_nanos() as u64;
        match self.passing_since_ns.load(Relaxed) {
            0 => self.passing_since_ns.store(now, Relaxed),
            since => return now.wrapping_sub(since) < PASSING_NS,
        }
        true
    }

    /// Takes a free node.
    fn take(&self, mine: ControlBlock<'_>, rank: u32) -> Option<QueueNode> {
        let mut nodes = (0..NODES).filter_map(|index| QueueNode::new(rank, index));
        let node = nodes.find(|node| {
            let word = mine.word(node.phase_word());
            // pairs with the store of FREE by the rank that took it out of a queue.
            word.compare_exchange(phase::FREE, phase::WAITING, SeqCst, SeqCst).is_ok()
        })?;
        self.passing_since_ns.store(0, Relaxed);
        Some(node)
    }
}

impl Window {
    fn mine(&self) -> ControlBlock<'_> {
        self.part.block.get()
    }

    /// A control word, if it is mapped.
    #[inline(always)]
    pub(super) fn control_word(&self, home: At) -> Option<&AtomicU64> {
        Some(self.targets.get(Rank(home.rank))?.block()?.word(home.word))
    }

    /// The state word that takes a mapped lock without a node.
    fn at_once(&self, seen: u64, mode: Mode) -> Option<u64> {
        let rank = self.rank().0;
        let may_pass = || self.nodes.may_pass(self.engine().transport.sleep.now());
        let pass = || lock::pass(seen, mode, rank).filter(|_| may_pass());
        lock::barge(seen, mode, rank).or_else(pass)
    }

    /// Takes the lock at `home` if no holder is in the way and no rank waits for it.
    pub(super) fn try_acquire_at(&self, home: At, mode: Mode) -> Result<bool, RmaError> {
        let state = self.block_of(Rank(home.rank))?.word(home.word);
        let mut seen = state.load(SeqCst);
        while let Some(new) = lock::barge(seen, mode, self.rank().0) {
            match state.compare_exchange(seen, new, SeqCst, SeqCst) {
                Ok(_) => return Ok(true),
                Err(found) => seen = found,
            }
        }
        Ok(false)
    }

    /// Takes the lock at `home`, waiting in line if need be, and until then at most. S-E1 S-E13
    #[cold]
    #[inline(never)]
    pub(super) fn acquire_at(
        &self,
        home: At,
        mode: Mode,
        until: Option<Duration>,
    ) -> Result<(), RmaError> {
        self.reach(Rank(home.rank))?;
        let (rank, mut seen) = (self.rank().0, 0);
        if let Some(state) = self.control_word(home) {
            // Looked at, not tried: callers tried in vain or waited to have it mapped.
            seen = state.load(SeqCst);
            while let Some(new) = self.at_once(seen, mode) {
                match state.compare_exchange(seen, new, SeqCst, SeqCst) {
                    Ok(_) => return Ok(()),
                    Err(found) => seen = found,
                }
            }
        }
        let node = match self.take_node(home, mode, until)? {
            TakenNode::Node(node) => node,
            TakenNode::Lock => return Ok(()),
        };
        let mut acquire = Acquire::new(home, rank, mode, node, seen);
        let mut gave_up = Ok(());
        loop {
            let step = acquire.poll();
            if step == Step::Done {
                return gave_up;
            }
            match self.step_until(step, until) {
                Ok(answer) => acquire.handle(answer),
                Err(error) if matches!(step, Step::Wait { .. }) => {
                    gave_up = Err(error);
                    acquire.abandon(self.step(acquire.abandon_step())?);
                }
                // A peer did not answer, so it is not known what it did: the node is not used
                // again.
                Err(error) if acquire.is_held() => {
                    return self.release_at(home, mode).and(Err(error));
                }
                Err(error) => return gave_up.and(Err(error)),
            }
        }
    }

    /// A wait for the holders of a lock.
    fn wait_for_lock(&self, recheck: Option<Duration>, until: Option<Duration>) -> Wait<'_> {
        Wait { recheck, until, ..self.wait_on("a lock", On::Holders(self.group(), None)) }
    }

    /// Gives the lock at `home` back.
    #[inline(always)]
    pub(super) fn release_at(&self, home: At, mode: Mode) -> Result<(), RmaError> {
        match self.control_word(home) {
            Some(state) => self.release_word(state, home, mode),
            None => self.release_cold(home, mode, lock::uncontended(mode, self.rank().0)),
        }
    }

    /// As [`release_at`](Self::release_at), if that is its word.
    #[inline(always)]
    pub(super) fn release_word(
        &self,
        state: &AtomicU64,
        home: At,
        mode: Mode,
    ) -> Result<(), RmaError> {
        let seen = lock::uncontended(mode, self.rank().0);
        match state.compare_exchange(seen, 0, SeqCst, SeqCst) {
            Ok(_) => Ok(()),
            Err(found) => self.release_cold(home, mode, found),
        }
    }

    #[cold]
    #[inline(never)]
    fn release_cold(&self, home: At, mode: Mode, seen: u64) -> Result<(), RmaError> {
        let mut release = Release::new(home, mode, seen);
        loop {
            match release.poll() {
                Step::Done => return Ok(()),
                step => release.handle(self.step(step)?),
            }
        }
    }

    /// A queue node, or what there is instead.
    fn take_node(
        &self,
        home: At,
        mode: Mode,
        until: Option<Duration>,
    ) -> Result<TakenNode, RmaError> {
        let rank = self.rank().0;
        let wait = self.wait_for_lock(Some(RECHECK), until);
        let barge = || {
            let state = self.control_word(home)?;
            let seen = state.load(SeqCst);
            let new = self.at_once(seen, mode)?;
            state.compare_exchange(seen, new, SeqCst, SeqCst).ok()
        };
        let node = || match self.nodes.take(self.mine(), rank) {
            Some(node) => Some(TakenNode::Node(node)),
            None => barge().map(|_| TakenNode::Lock),
        };
        // wait: node
        self.engine().wait_until(wait, node).map_err(|error| self.wait_failed(error))
    }

    /// Takes the lock at `home` past those in line, as soon as no holder is in the way.
    pub(super) fn acquire_past(
        &self,
        home: At,
        mode: Mode,
        until: Option<Duration>,
    ) -> Result<(), RmaError> {
        let mut asleep = Asleep::default();
        let mut seen = self.step(Step::Load(home))?;
        loop {
            if let Some(new) = lock::barge_past(seen, mode, self.rank().0) {
                let swap = Step::Swap { at: home, old: seen, new, wake: false };
                let found = self.step(swap)?;
                if found == seen {
                    return Ok(());
                }
                seen = found;
                continue;
            }
            // Not in line, so no rank rings: look again after a while.
            let wait = self.wait_for_lock(Some(RECHECK), until);
            // wait: past the queue
            let napped = self.engine().nap(wait, &mut asleep);
            napped.map_err(|error| self.wait_failed(error))?;
            seen = self.step(Step::Load(home))?;
        }
    }

    /// Does one step of a lock's state machine.
    pub(super) fn step(&self, step: Step) -> Result<u64, RmaError> {
        self.step_until(step, None)
    }

    /// As [`step`](Self::step), which waits until then at most.
    fn step_until(&self, step: Step, until: Option<Duration>) -> Result<u64, RmaError> {
        self.step_there(step, until).or_else(|error| {
            // Memory of a rank that has left cannot be mapped any more.
            let Some((rank, answer)) = lock::answer_of_the_gone(step) else { return Err(error) };
            let world = self.part.comm.world_rank(Rank(rank));
            let gone = self.engine().transport.members.told(world) == PeerState::Departed;
            if gone { Ok(answer) } else { Err(error) }
        })
    }

    fn step_there(&self, step: Step, until: Option<Duration>) -> Result<u64, RmaError> {
        let at = match step {
            Step::Load(at) | Step::Wait { at, .. } | Step::Swap { at, .. } => at,
            Step::Store { at, .. } | Step::Set { at, .. } => at,
            Step::Done => return Ok(0),
        };
        let target = Rank(at.rank);
        let word = self.block_of(target)?.word(at.word);
        let answer = match step {
            Step::Load(_) => word.load(SeqCst),
            Step::Swap { old, new, wake, .. } => {
                let swapped = word.compare_exchange(old, new, SeqCst, SeqCst);
                if wake && swapped.is_ok() {
                    self.engine().transport.sleep.ring(self.part.comm.world_rank(target));
                }
                let (Ok(found) | Err(found)) = swapped;
                found
            }
            Step::Set { bits, .. } => word.fetch_or(bits, SeqCst),
            Step::Store { value, .. } => {
                word.store(value, SeqCst);
                0
            }
            Step::Wait { not, .. } => {
                let wait = self.wait_for_lock(None, until);
                let changed = || Some(word.load(SeqCst)).filter(|value| *value != not);
                // wait: queue
                let changed = self.engine().wait_until(wait, changed);
                changed.map_err(|error| self.wait_failed(error))?
            }
            Step::Done => 0,
        };
        Ok(answer)
    }
}
