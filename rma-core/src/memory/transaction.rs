//! Transactions of the machine: what is loaded and stored between [`begin`] and [`commit`] is done
//! at one instant, as every other access of these bytes sees it, by whatever instruction and thread
//! of whichever process, or is not done at all.
//!
//! These are Intel's restricted transactional memory. A CPU without it, or whose firmware has ended
//! it, begins none. One that is begun may always fail: at a page that is not there yet, an
//! interrupt, an access of the same bytes by others. So there is another way beside each.
#![allow(unsafe_code)]

use core::arch::asm;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

/// So many that fail one behind the other are a reason to do without for a while.
const PATIENCE: u32 = 8;

/// One of so many is tried then.
const AGAIN: u32 = 64;

/// How many have failed since the last that did not, in this process; from [`PATIENCE`] on, how
/// many might have been tried.
static FAILED: AtomicU32 = AtomicU32::new(0);

/// Whether to try one.
#[inline]
pub(super) fn is_promising() -> bool {
    is_x86_feature_detected!("rtm") && {
        let failed = FAILED.load(Relaxed);
        failed < PATIENCE || is_time_cold(failed)
    }
}

/// A count that several threads write may lose some: nothing but time hangs on it.
#[cold]
fn is_time_cold(failed: u32) -> bool {
    let next = failed.wrapping_add(1).max(PATIENCE);
    FAILED.store(next, Relaxed);
    next % AGAIN == 0
}

/// What became of one that was tried.
#[inline]
pub(super) fn note(committed: bool) {
    let failed = FAILED.load(Relaxed);
    match committed {
        true if failed == 0 => (),
        true => FAILED.store(0, Relaxed),
        false if failed < PATIENCE => FAILED.store(failed + 1, Relaxed),
        false => (),
    }
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

    #[test]
    fn what_fails_is_done_without_for_a_while() {
        // The count is one of the process: other tests may change it meanwhile, so what is asked
        // is what it does by itself.
        let tried = |times: u32| (0..times).filter(|_| is_promising()).count();
        let has = is_x86_feature_detected!("rtm");
        note(true);
        assert!(!has || tried(1) <= 1);
        for _ in 0..PATIENCE {
            note(false);
        }
        let of_many = tried(4 * AGAIN);
        assert!(has || of_many == 0, "a CPU without transactions begins none");
        note(true);
    }
}
