//! Sums and products of floats right in window memory: half the traffic of a copy out and in.
//!
//! Inline assembly, so that the compiler sees an unknown access of memory; the model is that of
//! [`copy`](super::copy). Under Miri, and on machines other than x86-64, nothing is done here.
#![allow(unsafe_code)]

use crate::element::{BasicType, Op};

/// Bytes that a turn of the loops combines.
const TURN: usize = 64;

/// Combines the bytes at `at` with `operands`, as far as there is a loop for that; returns how many
/// bytes that were, a whole number of elements.
///
/// # Safety
///
/// `operands.len()` bytes from `at` on are mapped window memory, whose stripes the caller holds.
pub(crate) unsafe fn combine(at: *mut u8, basic: BasicType, op: Op, operands: &[u8]) -> usize {
    let turns = operands.len() / TURN;
    if turns == 0 {
        return 0;
    }
    // SAFETY: caller: `turns` times `TURN` bytes are mapped, and as many operands are there.
    let done = unsafe { turn(at, basic, op, operands.as_ptr(), turns) };
    if done { turns * TURN } else { 0 }
}

#[cfg(any(not(target_arch = "x86_64"), miri))]
unsafe fn turn(_: *mut u8, _: BasicType, _: Op, _: *const u8, _: usize) -> bool {
    false
}

/// # Safety
///
/// `turns`, which is not 0, times [`TURN`] bytes are mapped at `at` and readable at `from`.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn turn(at: *mut u8, basic: BasicType, op: Op, from: *const u8, turns: usize) -> bool {
    macro_rules! turns {
        ($instruction:literal) => {
            // SAFETY: caller: every access lies in the turns.
            unsafe {
                core::arch::asm!(
                    "2:",
                    "movups {a}, [{d}]",
                    "movups {b}, [{d} + 16]",
                    "movups {c}, [{d} + 32]",
                    "movups {e}, [{d} + 48]",
                    "movups {w}, [{f}]",
                    "movups {x}, [{f} + 16]",
                    "movups {y}, [{f} + 32]",
                    "movups {z}, [{f} + 48]",
                    concat!($instruction, " {a}, {w}"),
                    concat!($instruction, " {b}, {x}"),
                    concat!($instruction, " {c}, {y}"),
                    concat!($instruction, " {e}, {z}"),
                    "movups [{d}], {a}",
                    "movups [{d} + 16], {b}",
                    "movups [{d} + 32], {c}",
                    "movups [{d} + 48], {e}",
                    "add {f}, 64",
                    "add {d}, 64",
                    "dec {n}",
                    "jnz 2b",
                    f = inout(reg) from => _, d = inout(reg) at => _, n = inout(reg) turns => _,
                    a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _,
                    e = out(xmm_reg) _, w = out(xmm_reg) _, x = out(xmm_reg) _,
                    y = out(xmm_reg) _, z = out(xmm_reg) _,
                    options(nostack)
                )
            }
        };
    }
    match (basic, op) {
        (BasicType::F64, Op::Sum) => turns!("addpd"),
        (BasicType::F64, Op::Prod) => turns!("mulpd"),
        (BasicType::F32, Op::Sum) => turns!("addps"),
        (BasicType::F32, Op::Prod) => turns!("mulps"),
        _ => return false,
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::BasicElement;

    fn check<E: BasicElement>(of: fn(usize) -> E) {
        for op in Op::ALL {
            for count in [0, 1, 15, 16, 17, 100] {
                for skip in [0, 1] {
                    let mut window: Vec<E> = (0..count + 2).map(of).collect();
                    let operands: Vec<E> = (0..count).map(|i| of(i * 3 + 1)).collect();
                    let mut expected = window.clone();
                    let bytes = bytemuck::cast_slice(&operands);
                    let at = window[skip..].as_mut_ptr().cast();
                    // SAFETY: as many elements lie behind `skip`.
                    let done = unsafe { combine(at, E::BASIC, op, bytes) };
                    assert!(done <= bytes.len() && done.is_multiple_of(size_of::<E>()));
                    let done = done / size_of::<E>();
                    E::combine_all(op, &mut expected[skip..skip + done], &operands[..done]);
                    let (found, expected): (&[u8], &[u8]) =
                        (bytemuck::cast_slice(&window), bytemuck::cast_slice(&expected));
                    assert_eq!(found, expected, "{} of {count}", op.name());
                    let fused = matches!(op, Op::Sum | Op::Prod) && bytes.len() >= TURN;
                    assert!(done == 0 || fused);
                    let has_loops = cfg!(all(target_arch = "x86_64", not(miri)));
                    assert!(done > 0 || !fused || !has_loops, "{} of {count}", op.name());
                }
            }
        }
    }

    #[test]
    fn loops_agree_with_the_definition() {
        check(|i| i as f64 * 0.75 - 3.0);
        check(|i| i as f32 * 0.75 - 3.0);
    }
}
