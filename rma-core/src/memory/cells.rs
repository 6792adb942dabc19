//! The model of accesses to window bytes, literally, for Miri and for machines other than x86-64.
//!
//! A part consists of *cells*: aligned blocks of 8 bytes and, where it begins or ends between them,
//! of 4, 2 and 1. A byte is always accessed with its cell, whole and atomically, by every thread
//! and for every purpose: the language forbids that atomics of different sizes race, and demands
//! nothing more of races between atomics. A write of some bytes of a cell is one update of it.
#![allow(unsafe_code)]

use crate::element::{AtomicElement, BasicElement, Op};
use bytemuck::{bytes_of, bytes_of_mut};
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// Bytes of the widest cell.
const WIDEST: usize = 8;

/// Where a part begins and ends: that tells its cells.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CellBounds {
    first: usize,
    end: usize,
}

impl CellBounds {
    /// Of the part of `size` bytes at `base`.
    pub(crate) fn of(base: *mut u8, size: usize) -> Self {
        Self { first: base.addr(), end: base.addr() + size }
    }

    /// The cell of the byte at `at`, which lies in the part: its first byte and its width.
    fn cell(self, at: *mut u8) -> (*mut u8, usize) {
        let mut width = WIDEST;
        loop {
            let start = at.addr() & !(width - 1);
            if width == 1 || (start >= self.first && self.end - start >= width) {
                return (at.with_addr(start), width);
            }
            width /= 2;
        }
    }
}

/// Evaluates an expression with the cell of `$width` bytes at `$at` as `$cell`.
macro_rules! with_cell {
    ($at:expr, $width:expr, |$cell:ident| $body:expr) => {
        match $width {
            8 => with_cell!($at, AtomicU64, $cell, $body),
            4 => with_cell!($at, AtomicU32, $cell, $body),
            2 => with_cell!($at, AtomicU16, $cell, $body),
            _ => with_cell!($at, AtomicU8, $cell, $body),
        }
    };
    ($at:expr, $atomic:ty, $cell:ident, $body:expr) => {{
        // SAFETY: caller: mapped and aligned; window memory is accessed by its cells only.
        let $cell = unsafe { <$atomic>::from_ptr($at.cast()) };
        $body
    }};
}

/// Copies `len` bytes from private memory to window memory.
///
/// # Safety
///
/// As [`copy::write`](super::copy::write).
pub(super) unsafe fn write(to: *mut u8, from: *const u8, len: usize, part: CellBounds) {
    // SAFETY: caller: readable, and private.
    let from = unsafe { core::slice::from_raw_parts(from, len) };
    let mut done = 0;
    while done < len {
        let at = to.wrapping_add(done);
        let (start, width) = part.cell(at);
        let skip = at.addr() - start.addr();
        let bytes = &from[done..len.min(done + width - skip)];
        with_cell!(start, width, |cell| {
            if bytes.len() == width {
                cell.store(bytemuck::pod_read_unaligned(bytes), Relaxed);
            } else {
                // Never refused: there is always something to write.
                _ = cell.fetch_update(Relaxed, Relaxed, |mut all| {
                    bytes_of_mut(&mut all)[skip..skip + bytes.len()].copy_from_slice(bytes);
                    Some(all)
                });
            }
        });
        done += bytes.len();
    }
}

/// Copies `len` bytes from window memory to private memory.
///
/// # Safety
///
/// As [`copy::read`](super::copy::read).
pub(super) unsafe fn read(to: *mut u8, from: *const u8, len: usize, part: CellBounds) {
    // SAFETY: caller: writable, and private.
    let to = unsafe { core::slice::from_raw_parts_mut(to, len) };
    let mut done = 0;
    while done < len {
        let at = from.cast_mut().wrapping_add(done);
        let (start, width) = part.cell(at);
        let skip = at.addr() - start.addr();
        let some = (width - skip).min(len - done);
        let bytes = &mut to[done..done + some];
        with_cell!(start, width, |cell| {
            bytes.copy_from_slice(&bytes_of(&cell.load(Relaxed))[skip..skip + some]);
        });
        done += some;
    }
}

/// As [`atomic::fetch_and_op`](super::atomic::fetch_and_op), of 32 bits.
///
/// # Safety
///
/// As there, and `E` is four bytes wide.
pub(super) unsafe fn fetch_and_op32<E: BasicElement>(
    at: *mut u8,
    op: Op,
    operand: E,
    part: CellBounds,
) -> Option<E> {
    if matches!(op, Op::MinLoc | Op::MaxLoc) {
        return None;
    }
    let combine = |old: u32| {
        let new = E::combine(op, bytemuck::cast(old), operand);
        (op != Op::NoOp).then_some(bytemuck::cast(new))
    };
    // SAFETY: forwarded to the caller.
    Some(bytemuck::cast(unsafe { update32(at, part, combine) }))
}

/// As [`atomic::compare_and_swap`](super::atomic::compare_and_swap), of 32 bits.
///
/// # Safety
///
/// As there, and `E` is four bytes wide.
pub(super) unsafe fn compare_and_swap32<E: AtomicElement>(
    at: *mut u8,
    compare: E,
    swap: E,
    part: CellBounds,
) -> E {
    let swap_equal = |old| (u64::from(old) == compare.to_bits()).then_some(swap.to_bits() as u32);
    // SAFETY: forwarded to the caller.
    E::from_bits(u64::from(unsafe { update32(at, part, swap_equal) }))
}

/// Replaces the four bytes at `at` by what `new` makes of them, if it makes anything; returns what
/// was there.
///
/// # Safety
///
/// They are mapped, lie in the part and are aligned to 4.
unsafe fn update32(at: *mut u8, part: CellBounds, mut new: impl FnMut(u32) -> Option<u32>) -> u32 {
    let (start, width) = part.cell(at);
    if width == 4 {
        // SAFETY: caller: mapped and aligned; window memory is accessed by its cells only.
        let cell = unsafe { AtomicU32::from_ptr(start.cast()) };
        let (Ok(old) | Err(old)) = cell.fetch_update(SeqCst, SeqCst, new);
        return old;
    }
    let half = (at.addr() - start.addr()) / 4;
    let halves = |word: u64| bytemuck::cast::<u64, [u32; 2]>(word);
    // SAFETY: as above. Four aligned bytes of a part lie in a cell of four or eight.
    let cell = unsafe { AtomicU64::from_ptr(start.cast()) };
    let (Ok(old) | Err(old)) = cell.fetch_update(SeqCst, SeqCst, |word| {
        let mut halves = halves(word);
        halves[half] = new(halves[half])?;
        Some(bytemuck::cast(halves))
    });
    halves(old)[half]
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 40;
    const WORDS: [i32; 4] = [7, -9, 11, 13];

    #[repr(align(8))]
    struct Memory([u8; LEN]);

    fn memory() -> Memory {
        Memory(core::array::from_fn(|i| (i * 7 + 3) as u8))
    }

    #[test]
    fn a_byte_has_one_cell_the_widest_inside_the_part() {
        let mut memory = memory();
        let base = memory.0.as_mut_ptr();
        let widths = |first: usize, size: usize| -> Vec<usize> {
            let part = CellBounds::of(base.wrapping_add(first), size);
            let mut widths = Vec::new();
            let mut at = first;
            while at < first + size {
                let (start, width) = part.cell(base.wrapping_add(at));
                assert_eq!(start.addr() - base.addr(), at, "cells follow each other");
                for within in at..at + width {
                    let same = part.cell(base.wrapping_add(within));
                    assert_eq!(same, (start, width), "byte {within}");
                }
                widths.push(width);
                at += width;
            }
            assert_eq!(at, first + size, "and end with the part");
            widths
        };
        assert_eq!(widths(0, 24), [8, 8, 8]);
        assert_eq!(widths(0, 15), [8, 4, 2, 1]);
        assert_eq!(widths(1, 15), [1, 2, 4, 8]);
        assert_eq!(widths(4, 8), [4, 4]);
        assert_eq!(widths(3, 3), [1, 2]);
        assert_eq!(widths(9, 0), []);
    }

    #[test]
    fn copies_are_copies() {
        let step = if cfg!(miri) { 7 } else { 1 };
        for (first, size) in [(0, LEN), (1, 30), (4, 12), (3, 9)] {
            for skip in (0..size).step_by(if cfg!(miri) { 3 } else { 1 }) {
                for len in (0..=size - skip).step_by(step) {
                    let (mut window, mut origin) = (memory(), [0xEE; LEN + 2]);
                    let base = window.0.as_mut_ptr();
                    let part = CellBounds::of(base.wrapping_add(first), size);
                    let at = base.wrapping_add(first + skip);
                    // SAFETY: `len` bytes from either lie inside their arrays.
                    unsafe { read(origin[1..].as_mut_ptr(), at, len, part) };
                    let mut expected = [0xEE; LEN + 2];
                    expected[1..=len].copy_from_slice(&memory().0[first + skip..][..len]);
                    assert_eq!(origin, expected);
                    // SAFETY: as above.
                    unsafe { write(at, [0x55; LEN].as_ptr(), len, part) };
                    let mut expected = memory().0;
                    expected[first + skip..][..len].fill(0x55);
                    assert_eq!(window.0, expected, "{len} bytes at {skip} of {first}+{size}");
                }
            }
        }
    }

    #[test]
    fn four_bytes_are_updated_in_a_cell_of_eight_and_of_four() {
        for (at, size) in [(0, 16), (4, 16), (8, 12)] {
            for op in Op::ALL {
                let mut window = WORDS;
                let old = window[at / 4];
                let base: *mut u8 = window.as_mut_ptr().cast();
                let part = CellBounds::of(base, size);
                // SAFETY: four aligned bytes of the array, which no other thread has.
                let seen = unsafe { fetch_and_op32(base.wrapping_add(at), op, 6i32, part) };
                let defined = !matches!(op, Op::MinLoc | Op::MaxLoc);
                assert_eq!(seen, defined.then_some(old), "{}", op.name());
                let mut expected = WORDS;
                if defined {
                    expected[at / 4] = i32::combine(op, old, 6);
                }
                assert_eq!(window, expected, "{}", op.name());
            }
            let mut window = WORDS;
            let old = window[at / 4];
            let base: *mut u8 = window.as_mut_ptr().cast();
            let part = CellBounds::of(base, size);
            for (compare, swap) in [(old + 1, 99), (old, -1)] {
                // SAFETY: as above.
                let seen =
                    unsafe { compare_and_swap32(base.wrapping_add(at), compare, swap, part) };
                assert_eq!(seen, old);
            }
            let mut expected = WORDS;
            expected[at / 4] = -1;
            assert_eq!(window, expected);
        }
    }
}
