//! Which epochs a rank has open: `sync` opens and ends them.
use crate::rank::Rank;
use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Set in [`EpochState::word`] while a [`LockAll`] is open.
pub(crate) const LOCK_ALL: u32 = 1 << 31;
/// Set with [`LOCK_ALL`] if it takes no locks, with [`START`] if operations do not wait for posts.
pub(crate) const NO_CHECK: u32 = 1 << 30;
/// Set while a [`Start`] is open.
pub(crate) const START: u32 = 1 << 29;
/// Set while an [`Exposure`] is open.
pub(crate) const EXPOSED: u32 = 1 << 28;
/// The other bits count [`Fence`] guards.
pub(crate) const FENCES: u32 = EXPOSED - 1;

/// Which epochs are open on this rank.
#[derive(Debug, Default)]
pub(crate) struct EpochState {
    pub(crate) word: AtomicU32,
    /// This rank has left, or is about to.
    left: AtomicBool,
    pub(crate) partners: Partners,
}

impl EpochState {
    /// Whether a [`LockAll`] is open that takes locks.
    pub(crate) fn is_lock_all(&self) -> bool {
        // Sequentially consistent, see `set_left`.
        self.word.load(SeqCst) & (LOCK_ALL | NO_CHECK) == LOCK_ALL
    }

    /// From now on, this rank takes nothing that peers may wait for. A thread that takes such a
    /// thing marks it first and then asks [`has_left`](Self::has_left); the caller looks for marks
    /// afterwards. All of that is sequentially consistent: one of the two sees the other.
    pub(crate) fn set_left(&self) {
        self.left.store(true, SeqCst);
    }

    #[inline(always)]
    pub(crate) fn has_left(&self) -> bool {
        self.left.load(SeqCst)
    }
}

/// The groups of the epochs that are open on this rank, ascending.
#[derive(Debug, Default)]
pub(crate) struct Partners {
    pub(crate) targets: Mutex<Vec<Rank>>,
    pub(crate) origins: Mutex<Vec<Rank>>,
}

pub(crate) fn lock(ranks: &Mutex<Vec<Rank>>) -> MutexGuard<'_, Vec<Rank>> {
    ranks.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Puts a group where its epoch finds it. The vector stays from epoch to epoch.
pub(crate) fn fill<'a>(place: &'a Mutex<Vec<Rank>>, ranks: &[Rank]) -> MutexGuard<'a, Vec<Rank>> {
    let mut place = lock(place);
    place.clear();
    place.extend_from_slice(ranks);
    place.sort_unstable();
    place.dedup();
    place
}
