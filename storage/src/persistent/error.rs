//! What can go wrong with persistent windows.
use crate::StorageError;
use crate::error::SpaceLimit;
use crate::store::MediumError;
use rma_core::{CollectiveError, ErrorClass, HintError, PersistError, Rank};
use std::io::Error;

/// The codes of class [`ErrorClass::Pmem`] ("Extension of MPI One-Sided Communication API",
/// section 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PersistentCode {
    /// `MPI_ERR_PMEM_ROOT_PATH`
    RootPath,
    /// `MPI_ERR_PMEM_NAME`
    Name,
    /// `MPI_ERR_PMEM_CKPT_VER`
    CheckpointVersion,
    /// `MPI_ERR_PMEM_MODE`
    Mode,
    /// `MPI_ERR_PMEM_WINDOWS`
    Windows,
    /// `MPI_ERR_PMEM_VERSIONS`
    Versions,
    /// `MPI_ERR_PMEM_ARG`
    Arg,
    /// `MPI_ERR_PMEM_NO_MEM`
    NoMem,
}

/// Why there is no persistent memory, or no version of it.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PersistentError {
    /// A value that a hint does not take.
    #[error(transparent)]
    Hint(#[from] HintError),
    /// The file that the window lies on.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The ranks could not agree.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// Another rank could not; its own error says why.
    #[error("rank {rank} failed in {what}; its own error says why")]
    Elsewhere {
        /// Which.
        rank: Rank,
        /// What all were about to do.
        what: &'static str,
        /// The code of its error, if it is of class `Pmem`.
        code: Option<PersistentCode>,
    },
    /// The ranks of a window could not agree; the call of the window that asked says why.
    #[error("{what}: the ranks of the window could not agree")]
    Unheard {
        /// What all were about to do.
        what: &'static str,
    },
    /// A path that is no root.
    #[error("root {path}: {what}")]
    RootPath {
        /// The path.
        path: String,
        /// What is wrong, and what to do.
        what: &'static str,
    },
    /// Another instance of an application has the root.
    #[error(
        "root {path} is in use by {holder}; end that, or choose another root for this instance"
    )]
    RootInUse {
        /// The root.
        path: String,
        /// Its host and process.
        holder: String,
    },
    /// What no window is called, or none here.
    #[error("window {name:?}: {what}")]
    Name {
        /// The name.
        name: String,
        /// What is wrong, and what to do.
        what: &'static str,
    },
    /// Something else has the window open, or has a part of it.
    #[error("window {name:?} is open; end its use first")]
    WindowInUse {
        /// The name.
        name: String,
    },
    /// There is no such version.
    #[error("window {name:?} has no version {version} that {holder} holds; there are: {held}")]
    NoVersion {
        /// The name.
        name: String,
        /// Its number, or what was asked for.
        version: String,
        /// Which rank or ranks were to hold it.
        holder: String,
        /// What there is.
        held: String,
    },
    /// A version is not what was written.
    #[error(
        "window {name:?}: {what}: {flaw}; this version cannot be used, `rma-store verify` names \
         those that can: open one by pmem_mode=checkpoint and pmem_checkpoint_version, or make \
         one the newest by `rma-store restore`"
    )]
    Damaged {
        /// The name.
        name: String,
        /// Which file, and where.
        what: String,
        /// What is wrong.
        flaw: &'static str,
    },
    /// Hints that do not go together.
    #[error("window {name:?}: {what}")]
    Mode {
        /// The name.
        name: String,
        /// What is wrong, and what to do.
        what: &'static str,
    },
    /// The window has another size.
    #[error(
        "window {name:?} has {held} bytes at rank {rank}, and {requested} were asked for; ask for \
         as many, or for more by pmem_mode=expand"
    )]
    Size {
        /// The name.
        name: String,
        /// The rank whose part it is.
        rank: u32,
        /// Its bytes.
        held: u64,
        /// Those asked for.
        requested: u64,
    },
    /// The window was made by another number of ranks.
    #[error(
        "window {name:?} was made by {held} ranks, and here are {here}; run as many or, if its \
         parts are one array in the order of ranks, say so at all ranks: \
         pmem_block_distribution=true"
    )]
    Ranks {
        /// The name.
        name: String,
        /// How many made it.
        held: u32,
        /// How many there are.
        here: u32,
    },
    /// The window is one array, and has another size.
    #[error(
        "window {name:?} has {held} bytes at all ranks together, and {requested} were asked for; \
         ask for as many"
    )]
    Total {
        /// The name.
        name: String,
        /// Its bytes.
        held: u64,
        /// Those asked for.
        requested: u64,
    },
    /// The window has other elements.
    #[error("window {name:?} has elements of {held}, and {requested} were asked for; use the same")]
    Element {
        /// The name.
        name: String,
        /// What it has.
        held: String,
        /// What was asked for.
        requested: String,
    },
    /// The last version of a window.
    #[error("version {version} is the only one of window {name:?}; delete the window instead")]
    OnlyVersion {
        /// The name.
        name: String,
        /// Its number.
        version: u64,
    },
    /// An argument that is none of the above.
    #[error("window {name:?}: {what}")]
    Arg {
        /// The name.
        name: String,
        /// What is wrong, and what to do.
        what: &'static str,
    },
    /// Another thread commits the window with all ranks. This call has made no version, and the
    /// window goes on.
    #[error("window {name:?}: another commit of it is under way; commit from one thread at a time")]
    Committing {
        /// The name.
        name: String,
    },
    /// All ranks have asked for a version, which is not decided. This call has made none, and the
    /// window goes on.
    #[error("window {name:?}: {REQUESTED}")]
    Requested {
        /// The name.
        name: String,
    },
    /// There is no space for a version. The window is as it was, and so are all versions.
    #[error("{path}: no space: {limit}")]
    Space {
        /// The file.
        path: String,
        /// What is used up.
        limit: SpaceLimit,
    },
    /// An earlier call has failed at a point where it is not known what is durable.
    #[error(
        "window {name:?}: an earlier call failed when it was not known what was durable; open \
         it again: that finds the last version that is"
    )]
    Poisoned {
        /// The name.
        name: String,
    },
    /// The file that the window lies on, of which no commit makes versions, is shorter than the
    /// window: what lay behind its end is lost.
    #[error(
        "{path} ends after {len} bytes, and the window has it up to byte {needed}: another program \
         cut it; put it back from a copy, and keep other programs from the root"
    )]
    Cut {
        /// The file, below its root.
        path: String,
        /// Bytes that it has.
        len: u64,
        /// Bytes that it had.
        needed: u64,
    },
    /// The operating system refused.
    #[error("{path}: {call} failed: {}", Error::from_raw_os_error(*.errno))]
    System {
        /// The file, below its root.
        path: String,
        /// System call.
        call: &'static str,
        /// Its error number.
        errno: i32,
    },
}

impl PersistentError {
    /// The MPI error class: one of MPI's where one fits, [`ErrorClass::Pmem`] where none does.
    pub fn class(&self) -> ErrorClass {
        match self {
            _ if self.code().is_some() => ErrorClass::Pmem,
            Self::Hint(_) => ErrorClass::InfoValue,
            Self::Storage(error) => error.class(),
            Self::Collective(error) => error.class(),
            Self::RootInUse { .. } => ErrorClass::FileInUse,
            Self::Size { .. } | Self::Total { .. } => ErrorClass::Size,
            Self::Element { .. } => ErrorClass::Type,
            Self::System { errno, .. } => {
                let (path, call, errno) = (std::path::PathBuf::new(), "", *errno);
                StorageError::System { path, call, errno, remedy: "" }.class()
            }
            Self::Poisoned { .. } | Self::Cut { .. } => ErrorClass::Io,
            Self::Committing { .. } | Self::Requested { .. } => ErrorClass::RmaSync,
            _ => ErrorClass::Other,
        }
    }

    /// The code inside of class [`ErrorClass::Pmem`].
    pub fn code(&self) -> Option<PersistentCode> {
        match self {
            Self::RootPath { .. } => Some(PersistentCode::RootPath),
            Self::Name { .. } => Some(PersistentCode::Name),
            Self::NoVersion { .. } | Self::Damaged { .. } => {
                Some(PersistentCode::CheckpointVersion)
            }
            Self::Mode { .. } => Some(PersistentCode::Mode),
            Self::WindowInUse { .. } => Some(PersistentCode::Windows),
            Self::OnlyVersion { .. } => Some(PersistentCode::Versions),
            Self::Ranks { .. } | Self::Arg { .. } => Some(PersistentCode::Arg),
            Self::Space { .. } => Some(PersistentCode::NoMem),
            Self::Elsewhere { code, .. } => *code,
            _ => None,
        }
    }
}

/// As calls of windows tell [`PersistentError::Requested`].
const REQUESTED: &str = "a version that all ranks have asked for is not decided; wait for its \
                         request first, or commit with all ranks";

/// As the calls of windows tell it.
impl From<PersistentError> for PersistError {
    fn from(error: PersistentError) -> Self {
        match error {
            PersistentError::System { call, errno, .. } => Self::System { call, errno },
            PersistentError::Space { limit, .. } => {
                Self::NoSpace { errno: limit.errno().raw_os_error() }
            }
            PersistentError::Elsewhere { rank, code, .. } => {
                Self::Elsewhere { rank, no_space: code == Some(PersistentCode::NoMem) }
            }
            PersistentError::Cut { len, needed, .. } => Self::Cut { len, needed },
            PersistentError::Committing { .. } => Self::Committing,
            PersistentError::Requested { .. } => Self::Refused { why: REQUESTED },
            PersistentError::Arg { what, .. } => Self::Refused { why: what },
            _ => Self::Poisoned { call: "a commit", errno: 0 },
        }
    }
}

impl From<MediumError> for PersistentError {
    fn from(MediumError { path, call, errno }: MediumError) -> Self {
        match SpaceLimit::of(errno) {
            Some(limit) => Self::Space { path, limit },
            None => Self::System { path, call, errno: errno.raw_os_error() },
        }
    }
}

rma_core::debug_as_display!(PersistentError);
