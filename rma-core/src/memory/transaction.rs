//! Transactions of the machine: what is loaded and stored between [`begin`] and [`commit`] is done
//! at one instant, as every other access of these bytes sees it, by whatever instruction and thread
//! of whichever process, or is not done at all.
//!
//! These are Intel's restricted transactional memory. A CPU without it, or whose firmware has ended
//! it, begins none. One that is begun may always fail: at a page that is not there yet, an
//! interrupt, an access of the same bytes by others. So there is another way beside each.
#![allow(unsafe_code)]

use core::arch::asm;
use core::cell::Cell;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

/// So many that fail one behind the other are a reason to do without for a while.
const PATIENCE: u32 = 8;

/// One of so many is tried then.
const AGAIN: u32 = 64;

thread_local! {
    /// Those of this thread that were not in vain.
    static COMMITTED: Cell<u64> = const { Cell::new(0) };
}

/// How many this thread has done so far, of those that [`note`] knows.
pub(crate) fn committed() -> u64 {
    COMMITTED.with(Cell::get)
}

/// Those of this process.
static FAILURES: AtomicFailures = AtomicFailures(AtomicU32::new(0));

/// How many have failed since the last that did not; from [`PATIENCE`] on, how many might have been
/// tried as well. Threads that count at once may lose some: nothing but time hangs on it.
struct AtomicFailures(AtomicU32);

impl AtomicFailures {
    #[inline(always)]
    fn allow_another(&self) -> bool {
        let failed = self.0.load(Relaxed);
        failed < PATIENCE || self.is_time_cold(failed)
    }

    #[cold]
    fn is_time_cold(&self, failed: u32) -> bool {
        let next = failed.wrapping_add(1).max(PATIENCE);
        self.0.store(next, Relaxed);
        next.is_multiple_of(AGAIN)
    }

    #[inline(always)]
    fn note(&self, committed: bool) {
        let failed = self.0.load(Relaxed);
        match committed {
            true if failed == 0 => (),
            true => self.0.store(0, Relaxed),
            false if failed < PATIENCE => self.0.store(failed + 1, Relaxed),
            false => (),
        }
    }
}

/// Whether the CPU has them.
#[inline]
pub(super) fn are_there() -> bool {
    is_x86_feature_detected!("rtm")
}

/// Whether to try one.
#[inline]
pub(super) fn is_promising() -> bool {
    are_there() && FAILURES.allow_another()
}

/// What became of one that was tried.
#[inline]
pub(super) fn note(committed: bool) {
    COMMITTED.with(|count| count.set(count.get() + u64::from(committed)));
    FAILURES.note(committed);
}

/// Begins a transaction. Where it fails, all memory and registers are again what they were here,
/// and this is `false`: to the compiler, and to what runs then, it was never begun.
///
/// # Safety
///
/// The CPU has transactions. If this is `true`, [`commit`] follows in the same function, with
/// nothing between that may unwind, wait or enter the kernel.
#[inline(always)]
pub(super) unsafe fn begin() -> bool {
    const BEGUN: u32 = u32::MAX;
    let mut status = BEGUN;
    // SAFETY: caller: the CPU has the instruction. Failing goes on behind it with another status,
    // and undoes all else; not `nomem`, so that no access moves across it.
    unsafe { asm!("xbegin 2f", "2:", inout("eax") status, options(nostack)) };
    status == BEGUN
}

/// Ends the transaction: orders as an atomic operation, `SeqCst`, that accesses all its bytes.
///
/// # Safety
///
/// One is under way: [`begin`] was `true`.
#[inline(always)]
pub(super) unsafe fn commit() {
    // SAFETY: caller: in a transaction; not `nomem`, as above.
    unsafe { asm!("xend", options(nostack)) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU64;
    use std::thread;

    /// Threads add to two words: by transactions to both, or by an atomic to each where one fails,
    /// while another adds by atomics only. Nothing is lost, and what a transaction sees of the
    /// two belongs together.
    #[test]
    fn what_is_done_in_one_is_done_at_one_instant() {
        const TIMES: u64 = 20_000;
        // The last two are written by transactions alone, always both alike.
        let words = [const { AtomicU64::new(0) }; 4];
        let has = is_x86_feature_detected!("rtm");
        let both = || {
            let mut differed = 0;
            for _ in 0..TIMES {
                let [first, second, alike, same] = &words;
                // SAFETY: the CPU has them, and `commit` follows, behind loads and stores.
                if has && unsafe { begin() } {
                    for word in [first, second, alike, same] {
                        word.store(word.load(Relaxed) + 1, Relaxed);
                    }
                    let pair = (alike.load(Relaxed), same.load(Relaxed));
                    // SAFETY: begun above.
                    unsafe { commit() };
                    differed += u64::from(pair.0 != pair.1);
                } else {
                    for word in [first, second] {
                        word.fetch_add(1, Relaxed);
                    }
                }
            }
            differed
        };
        thread::scope(|scope| {
            let adders = [scope.spawn(both), scope.spawn(both)];
            for _ in 0..TIMES {
                for word in &words[..2] {
                    word.fetch_add(1, Relaxed);
                }
            }
            assert_eq!(adders.map(|it| it.join().unwrap()), [0, 0], "halves of transactions");
        });
        let [first, second, alike, same] = words.map(AtomicU64::into_inner);
        assert_eq!([first, second], [3 * TIMES; 2]);
        assert_eq!(alike, same);
        assert!(alike <= 2 * TIMES, "{alike}");
    }

    #[test]
    fn what_fails_is_done_without_for_a_while() {
        let failures = AtomicFailures(AtomicU32::new(0));
        let allowed = |times: u32| (0..times).filter(|_| failures.allow_another()).count();
        assert_eq!(allowed(100), 100);
        (1..PATIENCE).for_each(|_| failures.note(false));
        assert_eq!(allowed(100), 100, "one is left");
        failures.note(false);
        assert_eq!(allowed(4 * AGAIN), 4);
        failures.note(false);
        assert_eq!(allowed(4 * AGAIN), 4, "it goes on counting");
        failures.note(true);
        assert_eq!(allowed(100), 100);
        failures.0.store(u32::MAX, Relaxed);
        assert_eq!(allowed(2 * AGAIN), 2, "past the end of the count");
    }
}
