//! A transfer: what is posted, and what happens to it step by step.

use rma_core::transport::{Atomic, DeviceError, RemoteKey, There, WorldRank};

use crate::dma::Lent;
use crate::queue::{QueueId, Waiting};

/// What a transfer does at its peer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Work {
    Put,
    Get,
    Atomic {
        atomic: Atomic,
        count: usize,
    },
    /// Nothing: it comes back once what was posted before has happened.
    Flush,
}

/// A transfer to be posted.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) id: u64,
    pub(crate) work: Work,
    /// Bytes at the peer.
    pub(crate) len: usize,
    /// What is read here.
    pub(crate) from: Option<Lent>,
    /// Where the bytes that come back go.
    pub(crate) into: Option<Lent>,
    pub(crate) there: There,
}

/// What happens next to a transfer.
#[derive(Debug)]
pub(crate) enum Step {
    /// The origin's bytes are read.
    Read(Lent),
    /// It happens at the peer, with these bytes.
    Arrive(Vec<u8>),
    /// It is complete, with these bytes.
    Return(Result<Vec<u8>, DeviceError>),
}

/// A transfer that is under way.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) queue: QueueId,
    pub(crate) id: u64,
    /// Place in the order of posts.
    pub(crate) posted: u64,
    pub(crate) work: Work,
    pub(crate) len: usize,
    pub(crate) into: Option<Lent>,
    pub(crate) there: There,
    pub(crate) step: Step,
    /// A put whose completion is told when the peer has it, not when it is read.
    pub(crate) acknowledged: bool,
    /// Complete: it is put, and its origin has nothing to do with it any more.
    pub(crate) told: bool,
    /// Whether it goes on without its origin, once it is cut off.
    pub(crate) survives: bool,
    pub(crate) cut_off: bool,
}

impl Flight {
    /// A flush that comes back, with what there is to tell.
    pub(crate) fn flush(queue: QueueId, peer: u32, flush: Waiting) -> Self {
        let Waiting { id, posted, error } = flush;
        let there = There { peer: WorldRank(peer), key: RemoteKey([0; RemoteKey::LEN]), at: 0 };
        Self {
            queue,
            id,
            posted,
            work: Work::Flush,
            len: 0,
            into: None,
            there,
            step: Step::Return(error.map_or(Ok(Vec::new()), Err)),
            acknowledged: false,
            told: false,
            survives: false,
            cut_off: false,
        }
    }

    pub(crate) const fn rank(&self) -> u32 {
        self.queue.0
    }

    pub(crate) const fn peer(&self) -> u32 {
        self.there.peer.0
    }

    /// For the trace.
    pub(crate) const fn digest(&self) -> [u64; 3] {
        let step = match self.step {
            Step::Read(_) => 0,
            Step::Arrive(_) => 1,
            Step::Return(Ok(_)) => 2,
            Step::Return(Err(_)) => 3,
        };
        [self.peer() as u64, self.posted, step]
    }
}
