//! What can go wrong with storage.
use rma_core::{ErrorClass, HintError};
use rustix::io::Errno;
use std::io::Error;
use std::path::PathBuf;

/// What is used up where no space can be reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum SpaceLimit {
    /// The file system.
    #[error("the file system is full; free some, or use another")]
    FileSystem,
    /// What one user may have of it.
    #[error("the quota is used up; free some, or use another")]
    Quota,
    /// The length of a block device.
    #[error("the device ends before; choose a smaller offset or window")]
    Device,
    /// The length of a file, of this process or file system.
    #[error(
        "the process or the file system may not have files that long; raise ulimit -f, or use \
         another file system"
    )]
    FileLength,
    /// Memory beside the file, of the limit that is named.
    #[error("{0}")]
    Memory(&'static str),
}

impl SpaceLimit {
    /// That of an error of the system, if it is for want of space.
    pub(crate) fn of(errno: Errno) -> Option<Self> {
        match errno {
            Errno::NOSPC => Some(Self::FileSystem),
            Errno::DQUOT => Some(Self::Quota),
            Errno::FBIG => Some(Self::FileLength),
            _ => None,
        }
    }

    pub(crate) fn class(self) -> ErrorClass {
        match self {
            Self::Quota => ErrorClass::Quota,
            _ => ErrorClass::NoSpace,
        }
    }

    /// The system's error that says so.
    pub(crate) fn errno(self) -> Errno {
        match self {
            Self::Quota => Errno::DQUOT,
            Self::FileLength => Errno::FBIG,
            Self::FileSystem | Self::Device | Self::Memory(_) => Errno::NOSPC,
        }
    }
}

/// Why there is no memory on storage. No file is left behind that was not there before. One that
/// was there may end where the bytes that were asked for begin or, if other memory lay behind its
/// end meanwhile, with that.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// A value that a hint does not take.
    #[error(transparent)]
    Hint(#[from] HintError),
    /// The hints ask for storage, and not for where.
    #[error("storage needs a name (storage_alloc_filename): that of a file or block device")]
    NoFile,
    /// Memory of no bytes is on no storage.
    #[error("{}: 0 bytes asked for; make that part of the window of memory", .path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// Offset and length are beyond what a file can have.
    #[error(
        "{}: {len} bytes at offset {offset} end beyond byte 2^63 - 1, the longest file; choose \
         a smaller offset", .path.display()
    )]
    TooFar {
        /// The file.
        path: PathBuf,
        /// `storage_alloc_offset`.
        offset: u64,
        /// Bytes on storage.
        len: u64,
    },
    /// Memory cannot lie side by side with a file from such an offset on.
    #[error(
        "{}: offset {offset} is inside of a page, and {memory} bytes of memory shall lie beside \
         the file; choose a multiple of {page}, or storage_alloc_factor=1", .path.display()
    )]
    InsidePage {
        /// The file.
        path: PathBuf,
        /// `storage_alloc_offset`.
        offset: u64,
        /// Bytes in memory.
        memory: u64,
        /// Bytes of a page.
        page: u64,
    },
    /// Only files and block devices can be mapped.
    #[error("{}: it is {kind}; name a file or a block device", .path.display())]
    NotStorage {
        /// Where.
        path: PathBuf,
        /// What it is.
        kind: &'static str,
    },
    /// A device that is to be removed with its memory.
    #[error(
        "{}: storage_alloc_unlink would remove a block device; leave that hint out", .path.display()
    )]
    UnlinkDevice {
        /// The device.
        path: PathBuf,
    },
    /// Another memory on storage has some of these bytes, of this process or another.
    #[error(
        "{}: bytes {start} to {end} are in use by another window, of this job or another; \
         give each rank its own file ({{rank}} in its name) or storage_alloc_offset, or end the \
         other job", .path.display()
    )]
    InUse {
        /// The file.
        path: PathBuf,
        /// The first byte.
        start: u64,
        /// The byte behind the last.
        end: u64,
    },
    /// The space cannot be reserved.
    #[error("{}: no space for bytes {start} to {end}: {limit}", .path.display())]
    Space {
        /// The file.
        path: PathBuf,
        /// The first byte.
        start: u64,
        /// The byte behind the last.
        end: u64,
        /// What is used up.
        limit: SpaceLimit,
    },
    /// The operating system refused.
    #[error("{}: {call} failed: {}{remedy}", .path.display(), Error::from_raw_os_error(*.errno))]
    System {
        /// The file.
        path: PathBuf,
        /// System call.
        call: &'static str,
        /// Its error number.
        errno: i32,
        /// What to do, with the semicolon before it; empty if that is plain.
        remedy: &'static str,
    },
}

impl StorageError {
    /// The MPI error class: of a hint, of memory, or of files (MPI 4.1, section 14.7).
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Hint(_) | Self::NoFile => ErrorClass::InfoValue,
            Self::Empty { .. } => ErrorClass::Size,
            Self::TooFar { .. } | Self::InsidePage { .. } => ErrorClass::Disp,
            Self::Space { limit, .. } => limit.class(),
            Self::NotStorage { .. } | Self::UnlinkDevice { .. } => ErrorClass::BadFile,
            Self::InUse { .. } => ErrorClass::FileInUse,
            Self::System { errno, .. } => match Errno::from_raw_os_error(*errno) {
                Errno::NOENT | Errno::NOTDIR => ErrorClass::NoSuchFile,
                Errno::NAMETOOLONG | Errno::LOOP | Errno::TXTBSY => ErrorClass::BadFile,
                Errno::ACCESS | Errno::PERM => ErrorClass::NoAccess,
                Errno::ROFS => ErrorClass::ReadOnly,
                Errno::NOMEM => ErrorClass::NoMem,
                Errno::NOSPC => ErrorClass::NoSpace,
                Errno::DQUOT => ErrorClass::Quota,
                _ => ErrorClass::Io,
            },
        }
    }
}

rma_core::debug_as_display!(StorageError);
