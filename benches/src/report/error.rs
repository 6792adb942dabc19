//! What is wrong with a record.
use std::{fmt, io};

/// Says it, and what to do; which file it is, the reader of the file knows.
#[derive(Debug)]
pub(super) enum RecordError {
    NotRead(io::Error),
    /// Cut off, or changed by hand.
    NotJson(String),
    /// JSON, and no record.
    NoRecord(String),
    OtherFormat {
        found: u32,
        known: u32,
    },
    /// The checksum is another.
    Changed,
    Row {
        row: String,
        why: String,
    },
    /// What was measured cannot be repeated.
    NoCommit,
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const REMEDY: &str = "take it from git again, or write it anew by `rma-bench record`";
        match self {
            Self::NotRead(error) => write!(f, "cannot be read: {error}"),
            Self::NotJson(why) => write!(f, "cut off or damaged: {why}; {REMEDY}"),
            Self::NoRecord(why) => write!(f, "not a record of rma-bench: {why}; {REMEDY}"),
            Self::OtherFormat { found, known } => write!(
                f,
                "a record of format {found}, this rma-bench knows format {known}: measure again, \
                 or build the rma-bench that wrote it"
            ),
            Self::Changed => {
                write!(f, "its checksum is not that of its text: it was changed by hand; {REMEDY}")
            }
            Self::Row { row, why } => write!(f, "row {row}: {why}; {REMEDY}"),
            Self::NoCommit => write!(
                f,
                "figures of a source tree that is not a commit cannot be repeated: commit, then \
                 measure again"
            ),
        }
    }
}

impl std::error::Error for RecordError {}
