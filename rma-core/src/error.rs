//! Errors. Those of the data path are `Copy` and small; each names rank, window, range, remedy.
mod batch;
mod collective;
mod refused;
mod shortage;

pub use batch::BatchError;
pub use collective::CollectiveError;
pub use refused::Refused;
pub use shortage::{Shortage, TryLimit};

use crate::class::ErrorClass;
use crate::config::{AllocatorError, HintError};
use crate::element::Op;
use crate::group::Group;
use crate::layout::Signature;
use crate::object::{Flavor, WindowId};
use crate::rank::{Rank, WorldRank};
use crate::transport::{
    AgentError, AllocateError, CmaError, DeviceError, ImportError, PersistError,
};
use core::fmt;

// What a program that does not handle it ends with. S-B5
crate::debug_as_display!(RmaError, WindowError);

/// Why an operation on a window, or the synchronisation of one, failed. Nothing was written.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RmaError {
    /// The range lies outside the target's part of the window.
    #[error(
        "{len} bytes at displacement {disp} (unit {disp_unit}) lie outside window {window} at rank \
         {target}, which holds {size} bytes there; shorten the transfer or allocate more"
    )]
    OutOfRange {
        /// Window.
        window: WindowId,
        /// Target.
        target: Rank,
        /// Displacement, in the target's units.
        disp: u64,
        /// The target's displacement unit, in bytes.
        disp_unit: u32,
        /// Length of the access, in bytes.
        len: u64,
        /// Size of the target's part, in bytes.
        size: u64,
    },
    /// A layout that reaches beyond the target's part of the window.
    #[error(
        "a layout at displacement {disp} (unit {disp_unit}) of window {window} at rank {target} \
         touches bytes {low} to {high} of its part, which has bytes 0 to {size}; move the \
         displacement or describe less"
    )]
    LayoutOutOfRange {
        /// Window.
        window: WindowId,
        /// Target.
        target: Rank,
        /// Displacement, in the target's units.
        disp: u64,
        /// The target's displacement unit, in bytes.
        disp_unit: u32,
        /// Lowest byte that is touched, counted from the beginning of the part.
        low: i64,
        /// The byte after the highest that is touched.
        high: i64,
        /// Size of the target's part, in bytes.
        size: u64,
    },
    /// A layout that reaches beyond the origin's buffer.
    #[error(
        "window {window}, target {target}: the origin's layout touches bytes {low} to {high} of a \
         buffer with bytes 0 to {len}; pass a longer buffer, or another start for the layout"
    )]
    OriginOutOfRange {
        /// Window.
        window: WindowId,
        /// Target.
        target: Rank,
        /// Lowest byte that is touched, counted from the beginning of the buffer.
        low: i64,
        /// The byte after the highest that is touched.
        high: i64,
        /// Length of the buffer, in bytes.
        len: u64,
    },
    /// Origin and target describe different sequences of types.
    #[error(
        "window {window}: the layouts at the target {target} ({there}) and at the origin \
         ({origin}) do not describe the same sequence of types; make type and number of elements \
         agree"
    )]
    SignatureMismatch {
        /// Window.
        window: WindowId,
        /// Target.
        target: Rank,
        /// What the target's layout is made of.
        there: Signature,
        /// What the origin's layout is made of.
        origin: Signature,
    },
    /// A layout whose elements no operation can combine.
    #[error(
        "window {window}: {what} on rank {target} with a layout of {there}: only elements of one \
         basic type can be combined; use layouts of integers, floats, Bool, Complex or Pair, one \
         call for each type"
    )]
    NotBasic {
        /// Window.
        window: WindowId,
        /// Target.
        target: Rank,
        /// What was asked for.
        what: &'static str,
        /// What the layouts are made of.
        there: Signature,
    },
    /// A layout that writes a byte twice.
    #[error(
        "window {window}, target {target}: blocks of {side} overlap, so which value stays is not \
         defined; describe each byte once"
    )]
    Overlap {
        /// Window.
        window: WindowId,
        /// Target.
        target: Rank,
        /// The side with the layout.
        side: &'static str,
    },
    /// A count of layouts whose bytes cannot be counted.
    #[error(
        "window {window}, target {target}: a count of layouts with more than 2^63 bytes together; \
         pass a smaller count"
    )]
    LayoutTooLarge {
        /// Window.
        window: WindowId,
        /// Target.
        target: Rank,
    },
    /// The target rank does not exist.
    #[error("rank {target} is not in the group of window {window}; ranks are 0 to {last}")]
    NoSuchRank {
        /// Window.
        window: WindowId,
        /// Target.
        target: Rank,
        /// The highest rank there is.
        last: Rank,
    },
    /// An atomic operation on an address that its type cannot have.
    #[error(
        "displacement {disp} of window {window} at rank {target}, or an element of a layout there, \
         is not aligned to the {width} bytes of the element; atomics need natural alignment"
    )]
    Misaligned {
        /// Window.
        window: WindowId,
        /// Target.
        target: Rank,
        /// Displacement, in the target's units.
        disp: u64,
        /// Size of the element, in bytes.
        width: u32,
    },
    /// As [`Misaligned`](Self::Misaligned), of a part that its rank made of memory of its own,
    /// and whose address only that rank knows. It said so later.
    #[error(
        "window {window}: an element of an atomic operation of this epoch is not aligned in the \
         memory that rank {target} made its part of; atomics need natural alignment: make the part \
         of aligned memory, or choose another displacement"
    )]
    MisalignedThere {
        /// Window.
        window: WindowId,
        /// Target.
        target: Rank,
    },
    /// The element type does not have the operation, or the call does not take it.
    #[error(
        "window {window}: {what} on rank {target}: {} is not defined there on {element}; {}",
        op.name(), op.remedy()
    )]
    WrongOp {
        /// Window.
        window: WindowId,
        /// Target.
        target: Rank,
        /// What was asked for.
        what: &'static str,
        /// The operation.
        op: Op,
        /// The element type.
        element: &'static str,
    },
    /// Origin and result of a get_accumulate have different lengths.
    #[error(
        "window {window}: a get_accumulate on rank {target} of {origin} operands into {result} \
         elements; pass as many of both (no_op alone takes no operands)"
    )]
    WrongCount {
        /// Window.
        window: WindowId,
        /// Target.
        target: Rank,
        /// Operands.
        origin: u64,
        /// Elements of the result.
        result: u64,
    },
    /// An epoch of another kind is open on this rank.
    #[error("window {window}: {requested} while {open} is open on this rank; end that first")]
    EpochOpen {
        /// Window.
        window: WindowId,
        /// What was asked for.
        requested: &'static str,
        /// What is open.
        open: &'static str,
    },
    /// The target is locked by this rank already.
    #[error("window {window}: rank {target} is locked by this rank already; unlock it first")]
    AlreadyLocked {
        /// Window.
        window: WindowId,
        /// Target.
        target: Rank,
    },
    /// This rank has left the job: its universe was dropped.
    #[error(
        "window {window}: this rank has left the job, because its universe was dropped; keep the \
         universe until all threads are done with the window"
    )]
    Left {
        /// Window.
        window: WindowId,
    },
    /// The target of an operation in a lock epoch is not locked.
    #[error(
        "window {window}: rank {target} is not locked by this rank; name the target of the lock, \
         or lock {target} too"
    )]
    NotLocked {
        /// Window.
        window: WindowId,
        /// Target.
        target: Rank,
    },
    /// The target of an operation is not in the group of the start epoch.
    #[error(
        "window {window}: rank {target} is not in the group of this start epoch; name it in start, \
         and post at that rank"
    )]
    NotInGroup {
        /// Window.
        window: WindowId,
        /// Target.
        target: Rank,
    },
    /// Another rank refused.
    #[error(
        "window {window}: rank {by} refused {requested}: it has an epoch open, or the reason that \
         its own error names; every rank must end its epochs first"
    )]
    RefusedBy {
        /// Window.
        window: WindowId,
        /// The rank that refused.
        by: Rank,
        /// What was asked for.
        requested: &'static str,
    },
    /// A lock of a window that was made for none.
    #[error(
        "window {window} was made with the hint no_locks = true, which excludes locks; leave the \
         hint out, or use fence or start"
    )]
    NoLocks {
        /// Window.
        window: WindowId,
    },
    /// Asserts that contradict the state of the window.
    #[error("window {window}: assert {assert} is wrong here: {why}")]
    WrongAssert {
        /// Window.
        window: WindowId,
        /// The assert.
        assert: &'static str,
        /// Why it is wrong.
        why: &'static str,
    },
    /// A process of the job failed; what was in flight may or may not have happened.
    #[error("window {window}: rank {world} of the job failed during {what}; results are lost")]
    PeerFailed {
        /// Window.
        window: WindowId,
        /// The rank that failed, counted in the job.
        world: WorldRank,
        /// What this rank did.
        what: &'static str,
    },
    /// The peer left the job in order and cannot answer any more.
    #[error(
        "window {window}: rank {world} of the job has left, so {what} can never end; keep the \
         universe alive until its peers are done (finalize does)"
    )]
    PeerLeft {
        /// Window.
        window: WindowId,
        /// The rank that left, counted in the job.
        world: WorldRank,
        /// What this rank did.
        what: &'static str,
    },
    /// The deadline of the job's configuration passed.
    #[error("window {window}: {what} did not end within the wait timeout; is a peer stuck?")]
    Timeout {
        /// Window.
        window: WindowId,
        /// What this rank did.
        what: &'static str,
    },
    /// A `try_` form would have had to wait. Nothing of the operation was issued.
    #[error("window {window}: {what} on rank {target} was not issued: {shortage}")]
    WouldBlock {
        /// Window.
        window: WindowId,
        /// Target.
        target: Rank,
        /// What was asked for.
        what: &'static str,
        /// What there was too little of.
        shortage: Shortage,
    },
    /// A `try_` form of an operation that cannot be issued without a wait, however much room there
    /// is; or of one behind such an operation, which waited for the grant of the same lock: that is
    /// the one that is named, and a flush performs it. Nothing of it was issued.
    #[error("window {window}: {what} on rank {target} is too much for a try_ form: {limit}")]
    TooLargeToTry {
        /// Window.
        window: WindowId,
        /// Target.
        target: Rank,
        /// What was asked for.
        what: &'static str,
        /// What there never is enough of.
        limit: TryLimit,
    },
    /// An earlier fence of the window failed at this rank in the middle, as when its deadline
    /// passed. Others may have passed that one.
    #[error(
        "window {window}: {what} after a fence that has failed at this rank: others may have \
         passed that fence, and would take this rank to be at another one; drop the window, and \
         make a new one when all ranks are there"
    )]
    OutOfStep {
        /// Window.
        window: WindowId,
        /// What was asked for.
        what: &'static str,
    },
    /// The ranks of the window could not meet, for a reason of their own: some may be in another
    /// call than this one.
    #[error("window {window}: {error}")]
    Collective {
        /// Window.
        window: WindowId,
        /// Why.
        error: CollectiveError,
    },
    /// A part is not a whole number of elements.
    #[error(
        "window {window}: the {size} bytes of rank {rank}'s part are not a whole number of \
         elements of {width} bytes; take another element"
    )]
    NotWhole {
        /// Window.
        window: WindowId,
        /// The rank of the part.
        rank: Rank,
        /// Its bytes.
        size: u64,
        /// Bytes of an element.
        width: u32,
    },
    /// The peer's memory could not be mapped.
    #[error("window {window}: {error}")]
    Import {
        /// Window.
        window: WindowId,
        /// Why.
        error: ImportError,
    },
    /// The target no longer has the window.
    #[error("window {window} is freed at rank {target}; free it only when all ranks are done")]
    Freed {
        /// Window.
        window: WindowId,
        /// Target.
        target: Rank,
    },
    /// Nothing is attached to a dynamic window where an operation wanted to go.
    #[error(
        "window {window}: rank {target} has nothing attached that holds {}; was it detached, or do \
         the bytes reach past the end of a region?",
        Bytes(*range)
    )]
    NotAttached {
        /// Window.
        window: WindowId,
        /// Target.
        target: Rank,
        /// Address and length of the access, in bytes; `None` if the target said so later.
        range: Option<(u64, u64)>,
    },
    /// Bytes of a part were not made durable.
    #[error("window {window}: bytes {start} to {end} of rank {rank} are not durable: {error}")]
    Persist {
        /// Window.
        window: WindowId,
        /// This rank.
        rank: Rank,
        /// The first byte of the part, or its address in a dynamic window.
        start: u64,
        /// The byte behind the last.
        end: u64,
        /// Why.
        error: PersistError,
    },
    /// A handle of a region that is attached to another window, or at another rank.
    #[error(
        "window {window}: that handle is not of a region that rank {rank} has attached to it; show \
         it to the window, and at the rank, that attached it"
    )]
    ForeignRegion {
        /// Window.
        window: WindowId,
        /// This rank.
        rank: Rank,
    },
    /// Memory that overlaps what is attached already.
    #[error("window {window}: that memory overlaps a part that is attached already; detach it")]
    AttachedTwice {
        /// Window.
        window: WindowId,
    },
    /// The budget for attached regions is used up.
    #[error(
        "window {window} has {limit} regions attached at this rank, as many as its budget allows; \
         detach some, or raise it: hint rma_dynamic_regions, Config::dynamic_regions, \
         rma-run --config dynamic_regions=N"
    )]
    TooManyRegions {
        /// Window.
        window: WindowId,
        /// The budget.
        limit: u32,
    },
    /// Addresses of regions are given out once, and those that are left are too few.
    #[error(
        "window {window} has no address left for a region of {len} bytes at this rank: each is \
         given out once, up to 2^63; free the window and create another one"
    )]
    NoAddresses {
        /// Window.
        window: WindowId,
        /// Bytes of the region.
        len: u64,
    },
    /// No memory to attach.
    #[error("window {window}: {error}")]
    NoMemory {
        /// Window.
        window: WindowId,
        /// Why.
        error: AllocateError,
    },
    /// A call for windows that were made in another way.
    #[error("window {window}: {requested} needs {needed}")]
    WrongFlavor {
        /// Window.
        window: WindowId,
        /// What was asked for.
        requested: &'static str,
        /// What kind of window.
        needed: &'static str,
    },
    /// Memory of the target's user could not be copied to or from.
    #[error(
        "window {window}, target {target}: {error}; is the memory that rank made its window of \
         still mapped there?"
    )]
    Cma {
        /// Window.
        window: WindowId,
        /// Target.
        target: Rank,
        /// Why.
        error: CmaError,
    },
    /// A device did not move bytes to or from the target.
    #[error("window {window}, target {target}: {error}")]
    Device {
        /// Window.
        window: WindowId,
        /// Target.
        target: Rank,
        /// Why.
        error: DeviceError,
    },
    /// Load and store do not reach the target's memory.
    #[error("window {window}: memory of rank {target} is not reachable by load and store here")]
    NotShared {
        /// Window.
        window: WindowId,
        /// Target.
        target: Rank,
    },
}

const _: () = assert!(size_of::<Result<(), RmaError>>() <= 64);

impl RmaError {
    /// What a `try_` form found too little of; `None` of all other errors. The same call may
    /// succeed later.
    pub fn shortage(&self) -> Option<Shortage> {
        match self {
            Self::WouldBlock { shortage, .. } => Some(*shortage),
            _ => None,
        }
    }

    /// The MPI error class.
    pub fn class(&self) -> ErrorClass {
        // S-B6
        match self {
            Self::OutOfRange { .. } | Self::LayoutOutOfRange { .. } => ErrorClass::RmaRange,
            Self::OriginOutOfRange { .. } | Self::LayoutTooLarge { .. } => ErrorClass::Count,
            Self::SignatureMismatch { .. } | Self::NotBasic { .. } | Self::Overlap { .. } => {
                ErrorClass::Type
            }
            Self::NoSuchRank { .. } => ErrorClass::Rank,
            Self::Misaligned { .. } | Self::MisalignedThere { .. } => ErrorClass::Disp,
            Self::WrongOp { .. } => ErrorClass::Op,
            Self::WrongCount { .. } | Self::NotWhole { .. } => ErrorClass::Count,
            Self::EpochOpen { .. }
            | Self::AlreadyLocked { .. }
            | Self::NotLocked { .. }
            | Self::NotInGroup { .. }
            | Self::RefusedBy { .. }
            | Self::NoLocks { .. }
            | Self::Left { .. }
            | Self::OutOfStep { .. }
            | Self::Freed { .. } => ErrorClass::RmaSync,
            Self::WrongAssert { .. } => ErrorClass::Assert,
            Self::PeerFailed { .. } | Self::PeerLeft { .. } => ErrorClass::ProcFailed,
            Self::Timeout { .. } | Self::WouldBlock { .. } => ErrorClass::Other,
            Self::TooLargeToTry { .. } => ErrorClass::Count,
            Self::Persist { error, .. } => error.class(),
            Self::Collective { error, .. } => error.class(),
            Self::Import { .. } | Self::NotShared { .. } => ErrorClass::RmaShared,
            Self::NotAttached { .. } | Self::Cma { .. } => ErrorClass::RmaRange,
            Self::Device { error: DeviceError::Refused, .. } => ErrorClass::RmaRange,
            Self::Device { error: DeviceError::Unreachable(_), .. } => ErrorClass::ProcFailed,
            Self::Device { .. } => ErrorClass::Other,
            Self::AttachedTwice { .. }
            | Self::ForeignRegion { .. }
            | Self::NoAddresses { .. }
            | Self::TooManyRegions { .. } => ErrorClass::RmaAttach,
            Self::NoMemory { .. } => ErrorClass::NoMem,
            Self::WrongFlavor { .. } => ErrorClass::RmaFlavor,
        }
    }
}

/// An address and a length, as an error tells them.
struct Bytes(Option<(u64, u64)>);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some((address, len)) => write!(f, "{len} bytes at address {address:#x}"),
            None => f.write_str("the bytes of an operation of this epoch"),
        }
    }
}

/// Why a window could not be made. Every rank of the communicator gets an error, and nothing of
/// the window remains; but for [`Collective`](Self::Collective), after which peers may have it.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WindowError {
    /// `count × disp_unit` is not a number of bytes.
    #[error("a window of {count} units of {disp_unit} bytes overflows; pass a smaller count")]
    SizeOverflow {
        /// Units.
        count: u64,
        /// Bytes a unit.
        disp_unit: u64,
    },
    /// A displacement unit of zero, or beyond 32 bits.
    #[error("a displacement unit of {0} bytes; pass 1 to {max}", max = u32::MAX)]
    DispUnit(u64),
    /// There is not enough memory, or the system refused it.
    #[error("window memory at rank {rank}: {error}")]
    Allocate {
        /// The rank that could not allocate.
        rank: Rank,
        /// Why.
        error: AllocateError,
    },
    /// An allocator, which `alloc_type` asks for, could not make the memory.
    #[error("window memory at rank {rank}: {error}")]
    Allocator {
        /// The rank that could not allocate.
        rank: Rank,
        /// Why.
        error: AllocatorError,
    },
    /// `alloc_type` asks for memory of a kind that nothing here makes.
    #[error(
        "hint alloc_type = storage: this job has no allocator; start it by functions of the crate \
         rma, built with its feature storage, or give it one by Config::set_allocator"
    )]
    NoAllocator,
    /// Two ranks ask for the same bytes of a file.
    #[error(
        "ranks {first} and {second} both ask for bytes {start} to {end} of one file; give each \
         rank its own file ({{rank}} in its name), or storage_alloc_offset, or use a shared file"
    )]
    SameBytes {
        /// The lower of them.
        first: Rank,
        /// The other.
        second: Rank,
        /// The first byte that both ask for.
        start: u64,
        /// The byte behind the last.
        end: u64,
    },
    /// Peers reach the window by messages, and the thread that serves them could not start.
    #[error(
        "the progress agent of rank {rank}: {error}; run fewer ranks on this node, raise the limit \
         of threads, or set progress_agent to Never"
    )]
    Agent {
        /// The rank of the agent.
        rank: Rank,
        /// Why.
        error: AgentError,
    },
    /// Another rank of the communicator could not make its part.
    #[error(
        "rank {0} could not make its part of the window; its own error says why, and no rank keeps \
         a part"
    )]
    Peer(Rank),
    /// Ranks call different functions.
    #[error(
        "this rank makes a window of flavor {0:?}, another rank one of another flavor; call the \
         same function on all ranks"
    )]
    FlavorDiffers(Flavor),
    /// The communicator spans memory that load and store do not reach.
    #[error(
        "a shared window needs a communicator whose ranks share memory, and ranks {0} do not; \
         make one with split_by_node"
    )]
    NotShared(Group),
    /// No rank reaches memory of this one by load and store, so that a split by node does not help.
    #[error(
        "a shared window needs memory that ranks share, and this job has none, as in a simulation: \
         split_by_node gives each rank a communicator of its own; call allocate, and reach parts \
         by operations"
    )]
    NothingShared,
    /// A buffer that does not hold the window that is to be made of it.
    #[error("a window of {size} bytes was asked over memory of {len}; ask for less")]
    TooShort {
        /// Bytes asked for.
        size: u64,
        /// Bytes given.
        len: u64,
    },
    /// A dynamic window begins without memory.
    #[error("a dynamic window of {0} bytes was asked for; ask for 0, then attach memory to it")]
    DynamicSize(u64),
    /// The path that a hint asks for does not reach all ranks.
    #[error("hint rma_path = {path}: that does not reach {why}; leave the hint out")]
    NoPath {
        /// What it says.
        path: &'static str,
        /// What it does not reach.
        why: &'static str,
    },
    /// A hint whose value does not parse.
    #[error(transparent)]
    Hint(#[from] HintError),
    /// A hint that must be the same on all ranks is not.
    #[error(
        "hint {key}: rank {rank} says {value}, rank 0 says {expected}; give the same on all ranks"
    )]
    HintDiffers {
        /// The hint.
        key: &'static str,
        /// The lowest rank that says something else than rank 0.
        rank: Rank,
        /// What it says.
        value: String,
        /// What rank 0 says.
        expected: String,
    },
    /// A hint that is not true.
    #[error("hint {key} = true, but {of} are {min} to {max} bytes; leave the hint out")]
    HintUntrue {
        /// The hint.
        key: &'static str,
        /// What it is about.
        of: &'static str,
        /// The smallest of all ranks.
        min: u64,
        /// The largest of all ranks.
        max: u64,
    },
    /// Communication during creation failed.
    #[error("creating a window: {0}")]
    Collective(#[from] CollectiveError),
    /// A peer's part could not be mapped.
    #[error("creating a window: {0}")]
    Import(#[from] ImportError),
}

impl WindowError {
    /// The MPI error class.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::SizeOverflow { .. } | Self::TooShort { .. } | Self::DynamicSize(_) => {
                ErrorClass::Size
            }
            Self::NoPath { .. } => ErrorClass::Info,
            Self::DispUnit(_) => ErrorClass::Disp,
            Self::Allocate { .. } => ErrorClass::NoMem,
            Self::Allocator { error, .. } => error.class(),
            Self::NoAllocator => ErrorClass::Info,
            Self::SameBytes { .. } => ErrorClass::FileInUse,
            Self::Agent { .. } => ErrorClass::Other,
            Self::Peer(_) => ErrorClass::Other,
            Self::FlavorDiffers(_) => ErrorClass::RmaFlavor,
            Self::Hint(_) => ErrorClass::InfoValue,
            Self::HintDiffers { .. } | Self::HintUntrue { .. } => ErrorClass::Info,
            Self::NotShared(_) | Self::NothingShared | Self::Import(_) => ErrorClass::RmaShared,
            Self::Collective(error) => error.class(),
        }
    }
}
