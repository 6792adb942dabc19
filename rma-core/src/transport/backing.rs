//! What a window lies on: one trait, for memory of every kind.
//!
//! A crate that adds a kind of memory implements [`Backing`] for a type of its own, and hands an
//! `Arc` of it to [`create`](crate::WindowBuilder::create) or [`attach`](crate::Window::attach).
#![allow(unsafe_code)] // room: declares the unsafe trait

use crate::class::ErrorClass;
use crate::rank::Rank;
use crate::transport::{Descriptor, Mapped};
use core::any::Any;
use core::ops::Range;
use std::sync::Arc;

/// Extents that a backing may have. Each costs an exchange when the window is made.
pub(crate) const EXTENTS_MAX: usize = 64;

/// Memory that a part of a window, or a region of a dynamic one, lies on.
///
/// Its bytes are those of its [`mapping`](Mapped::mapping), at the same address for as long as the
/// value lives. The core copies them, and has no reference into them but while the window is
/// sealed. The `Arc` is given back by [`free_into`](crate::Window::free_into) and
/// [`detach`](crate::Window::detach), or dropped when all ranks have freed the window. A window
/// that is dropped without `free` may still be written by peers: then the library keeps the `Arc`
/// for as long as the process lives.
///
/// # Safety
///
/// While the library has the `Arc`, which other clones do not change:
/// - the mapping is readable and writable, touching it never faults, and all that
///   [`Mapped`] demands holds;
/// - no reference into it is used, and no safe call of the type gives one out: other ranks and
///   threads of the library read and write the bytes at any time;
/// - [`extents`](Self::extents) says the same at each call, its file numbers stay open, and a
///   neighbour that maps what it says sees these very bytes, also after this process has ended: the
///   files are not truncated;
/// - if [`is_exclusive`](Self::is_exclusive) says yes, no other value, here or in another process,
///   has any of these bytes, nothing but ranks of the window touches them, and there is no `Weak`
///   of the `Arc`.
pub unsafe trait Backing: Mapped + Any {
    /// What the bytes lie in, side by side, in the order of the mapping, which they fill without a
    /// gap. At most 64, none of them empty.
    ///
    /// None at all: no other process can map the memory, which is reached by copies of the
    /// operating system or by messages.
    fn extents(&self) -> Vec<Extent>;

    /// Bytes, a power of two of at least 64: the mapping, and each extent in it, begins at a
    /// multiple. Neighbours map files by pages: less than a page will do for one extent only.
    fn granularity(&self) -> u64 {
        4096
    }

    /// Whether the bytes are in no other value. While this holds, and nothing else has the `Arc`, a
    /// window may be [sealed](crate::Window::seal), where its part is a plain slice.
    fn is_exclusive(&self) -> bool {
        false
    }

    /// Whether [`persist`](Self::persist) can make some of the bytes durable. Constant.
    fn is_durable(&self) -> bool {
        false
    }

    /// Hints in force for it, which [`Window::info`](crate::Window::info) tells beside those of the
    /// window.
    fn info(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// Changes a hint of its own, as [`Window::set_info`](crate::Window::set_info) asks.
    fn set_info(&self, key: &str, value: &str) -> HintChange {
        _ = (key, value);
        HintChange::Unknown
    }

    /// What a window over it has as an [attribute](crate::Window::attribute) from the beginning.
    fn attribute(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        None
    }

    /// No window came of it, after an [allocator](crate::Allocator) had made it for one: what was
    /// not there before goes.
    fn unmake(&self) {}

    /// The window is freed: what is to outlive it has to be durable when this returns.
    ///
    /// # Errors
    ///
    /// See [`PersistError`]; of bytes that an earlier call said to be lost, none.
    fn release(&self) -> Result<(), PersistError> {
        Ok(())
    }

    /// Stores bytes in the mapping, `offset` bytes from its beginning, by a means of its own where
    /// that is cheaper than copies to the addresses: a file has the system write them, which then
    /// need not be told of each page by a fault. False if the library is to copy them; then some
    /// may be there already.
    ///
    /// Asked when this rank writes 64 KiB or more to a part of its own.
    fn store(&self, offset: u64, bytes: &[u8]) -> bool {
        _ = (offset, bytes);
        false
    }

    /// Makes bytes of the mapping durable, in units of its own where they have to be larger: what
    /// was stored there before the call outlives a crash of the machine when it returns.
    ///
    /// # Errors
    ///
    /// See [`PersistError`]. Memory that ends with the job says so.
    fn persist(&self, range: Range<u64>) -> Result<(), PersistError> {
        _ = range;
        Err(PersistError::Volatile)
    }

    /// As [`persist`](Self::persist), for RMA's own synchronisation; returns whether the bytes are
    /// durable: not in memory with transactions, where that is for [`commit`](Self::commit) only.
    ///
    /// # Errors
    ///
    /// As of [`persist`](Self::persist).
    fn sync(&self, range: Range<u64>) -> Result<bool, PersistError> {
        self.persist(range).map(|()| true)
    }

    /// Whether [`commit`](Self::commit) makes versions, at this moment.
    fn has_transactions(&self) -> bool {
        false
    }

    /// Ends the transaction under way and begins the next: what all of the memory holds becomes a
    /// version, durable, at this rank alone or at all ranks of `together` or none.
    ///
    /// Called only of memory that [has transactions](Self::has_transactions); with `together`, by
    /// all ranks of it, and each calls [`CommitGroup::gather`] as often as the others. Threads may
    /// come at once, also by several windows over it: the memory orders their commits or refuses
    /// one, at all its ranks, and waits for no other rank before it has told `together` of itself.
    ///
    /// # Errors
    ///
    /// See [`PersistError`].
    fn commit(&self, together: Option<&dyn CommitGroup>) -> Result<(), PersistError> {
        _ = together;
        Err(PersistError::Volatile)
    }
}

/// Ranks that commit together, those of a window.
pub trait CommitGroup {
    /// This one.
    fn rank(&self) -> Rank;

    /// How many there are.
    fn size(&self) -> u32;

    /// The words of each rank, as many of each, in rank order; `None` if a rank is gone or too
    /// late, which the caller of [`commit`](Backing::commit) knows. **Collective**, and a barrier.
    fn gather(&self, words: &[u64]) -> Option<Vec<u64>>;
}

/// What has become of a hint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum HintChange {
    /// The memory does not know it.
    Unknown,
    /// Its value is in force.
    InForce,
    /// Its value is not in force, or not yet: at the next commit of all ranks, if that can be.
    NotInForce,
    /// It takes no such value.
    Malformed {
        /// The key.
        key: &'static str,
        /// What it takes.
        allowed: &'static str,
    },
}

/// A piece of a [`Backing`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Bytes. The next extent begins behind them.
    pub len: u64,
    /// What a neighbour needs to map them.
    pub place: Place,
}

/// Where a neighbour finds the bytes of an [`Extent`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// Memory that the transport allocated and describes.
    Region(Descriptor),
    /// A file that can be mapped shared, to be read and written.
    File {
        /// By which this process has it open.
        number: i32,
        /// Where in the file the extent begins, in bytes; a multiple of the page size.
        offset: u64,
        /// Neighbours map it with `MAP_SYNC` or not at all: its owner makes bytes durable by
        /// writing back the cache lines that they lie in, whichever rank stored them.
        synchronous: bool,
    },
}

/// Why bytes were not made durable.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PersistError {
    /// There is nothing that outlives the job.
    #[error("this memory ends with the job; make the window over a file or persistent memory")]
    Volatile,
    /// An earlier call has failed, and with it writes that the system does not name. What of the
    /// bytes is durable is not known.
    #[error(
        "an earlier write failed in {call}{}, and what is durable is not known; free the window, \
         and check the data after it is opened again", os_error(*.errno)
    )]
    Poisoned {
        /// System call.
        call: &'static str,
        /// Its error number; 0 if the system gave none.
        errno: i32,
    },
    /// The file has been cut since.
    #[error(
        "the file ends after {len} bytes, and the memory has it up to byte {needed}: another \
         program has cut it, and what lay behind is lost; free the window, and keep other programs \
         from the file"
    )]
    Cut {
        /// Bytes that it has.
        len: u64,
        /// Bytes that it had.
        needed: u64,
    },
    /// As [`Cut`](Self::Cut), of a file that another rank has open: a target that was asked, or
    /// rank 0 where the parts of all ranks lie in its file.
    #[error(
        "another program has cut a file of another rank, and what lay behind its end is lost; \
         free the window, and keep other programs from the file"
    )]
    CutThere,
    /// The operating system refused. What of the bytes is durable is not known.
    #[error("the operating system failed in {call} (os error {errno}); write the data elsewhere")]
    System {
        /// System call.
        call: &'static str,
        /// Its error number.
        errno: i32,
    },
    /// Another thread of this rank commits the same memory with all its ranks. No version was made
    /// by this call, and the window goes on.
    #[error(
        "another commit of the same memory is under way; commit it by one window and one thread at \
         a time"
    )]
    Committing,
    /// The ranks ask for different things, or are not those whose memory it is. No version was
    /// made, at no rank, and the window goes on.
    #[error("no version was made, and the window is as it was: {why}")]
    Refused {
        /// What is wrong, and what to do.
        why: &'static str,
    },
    /// There is no space for a version. None was made, at no rank, and the window goes on.
    #[error(
        "there is no space for a version (os error {errno}); no version was made, and the window \
         is as it was: free some space, or delete versions, and commit again"
    )]
    NoSpace {
        /// The system's error number.
        errno: i32,
    },
    /// Another rank could not make its part durable, or not commit.
    #[error("rank {rank} failed in the same commit; its own error says why{}", goes_on(*.no_space))]
    Elsewhere {
        /// The lowest of those.
        rank: Rank,
        /// Whether it was for want of space: no version was made, and the window goes on.
        no_space: bool,
    },
    /// A rank's part has transactions, and another's has none, so that they make no version
    /// together.
    #[error(
        "rank {with} has transactions and rank {without} has none; create the window over the same \
         persistent memory at all ranks, and set pmem_dont_use_transactions alike"
    )]
    Mixed {
        /// The lowest rank that has.
        with: Rank,
        /// The lowest that has none.
        without: Rank,
    },
    /// A region of a dynamic window has transactions: it has those of the ranks that opened it, and
    /// the window makes no version of it.
    #[error(
        "a region attached to this dynamic window has transactions, which its ranks do not commit \
         together; end the epoch without persistence and call the region's own commit"
    )]
    Regions,
}

crate::debug_as_display!(PersistError);

/// Behind the name of a call.
fn os_error(errno: i32) -> String {
    if errno == 0 { String::new() } else { format!(" (os error {errno})") }
}

/// Behind the name of a rank that failed.
fn goes_on(no_space: bool) -> &'static str {
    if no_space {
        ", it has no space; no version was made, and the window is as it was"
    } else {
        ""
    }
}

impl PersistError {
    /// Of the MPI error class `MPI_ERR_NO_SPACE`, `MPI_ERR_QUOTA`, `MPI_ERR_RMA_SYNC` for commits
    /// that were refused, or `MPI_ERR_IO`.
    pub fn class(&self) -> ErrorClass {
        /// Linux's, on all machines but MIPS and SPARC.
        const EDQUOT: i32 = 122;
        match self {
            Self::NoSpace { errno: EDQUOT } => ErrorClass::Quota,
            Self::NoSpace { .. } | Self::Elsewhere { no_space: true, .. } => ErrorClass::NoSpace,
            Self::Mixed { .. } | Self::Regions | Self::Committing | Self::Refused { .. } => {
                ErrorClass::RmaSync
            }
            _ => ErrorClass::Io,
        }
    }
}

/// What is wrong with a backing, if anything is: that of the lowest extent.
pub(crate) fn flaw(backing: &dyn Backing) -> Option<(u32, &'static str)> {
    let (mapping, granularity) = (backing.mapping(), backing.granularity());
    let extents = backing.extents();
    let last = extents.len().checked_sub(1)? as u32;
    if !granularity.is_power_of_two() || granularity < 64 {
        return Some((0, "is of a granularity that is no power of two of at least 64"));
    }
    if extents.len() > EXTENTS_MAX {
        return Some((EXTENTS_MAX as u32, "is one more than neighbours map side by side"));
    }
    let mut start = mapping.base.addr() as u64;
    let end = start.checked_add(mapping.len as u64);
    for (number, extent) in (0..).zip(&extents) {
        if extent.len == 0 {
            return Some((number, "has no bytes"));
        }
        if !start.is_multiple_of(granularity) {
            return Some((number, "does not begin at a multiple of the granularity"));
        }
        match start.checked_add(extent.len).filter(|next| end.is_some_and(|end| *next <= end)) {
            Some(next) => start = next,
            None => return Some((number, "does not lie inside of the mapping")),
        }
    }
    (end != Some(start)).then_some((last, "ends before the mapping does"))
}
