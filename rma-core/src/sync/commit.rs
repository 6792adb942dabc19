//! Versions of parts whose memory has transactions, as epochs end: of one rank, or of all.
use crate::collective::{Communicator, Turn};
use crate::error::{CollectiveError, RmaError};
use crate::rank::Rank;
use crate::transport::{CommitGroup, PersistError};
use crate::window::Window;
use core::cell::Cell;

/// The agreement of a commit, as errors name it.
const COMMIT: &str = "a commit";

/// What a rank tells before a commit of all: whether it has transactions, or that it has failed.
const PLAIN: u64 = 0;
const TRANSACTIONS: u64 = 1;
const FAILED: u64 = 2;

/// The ranks of a window, as memory with transactions sees them.
struct Ranks<'a> {
    comm: &'a Communicator,
    /// Held until all is told: what a fence of another thread tells is not taken for it.
    turn: Turn<'a>,
    /// The first error of theirs.
    failed: Cell<Option<CollectiveError>>,
}

impl CommitGroup for Ranks<'_> {
    fn rank(&self) -> Rank {
        self.comm.rank()
    }

    fn size(&self) -> u32 {
        self.comm.size()
    }

    fn gather(&self, words: &[u64]) -> Option<Vec<u64>> {
        let failed = |error: CollectiveError| self.failed.set(self.failed.get().or(Some(error)));
        self.comm.allgather_in_turn(COMMIT, &self.turn, words).map_err(failed).ok()
    }
}

impl Window {
    /// Makes this rank's part a version of this rank only, durably; without transactions, makes all
    /// of it durable that can be. Of a dynamic window, each region by itself.
    pub(crate) fn commit_alone(&self) -> Result<(), RmaError> {
        match self.part.memory.transactional() {
            Some(memory) => memory.commit(None).map_err(|error| self.not_committed(error)),
            None if self.part.regions.is_some() => self.commit_regions(),
            None => self.persist_part(),
        }
    }

    /// Meets all ranks, and makes their parts one version, durably, or those durable that can be,
    /// if no rank has transactions; not if one rank is not `ready`. **Collective**, and a barrier.
    pub(crate) fn commit_together(&self, ready: Result<(), RmaError>) -> Result<(), RmaError> {
        let turn = self.barrier_and_turn()?;
        let ranks = Ranks { comm: &self.part.comm, turn, failed: Cell::new(None) };
        let memory = self.part.memory.transactional();
        let ready = ready.and_then(|()| match &memory {
            Some(_) => Ok(TRANSACTIONS),
            // They are of one rank each, and what a flush leaves out is not durable.
            None if self.part.has_versioned_region() => {
                Err(self.not_committed(PersistError::Regions))
            }
            None => self.persist_part().map(|()| PLAIN),
        });
        let all = ranks.gather(&[*ready.as_ref().unwrap_or(&FAILED)]);
        ready?;
        let first = |told| {
            let all = all.iter().flatten();
            (0..).map(Rank).zip(all).find(|(_, one)| **one == told).map(|(rank, _)| rank)
        };
        let done = match (first(FAILED), first(TRANSACTIONS), first(PLAIN), &memory) {
            (Some(rank), ..) => Err(PersistError::Elsewhere { rank, no_space: false }),
            (_, Some(with), Some(without), _) => Err(PersistError::Mixed { with, without }),
            (_, Some(_), None, Some(memory)) => memory.commit(Some(&ranks)),
            _ => Ok(()),
        };
        match ranks.failed.take() {
            Some(error) => Err(self.collective_failed(COMMIT, error)),
            None => done.map_err(|error| self.not_committed(error)),
        }
    }

    fn not_committed(&self, error: PersistError) -> RmaError {
        let (window, rank, end) = (self.id(), self.rank(), self.size());
        RmaError::Persist { window, rank, start: 0, end, error }
    }
}
