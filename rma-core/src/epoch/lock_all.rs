//! A passive epoch to all targets (MPI 4.1, section 12.5.3).
use super::lock::is_over;
use super::{Access, Assert};
use crate::engine::grant;
use crate::error::RmaError;
use crate::memory::stores;
use crate::memory::target::{Permit, Target, held};
use crate::rank::Rank;
use crate::sync::EpochCall;
use crate::window::Window;
use crate::window::epochs::{LOCK_ALL, NO_CHECK};
use core::mem;
use core::ops::Deref;
use core::sync::atomic::Ordering::{Relaxed, Release, SeqCst};

/// A shared lock on every target.
///
/// It keeps out exclusive lockers of every part by one lock of the whole window.
/// [`unlock`](Self::unlock) reports errors that dropping the guard would swallow. Forgetting the
/// guard leaves the locks held.
#[must_use = "the epoch ends when the guard is dropped"]
pub struct LockAll<'w> {
    /// Flushes and operations with requests are not among its methods. S-F6 S-I1
    access: Access<'w>,
}

impl Window {
    /// Opens an epoch to all targets, sharing it with others. Not collective.
    ///
    /// # Errors
    ///
    /// [`RmaError::EpochOpen`] if another epoch of this window is open on this rank,
    /// [`RmaError::NoLocks`] if the window was made for none, [`RmaError::Left`] if the universe of
    /// this rank was dropped.
    #[inline]
    pub fn lock_all(&self) -> Result<LockAll<'_>, RmaError> {
        let opened = self.opened_hot();
        if opened && !self.part.epoch.has_left() && self.share_global_lock_hot() {
            return Ok(LockAll { access: Access::new(self, Permit::All) });
        }
        self.lock_all_rest(opened)
    }

    /// Goes on where [`lock_all`](Self::lock_all) could not at once.
    #[cold]
    #[inline(never)]
    fn lock_all_rest(&self, opened: bool) -> Result<LockAll<'_>, RmaError> {
        if opened { self.lock_all_opened() } else { self.lock_all_with(Assert::NONE) }
    }

    /// Opens the epoch, if this rank has none open: nothing can fail then. S-E8
    #[inline(always)]
    fn opened_hot(&self) -> bool {
        let holds_any = || self.targets.iter().any(|target| target.held() != held::NOT);
        self.together
            && !self.excludes_locks()
            && !grant::is_expected()
            && !holds_any()
            // pairs with the Acquire load in `check`; sequentially consistent for `set_left`.
            && self.part.epoch.word.compare_exchange(0, LOCK_ALL, SeqCst, Relaxed).is_ok()
    }

    /// Takes the lock of an epoch that is open; no other epoch was opened beside it.
    fn lock_all_opened(&self) -> Result<LockAll<'_>, RmaError> {
        let shared = self.check_left().and_then(|()| self.share_global_lock());
        if shared.is_err() {
            // pairs with the Acquire load in `check`.
            self.part.epoch.word.store(0, Release);
        }
        shared.map(|()| LockAll { access: Access::new(self, Permit::All) })
    }

    /// As [`lock_all`](Self::lock_all); with [`Assert::NO_CHECK`] no lock is taken.
    #[cold]
    #[inline(never)]
    pub fn lock_all_with(&self, asserts: Assert) -> Result<LockAll<'_>, RmaError> {
        let no_check = self.check_lock(asserts)?;
        // Also without a lock: what keeps others out may be the one that is awaited.
        grant::wait(None);
        if no_check {
            self.open(EpochCall::LockAll, LOCK_ALL | NO_CHECK)?;
            return Ok(LockAll { access: Access::new(self, Permit::All) });
        }
        self.open(EpochCall::LockAll, LOCK_ALL)?;
        self.lock_all_opened()
    }

    /// Gives the lock back once every operation is complete at its target. S-E6
    #[cold]
    #[inline(never)]
    fn unlock_all(&self) -> Result<(), RmaError> {
        // Only this epoch is open: no other thread changes the word.
        let no_check = self.part.epoch.word.load(Relaxed) & NO_CHECK != 0;
        let flushed = self.flush_targets();
        let released = if no_check { Ok(()) } else { self.unshare_global_lock() };
        if is_over(&released) {
            // pairs with the Acquire load in `check`.
            self.part.epoch.word.store(0, Release);
        }
        flushed.and(released)
    }
}

impl<'w> LockAll<'w> {
    /// Returns when every operation to `target` is complete there. Your buffers were yours before.
    #[inline]
    pub fn flush(&self, target: Rank) -> Result<(), RmaError> {
        // The table of this epoch is nearer than that of the window.
        if self.access.to(target).entry().is_some_and(Target::is_loadable) {
            stores::complete();
            return Ok(());
        }
        self.access.window().flush(target)
    }

    /// As [`flush`](Self::flush), for all targets.
    #[inline]
    pub fn flush_all(&self) -> Result<(), RmaError> {
        self.access.window().flush_targets()
    }

    /// Returns when the buffers of operations to `target` are yours: at once, because operations
    /// outside an [`ops`](Access::ops) scope are locally complete when they return.
    #[inline]
    pub fn flush_local(&self, target: Rank) -> Result<(), RmaError> {
        self.access.window().flush_local(target)
    }

    /// As [`flush_local`](Self::flush_local), for all targets.
    #[inline]
    pub fn flush_local_all(&self) -> Result<(), RmaError> {
        Ok(())
    }

    /// Ends the epoch: every operation is complete at its target.
    #[inline]
    pub fn unlock(self) -> Result<(), RmaError> {
        let window = self.access.window();
        mem::forget(self);
        // Only this epoch is open. Giving the global lock back is the fence that loads and stores
        // need.
        if window.all_loaded && window.part.epoch.word.load(Relaxed) == LOCK_ALL {
            let released = window.unshare_global_lock();
            // pairs with the Acquire load in `check`.
            window.part.epoch.word.store(0, Release);
            return released;
        }
        window.unlock_all()
    }
}

impl<'w> Deref for LockAll<'w> {
    type Target = Access<'w>;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        &self.access
    }
}

impl Drop for LockAll<'_> {
    fn drop(&mut self) {
        let window = self.access.window();
        // `unlock` is for callers that want to know.
        if !window.engine().transport.members.is_fork() {
            _ = window.unlock_all();
        }
    }
}
