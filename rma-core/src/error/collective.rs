//! Errors of collective operations.
use crate::class::ErrorClass;
use crate::element::Op;
use crate::rank::{Rank, WorldRank};
use crate::transport::{AllocateError, ImportError};

crate::debug_as_display!(CollectiveError);

/// Why a collective operation of a communicator failed.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// The root does not exist.
    #[error("{what}: root {root} is not in the communicator; ranks are 0 to {last}")]
    NoSuchRoot {
        /// Operation.
        what: &'static str,
        /// Root.
        root: Rank,
        /// The highest rank there is.
        last: Rank,
    },
    /// Ranks passed different lengths.
    #[error(
        "{what}: rank {from} contributed {got} bytes where this rank expected {expected}; pass \
         the same count everywhere, or use the v variant"
    )]
    LengthMismatch {
        /// Operation.
        what: &'static str,
        /// The rank of the contribution that differs.
        from: Rank,
        /// Bytes expected.
        expected: u64,
        /// Bytes received.
        got: u64,
    },
    /// A count of elements that the operation cannot take.
    #[error("{what}: {got} elements cannot be dealt to {ranks} ranks; pass {rule}")]
    WrongCount {
        /// Operation.
        what: &'static str,
        /// Elements passed.
        got: u64,
        /// Ranks of the communicator.
        ranks: u32,
        /// What is allowed.
        rule: &'static str,
    },
    /// A contribution larger than a message may be.
    #[error("{what}: {bytes} bytes to one rank exceed the limit of {limit}; send it in parts")]
    TooLarge {
        /// Operation.
        what: &'static str,
        /// Bytes asked.
        bytes: u64,
        /// Limit.
        limit: u64,
    },
    /// A rank wants to send more than this one takes, whose limit is below that of the sender.
    /// Other ranks may wait for what this one did not pass on: the communicator is not to be used
    /// any more.
    #[error(
        "{what}: rank {from} sends {bytes} bytes, this one takes {limit} at most; give all ranks \
         the same Config::collective_bytes"
    )]
    NoRoom {
        /// Operation.
        what: &'static str,
        /// The sender.
        from: Rank,
        /// Bytes of the payload.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// A rank has made as many communicators and windows as can be told apart.
    #[error(
        "{what}: a rank of the job has made 2^38 communicators and windows, and no more can be \
         told apart; make windows once and use them often"
    )]
    TooManyObjects {
        /// Operation.
        what: &'static str,
    },
    /// A process of the job failed.
    #[error("{what}: rank {world} of the job failed")]
    PeerFailed {
        /// Operation.
        what: &'static str,
        /// The rank that failed, counted in the job.
        world: WorldRank,
    },
    /// A process that this rank waits for has left.
    #[error(
        "{what}: rank {world} of the job has left without taking part; all ranks of a \
         communicator must call its collective operations in the same order"
    )]
    PeerLeft {
        /// Operation.
        what: &'static str,
        /// The rank that left, counted in the job.
        world: WorldRank,
    },
    /// Called by what another operation of the communicator calls, such as a reduction's closure.
    #[error("{what} inside of another operation of the communicator; call it after that")]
    Nested {
        /// Operation.
        what: &'static str,
    },
    /// Another rank could not go on with the operation, or with one before it. It is over on all
    /// ranks.
    #[error(
        "{what}: rank {world} of the job could not go on with it, or with an operation of this \
         communicator before it; the error of that rank says why"
    )]
    GaveUp {
        /// Operation.
        what: &'static str,
        /// The rank that gave up, counted in the job.
        world: WorldRank,
    },
    /// This rank has left the job: its universe was dropped.
    #[error(
        "{what}: this rank has left the job, because its universe was dropped; keep the universe \
         until all threads are done"
    )]
    Left {
        /// Operation.
        what: &'static str,
    },
    /// The deadline of the job's configuration passed.
    #[error("{what} did not end within the wait timeout; is a peer stuck?")]
    Timeout {
        /// Operation.
        what: &'static str,
    },
    /// An earlier operation of the communicator failed at this rank in the middle, as when its
    /// deadline passed. Others may have passed that one.
    #[error(
        "{what}: {failed} of this communicator has failed at this rank, and others may have passed \
         it: they would take this one for that; go on with another communicator, which dup makes \
         when all ranks call it, or leave the job"
    )]
    OutOfStep {
        /// Operation.
        what: &'static str,
        /// The earlier one.
        failed: &'static str,
    },
    /// Memory for the communicator's own words could not be had.
    #[error("memory of a communicator: {0}")]
    Allocate(#[from] AllocateError),
    /// A peer's words could not be mapped.
    #[error("memory of a communicator: {0}")]
    Import(#[from] ImportError),
    /// A peer's message does not parse, or is not of this call: it called another operation, or
    /// passed another root, other counts or elements of another size.
    #[error(
        "{what}: rank {from} sent what is not of this call; all ranks of a communicator must call \
         the same operations in the same order, with the same root, counts and elements"
    )]
    Malformed {
        /// Operation.
        what: &'static str,
        /// The sender.
        from: Rank,
    },
    /// The element type does not have the reduction.
    #[error("{what}: {} is not defined on {element}; {}", op.name(), op.remedy())]
    WrongOp {
        /// Operation.
        what: &'static str,
        /// The reduction.
        op: Op,
        /// The element type.
        element: &'static str,
    },
}

impl CollectiveError {
    /// The MPI error class.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::NoSuchRoot { .. } => ErrorClass::Root,
            Self::LengthMismatch { .. } | Self::WrongCount { .. } | Self::TooLarge { .. } => {
                ErrorClass::Count
            }
            Self::PeerFailed { .. } | Self::PeerLeft { .. } => ErrorClass::ProcFailed,
            Self::Nested { .. }
            | Self::GaveUp { .. }
            | Self::OutOfStep { .. }
            | Self::Left { .. } => ErrorClass::Other,
            Self::WrongOp { .. } => ErrorClass::Op,
            Self::Allocate(_) | Self::NoRoom { .. } => ErrorClass::NoMem,
            Self::Import(_)
            | Self::Timeout { .. }
            | Self::Malformed { .. }
            | Self::TooManyObjects { .. } => ErrorClass::Other,
        }
    }
}
