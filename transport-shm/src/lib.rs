//! Shared-memory transport: the ranks of one node, as processes or as threads of one process.
//!
//! One segment, the roster, is mapped by all: it says how each rank left and where its segments
//! are, and has a futex doorbell for each that wakes its threads.
//!
//! Window memory lives in memfd segments without a name; a neighbour opens them through the
//! owner's descriptor table, verifies what it got and maps it. Messages travel through a bounded
//! ring in the receiver's control segment.
//!
//! Start at [`Shm::join`].

#[cfg(not(loom))]
mod agent;
#[cfg(not(loom))]
mod card;
#[cfg(not(loom))]
mod cma;
#[cfg(not(loom))]
mod control;
mod doorbell;
#[cfg(not(loom))]
mod fence;
#[cfg(not(loom))]
mod free_list;
#[cfg(not(loom))]
mod heap;
mod inbox;
#[cfg(not(loom))]
mod join;
#[cfg(not(loom))]
mod memory_limits;
#[cfg(not(loom))]
mod neighbour;
#[cfg(not(loom))]
mod parent;
mod patience;
mod ring;
#[cfg(not(loom))]
mod roster;
#[cfg(not(loom))]
mod segment;
#[cfg(not(loom))]
mod shm;
mod sync;

#[cfg(not(loom))]
pub use join::{JoinError, Said, ShmConfig};
#[cfg(not(loom))]
pub use shm::{Others, Shm};
