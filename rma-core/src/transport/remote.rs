//! A device that moves bytes to and from memory of other ranks without them: RDMA.
//!
//! The core registers the part of a window when it makes that, and what is attached to a dynamic
//! one when it is; tells peers the key where they cannot know it; posts transfers on endpoints, one
//! for each thread, and polls them while it makes progress. What a device cannot do goes by
//! messages.
#![allow(unsafe_code)] // room: declares the unsafe traits

use super::Mapping;
use crate::element::{BasicType, Op};
use crate::rank::WorldRank;
use core::fmt;
use core::ops::Range;

/// Opaque to the core: what the device of an origin needs to reach registered memory of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteKey(pub [u8; RemoteKey::LEN]);

impl RemoteKey {
    /// Bytes in a key.
    pub const LEN: usize = 32;
}

/// How positions in registered memory are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Addressing {
    /// From its first byte.
    Offset,
    /// By the address of the byte in its rank's process.
    Virtual,
}

/// Whether the core or the device chooses the key of a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keys {
    /// The core, which gives all parts of a window the same, and each region of a dynamic one its
    /// own: the first 16 bytes differ, the others are 0.
    Given,
    /// The device.
    Chosen,
}

/// What is the same for the life of a device; of sizes, [towards one peer](Remote::limits_to).
/// `addressing`, `keys` and `coherent` are the same at all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteLimits {
    /// How positions are counted.
    pub addressing: Addressing,
    /// Whether the core or the device chooses keys.
    pub keys: Keys,
    /// Puts of at most so many bytes are [done](Posted::Done) when they are posted, as far as the
    /// origin's bytes go.
    pub inject: usize,
    /// Transfers of more bytes than [`inject`](Self::inject), and of at most so many, are copied to
    /// or from memory of the core; larger ones move the user's bytes directly.
    pub bounce: usize,
    /// Largest transfer, in bytes; at least 16.
    pub transfer_max: u64,
    /// Bytes at the target that one atomic combines at most; at least 16 if the device has any.
    pub atomic_max: u64,
    /// What is not one run of bytes at the target goes as a transfer for each run if these have at
    /// least so many bytes on average, and packed into messages otherwise; unless the device
    /// [tells its costs](Remote::costs_to), or `Config::device_run_bytes` says so.
    pub run_min: u64,
    /// Whether the device's atomics and those of CPUs may be used at the same time on one element
    /// that CPUs have instructions for: integers of 4 and 8 bytes.
    pub coherent: bool,
}

/// What layouts cost on the way to a peer, as its device has measured it or is made: a transfer for
/// each run of bytes, or all of them packed into messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayoutCosts {
    /// Nanoseconds of a transfer, from its post until it is complete.
    pub transfer_ns: u64,
    /// What each further one adds while others are under way.
    pub next_transfer_ns: u64,
    /// Nanoseconds of a full message and its answer, with what packing and unpacking take.
    pub message_ns: u64,
    /// What each further one adds while others are under way.
    pub next_message_ns: u64,
}

impl LayoutCosts {
    /// Whether so many transfers take no longer than so many messages; of each, one at least.
    #[must_use]
    pub const fn favour_transfers(self, transfers: u64, messages: u64) -> bool {
        let Self { transfer_ns, next_transfer_ns, message_ns, next_message_ns } = self;
        let further = transfers.saturating_sub(1).saturating_mul(next_transfer_ns);
        let by_transfers = transfer_ns.saturating_add(further);
        let further = messages.saturating_sub(1).saturating_mul(next_message_ns);
        by_transfers <= message_ns.saturating_add(further)
    }
}

/// Memory that the device reaches, until it is dropped: afterwards no transfer touches it, and one
/// that comes later fails.
pub trait Registration: Send + Sync {
    /// What peers pass to [`Endpoint::post`].
    fn key(&self) -> RemoteKey;
}

/// Why memory of this rank is about to be used by others: so that its device can prefetch what it
/// has not mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Moment {
    /// A fence exposes it to all ranks.
    Exposed,
    /// Another rank asks for its lock by message.
    LockRequested,
    /// It has that lock now.
    LockGranted,
    /// A post exposes it to some ranks.
    Posted,
    /// They are waited for, and some are not done: it may be long since it was posted.
    Late,
}

/// Bytes of a peer's registered memory.
#[derive(Debug, Clone, Copy)]
pub struct There {
    /// The rank of the memory.
    pub peer: WorldRank,
    /// That of the registration.
    pub key: RemoteKey,
    /// Where they begin, as [`RemoteLimits::addressing`] counts.
    pub at: u64,
}

/// What a transfer does, and this rank's side of it.
#[derive(Debug, Clone, Copy)]
pub enum Transfer {
    /// Copies `len` bytes to the peer.
    Put {
        /// First byte.
        from: *const u8,
        /// Bytes.
        len: usize,
    },
    /// Copies `len` bytes from the peer.
    Get {
        /// First byte.
        into: *mut u8,
        /// Bytes.
        len: usize,
    },
    /// Combines elements at the peer, each atomically.
    Atomic {
        /// What is done to each. They are aligned at the target, as far as this rank knows where
        /// that has its part; a device to which they are not refuses.
        atomic: Atomic,
        /// Elements, one behind the other.
        count: usize,
        /// Their operands, packed; for [`Atomic::Swap`], two for each element: what it is compared
        /// with, then what it becomes. Null if there are none.
        operands: *const u8,
        /// What was there, packed; null if the core does not ask.
        fetched: *mut u8,
    },
}

/// What goes through an [`Endpoint`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Transfers to memory that is registered as long as any rank may operate there.
    Parts,
    /// Those to memory that may be detached meanwhile: what is refused there, no flush of
    /// [`Parts`](Self::Parts) hears of, unless the device has no endpoint for one of both.
    Regions,
}

/// An atomic operation of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Atomic {
    /// Combines an element of that type with its operand.
    Combine(Op, BasicType),
    /// Replaces an element of that type if it is what it is compared with.
    Swap(BasicType),
}

/// What became of a post.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Posted {
    /// It is complete; [`Endpoint::poll`] does not tell of it.
    Done,
    /// `poll` will tell.
    Pending,
}

/// Why nothing was posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PostError {
    /// There is no room in the queue, for that peer or for any: make progress, then try again.
    /// Transfers to peers that are gone make room in the end. Never reaches a user.
    Again,
    /// The device does not do it.
    Device(DeviceError),
}

/// Why a transfer failed.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The device does not work any more.
    #[error("the device does not work any more; run with rma_path=messages")]
    Ended,
    /// The target's device does not give access to these bytes.
    #[error("the target's device refused access: the memory is not registered any more")]
    Refused,
    /// The device was cut off from that peer, because a wait for it had ended: what has arrived of
    /// earlier puts is not known.
    #[error("the device was cut off from rank {0} when a wait ended; put again what matters")]
    CutOff(WorldRank),
    /// The connection to that peer ended, and the transfer with it: what has become of that is not
    /// known. A device tries again what it can.
    #[error(
        "the connection to rank {0} ended, and the transfer with it, however often it was tried; \
         put again what matters (an atomic may have happened)"
    )]
    Cancelled(WorldRank),
    /// The peer does not answer.
    #[error("rank {0} does not answer")]
    Unreachable(WorldRank),
    /// The launcher does not say where the peer is reached.
    #[error("where rank {peer} is reached is not known: {why}")]
    NoAddress {
        /// The peer.
        peer: WorldRank,
        /// Why, and what to do.
        why: &'static str,
    },
    /// No endpoint can be opened for transfers.
    #[error(
        "the device has no further endpoint for this rank ({call}, error {errno}): {remedy}; or \
         run with rma_path=messages"
    )]
    NoEndpoint {
        /// The driver's call.
        call: &'static str,
        /// Error number.
        errno: i32,
        /// What to do about it.
        remedy: &'static str,
    },
    /// The driver failed.
    #[error(
        "the device's driver failed in {call} (error {errno}): put again what matters, \
         or run with rma_path=messages"
    )]
    System {
        /// Its call.
        call: &'static str,
        /// Error number.
        errno: i32,
    },
}

/// Why memory was not registered.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// It would be too much.
    #[error("{requested} bytes to be registered, {available} left ({limit}); raise that limit")]
    Shortage {
        /// Bytes to be registered.
        requested: u64,
        /// Bytes that could be.
        available: u64,
        /// Which limit is in force.
        limit: &'static str,
    },
    /// The device cannot reach memory of that kind.
    #[error("the device cannot reach memory of that kind")]
    Unsupported,
    /// The driver failed.
    #[error("the device's driver failed in {call} (os error {errno})")]
    System {
        /// Its call.
        call: &'static str,
        /// Error number.
        errno: i32,
    },
}

crate::debug_as_display!(DeviceError, RegisterError);

impl DeviceError {
    /// Whether memory that is not registered any more may be the reason.
    pub(crate) fn may_be_refusal(self) -> bool {
        matches!(self, Self::Refused | Self::Cancelled(_) | Self::System { .. })
    }
}

/// A device that moves bytes to and from memory of other ranks without them.
///
/// # Safety
///
/// - no byte of this rank is touched but those of registrations that are not dropped, by transfers
///   of ranks which have the key, inside of the registered memory, and those that
///   [`Endpoint::post`] was given;
/// - a key of a registration that was dropped reaches no memory that is registered later, unless
///   the same key was given for that.
pub unsafe trait Remote: Send + Sync {
    /// One line for `--explain`: which device, thresholds, and why.
    fn explain(&self) -> String;
    /// Constant.
    fn limits(&self) -> RemoteLimits;
    /// As [`limits`](Self::limits), towards one peer: where sizes depend on what connects it or on
    /// its device, they are others. `addressing`, `keys` and `coherent` are the same. Constant.
    fn limits_to(&self, peer: WorldRank) -> RemoteLimits {
        _ = peer;
        self.limits()
    }
    /// What layouts cost on the way to a peer, if the device knows: then each put and get of one
    /// goes the way that takes less. Cheap, and may change as the device measures.
    fn costs_to(&self, peer: WorldRank) -> Option<LayoutCosts> {
        _ = peer;
        None
    }
    /// Whether the device reaches memory of `peer`. Constant. It reaches this rank itself if it
    /// reaches any.
    fn reaches(&self, peer: WorldRank) -> bool;
    /// Whether the device does that atomically; asked of what is [defined](Atomic::is_defined)
    /// only. Constant, and the same at all ranks.
    fn does(&self, atomic: Atomic) -> bool;
    /// Gives peers access to memory of this rank, with that key if the core
    /// [gives](Keys::Given) keys.
    ///
    /// # Errors
    ///
    /// See [`RegisterError`].
    ///
    /// # Safety
    ///
    /// Until the registration is dropped, the memory stays mapped, and others read and write it at
    /// any time.
    unsafe fn register(
        &self,
        memory: Mapping,
        key: Option<RemoteKey>,
    ) -> Result<Box<dyn Registration>, RegisterError>;
    /// A queue of such transfers, of the thread that asks. If there is none for it, it shares that
    /// of another one, and none asks any more for that purpose; a device that has no endpoint at
    /// all for one purpose gets those transfers on endpoints of the other. Waits for no other
    /// thread of this rank.
    ///
    /// # Errors
    ///
    /// See [`DeviceError`].
    fn endpoint(&self, purpose: Purpose) -> Result<Box<dyn Endpoint>, DeviceError>;
    /// This rank's registered bytes from `range.start` on, counted from the first, are about to be
    /// used. Cheap, waits for nothing, and may do nothing.
    fn advise(&self, registration: &dyn Registration, range: Range<u64>, moment: Moment) {
        _ = (registration, range, moment);
    }
}

/// A queue of transfers, whose completions come in any order. A completion rings threads of
/// its rank, and so does room after [`PostError::Again`].
///
/// All calls but [`poll`](Self::poll) are made with a lock of the core held, which what `poll`
/// hands out takes: they wait for no other thread of this rank.
///
/// # Safety
///
/// What [`quiesce`](Self::quiesce), [`poll`](Self::poll) and [`RemoteLimits::inject`] promise
/// holds: memory that a transfer was given is not touched afterwards. To drop an endpoint quiesces
/// all peers.
pub unsafe trait Endpoint: Send + Sync {
    /// Begins a transfer of at most [`transfer_max`](RemoteLimits::transfer_max) bytes, or of
    /// [`atomic_max`](RemoteLimits::atomic_max). Does not block.
    ///
    /// A put is complete when the bytes of this rank may change, and is at its place when a later
    /// [`flush`](Self::flush) is complete. A get is complete when its bytes are here, an atomic
    /// when it has happened. None of them is begun if this fails.
    ///
    /// # Errors
    ///
    /// See [`PostError`].
    ///
    /// # Safety
    ///
    /// Memory that `transfer` names stays valid until the transfer is complete, or its peer was
    /// [quiesced](Self::quiesce). Meanwhile nothing changes what it reads, and nothing reads or
    /// changes what it writes. `id` names no other transfer meanwhile.
    unsafe fn post(&self, id: u64, transfer: &Transfer, there: &There)
    -> Result<Posted, PostError>;
    /// Complete when all that this endpoint posted for that peer before has happened there, and the
    /// peer sees it. Fails if some of it failed that was complete by then, and no other flush has
    /// told so.
    ///
    /// # Errors
    ///
    /// See [`PostError`].
    fn flush(&self, id: u64, peer: WorldRank) -> Result<Posted, PostError>;
    /// Hands the ids of what is complete to `sink`, and how it went; returns how many. Memory of
    /// the transfer is not touched any more. If another thread does so already, returns 0, and this
    /// one is rung when that is done. While `sink` runs, no lock is held that another call takes.
    fn poll(&self, sink: &mut dyn FnMut(u64, Result<(), DeviceError>)) -> usize;
    /// Cuts off what is posted for that peer: when this returns, memory that it was given is not
    /// touched any more, and `poll` does not tell of it. What was read before may still come to the
    /// peer, unless that drops its registration, and no flush waits for it. What is posted later
    /// starts anew. Aborts the process if the device cannot do so.
    fn quiesce(&self, peer: WorldRank);
}

impl Atomic {
    /// Whether the type has that operation.
    pub fn is_defined(self) -> bool {
        match self {
            Self::Combine(op, basic) => basic.has(op),
            Self::Swap(basic) => basic.is_swapped(),
        }
    }

    /// Bytes of an element.
    pub fn width(self) -> usize {
        self.basic().width()
    }

    /// What the address of an element is a multiple of.
    pub fn align(self) -> usize {
        self.basic().align()
    }

    fn basic(self) -> BasicType {
        match self {
            Self::Combine(_, basic) | Self::Swap(basic) => basic,
        }
    }
}

impl fmt::Display for Atomic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Combine(op, basic) => write!(f, "{} of {}", op.name(), basic.name()),
            Self::Swap(basic) => write!(f, "compare-and-swap of {}", basic.name()),
        }
    }
}
