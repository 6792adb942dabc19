//! What a transport does for the core: each ability is an object.
//!
//! A minimal transport has [`Messages`], [`Sleep`] and [`Members`]: put, get and atomics travel
//! as active messages then. What else it has makes some of that quicker: where [`Shared`] memory
//! of a peer is [near](Shared::is_near), the core maps it once and never calls the transport on
//! the data path again.
#![allow(unsafe_code)] // room: declares the unsafe traits, forwards one for boxes

mod agent;
mod backing;
mod beneath;
mod bulletin;
mod composed;
mod file_mappings;
mod remote;

pub use crate::group::SomeRanks;
pub use crate::rank::WorldRank;
pub use agent::{Agent, AgentBody, AgentError};
pub use backing::{Backing, CommitGroup, Extent, HintChange, PersistError, Place};
pub(crate) use backing::{EXTENTS_MAX, flaw};
pub use beneath::Beneath;
pub use bulletin::{About, Bulletin, ToldRank, ToldWait, Whom};
pub(crate) use bulletin::{Count, Telling};
pub use composed::{Network, Waker};
pub use file_mappings::{Announced, FileId, FileMapping, FileWatch};
pub use remote::{
    Addressing, Atomic, DeviceError, Endpoint, Keys, LayoutCosts, Moment, PostError, Posted,
    Purpose, RegisterError, Registration, Remote, RemoteKey, RemoteLimits, There, Transfer,
};

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

/// Sizes that choose a protocol; constant for the life of the transport.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Largest message, `head` and `body` together, that [`Messages::send`] takes, in bytes; at
    /// least 128.
    pub message_max: usize,
}

/// Memory of this or another rank, reached by load and store of this process.
#[derive(Debug, Clone, Copy)]
pub struct Mapping {
    /// First byte; aligned to at least 64 bytes, unless a user brought the memory along.
    pub base: *mut u8,
    /// Length in bytes.
    pub len: usize,
}

/// A value that keeps a [`Mapping`] alive.
///
/// # Safety
///
/// `mapping()` returns the same span on every call, and the span stays mapped, readable and
/// writable until the value is dropped, however the value is moved.
pub unsafe trait Mapped: fmt::Debug + Send + Sync + 'static {
    /// The span.
    fn mapping(&self) -> Mapping;
}

// SAFETY: as of what is in the box, which stays where it is when the box moves.
unsafe impl<M: Mapped + ?Sized> Mapped for Box<M> {
    fn mapping(&self) -> Mapping {
        (**self).mapping()
    }
}

/// What a peer needs to import a region; opaque to the core, travels in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor(pub [u8; Descriptor::LEN]);

impl Descriptor {
    /// Bytes in a descriptor.
    pub const LEN: usize = 48;
}

/// Whether a peer can still take part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerState {
    /// It runs, or has not started yet.
    Alive,
    /// It left in order: it dropped its universe and sends nothing any more.
    Departed,
    /// As [`Departed`](Self::Departed), but it did not give back all of its locks.
    Holding,
    /// It panicked, aborted or died.
    Failed,
}

/// Why there is no memory for a window.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocateError {
    /// There is not enough of it.
    #[error(
        "{requested} bytes of window memory requested, {available} available ({limit}); \
         ask for less, run fewer ranks on this node, or raise that limit"
    )]
    Shortage {
        /// Bytes asked for, by all ranks of this node together where that is known.
        requested: u64,
        /// Bytes that could be had.
        available: u64,
        /// Which limit is in force.
        limit: &'static str,
    },
    /// The operating system refused for another reason.
    #[error(
        "the operating system refused {requested} bytes of window memory in {call} \
         (os error {errno})"
    )]
    System {
        /// Bytes asked for.
        requested: u64,
        /// System call.
        call: &'static str,
        /// Its error number.
        errno: i32,
    },
    /// A [`Backing`] that a user brought along is not as it should be.
    #[error("extent {extent} of the backing {why}; correct what the backing says of its extents")]
    Extent {
        /// Which extent, counted from 0.
        extent: u32,
        /// What is wrong.
        why: &'static str,
    },
}

/// Why a neighbour could not map an extent.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DescribeError {
    /// This transport maps no memory of that kind.
    #[error("the transport maps no memory of that kind; other ranks reach it in other ways")]
    Unsupported,
    /// The extent cannot be mapped as it is.
    #[error("the extent {0}; let it begin and end elsewhere")]
    Unfit(&'static str),
    /// The operating system refused.
    #[error("the operating system refused to describe the extent in {call} (os error {errno})")]
    System {
        /// System call.
        call: &'static str,
        /// Its error number.
        errno: i32,
    },
}

/// Why a peer's memory could not be imported.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The descriptor does not parse, or names something else than it says.
    #[error("rank {0} sent a descriptor that does not describe a segment of it")]
    Malformed(WorldRank),
    /// Descriptors of a backing that cannot be mapped side by side.
    #[error("rank {owner} sent extents that cannot lie side by side: {why}; run the same build")]
    Extents {
        /// Their sender.
        owner: WorldRank,
        /// What is wrong.
        why: &'static str,
    },
    /// The peer is gone, and its memory with it.
    #[error("rank {0} is gone")]
    PeerGone(WorldRank),
    /// The launcher does not say where the peer is reached.
    #[error("where rank {owner} is reached is not known: {why}")]
    NoAddress {
        /// The peer.
        owner: WorldRank,
        /// Why, and what to do.
        why: &'static str,
    },
    /// The system refuses a rank the fence of all ranks near it, without which it combines nothing
    /// where another has combined alone.
    #[error(
        "the system refuses rank {0} a call that it let it make when it started, membarrier; \
         allow that call, or refuse it before the job starts"
    )]
    Unfenced(WorldRank),
    /// The operating system refused.
    #[error("memory of rank {owner} cannot be reached: {call} failed (os error {errno})")]
    System {
        /// The rank of the memory.
        owner: WorldRank,
        /// System call.
        call: &'static str,
        /// Its error number.
        errno: i32,
    },
}

/// Why bytes were not copied to or from a peer's memory by address.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CmaError {
    /// The process is gone.
    #[error("rank {0} is gone")]
    PeerGone(WorldRank),
    /// It runs on another node.
    #[error("rank {0} is on another node, whose memory has no address here")]
    Far(WorldRank),
    /// The operating system refused.
    #[error("copying to or from memory of rank {peer} by address failed (os error {errno})")]
    System {
        /// The rank of the memory.
        peer: WorldRank,
        /// Error number.
        errno: i32,
    },
}

crate::debug_as_display!(AllocateError, DescribeError, ImportError, CmaError);

/// Why a message was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SubmitError {
    /// The queue is full: make progress, then try again. Never reaches a user.
    Again,
    /// The peer is gone.
    PeerFailed(WorldRank),
    /// This process is short of something that it takes to reach the peer.
    Unreachable(ImportError),
}

/// Proof of [`Sleep::arm`], handed to [`Sleep::park`].
#[derive(Debug, Clone, Copy)]
pub struct Ticket(pub u32);

/// What load and store do with window memory that is mapped here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Touch {
    /// It looks; a loop of looks may wait for something.
    Look,
    /// It changes something.
    Change,
}

/// How this rank leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// In order.
    Departed,
    /// In order, but with locks that it holds or waits for, which no rank can give back any more.
    Holding,
    /// By a panic or an unrecoverable error: peers that wait shall fail instead of hanging.
    Failed,
}

/// A way to move bytes between the ranks of one job, seen from one rank. Made
/// [of its parts](Self::from_parts), and used by one universe.
pub struct Transport {
    pub(crate) job: Job,
    pub(crate) messages: Arc<dyn Messages>,
    pub(crate) sleep: Arc<dyn Sleep>,
    pub(crate) members: Arc<dyn Members>,
    pub(crate) shared: Arc<dyn Shared>,
    pub(crate) cma: Option<Arc<dyn Cma>>,
    pub(crate) remote: Option<Arc<dyn Remote>>,
    pub(crate) agent: Option<Arc<dyn Agent>>,
    pub(crate) views: Option<Arc<dyn Views>>,
}

/// What a transport can do, object by object. Two transports compose by taking some of each, or as
/// memory [beside](Transport::beside) a network.
///
/// No call of any object blocks but [`Sleep::park`] and [`Agent::park`]. All of them may be called
/// by several threads at once.
pub struct Parts {
    /// This process in the job.
    pub job: Job,
    /// What moves messages.
    pub messages: Arc<dyn Messages>,
    /// What waiting threads do.
    pub sleep: Arc<dyn Sleep>,
    /// What is known of the other processes.
    pub members: Arc<dyn Members>,
    /// Memory that load and store reach.
    pub shared: Arc<dyn Shared>,
    /// Copies by the operating system, if it makes some.
    pub cma: Option<Arc<dyn Cma>>,
    /// A device that moves bytes, if there is one: at all ranks of a job, or at none.
    pub remote: Option<Arc<dyn Remote>>,
    /// The progress agent; `None` where messages are served inside the rank's own calls only.
    pub agent: Option<Arc<dyn Agent>>,
    /// Told what load and store do with window memory, where time passes in calls only.
    pub views: Option<Arc<dyn Views>>,
}

impl Transport {
    /// A transport that is made of these.
    ///
    /// # Safety
    ///
    /// They are of one rank of one job, and no other universe is made with any of them: what a peer
    /// says is that of its one universe.
    pub unsafe fn from_parts(parts: Parts) -> Self {
        let Parts { job, messages, sleep, members, shared, cma, remote, agent, views } = parts;
        Self { job, messages, sleep, members, shared, cma, remote, agent, views }
    }

    /// What it is made of, to make another of them.
    pub fn into_parts(self) -> Parts {
        let Self { job, messages, sleep, members, shared, cma, remote, agent, views } = self;
        Parts { job, messages, sleep, members, shared, cma, remote, agent, views }
    }

    /// Copies of the system to and from memory of `peer`, if it makes them.
    pub(crate) fn cma_with(&self, peer: WorldRank) -> Option<&dyn Cma> {
        self.cma.as_deref().filter(|cma| cma.reaches(peer).is_ok())
    }

    /// Load and store are about to touch window memory.
    #[inline]
    pub(crate) fn touches(&self, touch: Touch) {
        if let Some(views) = &self.views {
            views.touches(touch);
        }
    }
}

/// A process in its job. Constant.
#[derive(Debug, Clone, Copy)]
pub struct Job {
    /// Short name of the transport, as shown by `--explain`.
    pub name: &'static str,
    /// This process.
    pub rank: WorldRank,
    /// Processes of the job.
    pub size: u32,
}

/// Sends and receives messages, which may overtake each other unless it
/// [says otherwise](Self::keeps_order).
///
/// # Safety
///
/// [`poll`](Self::poll) hands out what [`send`](Self::send) was given by the core of a rank for
/// this one, with the rank that it came from, each message once at most.
pub unsafe trait Messages: Send + Sync {
    /// One line for `--explain`: what it uses, thresholds, whether it spins, and why.
    fn explain(&self) -> String;
    /// Protocol limits.
    fn limits(&self) -> Limits;
    /// Sends `head` followed by `body` as one message; both are copied before it returns. Sending
    /// to this rank itself is allowed. An arriving message rings its receiver by itself.
    ///
    /// # Safety
    ///
    /// The receiver acts on what the message says: only the core knows what that may be. An answer,
    /// for one, may tell where in this rank's memory a peer is to write.
    unsafe fn send(&self, to: WorldRank, head: &[u8], body: &[u8]) -> Result<(), SubmitError>;
    /// As [`send`](Self::send), of an answer that only a thread needs that waits for it:
    /// parked threads of the receiver are woken, its [`Agent`] need not be. It finds the answer
    /// when it is woken by something else.
    ///
    /// # Safety
    ///
    /// As [`send`](Self::send).
    unsafe fn answer(&self, to: WorldRank, head: &[u8], body: &[u8]) -> Result<(), SubmitError> {
        // SAFETY: forwarded to the caller.
        unsafe { self.send(to, head, body) }
    }
    /// Whether what this rank sends to that one is handed out there in the order in which it was
    /// sent: whatever `send` had taken before another call of it began comes first. Constant.
    fn keeps_order(&self, to: WorldRank) -> bool {
        _ = to;
        false
    }
    /// Hands messages that have arrived to `sink` (their senders and their bytes) and returns how
    /// many there were: all, or so many of them that the rank is rung for those that are left. If
    /// another thread of this rank is doing so already, returns 0 at once.
    fn poll(&self, sink: &mut dyn FnMut(WorldRank, &[u8])) -> usize;
    /// A mark: all that was sent here by peers that this rank has seen to have left lies below it,
    /// and whatever else was sent before. Asked once for each of those at most.
    fn arrived(&self) -> u64;
    /// Whether `sink` has returned from every message below a mark of [`arrived`](Self::arrived),
    /// in whichever thread.
    ///
    /// A thread that parks because the answer is no is rung when it may be yes, by the transport or
    /// by the thread that `poll` tells that there were messages.
    fn is_handled(&self, mark: u64) -> bool;
    /// Messages that came and were not handed out: made up by others than ranks of the job, altered
    /// on their way, or sent a second time. 0 where no others can send.
    fn refused(&self) -> u64 {
        0
    }
}

/// Passes the time of threads that wait.
///
/// A thread that waits does: `arm` → look at its condition → `park` or `disarm`. The thread that
/// makes the condition true does: store → `ring(waiter)`. `arm` and `ring` each contain a
/// sequentially consistent fence, so either the waiter sees the store or the ringer sees the
/// waiter; `ring` costs a load when no thread sleeps there.
pub trait Sleep: Send + Sync {
    /// Wakes every thread of `peer` that is parked; cheap if there is none. Of a peer that is not
    /// [near](Shared::is_near) it may wake none: what it waits for comes by messages and devices.
    fn ring(&self, peer: WorldRank);
    /// Announces that this thread is about to park. Must be followed by `park` or `disarm`.
    fn arm(&self) -> Ticket;
    /// Takes back an `arm`.
    fn disarm(&self, ticket: Ticket);
    /// Sleeps until a `ring` that followed `arm`, or until `timeout`; may return early. Takes back
    /// the `arm`.
    fn park(&self, ticket: Ticket, timeout: Option<Duration>);
    /// Whether ranks share CPUs: a thread that waits then has others to wait for that cannot run at
    /// the same time. Constant, and the same at ranks that are near each other.
    fn is_crowded(&self) -> bool;
    /// Passes the time of waiting round `round` without sleeping: a CPU hint, later a yield.
    /// Returns false when the time has come to park.
    fn relax(&self, round: u32) -> bool;
    /// Monotonic time since some point before the job's start (virtual time in a simulator).
    fn now(&self) -> Duration;
}

/// Knows which ranks still take part.
///
/// # Safety
///
/// [`is_fork`](Self::is_fork) is true in a child of the rank's process only: there, buffers of
/// operations in flight are copies, to which nothing is written.
pub unsafe trait Members: Send + Sync {
    /// Whether `peer` still takes part. It has left in order only after every message that it sent
    /// here has arrived.
    fn peer_state(&self, peer: WorldRank) -> PeerState;
    /// As [`peer_state`](Self::peer_state), from what this rank was told: cheap for many peers.
    fn told(&self, peer: WorldRank) -> PeerState {
        self.peer_state(peer)
    }
    /// The first rank of the job that failed, if one did. Cheap: asked by every wait.
    fn failed(&self) -> Option<WorldRank>;
    /// A wait of this rank has failed because `peer` left in order, or failed. Told to the
    /// launcher, if this rank fails now, too.
    fn missed(&self, peer: WorldRank) {
        _ = peer;
    }
    /// A wait of this rank has failed, at the deadline of the job's configuration if it `is_late`.
    /// Peers that it does not get through to are [noted](Self::note).
    fn gave_up(&self, is_late: bool) {
        _ = is_late;
    }
    /// Something that the user who started the job may want to know, once for each text.
    fn note(&self, text: &str) {
        _ = text;
    }
    /// Where this rank tells what it waits for, and counts, if there is a launcher to read it. For
    /// one engine: asked once.
    fn bulletin(&self) -> Option<Bulletin> {
        None
    }
    /// Whether this process is a fork of the rank's: it has copies of all handles, but no rank is
    /// to hear of it. Constant in a process, and cheap: asked by every guard that is dropped.
    fn is_fork(&self) -> bool {
        false
    }
    /// Tells the peers that this rank leaves, without waiting for them. The first call counts;
    /// after one that was in order, also the first that says [`Holding`](Outcome::Holding).
    fn depart(&self, outcome: Outcome);
}

/// Memory of this rank that near peers may import.
pub trait Region: Mapped {
    /// What a peer passes to [`Shared::import`].
    fn descriptor(&self) -> Descriptor;
    /// No peer maps it any more, but some may still come by its address: what is mapped stays so
    /// until the process ends. What else it takes (a file) is given back.
    fn abandon(self: Box<Self>) {
        core::mem::forget(self);
    }
}

/// Memory that this rank, and near ones, load and store.
///
/// # Safety
///
/// - what [`allocate`](Self::allocate) gives is zeroed, and only this rank and peers that imported
///   its descriptor touch it;
/// - two of its values never overlap;
/// - what [`import`](Self::import) gives are the very bytes that `owner` described.
pub unsafe trait Shared: Send + Sync {
    /// Allocates zeroed memory whose space is reserved: touching it never faults. Aligned to
    /// `align` bytes, a power of two of at most 4096. A length of 0 is allowed.
    fn allocate(&self, len: usize, align: usize) -> Result<Box<dyn Region>, AllocateError>;
    /// Bytes that the ranks of this node could still allocate together, and which limit says so.
    fn available(&self) -> (u64, &'static str);
    /// Whether load and store reach the memory of `peer`. Constant; true for this rank itself
    /// exactly if it holds for some other rank or the transport maps memory at all.
    fn is_near(&self, peer: WorldRank) -> bool;
    /// What a near peer passes to [`import`](Self::import) to map an extent of a backing, which
    /// begins `start` bytes behind the first.
    ///
    /// # Errors
    ///
    /// See [`DescribeError`]. A transport that maps only what it allocated gives back the
    /// descriptor of [`Place::Region`], and says [`DescribeError::Unsupported`] of a file.
    ///
    /// # Safety
    ///
    /// The extent is of a backing that lives as long as the call. So the number of its file, if it
    /// is one, is open in this process and stays so.
    unsafe fn describe(&self, extent: &Extent, start: u64) -> Result<Descriptor, DescribeError>;
    /// Maps what a near peer describes, all of it side by side and in this order; cheap if that is
    /// one region whose segment is mapped already.
    fn import(
        &self,
        owner: WorldRank,
        descriptors: &[Descriptor],
    ) -> Result<Box<dyn Mapped>, ImportError>;
    /// Whether [`fence_near`](Self::fence_near) can be called, and near ranks have seen to what it
    /// needs of them. Constant, and the same at ranks that are near each other.
    fn fences_near(&self) -> bool;
    /// Has every thread of this rank and of those near pass a full memory fence, between call and
    /// return, at a point of its program of which it need not know.
    ///
    /// # Errors
    ///
    /// [`ImportError::Unfenced`], of this rank.
    fn fence_near(&self) -> Result<(), ImportError>;
}

/// Copies to and from private memory of other processes, by address.
pub trait Cma: Send + Sync {
    /// Whether this process may do so with `peer`. Tried once; the answer is kept.
    fn reaches(&self, peer: WorldRank) -> Result<(), CmaError>;
    /// Fills `bytes` from `address` on in the memory of `peer`.
    fn copy_from(&self, peer: WorldRank, address: u64, bytes: &mut [u8]) -> Result<(), CmaError>;
    /// Copies `bytes` to `address` on in the memory of `peer`.
    ///
    /// # Safety
    ///
    /// [`reaches`](Self::reaches) said yes, and `peer` lets others overwrite these bytes at any
    /// time.
    unsafe fn copy_to(&self, peer: WorldRank, address: u64, bytes: &[u8]) -> Result<(), CmaError>;
}

/// Told of load and store.
pub trait Views: Send + Sync {
    /// The program is about to touch window memory by itself: through a view, or by an operation
    /// on a target that is [near](Shared::is_near).
    fn touches(&self, touch: Touch);
}
