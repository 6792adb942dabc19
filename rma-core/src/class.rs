//! Error classes of MPI, and how errors are shown.

/// Has `Debug` of errors print what `Display` does: it is what `main` and `unwrap` show.
#[doc(hidden)]
#[macro_export]
macro_rules! debug_as_display {
    ($($error:ident $(<$of:ident $(: $bound:path)?>)?),+) => {$(
        impl $(<$of $(: $bound)?>)? ::core::fmt::Debug for $error $(<$of>)? {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                // In one piece: standard error keeps nothing back, and a process that is ended
                // between two pieces leaves half a sentence.
                f.write_str(&::std::string::ToString::to_string(self))
            }
        }
    )+};
}

/// MPI's error classes, as far as they apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorClass {
    /// `MPI_ERR_RANK`
    Rank,
    /// `MPI_ERR_ROOT`
    Root,
    /// `MPI_ERR_RMA_RANGE`
    RmaRange,
    /// `MPI_ERR_RMA_SYNC`
    RmaSync,
    /// `MPI_ERR_RMA_SHARED`
    RmaShared,
    /// `MPI_ERR_RMA_ATTACH`
    RmaAttach,
    /// `MPI_ERR_RMA_FLAVOR`
    RmaFlavor,
    /// `MPI_ERR_DISP`
    Disp,
    /// `MPI_ERR_SIZE`
    Size,
    /// `MPI_ERR_COUNT`
    Count,
    /// `MPI_ERR_DIMS`
    Dims,
    /// `MPI_ERR_OP`
    Op,
    /// `MPI_ERR_TYPE`
    Type,
    /// `MPI_ERR_ASSERT`
    Assert,
    /// `MPI_ERR_INFO`
    Info,
    /// `MPI_ERR_INFO_VALUE`
    InfoValue,
    /// `MPI_ERR_NO_MEM`
    NoMem,
    /// `MPI_ERR_NO_SPACE`
    NoSpace,
    /// `MPI_ERR_QUOTA`
    Quota,
    /// `MPI_ERR_NO_SUCH_FILE`
    NoSuchFile,
    /// `MPI_ERR_BAD_FILE`
    BadFile,
    /// `MPI_ERR_FILE_IN_USE`
    FileInUse,
    /// `MPI_ERR_ACCESS`
    NoAccess,
    /// `MPI_ERR_READ_ONLY`
    ReadOnly,
    /// `MPI_ERR_IO`
    Io,
    /// Of persistent windows, with codes of its own (`rma_storage::PersistentCode`)
    Pmem,
    /// `MPI_ERR_PROC_FAILED` of the fault-tolerance proposal
    ProcFailed,
    /// `MPI_ERR_OTHER`
    Other,
}
