//! Communicators and windows of a job: how they are named.
use core::fmt;

/// Bits of an object's id that count the objects of a rank; above them is the rank.
const COUNT_BITS: u32 = 40;
/// Set in the id of what a communicator has for the runtime's own exchanges: with those of its user
/// they have nothing in common.
pub(crate) const RUNTIME: u64 = 1 << (COUNT_BITS - 1);
/// As [`RUNTIME`], for barriers with deadlines of their own.
pub(crate) const TIMED: u64 = RUNTIME >> 1;
/// Objects of a rank: weeks of making and freeing windows at full speed.
pub(crate) const OBJECTS: u64 = TIMED;
/// Ranks of a job that can make objects. One less, so that [`NO_OBJECT`] is no id.
const RANKS: u64 = (1 << (u64::BITS - COUNT_BITS)) - 1;
/// No communicator or window has this id.
pub(crate) const NO_OBJECT: u64 = u64::MAX;

/// The id of the object that a rank made with that number, below [`OBJECTS`]; [`NO_OBJECT`] if the
/// rank can make none.
pub(crate) fn id(rank: u64, number: u64) -> u64 {
    if rank < RANKS { rank << COUNT_BITS | number } else { NO_OBJECT }
}

/// The rank that made an object, and its number there.
pub(crate) fn maker_and_number(id: u64) -> (u64, u64) {
    (id >> COUNT_BITS, id & (OBJECTS - 1))
}

/// Names a window in errors, the same on all of its ranks and like no other of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WindowId(pub(crate) u64);

impl fmt::Display for WindowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (maker, number) = maker_and_number(self.0);
        write!(f, "#{maker}.{number}")
    }
}

/// How a window got its memory (`MPI_WIN_CREATE_FLAVOR`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Flavor {
    /// From its user.
    Create,
    /// With [`allocate`](crate::WindowBuilder::allocate).
    Allocate,
    /// Attached and detached by its user.
    Dynamic,
    /// With [`allocate_shared`](crate::WindowBuilder::allocate_shared).
    Shared,
}
