//! Where all ranks of a window meet: the barrier of fences, and what they agree on.
use crate::collective::{Inner, Turn, near};
use crate::engine::{WaitError, grant};
use crate::error::{CollectiveError, RmaError};
use crate::memory::control_block::{Agreement, ControlBlock};
use crate::rank::Rank;
use crate::window::{Window, kind};
use core::sync::atomic::Ordering::Relaxed;

/// The only barrier of windows, as errors name it.
const FENCE: &str = "a fence";

impl Window {
    /// Waits until every rank has come here, having given its window away; answers with the lowest
    /// rank that refuses, if any. What becomes of memory rests on this: the words are used for
    /// nothing else. S-A9
    pub(crate) fn agree(&self, on: Agreement, refuse: bool) -> Result<Option<Rank>, RmaError> {
        let (window, what) = (self.id(), on.name());
        grant::wait(None);
        if !self.together {
            let (mine, on) = (if refuse { self.rank() } else { Rank::NULL }, on as u32);
            let lower = |a: [u32; 4], b: [u32; 4]| [0, 1, 2, 3].map(|i| a[i].min(b[i]));
            let all = self.part.comm.agree(kind::END, [mine.0, on, !on, 0], lower);
            let all = all.map_err(|error| self.collective_failed(what, error))?;
            // Some want to free it, some to seal it.
            let differ = (all[1] != !all[2]).then_some(Rank(0));
            return Ok(Some(Rank(all[0])).filter(|rank| *rank != Rank::NULL).or(differ));
        }
        let (agreed, before) = (&self.agreements[on as usize], self.before.agreements[on as usize]);
        let count = agreed.load(Relaxed) + 1;
        let first = self.first_block()?;
        if refuse {
            first.refuse(window.0, on, count, self.rank());
        }
        let comm = &*self.part.comm.inner;
        near::by_count(comm, count, first.agreements(on), before)
            .map_err(|error| self.wait_failed(WaitError { what, ..error }))?;
        agreed.store(count, Relaxed);
        Ok(first.refused(window.0, on, count))
    }

    /// Waits until every rank has come here. Threads of this rank come one after the other. After
    /// an error this rank cannot come again: others may have passed because it had come. S-C4 S-C9
    pub(crate) fn barrier(&self) -> Result<(), RmaError> {
        self.barrier_and_turn().map(drop)
    }

    /// As [`barrier`](Self::barrier), and then no thread of this rank comes to one before the turn
    /// is dropped.
    #[inline]
    pub(super) fn barrier_and_turn(&self) -> Result<Turn<'_>, RmaError> {
        let failed = |error| self.collective_failed(FENCE, error);
        let comm = &self.part.comm;
        let turn = comm.turn(FENCE).map_err(failed)?;
        if self.together {
            comm.inner.check_step(FENCE).map_err(failed)?;
            self.meet(&comm.inner).inspect_err(|_| comm.inner.lose_step(FENCE))?;
        } else {
            comm.barrier_in(FENCE, &turn).map_err(failed)?;
        }
        Ok(turn)
    }

    /// As [`barrier`](Self::barrier), in shared memory, for the thread whose turn it is.
    fn meet(&self, comm: &Inner) -> Result<(), RmaError> {
        let count = self.barriers.load(Relaxed) + 1;
        let failed = |error| self.wait_failed(WaitError { what: FENCE, ..error });
        if comm.engine.transport.sleep.is_crowded() {
            let arrivals = self.first_block()?.arrivals();
            near::by_count(comm, count, arrivals, self.before.arrivals).map_err(failed)?;
        } else {
            let mine = self.part.block.get();
            near::by_flags(comm, count, mine, |_, rank| self.block_of(rank), failed)?;
        }
        self.barriers.store(count, Relaxed);
        Ok(())
    }

    /// That of rank 0, on which all ranks are counted: without it, this rank takes no part.
    fn first_block(&self) -> Result<ControlBlock<'_>, RmaError> {
        self.block_of(Rank(0)).inspect_err(|_| self.part.comm.inner.give_up())
    }

    pub(super) fn collective_failed(&self, what: &'static str, error: CollectiveError) -> RmaError {
        let window = self.id();
        match error {
            CollectiveError::PeerFailed { world, .. } => {
                RmaError::PeerFailed { window, world, what }
            }
            CollectiveError::PeerLeft { world, .. } => RmaError::PeerLeft { window, world, what },
            CollectiveError::Import(error) => self.import_failed(error),
            CollectiveError::Left { .. } => RmaError::Left { window },
            CollectiveError::GaveUp { world, .. } => {
                RmaError::Collective { window, error: CollectiveError::GaveUp { what, world } }
            }
            CollectiveError::Timeout { .. } => RmaError::Timeout { window, what },
            CollectiveError::OutOfStep { .. } => RmaError::OutOfStep { window, what },
            error => RmaError::Collective { window, error },
        }
    }
}
