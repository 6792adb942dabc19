//! Active target synchronisation by fences (MPI 4.1, section 12.5.1).
use super::Access;
use crate::error::RmaError;
use crate::memory::target::Permit;
use crate::sync::{EpochCall, EpochKind};
use crate::transport::Moment;
use crate::window::Window;
use core::ops::{BitOr, Deref};
use core::sync::atomic::Ordering::AcqRel;

/// What a program promises about an epoch (MPI 4.1, section 12.5.5). Join several with `|`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Assert(u32);

impl Assert {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// Fence: this rank issued no operation since the last fence. Same at all ranks.
    pub const NO_PRECEDE: Self = Self(1);
    /// Fence: no operation follows; only [`Fence::end`] gives it.
    pub const NO_SUCCEED: Self = Self(2);
    /// Fence, post: this rank's part was not stored to since the last synchronisation.
    pub const NO_STORE: Self = Self(4);
    /// Fence, post: no rank puts to this one's part until the next fence, or until the wait.
    pub const NO_PUT: Self = Self(8);
    /// Lock: no other rank holds or asks for a conflicting lock, so none need be taken. Start:
    /// every target has posted already; to be given to those posts too.
    pub const NO_CHECK: Self = Self(16);

    /// Whether all promises of `other` are among these.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Assert {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// An open fence epoch: operations to every rank are allowed, on every rank.
///
/// [`next`](Self::next) ends it and opens another, [`end`](Self::end) ends it. Dropping the guard
/// only says that this rank issues nothing more: the operations are complete after the next fence.
#[must_use = "operations are methods of the guard"]
pub struct Fence<'w> {
    access: Access<'w>,
}

impl Window {
    /// Ends the fence epoch, if there is one, and opens the next. **Collective.**
    ///
    /// On return every operation that any rank issued before is complete, at its origin and at its
    /// target.
    ///
    /// # Errors
    ///
    /// [`RmaError::EpochOpen`] if this rank holds a lock, [`RmaError::WrongAssert`] if the asserts
    /// are not a fence's: nothing has happened then. [`RmaError::Timeout`], or
    /// [`RmaError::PeerFailed`] and its like if a rank is gone: other ranks may have passed the
    /// fence all the same, or may pass it later, because this one had come. So it cannot be
    /// repeated: from then on fences of this window fail at this rank, with
    /// [`RmaError::OutOfStep`] if no better reason is known, and so does `free` of a window whose
    /// ranks meet by messages. Make another window.
    ///
    /// Threads of a rank fence one after the other: each fence of one thread meets one of every
    /// other rank.
    pub fn fence(&self, asserts: Assert) -> Result<Fence<'_>, RmaError> {
        self.check_fence(asserts)?;
        // `NO_STORE` and `NO_PUT` would spare nothing: one copy of the part is all there is. S-C4
        self.part.advise(Moment::Exposed);
        self.synchronise()?;
        self.open_fence()
    }

    fn open_fence(&self) -> Result<Fence<'_>, RmaError> {
        self.open(EpochCall::Fence, 1)?;
        Ok(Fence { access: Access::new(self, Permit::All) })
    }

    /// Fails unless a fence that opens an epoch takes the asserts. S-C3
    fn check_fence(&self, asserts: Assert) -> Result<(), RmaError> {
        let wrong = |assert, why| RmaError::WrongAssert { window: self.id(), assert, why };
        if asserts.contains(Assert::NO_SUCCEED) {
            return Err(wrong("NO_SUCCEED", "the guard returned allows operations; use end()"));
        }
        if asserts.contains(Assert::NO_CHECK) {
            return Err(wrong("NO_CHECK", "it belongs to locks"));
        }
        if asserts.contains(Assert::NO_PRECEDE) && !self.far.is_idle() {
            return Err(wrong("NO_PRECEDE", "operations of this rank are in flight"));
        }
        Ok(())
    }

    /// Completes what all ranks issued, whatever was asserted. S-C1
    fn synchronise(&self) -> Result<(), RmaError> {
        // Fence guards may be open: that is the epoch that ends here, and none need be. S-C2
        self.check(EpochCall::Fence)?;
        let flushed = self.flush_targets();
        // Whatever became of this rank's operations: others wait for it. It orders the loads and
        // stores of all ranks before and after, also where `NO_PRECEDE` needs less. S-C5 S-C6
        let met = self.barrier();
        // Ranks without bytes, or alone, fence as all do. S-C8
        met.and(flushed)
    }

    /// As [`synchronise`](Self::synchronise); then all ranks commit, or one tells why not.
    fn synchronise_and_persist(&self) -> Result<(), RmaError> {
        self.check(EpochCall::Fence)?;
        let flushed = self.flush_targets();
        self.barrier()?;
        self.commit_together(flushed)
    }
}

impl<'w> Fence<'w> {
    /// Ends this epoch and opens the next. **Collective.** See [`Window::fence`].
    pub fn next(self, asserts: Assert) -> Result<Self, RmaError> {
        let window = self.access.window();
        drop(self);
        window.fence(asserts)
    }

    /// Ends this epoch and opens none. **Collective.**
    ///
    /// # Errors
    ///
    /// [`RmaError::WrongAssert`] if another guard of this window is alive on this rank.
    pub fn end(self) -> Result<(), RmaError> {
        self.close()?.synchronise()
    }

    /// As [`next`](Self::next), and makes the parts of all ranks durable in between: where they lie
    /// on persistent memory with transactions, as one version of all ranks, which commits the
    /// transaction under way and begins the next; elsewhere on storage, by a flush; in memory that
    /// ends with the job, there is nothing to do. **Collective**, and a barrier in any case.
    ///
    /// ```
    /// # use rma_core::{Assert, Rank, RmaError, Window};
    /// # // Run by the tests of the crate `rma`; here for the compiler.
    /// # fn example(window: &Window) -> Result<(), RmaError> {
    /// let epoch = window.fence(Assert::NONE)?;
    /// epoch.put(Rank(0), 0, &[1.0f64])?;
    /// let epoch = epoch.next_persist(Assert::NONE)?; // a version with the put, or an error
    /// epoch.put(Rank(0), 0, &[2.0f64])?;
    /// epoch.end_persist()?; // and another one
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`Window::fence`], and [`RmaError::Persist`]: the operations are complete, at all
    /// ranks, and the epoch has ended, but what they did is not durable, at no rank with
    /// transactions. After [`PersistError::NoSpace`](crate::PersistError::NoSpace), at whichever
    /// rank, the window goes on: fence again. [`RmaError::WrongAssert`]: nothing has happened.
    pub fn next_persist(self, asserts: Assert) -> Result<Self, RmaError> {
        let window = self.access.window();
        window.check_fence(asserts)?;
        drop(self);
        window.part.advise(Moment::Exposed);
        window.synchronise_and_persist()?;
        window.open_fence()
    }

    /// As [`end`](Self::end), and makes the parts of all ranks durable, as
    /// [`next_persist`](Self::next_persist) does. **Collective.**
    ///
    /// # Errors
    ///
    /// Those of [`end`](Self::end) and [`next_persist`](Self::next_persist).
    pub fn end_persist(self) -> Result<(), RmaError> {
        self.close()?.synchronise_and_persist()
    }

    /// This rank issues nothing more; fails if another guard of it may.
    fn close(self) -> Result<&'w Window, RmaError> {
        let window = self.access.window();
        drop(self);
        if window.is_open(EpochKind::Fence) {
            let (assert, why) = ("NO_SUCCEED", "another fence guard of this window is alive");
            return Err(RmaError::WrongAssert { window: window.id(), assert, why });
        }
        Ok(window)
    }
}

impl<'w> Deref for Fence<'w> {
    type Target = Access<'w>;

    fn deref(&self) -> &Self::Target {
        &self.access
    }
}

impl Drop for Fence<'_> {
    fn drop(&mut self) {
        // pairs with the Acquire load in `check`.
        self.access.window().part.epoch.word.fetch_sub(1, AcqRel);
    }
}
