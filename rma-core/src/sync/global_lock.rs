//! The global lock between `lock_all` and exclusive locks of a window (ADR 1).
//!
//! `lock_all` shares the global lock, a rank with exclusive locks passes it as one of a group: so a
//! `lock_all` is a shared lock of every part without taking each. A rank passes once, however many
//! exclusive locks its threads hold. Exclusive lockers leave the global lock aside as long as it is
//! not watched: [`crate::protocol::global_lock`]. Where some ranks do not reach these words, there
//! are passes instead: [`crate::protocol::home`].
use super::LockKind;
use crate::error::RmaError;
use crate::memory::control_block::ControlBlock;
use crate::protocol::global_lock::{self, LockOps};
use crate::protocol::lock::{self, At, Mode, Step};
use crate::rank::Rank;
use crate::window::Window;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::time::Duration;

/// After so many exclusive locks of a rank, or as many as it has peers, they need not pass the
/// global lock any more: `lock_all` then looks at each part once to change that.
const UNWATCH_AFTER: u32 = 16;

impl LockOps for Window {
    type Error = RmaError;

    fn load(&self, at: At) -> Result<u64, RmaError> {
        match self.control_word(at) {
            Some(word) => Ok(word.load(SeqCst)),
            None => self.step(Step::Load(at)),
        }
    }

    fn swap(&self, at: At, old: u64, new: u64) -> Result<u64, RmaError> {
        self.step(Step::Swap { at, old, new, wake: false })
    }

    fn acquire(&self, home: At, mode: Mode) -> Result<(), RmaError> {
        self.acquire_at(home, mode, None)
    }

    #[inline(always)]
    fn release(&self, home: At, mode: Mode) -> Result<(), RmaError> {
        self.release_at(home, mode)
    }
}

/// How long a lock is waited for that others have.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Patience {
    None,
    /// Until then, or without an end of its own.
    Until(Option<Duration>),
}

/// The locks of a [`Window`] with so much patience.
struct Patient<'w>(&'w Window, Patience);

/// Why a lock is not taken.
enum Untaken {
    /// Others have it, or wait for it, and there is no patience.
    Busy,
    Failed(RmaError),
}

impl From<RmaError> for Untaken {
    fn from(error: RmaError) -> Self {
        Self::Failed(error)
    }
}

impl LockOps for Patient<'_> {
    type Error = Untaken;

    fn load(&self, at: At) -> Result<u64, Untaken> {
        Ok(self.0.load(at)?)
    }

    fn swap(&self, at: At, old: u64, new: u64) -> Result<u64, Untaken> {
        Ok(LockOps::swap(self.0, at, old, new)?)
    }

    fn acquire(&self, home: At, mode: Mode) -> Result<(), Untaken> {
        match self.1 {
            Patience::Until(until) => Ok(self.0.acquire_at(home, mode, until)?),
            Patience::None if self.0.try_acquire_at(home, mode)? => Ok(()),
            Patience::None => Err(Untaken::Busy),
        }
    }

    fn release(&self, home: At, mode: Mode) -> Result<(), Untaken> {
        Ok(self.0.release(home, mode)?)
    }
}

impl Patient<'_> {
    /// Takes the exclusive lock of `target`; true if the global lock was passed for it. S-E1
    fn lock_exclusive(&self, target: Rank) -> Result<bool, Untaken> {
        let window = self.0;
        if window.is_unwatched() && global_lock::lock_unwatched(self, target.0)? {
            return Ok(false);
        }
        window.global_lock.told.pass(|| self.pass_global_lock())?;
        if let Err(untaken) = self.acquire(lock::part(target.0), Mode::Exclusive) {
            window.leave_global_lock()?;
            return Err(untaken);
        }
        window.count_pass();
        Ok(true)
    }

    /// A rank that holds a lock already goes past those in line: one of them may wait for a rank
    /// that waits for that lock.
    fn pass_global_lock(&self) -> Result<(), Untaken> {
        match self.1 {
            Patience::Until(until) if self.0.holds_a_lock() => {
                Ok(self.0.acquire_past(lock::global_lock(), Mode::Group, until)?)
            }
            _ => self.acquire(lock::global_lock(), Mode::Group),
        }
    }
}

/// The lock of a target and the global lock, whose words are mapped, as far as they can be had at
/// once.
struct Hot<'w> {
    window: &'w Window,
    /// The target's.
    there: ControlBlock<'w>,
    /// Rank 0's.
    first: ControlBlock<'w>,
}

impl<'w> Hot<'w> {
    #[inline(always)]
    fn word(&self, at: At) -> &'w AtomicU64 {
        if at.is_of_part() { self.there.word(at.word) } else { self.first.word(at.word) }
    }
}

/// Something is left to do for callers that may wait.
struct NotAtOnce;

impl LockOps for Hot<'_> {
    type Error = NotAtOnce;

    #[inline(always)]
    fn load(&self, at: At) -> Result<u64, NotAtOnce> {
        Ok(self.word(at).load(SeqCst))
    }

    /// Words are swapped in rare cases only.
    fn swap(&self, _: At, _: u64, _: u64) -> Result<u64, NotAtOnce> {
        Err(NotAtOnce)
    }

    #[inline(always)]
    fn acquire(&self, home: At, mode: Mode) -> Result<(), NotAtOnce> {
        let new = lock::uncontended(mode, self.window.rank().0);
        let taken = self.word(home).compare_exchange(0, new, SeqCst, SeqCst);
        taken.map(drop).map_err(|_| NotAtOnce)
    }

    #[inline(always)]
    fn release(&self, home: At, mode: Mode) -> Result<(), NotAtOnce> {
        self.window.release_word(self.word(home), home, mode).map_err(|_| NotAtOnce)
    }
}

/// The forms that end in a `_hot` do all or nothing, without waiting; if nothing, they are to be
/// followed by those without.
impl Window {
    #[inline(always)]
    pub(crate) fn lock_shared_hot(&self, target: Rank, there: ControlBlock<'_>) -> bool {
        let hot = Hot { window: self, there, first: there };
        hot.acquire(lock::part(target.0), Mode::Shared).is_ok()
    }

    /// Gives the shared lock of `target` back.
    #[inline(always)]
    pub(crate) fn unlock_shared(&self, target: Rank) -> Result<(), RmaError> {
        self.release(lock::part(target.0), Mode::Shared)
    }

    /// Without passing the global lock.
    #[inline(always)]
    pub(crate) fn lock_exclusive_hot(&self, target: Rank, there: ControlBlock<'_>) -> bool {
        let Some(first) = self.first_mapped() else { return false };
        let hot = Hot { window: self, there, first };
        global_lock::is_unwatched(hot.word(lock::watch()).load(Relaxed))
            && matches!(global_lock::lock_unwatched(&hot, target.0), Ok(true))
    }

    /// The block of rank 0, if it is mapped.
    #[inline(always)]
    fn first_mapped(&self) -> Option<ControlBlock<'_>> {
        self.targets.get(Rank(0))?.block()
    }

    /// Gives a lock back whose words are in that block.
    #[inline(always)]
    pub(crate) fn unlock_hot(
        &self,
        target: Rank,
        there: ControlBlock<'_>,
        kind: LockKind,
    ) -> Result<(), RmaError> {
        let home = lock::part(target.0);
        self.release_word(there.word(home.word), home, kind.mode())
    }

    /// Takes the lock of `target`: true if the global lock was passed for it, `None` if others have
    /// it and there is no patience.
    pub(crate) fn lock_words(
        &self,
        target: Rank,
        kind: LockKind,
        patience: Patience,
    ) -> Result<Option<bool>, RmaError> {
        let locks = Patient(self, patience);
        let taken = match kind {
            LockKind::Shared => locks.acquire(lock::part(target.0), Mode::Shared).map(|()| false),
            LockKind::Exclusive => locks.lock_exclusive(target),
        };
        match taken {
            Ok(passed) => Ok(Some(passed)),
            Err(Untaken::Busy) => Ok(None),
            Err(Untaken::Failed(error)) => Err(error),
        }
    }

    /// Where words are not mapped, the global lock is watched, or the first lock that passes it
    /// maps them.
    #[inline(always)]
    fn is_unwatched(&self) -> bool {
        let watch = self.control_word(lock::watch());
        watch.is_some_and(|watch| global_lock::is_unwatched(watch.load(Relaxed)))
    }

    /// Gives the exclusive lock of `target` back.
    #[inline(always)]
    pub(crate) fn unlock_exclusive(&self, target: Rank, passed: bool) -> Result<(), RmaError> {
        let released = self.release(lock::part(target.0), Mode::Exclusive);
        if passed { released.and(self.leave_global_lock()) } else { released }
    }

    /// After as many passes as there are ranks, lockers need not pass any more.
    fn count_pass(&self) {
        // A count of several threads may lose some.
        let passed = self.global_lock.passed.load(Relaxed) + 1;
        let enough = passed >= self.ranks().max(UNWATCH_AFTER);
        self.global_lock.passed.store(if enough { 0 } else { passed }, Relaxed);
        if enough {
            // The lock is held either way.
            _ = global_lock::unwatch(self);
        }
    }

    fn leave_global_lock(&self) -> Result<(), RmaError> {
        self.global_lock.told.leave(self)
    }

    #[inline(always)]
    pub(crate) fn share_global_lock_hot(&self) -> bool {
        let Some(first) = self.first_mapped() else { return false };
        let hot = Hot { window: self, there: first, first };
        matches!(self.global_lock.told.share_at_once(&hot), Ok(true))
    }

    /// Keeps exclusive lockers of every part out. S-E8
    pub(crate) fn share_global_lock(&self) -> Result<(), RmaError> {
        if !self.together {
            return self.lock_all_at_home();
        }
        self.global_lock.told.share(self, self.ranks())
    }

    /// Takes back [`share_global_lock`](Self::share_global_lock).
    #[inline(always)]
    pub(crate) fn unshare_global_lock(&self) -> Result<(), RmaError> {
        if !self.together {
            self.unlock_all_at_home();
            return Ok(());
        }
        self.release(lock::global_lock(), Mode::Shared)
    }
}
