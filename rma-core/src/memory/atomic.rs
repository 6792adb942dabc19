//! Atomic accesses to window memory and to the control words beside it.
//!
//! Eight aligned bytes of a part are one of the cells that [`copy`](super::copy) speaks of, so
//! that these accesses may race with copies. Four are half of one, or one at the end of a part:
//! where the model is played literally they are updated with their cell. On x86-64 they are an
//! `AtomicU32`. If that races with an access to all eight, the language gives it no meaning; but
//! the compiler's back end does (LLVM: atomics of different sizes may race, each is atomic for
//! its bytes), and so does the machine: the half is updated, which is what the model says. The same
//! goes for two cells that are compared and swapped at once.
#![allow(unsafe_code)]

#[cfg(any(not(target_arch = "x86_64"), miri))]
use super::cells;
use super::copy::CellBounds;
use crate::element::{AtomicElement, BasicElement, BasicType, Op};
#[cfg(all(target_arch = "x86_64", not(miri)))]
use core::arch::asm;
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

/// Bytes of several elements that the machine compares and swaps at once, where it can.
pub(crate) const WIDE: usize = 16;

/// Whether there is [`fetch_and_op_wide`].
#[inline]
pub(crate) fn has_wide() -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    return is_x86_feature_detected!("cmpxchg16b");
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    return false;
}

/// As [`fetch_and_op`], of the elements in each [`WIDE`] bytes from `at` on, one after the other:
/// each is combined as by an atomic of its own, which costs as much as one for all of them. `op` is
/// defined on `E`; `result` takes what was there, and has as many bytes as there are operands.
///
/// # Safety
///
/// As [`fetch_and_op`], of as many bytes as there are operands, aligned to [`WIDE`]; and
/// [`has_wide`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) unsafe fn fetch_and_op_wide<E: BasicElement>(
    at: *mut u8,
    op: Op,
    operands: &[[u8; WIDE]],
    result: Option<&mut [[u8; WIDE]]>,
) {
    macro_rules! on {
        ($($op:ident)*) => {
            match op {
                $(Op::$op => {
                    let combine = |old, operand| E::combine(Op::$op, old, operand);
                    // SAFETY: forwarded to the caller.
                    unsafe { each_wide(at, operands, result, combine) }
                })*
                Op::NoOp | Op::MinLoc | Op::MaxLoc => {
                    // SAFETY: forwarded to the caller.
                    unsafe { each_wide(at, operands, result, |old: E, _| old) }
                }
            }
        };
    }
    on!(Sum Prod Min Max BitAnd BitOr BitXor Replace LogicalAnd LogicalOr LogicalXor);
}

/// As [`fetch_and_op_wide`], with that operation. Words are in registers: of what was written to
/// memory in halves, CPUs are slow to read the whole, and the reverse.
///
/// # Safety
///
/// As [`fetch_and_op_wide`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
unsafe fn each_wide<E: BasicElement>(
    at: *mut u8,
    operands: &[[u8; WIDE]],
    mut result: Option<&mut [[u8; WIDE]]>,
    combine: impl Fn(E, E) -> E + Copy,
) {
    for (i, operands) in operands.iter().enumerate() {
        // SAFETY: as many bytes are mapped as there are operands.
        let at = unsafe { at.add(i * WIDE) };
        // SAFETY: the second of the words there.
        let second = unsafe { at.add(8) };
        // Two loads may not belong together: it is a guess, which the exchange holds against what
        // is there.
        // SAFETY: mapped and aligned, by the contract; accessed atomically only.
        let mut low = unsafe { AtomicU64::from_ptr(at.cast()) }.load(SeqCst);
        // SAFETY: as above.
        let mut high = unsafe { AtomicU64::from_ptr(second.cast()) }.load(SeqCst);
        let [operand_low, operand_high] = *bytemuck::cast_ref::<_, [[u8; 8]; 2]>(operands);
        let operand_low = u64::from_ne_bytes(operand_low);
        let operand_high = u64::from_ne_bytes(operand_high);
        loop {
            let new_low = combine_word(low, operand_low, combine);
            let new_high = combine_word(high, operand_high, combine);
            // SAFETY: as the caller's.
            let seen = unsafe { compare_and_swap_wide(at, (low, high), (new_low, new_high)) };
            if seen == (low, high) {
                break;
            }
            (low, high) = seen;
        }
        let place = result.as_deref_mut().and_then(|result| result.get_mut(i));
        if let Some(place) = place {
            *bytemuck::cast_mut(place) = [low.to_ne_bytes(), high.to_ne_bytes()];
        }
    }
}

/// Combines the elements in eight bytes.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
fn combine_word<E: BasicElement>(old: u64, operand: u64, combine: impl Fn(E, E) -> E) -> u64 {
    if size_of::<E>() == 8 {
        return bytemuck::cast(combine(bytemuck::cast(old), bytemuck::cast(operand)));
    }
    let half = |at: u32| -> u64 {
        let (old, operand) = ((old >> at) as u32, (operand >> at) as u32);
        let combined: u32 = bytemuck::cast(combine(bytemuck::cast(old), bytemuck::cast(operand)));
        u64::from(combined) << at
    };
    half(0) | half(32)
}

/// Replaces `compare` by `swap` if that is what is there; returns what was there. Written out,
/// because some builds turn the intrinsic into a call of a library that is not linked.
///
/// # Safety
///
/// As [`fetch_and_op_wide`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
unsafe fn compare_and_swap_wide(
    at: *mut u8,
    (mut low, mut high): (u64, u64),
    (swap_low, swap_high): (u64, u64),
) -> (u64, u64) {
    // SAFETY: 16 bytes that are mapped and aligned to as many, and a machine that has the
    // instruction, by the contract; that atomics of some of them may race with it, the module says.
    // rbx, which is the compiler's own, has its value back at the end; the address is in rdi, which
    // is not rbx.
    unsafe {
        asm!(
            "xchg {swap_low}, rbx",
            "lock cmpxchg16b xmmword ptr [rdi]",
            "mov rbx, {swap_low}",
            in("rdi") at,
            swap_low = inout(reg) swap_low => _,
            in("rcx") swap_high,
            inout("rax") low,
            inout("rdx") high,
            options(nostack),
        );
    }
    (low, high)
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

    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[test]
    fn elements_that_are_combined_at_once_are_combined_each() {
        #[repr(align(16))]
        struct Aligned<T>(T);

        if !has_wide() {
            return;
        }
        let of = |numbers: [i32; 8]| -> [[u8; WIDE]; 2] { bytemuck::cast(numbers) };
        let ops = [
            [Op::Sum, Op::Prod, Op::Min, Op::Max, Op::Replace, Op::BitAnd],
            [Op::BitOr, Op::BitXor, Op::LogicalAnd, Op::LogicalOr, Op::LogicalXor, Op::NoOp],
        ];
        let before = [-7, 0, i32::MAX, 6, 3, -1, i32::MIN, 8];
        let operands = [5, 3, 1, -2, i32::MIN, -1, i32::MAX, 0];
        for op in ops.into_iter().flatten() {
            for result in [None, Some(&mut of([0; 8])[..])] {
                let (mut cells, fetches) = (Aligned(before), result.is_some());
                let mut old = result.unwrap_or_default().to_vec();
                let (at, result) = ((&raw mut cells).cast(), fetches.then_some(&mut old[..]));
                // SAFETY: live and aligned, and nothing else touches them.
                unsafe { fetch_and_op_wide::<i32>(at, op, &of(operands), result) };
                assert!(!fetches || old == of(before), "{op:?}");
                for (place, cell) in cells.0.iter().enumerate() {
                    let mut alone = before[place];
                    fetch_and_op_alone(&mut alone, op, operands[place]);
                    assert_eq!(*cell, alone, "{op:?} at {place}");
                }
            }
            let words = |numbers: [i32; 4]| numbers.map(|number| i64::from(number) << 20);
            let (before, operands) = (words([-7, 0, i32::MAX, 6]), words([5, 3, 1, -2]));
            let mut cells = Aligned(before);
            let (at, given) =
                ((&raw mut cells).cast(), bytemuck::cast::<_, [[u8; WIDE]; 2]>(operands));
            // SAFETY: as above.
            unsafe { fetch_and_op_wide::<i64>(at, op, &given, None) };
            for (place, cell) in cells.0.iter().enumerate() {
                let mut alone = before[place];
                fetch_and_op_alone(&mut alone, op, operands[place]);
                assert_eq!(*cell, alone, "{op:?} at {place}");
            }
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
