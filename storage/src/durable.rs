//! What makes bytes of a file durable.
use crate::lines::{Lines, grants_synchronous};
use rustix::fd::AsFd;

/// What makes bytes of a window durable that lie on storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DurableBy {
    /// The system writes the pages that were stored to (`msync`).
    Msync,
    /// The file is on persistent memory, and every rank that maps it has it mapped with `MAP_SYNC`:
    /// cache lines are written back to it, without a call of the system. More than 1 MiB at
    /// once is left to `msync`, which knows what was stored to. What ranks store is durable by
    /// that, and what was in the file when it was opened; other programs sync what they write
    /// meanwhile.
    CacheLines,
}

/// Bytes whose lines are written back one by one, at most.
const LINES_MAX: usize = 1 << 20;

/// What makes bytes of one mapping durable, or why it is not done by cache lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Means {
    Lines(Lines),
    Msync(&'static str),
}

impl Means {
    /// Of a file that is to be mapped from `offset` on.
    pub(crate) fn of(file: impl AsFd, offset: u64) -> Self {
        match (Lines::of_cpu(), grants_synchronous(file, offset)) {
            (Some(lines), Ok(())) => Self::Lines(lines),
            (None, Ok(())) => Self::Msync("this CPU writes no lines back"),
            (_, Err(_)) => Self::Msync("the system does not map it with MAP_SYNC"),
        }
    }

    /// Whether the mapping is one with `MAP_SYNC`.
    pub(crate) fn is_synchronous(self) -> bool {
        matches!(self, Self::Lines(_))
    }

    /// What writes back so many bytes, if that is not the system's.
    pub(crate) fn lines(self, len: usize) -> Option<Lines> {
        match self {
            Self::Lines(lines) if len <= LINES_MAX => Some(lines),
            Self::Lines(_) | Self::Msync(_) => None,
        }
    }

    pub(crate) fn explain(self) -> String {
        match self {
            Self::Lines(_) => "cache_lines".to_owned(),
            Self::Msync(why) => format!("msync ({why})"),
        }
    }
}

impl From<Means> for DurableBy {
    fn from(means: Means) -> Self {
        if means.is_synchronous() { Self::CacheLines } else { Self::Msync }
    }
}
