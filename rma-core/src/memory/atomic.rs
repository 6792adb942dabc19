//! Atomic accesses to window memory and to the control words beside it.
//!
//! Eight aligned bytes of a part are one of the cells that [`copy`](super::copy) speaks of, so
//! that these accesses may race with copies. Four are half of one, or one at the end of a part:
//! where the model is played literally they are updated with their cell. On x86-64 they are an
//! `AtomicU32`. If that races with an access to all eight, the language gives it no meaning; but
//! the compiler's back end does (LLVM: atomics of different sizes may race, each is atomic for
//! its bytes), and so does the machine: the half is updated, which is what the model says.
#![allow(unsafe_code)]

#[cfg(any(not(target_arch = "x86_64"), miri))]
use super::cells;
use super::copy::CellBounds;
use crate::element::{AtomicElement, BasicElement, BasicType, Op};
use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64};

/// Reads, combines with `operand` by `op` and writes back atomically; returns what was there.
/// `None` if `op` is not defined on integers; nothing happened then.
///
/// # Safety
///
/// `at` is mapped for the width of `E`, aligned to it, in `part`, and accessed only by this module,
/// by [`copy`](super::copy) or by a process that shares it while this runs. `E` is
/// [atomic](BasicType::is_atomic).
#[inline(always)]
pub(crate) unsafe fn fetch_and_op<E: BasicElement>(
    at: *mut u8,
    op: Op,
    operand: E,
    part: CellBounds,
) -> Option<E> {
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    if size_of::<E>() == 4 {
        // SAFETY: forwarded to the caller.
        return unsafe { cells::fetch_and_op32(at, op, operand, part) };
    }
    _ = part;
    macro_rules! on {
        ($atomic:ty, $int:ty) => {{
            // SAFETY: caller: mapped, aligned, accessed atomically only.
            let cell = unsafe { <$atomic>::from_ptr(at.cast()) };
            let operand: $int = bytemuck::cast(operand);
            let old: $int = match op {
                Op::Sum => cell.fetch_add(operand, SeqCst),
                Op::Min => cell.fetch_min(operand, SeqCst),
                Op::Max => cell.fetch_max(operand, SeqCst),
                Op::BitAnd => cell.fetch_and(operand, SeqCst),
                Op::BitOr => cell.fetch_or(operand, SeqCst),
                Op::BitXor => cell.fetch_xor(operand, SeqCst),
                Op::Replace => cell.swap(operand, SeqCst),
                Op::NoOp => cell.load(SeqCst),
                Op::Prod | Op::LogicalAnd | Op::LogicalOr | Op::LogicalXor => {
                    let mut old = cell.load(SeqCst);
                    loop {
                        let new = <$int as BasicElement>::combine(op, old, operand);
                        match cell.compare_exchange_weak(old, new, SeqCst, SeqCst) {
                            Ok(old) => break old,
                            Err(seen) => old = seen,
                        }
                    }
                }
                Op::MinLoc | Op::MaxLoc => return None,
            };
            Some(bytemuck::cast(old))
        }};
    }
    match E::BASIC {
        BasicType::U32 => on!(AtomicU32, u32),
        BasicType::I32 => on!(AtomicI32, i32),
        BasicType::U64 => on!(AtomicU64, u64),
        BasicType::I64 => on!(AtomicI64, i64),
        _ => None,
    }
}

/// Replaces `compare` by `swap` if that is what is there; returns what was there.
///
/// # Safety
///
/// As [`fetch_and_op`], and `E` is four or eight bytes wide.
#[inline(always)]
pub(crate) unsafe fn compare_and_swap<E: AtomicElement>(
    at: *mut u8,
    compare: E,
    swap: E,
    part: CellBounds,
) -> E {
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    if size_of::<E>() == 4 {
        // SAFETY: forwarded to the caller.
        return unsafe { cells::compare_and_swap32(at, compare, swap, part) };
    }
    _ = part;
    macro_rules! on {
        ($atomic:ty) => {{
            // SAFETY: caller: mapped, aligned, accessed atomically only.
            let cell = unsafe { <$atomic>::from_ptr(at.cast()) };
            let (compare, swap) = (compare.to_bits() as _, swap.to_bits() as _);
            let (Ok(old) | Err(old)) = cell.compare_exchange(compare, swap, SeqCst, SeqCst);
            E::from_bits(u64::from(old))
        }};
    }
    match size_of::<E>() {
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

    fn fetch_and_op_alone<E: BasicElement>(cell: &mut E, op: Op, operand: E) -> Option<E> {
        let at: *mut u8 = (&raw mut *cell).cast();
        // SAFETY: a live, aligned element that nothing else touches.
        unsafe { fetch_and_op(at, op, operand, CellBounds::of(at, size_of::<E>())) }
    }

    fn compare_and_swap_alone<E: AtomicElement>(cell: &mut E, compare: E, swap: E) -> E {
        let at: *mut u8 = (&raw mut *cell).cast();
        // SAFETY: a live, aligned element that nothing else touches.
        unsafe { compare_and_swap(at, compare, swap, CellBounds::of(at, size_of::<E>())) }
    }

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
            (Op::LogicalAnd, -7, 5, 1),
            (Op::LogicalOr, 0, 0, 0),
            (Op::LogicalXor, -7, 5, 0),
        ];
        for (op, old, operand, new) in ops {
            let mut cell = i64::from(old);
            let seen = fetch_and_op_alone(&mut cell, op, i64::from(operand));
            assert_eq!((seen, cell), (Some(i64::from(old)), i64::from(new)), "{op:?} on i64");
            let mut cell = old;
            let seen = fetch_and_op_alone(&mut cell, op, operand);
            assert_eq!((seen, cell), (Some(old), new), "{op:?} on i32");
        }
        for op in [Op::MinLoc, Op::MaxLoc] {
            assert_eq!(fetch_and_op_alone(&mut 0i64, op, 1), None);
            assert_eq!(fetch_and_op_alone(&mut 0i32, op, 1), None);
        }
    }

    #[test]
    fn compare_and_swap_swaps_only_on_a_match() {
        let mut cell = -3i32;
        assert_eq!(compare_and_swap_alone(&mut cell, 1, 9), -3);
        assert_eq!(cell, -3);
        assert_eq!(compare_and_swap_alone(&mut cell, -3, 9), -3);
        assert_eq!(cell, 9);
    }
}
