//! How exclusive lockers and `lock_all` keep each other out (ADR 1).
//!
//! The [global lock](lock::global_lock) does, if both go through it. Only `lock_all` always does.
//! Exclusive lockers pass it while it is *watched*; while it is not, they take the part's lock and
//! look whether it still is not:
//!
//! | word, at rank 0 | holds |
//! | --- | --- |
//! | [`watch`](lock::watch) | even: watched; odd: not. Counts up |
//! | [`marks`](lock::marks) | a bit for each part (rank modulo 64) that was ever locked unwatched |
//!
//! `lock_all` shares the global lock, and may go on if it is watched and this rank has looked at
//! all that were inside since it is. Otherwise it gives the global lock back, makes it watched, and
//! waits at each marked part until an exclusive holder has left. It holds nothing while it waits:
//! those inside may need further locks before they leave.
//!
//! Locking and then reading the watch word, and changing that and then reading the lock, are
//! sequentially consistent, so one of the two sees the other. The global lock becomes unwatched
//! only by a rank that passes it, so never while another shares it.
//!
//! All ranks reach these words by load and store: elsewhere the global lock is always watched.

use super::lock::{self, At, Mode};
use crate::word::Word;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Release};

/// Words that all ranks share, and locks made of them; sequentially consistent.
pub(crate) trait LockOps {
    /// Why a word cannot be reached, or a wait failed.
    type Error;
    fn load(&self, at: At) -> Result<u64, Self::Error>;
    /// Replaces `old` by `new` if it is there; answers with what was there.
    fn swap(&self, at: At, old: u64, new: u64) -> Result<u64, Self::Error>;
    fn acquire(&self, home: At, mode: Mode) -> Result<(), Self::Error>;
    fn release(&self, home: At, mode: Mode) -> Result<(), Self::Error>;
}

/// Whether what the watch word holds lets exclusive lockers past the global lock.
#[inline(always)]
pub(crate) fn is_unwatched(watch: u64) -> bool {
    watch & 1 != 0
}

/// Takes the exclusive lock of a part without passing the global lock. False if the global lock
/// became watched: then the lock is not held. S-E1
#[inline(always)]
pub(crate) fn lock_unwatched<L: LockOps>(locks: &L, rank: u32) -> Result<bool, L::Error> {
    locks.acquire(lock::part(rank), Mode::Exclusive)?;
    match is_past(locks, rank) {
        Ok(true) => Ok(true),
        past => locks.release(lock::part(rank), Mode::Exclusive).and(past),
    }
}

/// Holding the lock of a part: whether ranks that will watch the global lock see that.
#[inline(always)]
fn is_past<L: LockOps>(locks: &L, rank: u32) -> Result<bool, L::Error> {
    if locks.load(lock::mark(rank))? == 0 {
        mark(locks, rank)?;
    }
    Ok(is_unwatched(locks.load(lock::watch())?))
}

#[cold]
fn mark<L: LockOps>(locks: &L, rank: u32) -> Result<(), L::Error> {
    let mut seen = locks.load(lock::marks())?;
    loop {
        match locks.swap(lock::marks(), seen, seen | bit(rank))? {
            found if found == seen => break,
            found => seen = found,
        }
    }
    // Only now: a rank that finds it relies on the bit.
    locks.swap(lock::mark(rank), 0, 1).map(drop)
}

fn bit(rank: u32) -> u64 {
    1 << (rank % u64::BITS)
}

/// Lets exclusive lockers past the global lock. To be called by a rank that passes it.
pub(crate) fn unwatch<L: LockOps>(locks: &L) -> Result<(), L::Error> {
    let seen = locks.load(lock::watch())?;
    if is_unwatched(seen) { Ok(()) } else { locks.swap(lock::watch(), seen, seen + 1).map(drop) }
}

/// Makes the global lock watched and waits for ranks that went past it; answers with what the watch
/// word holds as long as none can have done so since.
pub(crate) fn watch<L: LockOps>(locks: &L, ranks: u32) -> Result<u64, L::Error> {
    let mut seen = locks.load(lock::watch())?;
    while is_unwatched(seen) {
        let found = locks.swap(lock::watch(), seen, seen + 1)?;
        seen = if found == seen { seen + 1 } else { found };
    }
    let marks = locks.load(lock::marks())?;
    for rank in (0..ranks).filter(|rank| marks & bit(*rank) != 0) {
        let part = lock::part(rank);
        if lock::is_exclusive(locks.load(part)?) {
            // In line, so as to be woken.
            locks.acquire(part, Mode::Shared)?;
            locks.release(part, Mode::Shared)?;
        }
    }
    Ok(seen)
}

/// Shares the global lock, if no rank can be past it: `watched` is what [`watch`] last answered to
/// this one, or 0. False if one can: then the global lock is not shared. S-E8
#[inline(always)]
pub(crate) fn share<L: LockOps>(locks: &L, watched: u64) -> Result<bool, L::Error> {
    locks.acquire(lock::global_lock(), Mode::Shared)?;
    match locks.load(lock::watch()) {
        Ok(found) if found == watched => Ok(true),
        found => locks.release(lock::global_lock(), Mode::Shared).and(found).map(|_| false),
    }
}

const LOCKS: u64 = 0xffff_ffff;
const PASS: u64 = 1 << 32;

/// What the threads of a rank tell each other of the global lock.
#[derive(Debug, Default)]
pub(crate) struct Told<W = AtomicU64> {
    /// Low half: exclusive locks of this rank that passed it. High half: how often it passed for
    /// them, which is more than once if several threads came at the same time.
    passes: W,
    /// What [`watch`] last answered.
    watched: W,
}

impl<W: Word<Value = u64>> Told<W> {
    /// Passes the global lock for an exclusive lock: `acquire` takes it for the group, unless this
    /// rank has passed already.
    pub(crate) fn pass<E>(&self, acquire: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        // pairs with the AcqRel changes of other threads.
        let mut seen = self.passes.load(Acquire);
        while seen & LOCKS != 0 {
            match self.passes.compare_exchange(seen, seen + 1, AcqRel, Acquire) {
                Ok(_) => return Ok(()),
                Err(found) => seen = found,
            }
        }
        acquire()?;
        // pairs with the Acquire loads of other threads.
        self.passes.fetch_add(PASS + 1, AcqRel);
        Ok(())
    }

    /// Takes back a [`pass`](Self::pass).
    pub(crate) fn leave<L: LockOps>(&self, locks: &L) -> Result<(), L::Error> {
        // pairs with the AcqRel changes of other threads.
        let mut seen = self.passes.load(Acquire);
        loop {
            let left = if seen & LOCKS == 1 { 0 } else { seen - 1 };
            match self.passes.compare_exchange(seen, left, AcqRel, Acquire) {
                Ok(_) if left == 0 => break,
                Ok(_) => return Ok(()),
                Err(found) => seen = found,
            }
        }
        (0..seen / PASS).try_for_each(|_| locks.release(lock::global_lock(), Mode::Group))
    }

    /// As [`share`](Self::share), if no rank has to be waited for.
    #[inline(always)]
    pub(crate) fn share_at_once<L: LockOps>(&self, locks: &L) -> Result<bool, L::Error> {
        // pairs with the Release store in `share`: ranks that were past the global lock have left.
        share(locks, self.watched.load(Acquire))
    }

    /// Shares the global lock of a window of so many ranks, when no rank can be past it.
    pub(crate) fn share<L: LockOps>(&self, locks: &L, ranks: u32) -> Result<(), L::Error> {
        loop {
            // Looked at before it is tried: callers tried in vain. pairs with the Release store.
            if locks.load(lock::watch())? != self.watched.load(Acquire) {
                // pairs with the Acquire loads here and in `share_at_once`.
                self.watched.store(watch(locks, ranks)?, Release);
            }
            if self.share_at_once(locks)? {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::RefCell;
    use core::convert::Infallible;
    use std::collections::HashMap;

    /// The words of a rank that is alone, and how often it took each lock.
    #[derive(Default)]
    struct Counted {
        words: RefCell<HashMap<At, u64>>,
        taken: RefCell<HashMap<At, u32>>,
    }

    impl LockOps for Counted {
        type Error = Infallible;

        fn load(&self, at: At) -> Result<u64, Infallible> {
            Ok(self.words.borrow().get(&at).copied().unwrap_or(0))
        }

        fn swap(&self, at: At, old: u64, new: u64) -> Result<u64, Infallible> {
            let found = self.load(at)?;
            if found == old {
                self.words.borrow_mut().insert(at, new);
            }
            Ok(found)
        }

        fn acquire(&self, home: At, _: Mode) -> Result<(), Infallible> {
            *self.taken.borrow_mut().entry(home).or_default() += 1;
            Ok(())
        }

        fn release(&self, _: At, _: Mode) -> Result<(), Infallible> {
            Ok(())
        }
    }

    /// A rank that finds the global lock unwatched has taken it once in vain at most: what was
    /// tried is not tried again before that is changed.
    #[test]
    fn what_was_tried_in_vain_is_not_tried_again() {
        let (locks, told) = (Counted::default(), Told::<AtomicU64>::default());
        unwatch(&locks).unwrap();
        assert_eq!(told.share_at_once(&locks), Ok(false));
        told.share(&locks, 4).unwrap();
        assert_eq!(locks.taken.borrow()[&lock::global_lock()], 2);
        // Nor is it as long as nothing changes.
        assert_eq!(told.share_at_once(&locks), Ok(true));
        assert_eq!(locks.taken.borrow()[&lock::global_lock()], 3);
    }
}

#[cfg(all(test, loom))]
#[path = "global_lock_loom_tests.rs"]
mod loom_tests;

#[cfg(all(test, loom))]
#[path = "global_lock_threads_loom_tests.rs"]
mod threads_loom_tests;
