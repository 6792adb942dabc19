//! One-sided communication with the semantics of MPI RMA.
//!
//! A program on many processes shares *windows*: memory of every rank that the others read, write
//! and update without its help. Start it with `rma-run -n N PROGRAM`, or alone as a single rank.
//!
//! ```
//! use rma::{Assert, Op, Rank};
//!
//! // In a program: `let universe = rma::initialize()?;` under `rma-run -n 4`. In a test, four
//! // ranks as threads of this process:
//! let sums = rma::local(4, |universe| {
//!     let world = universe.world();
//!     let window = world.window(2, size_of::<u64>()).allocate()?;
//!
//!     // Passive target: nobody has to help.
//!     let epoch = window.lock_all()?;
//!     epoch.fetch_and_op(Rank(0), 0, Op::Sum, u64::from(world.rank()))?;
//!     epoch.unlock()?;
//!
//!     // Active target: everybody puts to its right neighbour between two fences.
//!     let epoch = window.fence(Assert::NONE)?;
//!     epoch.put(world.rank().on_ring(1, world.size()), 1, &[u64::from(world.rank())])?;
//!     epoch.end()?;
//!
//!     let left: u64 = window.local().load(1)?;
//!     assert_eq!(left, u64::from(world.rank().on_ring(-1, world.size())));
//!     let sum = window.local().load::<u64>(0)?;
//!     window.free()?;
//!     universe.finalize()?;
//!     Ok::<u64, rma::Error>(sum)
//! })?;
//! assert_eq!(sums[0].as_ref().unwrap(), &6);
//! # Ok::<(), rma::StartError>(())
//! ```
//!
//! | for | see |
//! | --- | --- |
//! | starting | [`initialize`], [`local`], [`simulate`], [`testing`] |
//! | groups of ranks and collectives | [`Communicator`] |
//! | windows | [`WindowBuilder`], [`Window`], [`View`], [`Sealed`] |
//! | operations | [`Access`], [`Lock`], [`Ops`], [`Request`] |
//! | epochs | [`Window::fence`], [`Window::lock`], [`Window::lock_all`] |
//! | errors | [`RmaError`], [`WindowError`], [`CollectiveError`], [`StartError`], [`Error`] |
//!
//! Names are MPI's. What safe code cannot do with them is cause undefined behaviour: buffers in
//! flight stay borrowed, window memory is copied and never referenced while others may write it.

mod any;
mod error;
mod local;
mod start;
#[cfg(feature = "processes")]
pub mod testing;

pub use any::AnyTransport;
pub use error::Error;
pub use local::{Broken, local, simulate};
pub use rma_core::{
    Assert, AtomicElement, CollectiveError, Config, Counters, Element, ErrorClass, Group, LockKind,
    Number, Op, OriginBuffer, Rank, Reduction, RmaError, WindowError, WindowId, bytemuck,
};
pub use rma_transport_sim::SimFailure;
pub use start::{StartError, initialize};

/// One rank of a job; from [`initialize`] or [`local`].
pub type Universe = rma_core::Universe<AnyTransport>;
/// An ordered group of ranks with its own space of messages.
pub type Communicator = rma_core::Communicator<AnyTransport>;
/// Memory of every rank of a communicator.
pub type Window = rma_core::Window<AnyTransport>;
/// Describes a window before it is made.
pub type WindowBuilder<'c> = rma_core::WindowBuilder<'c, AnyTransport>;
/// A part of a window, for direct loads and stores.
pub type View<'w> = rma_core::View<'w, AnyTransport>;
/// A window on which no rank can operate: plain memory.
pub type Sealed = rma_core::Sealed<AnyTransport>;
/// The window, given back because it could not be freed or sealed.
pub type Refused = rma_core::Refused<AnyTransport>;
/// An open fence epoch.
pub type Fence<'w> = rma_core::Fence<'w, AnyTransport>;
/// A shared lock on every target.
pub type LockAll<'w> = rma_core::LockAll<'w, AnyTransport>;
/// A lock on one target.
pub type Lock<'w> = rma_core::Lock<'w, AnyTransport>;
/// The right to operate on the targets of a window.
pub type Access<'w, const LAZY: bool> = rma_core::Access<'w, AnyTransport, LAZY>;
/// Operations that overlap, in a closure scope.
pub type Ops<'scope, 'env, const LAZY: bool> = rma_core::Ops<'scope, 'env, AnyTransport, LAZY>;
/// An operation under way, and the buffer that it works on.
pub type Request<'w, B> = rma_core::Request<'w, AnyTransport, B>;
