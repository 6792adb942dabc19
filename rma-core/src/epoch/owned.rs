//! Guards that hold their window: an epoch that stays open as long as the value that it is a field
//! of, as `lock_owned` of tokio does it for a mutex.
#![allow(unsafe_code)]

use super::{Lock, LockAll};
use crate::error::{Refused, RmaError};
use crate::rank::Rank;
use crate::sync::LockKind;
use crate::window::Window;
use core::mem::{self, ManuallyDrop, MaybeUninit};
use std::sync::Arc;

/// A [`LockAll`] that holds its window, for structs that have both: see
/// [`Window::lock_all_owned`].
#[must_use = "the epoch ends when the guard is dropped"]
pub struct OwnedLockAll {
    // Before the window, which it borrows: fields are dropped in their order.
    guard: Kept<LockAll<'static>>,
    window: Arc<Window>,
}

/// A [`Lock`] that holds its window: see [`Window::lock_owned`].
#[must_use = "the epoch ends when the guard is dropped"]
pub struct OwnedLock {
    // Before the window, as above.
    guard: Kept<Lock<'static>>,
    window: Arc<Window>,
}

/// A guard whose references need not be valid wherever it is: a function that takes the owner by
/// value ends it and its window, and what it was called with must be valid up to its end.
struct Kept<G>(MaybeUninit<G>);

impl<G> Kept<G> {
    fn new(guard: G) -> Self {
        Self(MaybeUninit::new(guard))
    }

    #[inline(always)]
    fn get(&self) -> &G {
        // SAFETY: there from `new` on, until `self` is taken or dropped.
        unsafe { self.0.assume_init_ref() }
    }

    fn take(self) -> G {
        let this = ManuallyDrop::new(self);
        // SAFETY: it is there, and nothing has it after this.
        unsafe { this.0.assume_init_read() }
    }
}

impl<G> Drop for Kept<G> {
    fn drop(&mut self) {
        // SAFETY: it is there, and nothing has it after this.
        unsafe { self.0.assume_init_drop() }
    }
}

impl Window {
    /// As [`lock_all`](Self::lock_all), with a guard that holds the window and can be kept in a
    /// struct.
    ///
    /// The window can be freed once the guard has [given it back](OwnedLockAll::unlock):
    /// [`Arc::into_inner`] gives it where nothing else has it.
    ///
    /// # Errors
    ///
    /// As [`lock_all`](Self::lock_all).
    pub fn lock_all_owned(self: &Arc<Self>) -> Result<OwnedLockAll, RmaError> {
        let window = Arc::clone(self);
        let guard = window.lock_all()?;
        // SAFETY: only the lifetime changes. The window stays where it is, and is not moved,
        // dropped or lent exclusively, for as long as `window` is an owner of it, beside which
        // there is no `Arc::get_mut` or `into_inner`. The guard goes before that, on every way: it
        // is a field before it, and `unlock` ends it first. No caller gets the guard with this
        // lifetime: `epoch` lends it for no longer than `self`.
        let guard = unsafe { mem::transmute::<LockAll<'_>, LockAll<'static>>(guard) };
        Ok(OwnedLockAll { guard: Kept::new(guard), window })
    }

    /// As [`lock`](Self::lock), with a guard that holds the window and can be kept in a struct.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    pub fn lock_owned(
        self: &Arc<Self>,
        target: Rank,
        kind: LockKind,
    ) -> Result<OwnedLock, RmaError> {
        let window = Arc::clone(self);
        let guard = window.lock(target, kind)?;
        // SAFETY: as in `lock_all_owned`.
        let guard = unsafe { mem::transmute::<Lock<'_>, Lock<'static>>(guard) };
        Ok(OwnedLock { guard: Kept::new(guard), window })
    }
}

macro_rules! owned { ($($owned:ident of $guard:ident: $targets:literal;)*) => { $(
    impl $owned {
        #[doc = concat!("The epoch, for operations on ", $targets, ".")]
        #[inline(always)]
        pub fn epoch(&self) -> &$guard<'_> {
            self.guard.get()
        }

        /// Its window.
        pub fn window(&self) -> &Arc<Window> {
            &self.window
        }

        /// Ends the epoch: every operation is complete at its target. Gives the window back, also
        /// if that fails.
        pub fn unlock(self) -> Result<Arc<Window>, Refused<Arc<Window>>> {
            let Self { guard, window } = self;
            match guard.take().unlock() {
                Ok(()) => Ok(window),
                Err(error) => Err(Refused { value: window, error }),
            }
        }
    }
)* } }
owned! {
    OwnedLockAll of LockAll: "all targets";
    OwnedLock of Lock: "its target";
}
