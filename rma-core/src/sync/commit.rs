//! Versions of parts whose memory has transactions, as epochs end: of one rank, or of all.
use crate::collective::Communicator;
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
struct Ranks {
    comm: Communicator,
    /// The first error of theirs.
    failed: Cell<Option<CollectiveError>>,
}

impl CommitGroup for Ranks {
    fn rank(&self) -> Rank {
        self.comm.rank()
    }

    fn size(&self) -> u32 {
        self.comm.size()
    }

    fn gather(&self, words: &[u64]) -> Option<Vec<u64>> {
        let failed = |error: CollectiveError| self.failed.set(self.failed.get().or(Some(error)));
        self.comm.allgather(words).map_err(failed).ok()
    }
}

impl Window {
    /// Makes this rank's part a version of this rank only, durably; without transactions, makes all
    /// of it durable that can be.
    pub(crate) fn commit_alone(&self) -> Result<(), RmaError> {
        match self.part.memory.transactional() {
            Some(memory) => memory.commit(None).map_err(|error| self.not_committed(error)),
            None => self.persist_part(),
        }
    }

    /// Makes the parts of all ranks one version, durably, or those durable that can be, if no rank
    /// has transactions; not if one rank is not `ready`. **Collective**, and a barrier.
    pub(crate) fn commit_together(&self, ready: Result<(), RmaError>) -> Result<(), RmaError> {
        let comm = self.part.comm.runtime(COMMIT);
        let comm = comm.map_err(|error| self.collective_failed(COMMIT, error))?;
        let ranks = Ranks { comm, failed: Cell::new(None) };
        let memory = self.part.memory.transactional();
        let ready = ready.and_then(|()| match &memory {
            Some(_) => Ok(TRANSACTIONS),
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
