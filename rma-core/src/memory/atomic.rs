//! Atomic accesses to window memory and to the control words beside it.
#![allow(unsafe_code)]

use crate::element::{AtomicElement, IntKind, Number};
use crate::ops::Op;
use core::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64, Ordering::SeqCst};

/// Reads, combines with `operand` by `op` and writes back atomically; returns what was there.
///
/// # Safety
///
/// `at` is mapped for the width of `E`, aligned to it, and accessed only by this module, by
/// [`copy`](super::copy) or by a process that shares it while this runs.
#[inline(always)]
pub(crate) unsafe fn fetch_and_op<E: AtomicElement>(at: *mut u8, op: Op, operand: E) -> E {
    macro_rules! on {
        ($atomic:ty) => {{
            // SAFETY: caller: mapped, aligned, accessed atomically only.
            let cell = unsafe { <$atomic>::from_ptr(at.cast()) };
            let operand = AtomicElement::to_bits(operand) as _;
            let old = match op {
                Op::Sum => cell.fetch_add(operand, SeqCst),
                Op::Min => cell.fetch_min(operand, SeqCst),
                Op::Max => cell.fetch_max(operand, SeqCst),
                Op::BitAnd => cell.fetch_and(operand, SeqCst),
                Op::BitOr => cell.fetch_or(operand, SeqCst),
                Op::BitXor => cell.fetch_xor(operand, SeqCst),
                Op::Replace => cell.swap(operand, SeqCst),
                Op::NoOp => cell.load(SeqCst),
                Op::Prod => {
                    let mut old = cell.load(SeqCst);
                    loop {
                        let new = Number::combine(op, old, operand);
                        match cell.compare_exchange_weak(old, new, SeqCst, SeqCst) {
                            Ok(old) => break old,
                            Err(seen) => old = seen,
                        }
                    }
                }
            };
            E::from_bits(AtomicElement::to_bits(old))
        }};
    }
    match E::KIND {
        IntKind::U32 => on!(AtomicU32),
        IntKind::I32 => on!(AtomicI32),
        IntKind::U64 => on!(AtomicU64),
        IntKind::I64 => on!(AtomicI64),
    }
}

/// Replaces `compare` by `swap` if that is what is there; returns what was there.
///
/// # Safety
///
/// As [`fetch_and_op`].
#[inline(always)]
pub(crate) unsafe fn compare_and_swap<E: AtomicElement>(at: *mut u8, compare: E, swap: E) -> E {
    macro_rules! on {
        ($atomic:ty) => {{
            // SAFETY: caller: mapped, aligned, accessed atomically only.
            let cell = unsafe { <$atomic>::from_ptr(at.cast()) };
            let (compare, swap) = (compare.to_bits() as _, swap.to_bits() as _);
            let (Ok(old) | Err(old)) = cell.compare_exchange(compare, swap, SeqCst, SeqCst);
            E::from_bits(u64::from(old))
        }};
    }
    match E::KIND.width() {
        4 => on!(AtomicU32),
        _ => on!(AtomicU64),
    }
}

/// A 64-bit control word in memory that peers share.
///
/// # Safety
///
/// `at` stays mapped for `'a`, is aligned to 8 and is accessed atomically only.
#[inline(always)]
pub(crate) unsafe fn word<'a>(at: *mut u8) -> &'a AtomicU64 {
    // SAFETY: forwarded to the caller.
    unsafe { AtomicU64::from_ptr(at.cast()) }
}

/// A 32-bit control word in memory that peers share.
///
/// # Safety
///
/// `at` stays mapped for `'a`, is aligned to 4 and is accessed atomically only.
#[inline(always)]
pub(crate) unsafe fn half<'a>(at: *mut u8) -> &'a AtomicU32 {
    // SAFETY: forwarded to the caller.
    unsafe { AtomicU32::from_ptr(at.cast()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operation_combines_and_returns_the_old_value() {
        let ops = [
            (Op::Sum, -7, 5, -2),
            (Op::Prod, -7, 5, -35),
            (Op::Min, -7, 5, -7),
            (Op::Max, -7, 5, 5),
            (Op::BitAnd, 6, 3, 2),
            (Op::BitOr, 6, 3, 7),
            (Op::BitXor, 6, 3, 5),
            (Op::Replace, -7, 5, 5),
            (Op::NoOp, -7, 5, -7),
        ];
        for (op, old, operand, new) in ops {
            let mut cell = i64::from(old);
            // SAFETY: a live, aligned i64 that nobody else touches.
            let seen = unsafe { fetch_and_op((&raw mut cell).cast(), op, i64::from(operand)) };
            assert_eq!((seen, cell), (i64::from(old), i64::from(new)), "{op:?} on i64");
            let mut cell = old;
            // SAFETY: a live, aligned i32 that nobody else touches.
            let seen = unsafe { fetch_and_op((&raw mut cell).cast(), op, operand) };
            assert_eq!((seen, cell), (old, new), "{op:?} on i32");
        }
    }

    #[test]
    fn compare_and_swap_swaps_only_on_a_match() {
        let mut cell = -3i32;
        // SAFETY: a live, aligned i32 that nobody else touches.
        assert_eq!(unsafe { compare_and_swap((&raw mut cell).cast(), 1, 9) }, -3);
        assert_eq!(cell, -3);
        // SAFETY: as above.
        assert_eq!(unsafe { compare_and_swap((&raw mut cell).cast(), -3, 9) }, -3);
        assert_eq!(cell, 9);
    }
}
