//! What this rank knows of the locks of a window: `sync` takes them, `serve` runs those of homes.
use crate::protocol::global_lock::Told;
use crate::protocol::home::{Home, Passes};
use core::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};

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
