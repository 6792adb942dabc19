//! The gate between `lock_all` and exclusive locks of a window (ADR 1). S-E1 S-E8
//!
//! `lock_all` shares the gate, a rank with exclusive locks passes it as one of a group: so a
//! `lock_all` is a shared lock of every part without taking each. A rank passes once, however many
//! exclusive locks its threads hold. Where all ranks share memory, exclusive lockers leave the gate
//! aside as long as it is not watched: [`crate::protocol::gate`].
use super::Window;
use crate::error::RmaError;
use crate::protocol::gate::{self, Locks};
use crate::protocol::lock::{self, At, Mode, Step};
use crate::rank::Rank;
use crate::transport::Transport;
use core::sync::atomic::{
    AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release, Ordering::SeqCst,
};

/// What this rank knows of the gate.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// Low half: exclusive locks of this rank that passed it. High half: how often it passed for
    /// them, which is more than once if several threads came at the same time.
    passes: AtomicU64,
    /// Exclusive locks that passed it since this rank last made it unwatched.
    passed: AtomicU32,
    /// What its watch word held when this rank had last waited for all who were past it.
    watched: AtomicU64,
}

const LOCKS: u64 = 0xffff_ffff;
const PASS: u64 = 1 << 32;

/// After so many exclusive locks of a rank, or as many as it has peers, they need not pass the gate
/// any more: `lock_all` then looks at each part once to change that.
const UNWATCH_AFTER: u32 = 16;

impl<T: Transport> Locks for Window<T> {
    type Error = RmaError;

    #[inline]
    fn load(&self, at: At) -> Result<u64, RmaError> {
        match self.control_word(at) {
            Some(word) => Ok(word.load(SeqCst)),
            None => self.step("a lock", Step::Load(at)),
        }
    }

    fn swap(&self, at: At, old: u64, new: u64) -> Result<u64, RmaError> {
        self.step("a lock", Step::Swap { at, old, new, wake: false })
    }

    #[inline]
    fn acquire(&self, home: At, mode: Mode) -> Result<(), RmaError> {
        self.acquire_at(home, mode)
    }

    #[inline]
    fn release(&self, home: At, mode: Mode) -> Result<(), RmaError> {
        self.release_at(home, mode)
    }
}

impl<T: Transport> Window<T> {
    /// Takes the lock of `target`, which others may share.
    #[inline]
    pub(crate) fn lock_shared(&self, target: Rank) -> Result<(), RmaError> {
        self.acquire(lock::part(target.0), Mode::Shared)
    }

    /// Gives the shared lock of `target` back.
    #[inline]
    pub(crate) fn unlock_shared(&self, target: Rank) -> Result<(), RmaError> {
        self.release(lock::part(target.0), Mode::Shared)
    }

    /// Takes the exclusive lock of `target`; true if the gate was passed for it.
    #[inline]
    pub(crate) fn lock_exclusive(&self, target: Rank) -> Result<bool, RmaError> {
        // Where words are not mapped, the gate is watched, or the first lock maps them.
        let watch = self.control_word(lock::watch());
        if watch.is_some_and(|watch| gate::is_unwatched(watch.load(Relaxed)))
            && gate::lock_unwatched(self, target.0)?
        {
            return Ok(false);
        }
        self.lock_passing(target).map(|()| true)
    }

    /// Gives the exclusive lock of `target` back.
    #[inline]
    pub(crate) fn unlock_exclusive(&self, target: Rank, passed: bool) -> Result<(), RmaError> {
        let released = self.release(lock::part(target.0), Mode::Exclusive);
        if passed { released.and(self.leave_gate()) } else { released }
    }

    #[cold]
    fn lock_passing(&self, target: Rank) -> Result<(), RmaError> {
        self.pass_gate()?;
        let acquired = self.acquire(lock::part(target.0), Mode::Exclusive);
        if acquired.is_err() {
            return acquired.and(self.leave_gate());
        }
        if self.targets.is_empty() {
            return Ok(());
        }
        // A count of several threads may lose some.
        let passed = self.gate.passed.load(Relaxed) + 1;
        let enough = passed >= self.ranks().max(UNWATCH_AFTER);
        self.gate.passed.store(if enough { 0 } else { passed }, Relaxed);
        if enough {
            // The lock is held either way.
            _ = gate::unwatch(self);
        }
        Ok(())
    }

    /// A rank that holds a lock already goes past those in line: one of them may wait for a rank
    /// that waits for that lock.
    fn pass_gate(&self) -> Result<(), RmaError> {
        let passes = &self.gate.passes;
        // pairs with the AcqRel changes of other threads.
        let mut seen = passes.load(Acquire);
        while seen & LOCKS != 0 {
            match passes.compare_exchange(seen, seen + 1, AcqRel, Acquire) {
                Ok(_) => return Ok(()),
                Err(found) => seen = found,
            }
        }
        if self.holds_a_lock() {
            self.acquire_past(lock::gate(), Mode::Group)?;
        } else {
            self.acquire(lock::gate(), Mode::Group)?;
        }
        // pairs with the Acquire loads of other threads.
        passes.fetch_add(PASS + 1, AcqRel);
        Ok(())
    }

    #[cold]
    fn leave_gate(&self) -> Result<(), RmaError> {
        let passes = &self.gate.passes;
        // pairs with the AcqRel changes of other threads.
        let mut seen = passes.load(Acquire);
        loop {
            let left = if seen & LOCKS == 1 { 0 } else { seen - 1 };
            match passes.compare_exchange(seen, left, AcqRel, Acquire) {
                Ok(_) if left == 0 => break,
                Ok(_) => return Ok(()),
                Err(found) => seen = found,
            }
        }
        (0..seen / PASS).try_for_each(|_| self.release(lock::gate(), Mode::Group))
    }

    /// Keeps exclusive lockers of every part out.
    #[inline]
    pub(crate) fn share_gate(&self) -> Result<(), RmaError> {
        if self.targets.is_empty() {
            return self.acquire(lock::gate(), Mode::Shared);
        }
        let watched = &self.gate.watched;
        // pairs with the Release store below: those who were past the gate have left.
        while !gate::share(self, watched.load(Acquire))? {
            self.watch_gate()?;
        }
        Ok(())
    }

    #[cold]
    fn watch_gate(&self) -> Result<(), RmaError> {
        let found = gate::watch(self, self.ranks())?;
        // pairs with the Acquire load in `share_gate`.
        self.gate.watched.store(found, Release);
        Ok(())
    }

    /// Takes back [`share_gate`](Self::share_gate).
    #[inline]
    pub(crate) fn unshare_gate(&self) -> Result<(), RmaError> {
        self.release(lock::gate(), Mode::Shared)
    }
}
