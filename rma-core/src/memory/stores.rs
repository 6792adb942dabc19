//! Whether this thread has stored to window memory since its last fence: a flush that has nothing
//! to complete needs none.
//!
//! On x86-64 every core sees the stores of another in their order, and all cores in the same one. A
//! store of another thread that happened before a flush was therefore seen by all before the flush
//! began; what a fence is for is this thread's own stores that still wait to be seen. An atomic
//! update is a fence by itself. Elsewhere neither holds, nor in the language's own model, which
//! Miri plays: each flush is a fence there.

use crate::word::fence;
use core::cell::Cell;
use core::sync::atomic::Ordering::SeqCst;

const ORDERED: bool = cfg!(all(target_arch = "x86_64", not(miri)));

#[cfg(not(loom))]
thread_local! {
    static MADE: Cell<bool> = const { Cell::new(false) };
}
#[cfg(loom)]
loom::thread_local! {
    static MADE: Cell<bool> = Cell::new(false);
}

/// To be called with each store to window memory that is no atomic update.
#[inline(always)]
pub(crate) fn made() {
    if ORDERED {
        // `Cell::set` of the key is a call in large functions.
        MADE.with(|made| made.set(true));
    }
}

/// Returns when all ranks see every store to window memory that happened before. S-F1
#[inline(always)]
pub(crate) fn complete() {
    if !ORDERED || MADE.with(|made| made.replace(false)) {
        fence(SeqCst);
    }
}

/// Whether the next flush is a fence.
#[cfg(test)]
pub(crate) fn is_fence_due() -> bool {
    !ORDERED || MADE.with(Cell::get)
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::{complete, made};
    use core::sync::atomic::Ordering::Relaxed;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;
    use loom::thread;

    /// Two ranks put, flush and then get: they do not both miss the other's put. S-F1
    #[test]
    fn loom_neither_misses_the_other() {
        loom::model(|| {
            let words = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
            let run = |words: &[AtomicU64; 2], me: usize| {
                let mut seen = 0;
                // The fence of the first round is not the second's.
                for round in 1..=2 {
                    words[me].store(round, Relaxed);
                    made();
                    complete();
                    seen = words[1 - me].load(Relaxed);
                }
                seen
            };
            let other = {
                let words = words.clone();
                thread::spawn(move || run(&words, 1))
            };
            let (seen, other) = (run(&words, 0), other.join().unwrap());
            assert!(seen == 2 || other == 2, "{seen} and {other}");
        });
    }
}
