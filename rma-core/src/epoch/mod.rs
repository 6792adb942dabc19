//! Epochs: a guard is the proof that one is open.
//!
//! | open on this rank | `fence` | `lock` | `lock_all` | `free`, `seal` |
//! | --- | --- | --- | --- | --- |
//! | nothing | opens | opens | opens | yes |
//! | a [`Fence`] guard | next epoch | refused | refused | refused |
//! | [`Lock`] of some targets | refused | other targets | refused | refused |
//! | [`LockAll`] | refused | refused | refused | refused |
//!
//! Guards borrow their window, so `free` and `seal` are refused by the compiler while one is in
//! scope; at run time only after a guard was forgotten.
mod access;
mod fence;
mod lock;
mod lock_all;

pub use access::Access;
pub use fence::{Assert, Fence};
pub use lock::{Lock, LockKind};
pub use lock_all::LockAll;

use crate::error::RmaError;
use crate::memory::target::held;
use crate::rank::Rank;
use crate::transport::Transport;
use crate::window::Window;
use core::sync::atomic::{AtomicU32, Ordering::Acquire};
use std::sync::Mutex;

/// Set in [`EpochState::word`] while a [`LockAll`] is open; the other bits count [`Fence`] guards.
const LOCK_ALL: u32 = 1 << 31;
/// Set with [`LOCK_ALL`] if it takes no locks.
const NO_CHECK: u32 = 1 << 30;

/// Which epochs are open on this rank.
#[derive(Debug, Default)]
pub(crate) struct EpochState {
    word: AtomicU32,
    /// Locks that a `LockAll` has taken so far, once for each time it took one.
    taken: Mutex<Vec<Rank>>,
}

impl<T: Transport> Window<T> {
    /// What is open on this rank, in words.
    pub(crate) fn open_epoch(&self) -> Option<&'static str> {
        // pairs with the AcqRel changes of the word in `fence` and `lock_all`.
        match self.epoch.word.load(Acquire) {
            0 if self.any_held() => Some("a lock epoch"),
            0 => None,
            word if word & LOCK_ALL != 0 => Some("a lock_all epoch"),
            _ => Some("a fence epoch"),
        }
    }

    fn any_held(&self) -> bool {
        if self.targets.is_empty() {
            return self.far.any_held();
        }
        self.targets.iter().any(|target| target.held() != held::NOT)
    }

    fn refuse_if_open(&self, asked: &'static str) -> Result<(), RmaError> {
        match self.open_epoch() {
            Some(open) => Err(RmaError::EpochOpen { window: self.id(), asked, open }),
            None => Ok(()),
        }
    }

    fn held(&self, target: Rank) -> u32 {
        self.targets.get(target).map_or_else(|| self.far.held(target), |entry| entry.held())
    }

    fn set_held(&self, target: Rank, how: u32) {
        match self.targets.get(target) {
            Some(entry) => entry.set_held(how),
            None => self.far.set_held(target, how),
        }
    }

    /// Returns when every operation of this rank to `target` is complete there.
    #[inline]
    pub(crate) fn flush(&self, target: Rank) -> Result<(), RmaError> {
        core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
        if self.targets.get(target).is_some() {
            return Ok(());
        }
        self.flush_far_cold(target)
    }

    pub(crate) fn flush_all(&self) -> Result<(), RmaError> {
        core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
        if self.targets.is_empty() { self.flush_far_all() } else { Ok(()) }
    }

    /// Fails if there is no such target; that is all, because operations are locally complete when
    /// they return.
    fn flush_local(&self, target: Rank) -> Result<(), RmaError> {
        let exists = target.0 < self.ranks() || target == Rank::NULL;
        if exists { Ok(()) } else { Err(self.no_such_rank(target)) }
    }
}
