//! Whether this thread has stored to window memory since its last fence: a flush that has nothing
//! to complete needs none. S-F1
//!
//! On x86-64 every core sees the stores of another in their order, and all cores in the same one. A
//! store of another thread that happened before a flush was therefore seen by all before the flush
//! began; what a fence is for is this thread's own stores that still wait to be seen. An atomic
//! update is a fence by itself. Elsewhere neither holds, nor in the language's own model, which
//! Miri plays: each flush is a fence there.

use core::cell::Cell;
use core::sync::atomic::{Ordering::SeqCst, fence};

const ORDERED: bool = cfg!(all(target_arch = "x86_64", not(miri)));

thread_local! {
    static MADE: Cell<bool> = const { Cell::new(false) };
}

/// To be called with each store to window memory that is no atomic update.
#[inline(always)]
pub(crate) fn made() {
    if ORDERED {
        // `Cell::set` of the key is a call in large functions.
        MADE.with(|made| made.set(true));
    }
}

/// Returns when all ranks see every store to window memory that happened before.
#[inline(always)]
pub(crate) fn complete() {
    if !ORDERED || MADE.replace(false) {
        fence(SeqCst);
    }
}

/// Whether the next flush is a fence.
#[cfg(test)]
pub(crate) fn is_fence_due() -> bool {
    !ORDERED || MADE.get()
}
