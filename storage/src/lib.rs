//! Memory on storage: what a window can lie on that outlives the job.
//!
//! [`StorageMemory`] is a file or a block device, mapped, alone or with memory beside it in one
//! range of addresses ("MPI windows on storage", `shared/seeds`). An `Arc` of it goes to
//! [`create`](rma_core::WindowBuilder::create) or [`attach`](rma_core::Window::attach); near ranks
//! load and store in it, others reach it as any other window.
//!
//! [`PersistentMemory`] has a name below the [`Root`] of an application's instance, and versions
//! that [`commit`](PersistentMemory::commit) makes, of which one is there again after any crash
//! ("Extension of MPI One-Sided Communication API", `shared/seeds`). `docs/storage.md` and
//! `docs/persistent.md` show them.
//!
//! What is stored on a file is in the page cache of the system at once, so that it outlives the
//! process, and on the device when [`Window::sync`](rma_core::Window::sync) or
//! [`Window::persist`](rma_core::Window::persist) has returned, so that it outlives the machine.

mod ahead;
mod allocator;
mod durable;
mod error;
mod file;
mod hints;
mod lines;
mod lock;
mod marks;
mod memory;
mod persistent;
mod store;
mod striping;

pub use allocator::{OnStorage, StorageAllocator};
pub use durable::DurableBy;
pub use error::{SpaceLimit, StorageError};
pub use hints::{AccessStyle, StorageFactor, StorageHints, StorageOrder};
pub use memory::{StorageMemory, StoragePart};
pub use persistent::{
    CommitRequest, DirtyTracking, PersistentCode, PersistentError, PersistentHints,
    PersistentMemory, PersistentMode, Root, VersionSummary, WindowSummary,
};
