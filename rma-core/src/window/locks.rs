//! What this rank knows of the locks of a window: `sync` takes them, `serve` runs those of homes.
use super::Part;
use crate::engine::WaitError;
use crate::protocol::global_lock::Told;
use crate::protocol::home::{Home, Passes};
use crate::rank::Rank;
use core::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

/// This rank's queue nodes. Their phase words say which are in use.
#[derive(Debug, Default)]
pub(crate) struct NodePool {
    /// When this rank first went past those in line since it used a node; 0 if it did not. Threads
    /// may overwrite each other's, which are about the same.
    pub(crate) passing_since_ns: AtomicU64,
}

/// What this rank knows of the global lock.
#[derive(Debug, Default)]
pub(crate) struct GlobalLock {
    pub(crate) told: Told,
    /// Exclusive locks that passed it since this rank last made it unwatched.
    pub(crate) passed: AtomicU32,
}

/// A lock of a far target whose guard is there, and which may not be granted yet: what uses it
/// waits for that.
pub(crate) struct Ungranted {
    /// Of this rank.
    pub(crate) part: Weak<Part>,
    pub(crate) target: Rank,
    /// Of the request.
    pub(crate) slot: u64,
    end: Mutex<Option<LockEnd>>,
}

/// What came of a lock that was asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LockEnd {
    Granted,
    /// The window is gone.
    Freed,
    /// It is not waited for any more.
    Failed(WaitError),
}

impl Ungranted {
    pub(crate) fn new(part: Weak<Part>, target: Rank, slot: u64) -> Self {
        Self { part, target, slot, end: Mutex::default() }
    }

    /// Its end, which `find` finds; of several threads, one finds it for all.
    pub(crate) fn end_or(&self, find: impl FnOnce() -> Option<LockEnd>) -> Option<LockEnd> {
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        if end.is_none() {
            *end = find();
        }
        *end
    }
}

/// The lock of a part, and what rank 0 keeps for all of them.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    home: Mutex<Home>,
    passes: Mutex<Passes>,
}

impl Locks {
    pub(crate) fn home(&self) -> MutexGuard<'_, Home> {
        self.home.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn passes(&self) -> MutexGuard<'_, Passes> {
        self.passes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
