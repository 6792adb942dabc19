//! A passive epoch to one target (MPI 4.1, section 12.5.3).
use super::{Access, Assert, Ops, Peer};
use crate::engine::{On, Wait, grant};
use crate::error::RmaError;
use crate::memory::target::{Permit, held};
use crate::rank::Rank;
use crate::sync::{EpochCall, LockKind, Patience};
use crate::window::Window;
use core::mem;
use core::ops::Deref;
use core::sync::atomic::Ordering::Acquire;
use core::time::Duration;
use std::thread;

/// What was taken for a lock epoch.
#[derive(Debug, Clone, Copy)]
pub(super) enum TakenLock {
    Nothing,
    Shared,
    Exclusive {
        passed_global_lock: bool,
    },
    /// By the home of the part, perhaps.
    AtHome(LockKind),
}

/// How far a lock came that could not be had at once.
enum Attempt {
    /// The target is marked.
    Claimed,
    Untried,
}

/// A lock on one target, whose operations are those of [`Peer`].
///
/// [`unlock`](Self::unlock) reports errors that dropping the guard would swallow. Forgetting the
/// guard leaves the lock held, or to be held as soon as it is granted.
#[must_use = "the epoch ends when the guard is dropped"]
pub struct Lock<'w> {
    /// Its operations are locally complete on return. S-F3
    peer: Peer<'w>,
    taken: TakenLock,
}

impl Window {
    /// Locks the part of `target`, waiting about in turn: as long as the first rank in line is only
    /// being woken, others may be quicker. No rank waits for ever.
    ///
    /// A rank may hold locks of several targets. Locking [`Rank::NULL`] does nothing.
    ///
    /// The lock of this rank's part, and of one that load and store reach, is there on return.
    /// That of another is asked for. Until it is granted, puts and accumulates of contiguous
    /// elements wait in a queue that takes [`eager_bytes`](crate::Config::eager_bytes) of memory at
    /// most (not those on memory that was attached, whose bounds only the target knows); all other
    /// operations, [`flush`](Lock::flush) and [`unlock`](Lock::unlock) return after that, and
    /// fail if it cannot be. So does this thread wait, before it asks for a further lock, of any
    /// window, and in each call that synchronises ranks: locks that all take in the same order are
    /// granted in it. Nothing else waits: a thread that protects more than the part by it, tells
    /// others by stores, channels or a guard given away that it has the lock, or takes next what
    /// others may hold while they wait for it (a mutex, a lock of its own making), flushes first
    /// (MPI 4.1, section 12.5.3).
    ///
    /// # Errors
    ///
    /// What ends a wait for the lock, on return or, where it is asked for, of all calls under it
    /// that wait; what was queued is not done then: a holder of the lock died or left with it, the
    /// target left, or the deadline of the configuration passed.
    ///
    /// [`RmaError::AlreadyLocked`] if this rank holds that lock, a thread of it waits for it, or an
    /// earlier unlock of it failed,
    /// [`RmaError::EpochOpen`] if it has an epoch of another kind open, [`RmaError::NoSuchRank`],
    /// [`RmaError::NoLocks`] if the window was made for none, [`RmaError::Left`] if the universe of
    /// this rank was dropped.
    #[inline(always)]
    pub fn lock(&self, target: Rank, kind: LockKind) -> Result<Lock<'_>, RmaError> {
        let peer = Access::new(self, Permit::All).to(target);
        let taken = match self.lock_hot(&peer, kind) {
            Ok(taken) => taken,
            Err(Attempt::Claimed) => self.lock_claimed(target, kind)?,
            Err(Attempt::Untried) => self.lock_unclaimed(target, kind, Assert::NONE)?,
        };
        // Made in one place, of what registers hold: to be moved, it would be read in other pieces
        // than it was written in, which takes CPUs longer than a lock.
        Ok(Lock { peer, taken })
    }

    /// Takes a lock that is free, of a target that is mapped, if this rank has no epoch open but
    /// other locks: nothing can fail then.
    #[inline(always)]
    fn lock_hot(&self, peer: &Peer<'_>, kind: LockKind) -> Result<TakenLock, Attempt> {
        let target = peer.target();
        let Some((entry, there)) = peer.entry().and_then(|entry| Some((entry, entry.block()?)))
        else {
            return Err(Attempt::Untried);
        };
        // pairs with the AcqRel changes of the word in `open`.
        if self.part.epoch.word.load(Acquire) != 0
            || self.excludes_locks()
            || !self.together
            || grant::is_expected()
            || !entry.claim(held::BY_LOCK)
        {
            return Err(Attempt::Untried);
        }
        let stays = !self.part.epoch.has_left();
        let (taken, locked) = match kind {
            LockKind::Shared => (TakenLock::Shared, stays && self.lock_shared_hot(target, there)),
            LockKind::Exclusive => {
                let locked = stays && self.lock_exclusive_hot(target, there);
                (TakenLock::Exclusive { passed_global_lock: false }, locked)
            }
        };
        if locked { Ok(taken) } else { Err(Attempt::Claimed) }
    }

    /// Goes on where [`lock_hot`](Self::lock_hot) could not: the target is marked.
    #[cold]
    #[inline(never)]
    fn lock_claimed(&self, target: Rank, kind: LockKind) -> Result<TakenLock, RmaError> {
        self.set_held(target, held::LOCKING);
        let taken = self.taken(target, || self.take_lock(target, kind, Patience::Until(None)))?;
        Ok(taken.unwrap_or(TakenLock::Nothing))
    }

    /// As [`lock_with`](Self::lock_with).
    #[cold]
    #[inline(never)]
    fn lock_unclaimed(
        &self,
        target: Rank,
        kind: LockKind,
        asserts: Assert,
    ) -> Result<TakenLock, RmaError> {
        let no_check = self.check_lock(asserts)?;
        // Also of an epoch without a lock: what keeps others out may be the one that is awaited.
        grant::wait(None);
        if no_check {
            self.begin(target, held::UNCHECKED)?;
            return Ok(TakenLock::Nothing);
        }
        let taken = self.marked(target, || self.take_lock(target, kind, Patience::Until(None)))?;
        Ok(taken.unwrap_or(TakenLock::Nothing))
    }

    /// As [`lock`](Self::lock); with [`Assert::NO_CHECK`] no lock is taken.
    pub fn lock_with(
        &self,
        target: Rank,
        kind: LockKind,
        asserts: Assert,
    ) -> Result<Lock<'_>, RmaError> {
        let taken = self.lock_unclaimed(target, kind, asserts)?;
        Ok(Lock::new(self, target, taken))
    }

    /// As [`lock`](Self::lock), unless others hold the lock in the way or wait for it: `None` then.
    /// It waits for the answer of a target that only messages reach, and for no other rank but for
    /// a [lock](Self::lock) that this thread asked for before.
    ///
    /// It may be tried for ever, for as long as ranks that hold locks take part: after some
    /// progress it fails, as [`lock`](Self::lock) would, once one of them is gone.
    pub fn try_lock(&self, target: Rank, kind: LockKind) -> Result<Option<Lock<'_>>, RmaError> {
        self.check_lock(Assert::NONE)?;
        grant::wait(None);
        let taken = self.marked(target, || self.take_lock(target, kind, Patience::None))?;
        if taken.is_none() {
            self.check_holders(target)?;
        }
        Ok(taken.map(|taken| Lock::new(self, target, taken)))
    }

    /// As [`lock`](Self::lock), waiting for `timeout` at most: `None` then, and no rank waits for
    /// this one any more. With a `timeout` of zero it is [`try_lock`](Self::try_lock).
    ///
    /// Of a target that only messages reach, the way there and back is in the time: one that is
    /// shorter than that gets no lock, be it free or not.
    ///
    /// Its place in line may stay until those in front of it have had the lock, or the target has
    /// answered: a rank that leaves before that counts as one that has left with a lock.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock); [`RmaError::Timeout`] only if the deadline of the configuration
    /// ([`Config::wait_timeout`](crate::Config::wait_timeout)) comes first.
    ///
    /// An extension: the locks of MPI cannot be given up (MPI 4.1, section 12.5.3).
    pub fn try_lock_for(
        &self,
        target: Rank,
        kind: LockKind,
        timeout: Duration,
    ) -> Result<Option<Lock<'_>>, RmaError> {
        if timeout.is_zero() {
            return self.try_lock(target, kind);
        }
        self.check_lock(Assert::NONE)?;
        let sleep = &self.engine().transport.sleep;
        let until = sleep.now().saturating_add(timeout);
        if !grant::wait(Some(until)) {
            return Ok(None);
        }
        let take = || match self.take_lock(target, kind, Patience::Until(Some(until))) {
            Err(RmaError::Timeout { .. }) if sleep.now() >= until => Ok(None),
            taken => taken,
        };
        let taken = self.marked(target, take)?;
        Ok(taken.map(|taken| Lock::new(self, target, taken)))
    }

    /// Takes a lock, or does not: the target is marked first, and stays so if it is taken.
    fn marked(
        &self,
        target: Rank,
        take: impl FnOnce() -> Result<Option<TakenLock>, RmaError>,
    ) -> Result<Option<TakenLock>, RmaError> {
        if !self.begin(target, held::LOCKING)? {
            return Ok(Some(TakenLock::Nothing));
        }
        self.taken(target, take)
    }

    /// As [`marked`](Self::marked), of a target that is.
    fn taken(
        &self,
        target: Rank,
        take: impl FnOnce() -> Result<Option<TakenLock>, RmaError>,
    ) -> Result<Option<TakenLock>, RmaError> {
        let taken = self.check_left().and_then(|()| take());
        let has = matches!(taken, Ok(Some(_)));
        self.set_held(target, if has { held::BY_LOCK } else { held::NOT });
        taken
    }

    /// Marks the target, if an epoch of that kind may be opened now; false if there is none. S-E3
    /// S-E12
    pub(super) fn begin(&self, target: Rank, how: u16) -> Result<bool, RmaError> {
        self.check_goes(target)?;
        if target == Rank::NULL {
            return Ok(false);
        }
        self.reach_if_near(target)?;
        if !self.claim(target, how) {
            return Err(RmaError::AlreadyLocked { window: self.id(), target });
        }
        Ok(true)
    }

    /// Fails if an epoch is open that does not go together with a lock of `target`.
    pub(super) fn check_goes(&self, target: Rank) -> Result<(), RmaError> {
        // pairs with the AcqRel changes of the word in `open`.
        if self.part.epoch.word.load(Acquire) != 0 {
            let own = target == self.rank();
            self.check(if own { EpochCall::LockOwn } else { EpochCall::LockOther })?;
        }
        Ok(())
    }

    /// Fails if the lock of `target` may never be given back. A caller that tries again and again
    /// does not wait, but is to have an end.
    #[cold]
    pub(super) fn check_holders(&self, target: Rank) -> Result<(), RmaError> {
        // Words of another node go with the home, which keeps them.
        let home = self.group().world_rank(target).filter(|_| !self.together);
        let wait = Wait::new("a lock", On::Holders(self.group(), home));
        let engine = self.engine();
        let Some(cause) = engine.progress_or_trouble(wait) else { return Ok(()) };
        Err(self.wait_failed(engine.given_up(wait, cause)))
    }

    /// Takes a lock, unless others have it and there is no patience. S-E1 S-E2 S-E4
    pub(super) fn take_lock(
        &self,
        target: Rank,
        kind: LockKind,
        patience: Patience,
    ) -> Result<Option<TakenLock>, RmaError> {
        if !self.together {
            let taken = match patience {
                Patience::None => self.try_lock_at_home(target, kind.mode())?,
                Patience::Until(until) => {
                    self.lock_at_home(target, kind.mode(), until).map(|()| true)?
                }
            };
            return Ok(taken.then_some(TakenLock::AtHome(kind)));
        }
        let passed = self.lock_words(target, kind, patience)?;
        Ok(passed.map(|passed_global_lock| match kind {
            LockKind::Shared => TakenLock::Shared,
            LockKind::Exclusive => TakenLock::Exclusive { passed_global_lock },
        }))
    }

    /// Whether no lock is to be taken. S-E5 S-E11
    #[inline(always)]
    pub(super) fn check_lock(&self, asserts: Assert) -> Result<bool, RmaError> {
        if self.excludes_locks() {
            return Err(RmaError::NoLocks { window: self.id() });
        }
        if asserts == Assert::NONE {
            return Ok(false);
        }
        if asserts == Assert::NO_CHECK {
            return Ok(true);
        }
        let (assert, why) = ("of a fence", "a lock takes NO_CHECK only");
        Err(RmaError::WrongAssert { window: self.id(), assert, why })
    }
}

impl<'w> Lock<'w> {
    /// The lock of a target, which is taken.
    #[inline(always)]
    pub(super) fn new(window: &'w Window, target: Rank, taken: TakenLock) -> Self {
        Self { peer: Access::new(window, Permit::All).to(target), taken }
    }

    /// The operations of [`Access`], which name their target, on all parts that this rank has
    /// locked: for functions that take any epoch.
    #[inline(always)]
    pub fn access(&self) -> Access<'_> {
        // Not when it was locked: stores between the exchanges of lock and unlock cost more than
        // both.
        let (window, target) = (self.peer.window(), self.peer.target());
        window.targets.open(Permit::Locked, target);
        if window.held(target) == held::BY_LOCK {
            window.set_held(target, held::LISTED);
        }
        Access::new(window, Permit::Locked)
    }

    /// See [`Access::ops`]. Operations of the scope name their target: one that is locked.
    pub fn ops<'env, F, R>(&'env self, scope: F) -> Result<R, RmaError>
    where
        F: for<'scope> FnOnce(&'scope Ops<'scope, 'env>) -> Result<R, RmaError>,
    {
        Ops::run(self.access(), scope)
    }

    /// Returns when the lock is granted, and every operation is complete at the target. Your
    /// buffers were yours before.
    #[inline]
    pub fn flush(&self) -> Result<(), RmaError> {
        self.peer.window().flush(self.peer.target())
    }

    /// Returns when the buffers of operations are yours: at once, because operations outside an
    /// [`ops`](Self::ops) scope are locally complete when they return.
    #[inline]
    pub fn flush_local(&self) -> Result<(), RmaError> {
        Ok(())
    }

    /// Ends the epoch: every operation is complete at the target. Waits for the lock if it is not
    /// granted yet, also when there was no operation.
    #[inline(always)]
    pub fn unlock(self) -> Result<(), RmaError> {
        let (peer, taken) = (self.peer.again(), self.taken);
        let (window, target) = (peer.window(), peer.target());
        mem::forget(self);
        let kind = match taken {
            TakenLock::Shared => LockKind::Shared,
            TakenLock::Exclusive { passed_global_lock: false } => LockKind::Exclusive,
            _ => return Self::close(window, target, taken),
        };
        let entry = peer.entry().filter(|_| window.all_loaded);
        let entry = entry.filter(|entry| entry.held() == held::BY_LOCK);
        let Some((entry, there)) = entry.and_then(|entry| Some((entry, entry.block()?))) else {
            return Self::close(window, target, taken);
        };
        let released = window.unlock_hot(target, there, kind);
        // The mark outlasts the lock: if this rank leaves meanwhile, it says so.
        entry.set_held(after(&released));
        released
    }

    /// Gives the lock back once every operation is complete at the target. S-E6
    #[cold]
    #[inline(never)]
    fn close(window: &Window, target: Rank, taken: TakenLock) -> Result<(), RmaError> {
        if target == Rank::NULL {
            return Ok(());
        }
        window.targets.close(Permit::Locked, target);
        // Giving a lock back is the fence that loads and stores need.
        let fenced = window.all_loaded && !matches!(taken, TakenLock::Nothing);
        let flushed = if fenced { Ok(()) } else { window.flush(target) };
        let released = match taken {
            TakenLock::Nothing => Ok(()),
            TakenLock::Shared => window.unlock_shared(target),
            TakenLock::Exclusive { passed_global_lock } => {
                window.unlock_exclusive(target, passed_global_lock)
            }
            TakenLock::AtHome(kind) => window.unlock_at_home(target, kind.mode()),
        };
        window.set_held(target, after(&released));
        flushed.and(released)
    }
}

/// What the mark of a lock says once it was given back; or should have been, and others are kept
/// out by it.
#[inline(always)]
fn after(released: &Result<(), RmaError>) -> u16 {
    if is_over(released) { held::NOT } else { held::LOCKING }
}

/// Whether a lock was given back, or went with the home of its words.
#[inline(always)]
pub(super) fn is_over(released: &Result<(), RmaError>) -> bool {
    match released {
        Ok(()) => true,
        Err(error) => matches!(
            error,
            RmaError::PeerLeft { .. }
                | RmaError::PeerFailed { .. }
                | RmaError::Freed { .. }
                | RmaError::Left { .. }
        ),
    }
}

impl<'w> Deref for Lock<'w> {
    type Target = Peer<'w>;

    #[inline(always)]
    fn deref(&self) -> &Peer<'w> {
        &self.peer
    }
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        let (window, target) = (self.peer.window(), self.peer.target());
        // `unlock` is for callers that want to know.
        if !window.engine().transport.members.is_fork() {
            if thread::panicking() {
                window.give_up_ungranted(target);
            }
            _ = Self::close(window, target, self.taken);
        }
    }
}
