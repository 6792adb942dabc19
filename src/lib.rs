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
//! | starting | [`initialize`], [`initialize_with`], [`Builder`] |
//! | settings, and who gives them | [`Config`], [`Builder`], `rma-run --help-config` |
//! | tests | [`local`], [`simulate`], [`simulate_rdma`], `testing` (feature `processes`) |
//! | groups of ranks and collectives | [`Communicator`] |
//! | windows | [`WindowBuilder::allocate`], [`Window`], [`View`], [`Sealed`] |
//! | parts in one piece | [`WindowBuilder::allocate_shared`], [`Window::shared_query`] |
//! | windows over memory you have | [`WindowBuilder::create`], [`Window::free_into`], [`RawPart`] |
//! | memory attached later | [`WindowBuilder::create_dynamic`], [`Window::attach`], [`Attached`] |
//! | operations | [`Access`], [`Lock`], [`Ops`], [`Request`] |
//! | non-contiguous data | [`Layout`], [`Shape`], [`Access::put_shaped`] |
//! | epochs | [`Window::fence`], [`Window::lock`], [`Window::lock_all`], [`Window::start`] |
//! | errors | [`RmaError`], [`WindowError`], [`CollectiveError`], [`StartError`], [`Error`] |
//!
//! Names are MPI's. What safe code cannot do with them is cause undefined behaviour: buffers in
//! flight stay borrowed, window memory is copied and never referenced while others may write it.

mod builder;
mod error;
mod launched;
mod local;
mod start;
#[cfg(feature = "processes")]
pub mod testing;

pub use builder::{Builder, ConfigFileError};
pub use error::Error;
pub use local::{
    Broken, local, local_with, simulate, simulate_rdma, simulate_rdma_with, simulate_with,
};
pub use rma_core::transport::{
    AgentError, AllocateError, CrossError, Descriptor, DeviceError, ImportError, Mapped, Mapping,
    WorldRank,
};
pub use rma_core::{
    Assert, AtomicElement, Attached, Backing, BasicElement, BasicType, Bool, CollectiveError,
    Communicator, Complex, Config, ConfigError, Counters, Element, EpochCall, EpochKind,
    ErrorClass, Exposure, Extent, Fence, Flavor, Group, HintError, Layout, LayoutError, Lock,
    LockAll, LockKind, LockRequest, MemoryModel, NotCreated, NotDone, Op, OperationCounts, Ops,
    Order, OriginBuffer, Pair, Path, PersistError, Place, ProgressAgent, Rank, RawPart, Reduction,
    Refused, Request, RmaError, Sealed, Shape, Signature, Source, Universe, View, WindowError,
    WindowId, WindowMemory, bytemuck, num_complex,
};
pub use rma_transport_sim::SimFailure;
pub use start::{StartError, initialize, initialize_with};

/// The right to operate on the targets of a window.
///
/// ```
/// use rma::{Op, Pair, Rank};
///
/// // Who has the highest value? And what is the sum of all arrays?
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
#[doc(inline)]
pub use rma_core::Access;
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
