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
//!     // Passive target: the target does not have to help.
//!     let epoch = window.lock_all()?;
//!     epoch.fetch_and_op(Rank(0), 0, Op::Sum, u64::from(world.rank()))?;
//!     epoch.unlock()?;
//!
//!     // Active target: each rank puts to its right neighbour between two fences.
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
//! | starting | [`initialize`], [`initialize_with`], [`Builder`] |
//! | settings, and where they come from | [`Config`], [`Builder`], `rma-run --help-config` |
//! | tests | [`local`], `simulate`, `simulate_rdma` (feature `simulate`), `testing` (`processes`) |
//! | groups of ranks and collectives | [`Communicator`] |
//! | a barrier with a deadline of its own | [`Communicator::barrier_for`] |
//! | grids of ranks | [`Communicator::cartesian`], [`Cartesian`], [`CartesianError`] |
//! | windows | [`WindowBuilder::allocate`], [`Window`], [`View`], [`Sealed`] |
//! | parts in one piece | [`WindowBuilder::allocate_shared`], [`Window::shared_query`] |
//! | windows over memory you have | [`WindowBuilder::create`], [`Window::free_into`], [`RawPart`] |
//! | networks: `rma-run --transport ofi` | [`OfiError`] (feature `network`, on) |
//! | windows on files, block devices | [`OnStorage`], [`StorageMemory`] (feature `storage`, on) |
//! | persistent windows | [`Root`], [`PersistentMemory`] (feature `storage`) |
//! | memory attached later | [`WindowBuilder::create_dynamic`], [`Window::attach`], [`Attached`] |
//! | waiting for a value | [`View::wait_until`], [`View::wait_until_any`], [`View::test`] |
//! | operations | [`Access`], [`Peer`], [`Lock`], [`Ops`], [`Request`], [`Batch`] |
//! | non-contiguous data | [`Layout`], [`Layout::at`], [`Layout::of`] |
//! | epochs | [`Window::fence`], [`Window::lock`], [`Window::lock_all`], [`Window::start`] |
//! | epochs that are kept | [`Window::lock_all_owned`], [`Window::lock_owned`] |
//! | errors | [`RmaError`], [`WindowError`], [`CollectiveError`], [`StartError`], [`Error`] |
//!
//! To read: [`guide`] has a [tour](guide::tour), the [epochs](guide::epochs) that go together, the
//! [memory model](guide::memory_model), [patterns](guide::patterns), [debugging](guide::debugging),
//! and tables for users who come [from MPI](guide::from_mpi) or
//! [from OpenSHMEM](guide::from_openshmem).
//!
//! Names are MPI's. What safe code cannot do with them is cause undefined behaviour: buffers in
//! flight stay borrowed, window memory is copied and never referenced while others may write it.

#![deny(unnameable_types)]
// Pages name what a feature adds: their links are held to in builds with all of them.
#![cfg_attr(
    not(all(
        feature = "network",
        feature = "processes",
        feature = "simulate",
        feature = "storage"
    )),
    allow(rustdoc::broken_intra_doc_links)
)]

mod builder;
mod error;
pub mod guide;
mod launched;
mod local;
#[cfg(feature = "network")]
mod network;
#[cfg(feature = "simulate")]
mod simulate;
#[cfg(feature = "simulate")]
pub mod simulation;
mod start;
#[cfg(feature = "processes")]
pub mod testing;

/// The samples of pages beside the code are compiled, as those in it are.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../docs/persistent.md")]
    struct Persistent;
    #[doc = include_str!("../docs/storage.md")]
    struct Storage;
}

pub use builder::{Builder, ConfigFileError};
pub use error::Error;
pub use local::{Broken, local, local_with};
#[doc(inline)]
pub use rma_core::transport;
pub use rma_core::transport::{
    AgentError, AllocateError, CmaError, Descriptor, DeviceError, ImportError, Mapped, Mapping,
    WorldRank,
};
pub use rma_core::{
    Allocator, AllocatorError, Assert, AtomicElement, Backing, BasicElement, BasicType, BatchError,
    Bool, CartesianError, Claim, CollectiveError, CommitGroup, Complex, Config, ConfigError,
    Copies, Counters, Displacement, DurableRequest, Element, EpochCall, EpochKind, ErrorClass,
    Extent, Fence, Flavor, Group, HintChange, HintError, Integer, LayoutAt, LayoutError, LayoutOf,
    Lock, LockKind, LockRequest, MemoryModel, Op, Operands, OperationCounts, Ops, Order, Origin,
    OriginBuffer, OriginMut, OwnedOperands, OwnedOrigin, Pair, Path, PersistError, Place,
    ProgressAgent, Rank, RawPart, Reduction, Refused, RequestedPart, RmaError, Shortage, Signature,
    Source, TryLimit, Universe, WindowError, WindowId, WindowMemory, bytemuck, num_complex,
};
pub use rma_launcher::{Refusal, StartError as LauncherError};
#[cfg(feature = "storage")]
pub use rma_storage::{
    AccessStyle, CommitRequest, DirtyTracking, DurableBy, OnStorage, PersistentCode,
    PersistentError, PersistentHints, PersistentMemory, PersistentMode, Root, SpaceLimit,
    StorageAllocator, StorageError, StorageFactor, StorageHints, StorageMemory, StorageOrder,
    StoragePart, VersionSummary, WindowSummary,
};
#[cfg(feature = "network")]
pub use rma_transport_ofi::{OfiError, OfiJoinError};
pub use rma_transport_shm::JoinError;
#[cfg(feature = "simulate")]
pub use rma_transport_sim::SimFailure;
#[cfg(feature = "simulate")]
pub use simulate::{simulate, simulate_rdma, simulate_rdma_with, simulate_with};
pub use start::{StartError, initialize, initialize_with};

/// The right to operate on the targets of a window.
///
/// ```
/// use rma::{Op, Pair, Rank};
///
/// // Which rank has the highest value? And what is the sum of all arrays?
/// let found = rma::local(3, |universe| {
///     let me = u64::from(universe.world().rank());
///     let window = universe.world().window(4, 8).allocate()?;
///     let epoch = window.lock_all()?;
///     epoch.accumulate(Rank(0), 0, Op::MaxLoc, &[Pair::new((me * 5 % 7) as f64, me)])?;
///     epoch.accumulate(Rank(0), 2, Op::Sum, &[me as f64, 0.5])?;
///     epoch.unlock()?;
///     universe.world().barrier()?;
///     let winner = window.local().load::<Pair<f64, u64>>(0)?;
///     let mut sums = [0.0; 2];
///     window.local().read(2, &mut sums)?;
///     window.free()?;
///     Ok::<_, rma::Error>((winner, sums))
/// })?;
/// let (winner, sums) = found[0].as_ref().unwrap();
/// assert_eq!((winner.value, winner.index), (5.0, 1));
/// assert_eq!(*sums, [3.0, 1.5]);
/// # Ok::<(), rma::StartError>(())
/// ```
/// More in the [tour](crate::guide::tour#operations).
#[doc(inline)]
pub use rma_core::Access;
/// Memory of this rank in a dynamic window: in the
/// [tour](crate::guide::tour#memory-that-comes-and-goes).
#[doc(inline)]
pub use rma_core::Attached;
/// Many small operations at once: in the [tour](crate::guide::tour#batches).
#[doc(inline)]
pub use rma_core::Batch;
/// The ranks of a communicator, taken for a grid.
///
/// ```
/// use rma::{Assert, Cartesian, Rank};
///
/// // Four ranks in two rows, which are rings; the columns have ends.
/// let seen = rma::local(4, |universe| {
///     let world = universe.world();
///     let grid = world.cartesian(Cartesian::balanced(world.size(), [0, 0])?, [false, true])?;
///     let (above, below) = grid.shift(0, 1)?;
///     let (_, right) = grid.shift(1, 1)?;
///
///     // Beyond an end is `Rank::NULL`, to which a put does nothing.
///     let window = world.window(2, 8).allocate()?;
///     let epoch = window.fence(Assert::NONE)?;
///     epoch.put(below, 0, &[u64::from(world.rank()) + 1])?;
///     epoch.put(right, 1, &[u64::from(world.rank()) + 1])?;
///     epoch.end()?;
///     let mut words = [0u64; 2];
///     window.local().read(0, &mut words)?;
///     window.free()?;
///     Ok::<_, rma::Error>((grid.coordinates(world.rank()), above, words))
/// })?;
/// assert_eq!(seen[1].as_ref().unwrap(), &(Some([0, 1]), Rank::NULL, [0, 1]));
/// assert_eq!(seen[2].as_ref().unwrap(), &(Some([1, 0]), Rank(0), [1, 4]));
/// # Ok::<(), rma::StartError>(())
/// ```
#[doc(inline)]
pub use rma_core::Cartesian;
/// Ranks that communicate, and the collective operations that they call together.
///
/// ```
/// use rma::{Op, Rank};
/// use std::time::Duration;
///
/// let seen = rma::local(3, |universe| {
///     let world = universe.world();
///     let me = u64::from(world.rank());
///
///     // Rank 0 deals what there is to do: a block to each, and as much as it likes to each.
///     let (mut blocks, mut shares) = (vec![], vec![]);
///     if world.rank() == Rank(0) {
///         (blocks, shares) = (vec![1, 2, 3, 4, 5, 6], vec![vec![], vec![7u64], vec![8, 9]]);
///     }
///     let block: Vec<u64> = world.scatter(&blocks, Rank(0))?;
///     let share = world.scatterv(&shares, Rank(0))?;
///     assert_eq!((block, share.len()), (vec![2 * me + 1, 2 * me + 2], usize::from(world.rank())));
///
///     // What one rank knows, and where each begins in what all have.
///     let seed = world.bcast_value(me + 40, Rank(2))?;
///     let end = world.scan(&[share.len()], Op::Sum)?[0];
///
///     // The result takes the place of what each gives.
///     let mut sum = [seed, me];
///     world.allreduce_in_place(&mut sum, Op::Sum)?;
///     world.scan_in_place(&mut [me], Op::Sum)?;
///     world.exscan_in_place(&mut [me], Op::Sum)?;
///     world.reduce_in_place(&mut [me], Op::Max, Rank(1))?;
///     let mut ranks = [0, 0, 0];
///     ranks[usize::from(world.rank())] = me;
///     world.allgather_in_place(&mut ranks)?;
///     assert_eq!(ranks, [0, 1, 2]);
///     world.alltoall_in_place(&mut ranks)?;
///     assert_eq!(ranks, [me; 3]);
///
///     // A waiter may look after other things now and then.
///     while world.barrier_for(Duration::from_millis(50))?.is_pending() {
///         eprintln!("rank {me} is still waiting");
///     }
///     Ok::<_, rma::Error>((seed, end, sum))
/// })?;
/// assert_eq!(seen[1].as_ref().unwrap(), &(42, 1, [126, 3]));
/// assert_eq!(seen[2].as_ref().unwrap(), &(42, 3, [126, 3]));
/// # Ok::<(), rma::StartError>(())
/// ```
#[doc(inline)]
pub use rma_core::Communicator;
/// An exposure epoch: in the [tour](crate::guide::tour#chosen-partners).
#[doc(inline)]
pub use rma_core::Exposure;
/// Which bytes take part in an operation: in the [tour](crate::guide::tour#layouts).
#[doc(inline)]
pub use rma_core::Layout;
/// An epoch to all targets, which shares the window with others: in the
/// [tour](crate::guide::tour#operations).
#[doc(inline)]
pub use rma_core::LockAll;
/// A lock of one target that can be kept in a struct: see [`OwnedLockAll`].
#[doc(inline)]
pub use rma_core::OwnedLock;
/// An epoch that can be kept in a struct: in the
/// [tour](crate::guide::tour#an-epoch-in-a-struct).
#[doc(inline)]
pub use rma_core::OwnedLockAll;
/// One target of an epoch: in the [tour](crate::guide::tour#one-target).
#[doc(inline)]
pub use rma_core::Peer;
/// An operation that owns its buffer until it is complete: in the
/// [tour](crate::guide::tour#requests).
#[doc(inline)]
pub use rma_core::Request;
/// A window whose part is a plain slice: in the [tour](crate::guide::tour#a-plain-slice).
#[doc(inline)]
pub use rma_core::Sealed;
/// An access epoch to chosen targets.
///
/// ```
/// use rma::{Assert, Rank};
///
/// // Halo exchange in one dimension: only neighbours synchronise.
/// let parts = rma::local(4, |universe| {
///     let world = universe.world();
///     let (me, last) = (world.rank(), Rank(world.size() - 1));
///     let window = world.window(2, 8).allocate()?;
///     let left = (me > Rank(0)).then(|| Rank(me.0 - 1));
///     let right = (me < last).then(|| Rank(me.0 + 1));
///     let neighbours: Vec<Rank> = left.into_iter().chain(right).collect();
///
///     let exposure = window.post(&neighbours, Assert::NONE)?;
///     let epoch = window.start(&neighbours, Assert::NONE)?;
///     if let Some(left) = left {
///         epoch.put(left, 1, &[u64::from(me)])?;
///     }
///     if let Some(right) = right {
///         epoch.put(right, 0, &[u64::from(me)])?;
///     }
///     epoch.complete()?;
///     exposure.wait()?;
///
///     let mut halo = [0u64; 2];
///     window.local().read(0, &mut halo)?;
///     window.free()?;
///     universe.finalize()?;
///     Ok::<_, rma::Error>(halo)
/// })?;
/// assert_eq!(parts[1].as_ref().unwrap(), &[0, 2]);
/// assert_eq!(parts[2].as_ref().unwrap(), &[1, 3]);
/// # Ok::<(), rma::StartError>(())
/// ```
#[doc(inline)]
pub use rma_core::Start;
/// A part of a window by load and store, and waiting for what others store there.
///
/// ```
/// use rma::{Op, Rank};
/// use std::time::Duration;
///
/// // Each gives its right neighbour some data, and then a flag. Rank 0 waits for all to be done.
/// let sums = rma::local(3, |universe| {
///     let world = universe.world();
///     let window = world.window(8, 8).allocate()?;
///     let (right, view) = (world.rank().on_ring(1, world.size()), window.local());
///     let epoch = window.lock_all()?;
///     epoch.put(right, 1, &[2u64, 3])?;
///     // The data must be there before the flag is.
///     epoch.flush(right)?;
///     epoch.put(right, 0, &[1u64])?;
///     epoch.flush(right)?;
///
///     view.wait_until(0, |flag: u64| flag == 1)?;
///     let mut data = [0u64; 2];
///     view.read(1, &mut data)?;
///     // One flag of rank 0 for each rank, behind the data.
///     epoch.fetch_and_op(Rank(0), 4 + u64::from(world.rank()), Op::Replace, data[0] * data[1])?;
///     let mut sum = 0;
///     if world.rank() == Rank(0) {
///         let (first, value) = view.wait_until_any(&[4, 5, 6], |_, done: u64| done > 0)?.unwrap();
///         assert!(first < 3 && value == 6);
///         sum = view.wait_until_all(&[4, 5, 6], |_, done: u64| done > 0)?.iter().sum();
///         assert_eq!(view.test_some(&[0, 4, 5], |_, done: u64| done == 6)?, [(1, 6), (2, 6)]);
///     }
///     // No rank stores here: half a millisecond is enough.
///     let none = view.wait_until_for(7, Duration::from_micros(500), |value: u64| value > 0)?;
///     assert_eq!((none, view.test(7, |value: u64| value > 0)?), (None, None));
///     epoch.unlock()?;
///     window.free()?;
///     Ok::<u64, rma::Error>(sum)
/// })?;
/// assert_eq!(sums[0].as_ref().unwrap(), &18);
/// # Ok::<(), rma::StartError>(())
/// ```
#[doc(inline)]
pub use rma_core::View;
/// Memory of every rank of a communicator.
///
/// ```
/// use rma::{Attached, Rank};
///
/// // Memory that you have becomes a window, or a part of one, and comes back.
/// let seen = rma::local(2, |universe| {
///     let world = universe.world();
///     let right = world.rank().on_ring(1, world.size());
///     let window = world.window(4, 8).create(vec![u64::from(world.rank()); 4])?;
///     let dynamic = world.window(0, 1).create_dynamic()?;
///     let mine: Attached<Vec<u64>> = dynamic.attach(vec![7])?;
///     let addresses = world.allgather(&[mine.address()])?;
///
///     let mut value = [0u64];
///     let epoch = window.lock_all()?;
///     epoch.get(right, 3, &mut value)?;
///     epoch.unlock()?;
///     let epoch = dynamic.lock_all()?;
///     epoch.put(right, addresses[usize::from(right)], &value)?;
///     epoch.unlock()?;
///
///     world.barrier()?;
///     let attached = dynamic.detach(mine)?;
///     dynamic.free()?;
///     let created: Vec<u64> = window.free_into()?;
///     Ok::<_, rma::Error>((created, attached))
/// })?;
/// assert_eq!(seen[1].as_ref().unwrap(), &(vec![1; 4], vec![1]));
/// # Ok::<(), rma::StartError>(())
/// ```
#[doc(inline)]
pub use rma_core::Window;
/// Describes a window before it is made.
///
/// ```
/// let seen = rma::local(2, |universe| {
///     let builder = universe.world().window(64, 8).hint("accumulate_ordering", "none")?;
///     let window = builder.allocate()?;
///     window.set_name("counts");
///     window.set_attribute(vec!["what", "it", "holds"]);
///     let ordering = window.get_info("accumulate_ordering");
///     let words = window.attribute::<Vec<&str>>().map_or(0, |words| words.len());
///     window.free()?;
///     Ok::<_, rma::Error>((ordering, words))
/// })?;
/// assert_eq!(seen[0].as_ref().unwrap(), &(Some("none".to_owned()), 3));
/// # Ok::<(), rma::StartError>(())
/// ```
#[doc(inline)]
pub use rma_core::WindowBuilder;
