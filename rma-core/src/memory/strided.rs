//! Rows of bytes: equally long blocks at equal distances, copied between private memory and window
//! memory. The model is that of [`copy`].
#![allow(unsafe_code)]

use super::copy::{self, CellBounds};
use super::stores;
use super::target::Span;
use crate::layout::Row;
use core::marker::PhantomData;

/// Window bytes that rows are copied to and from.
pub(crate) struct Area<'w> {
    pub(super) at: *mut u8,
    pub(super) len: u64,
    pub(super) part: CellBounds,
    window: PhantomData<Span<'w>>,
}

impl<'w> Area<'w> {
    pub(crate) fn new(span: Span<'w>) -> Self {
        let part = span.bounds();
        let (at, len) = span.into_raw();
        Self { at, len: len as u64, part, window: PhantomData }
    }

    /// Copies the row `from` of `origin` to the row `to` of this area, block by block. False, and
    /// nothing is done, unless both have as many blocks of one length and lie inside.
    #[inline(always)]
    pub(crate) fn try_write_row(&self, to: Row, origin: &[u8], from: Row) -> bool {
        let inside = to.fits(self.len) && from.fits(origin.len() as u64) && to.matches(from);
        if inside {
            let sink = self.at.wrapping_offset(to.at as isize);
            let source = origin.as_ptr().wrapping_offset(from.at as isize);
            // SAFETY: every block lies inside the area and the slice, as just checked. `origin` is
            // private memory, because no reference to window memory exists.
            unsafe { write(sink, to, source, from.stride, self.part) }
        }
        inside
    }

    /// Copies the row `from` of this area to the row `to` of `origin`, as
    /// [`try_write_row`](Self::try_write_row).
    #[inline(always)]
    pub(crate) fn try_read_row(&self, from: Row, origin: &mut [u8], to: Row) -> bool {
        let inside = from.fits(self.len) && to.fits(origin.len() as u64) && to.matches(from);
        if inside {
            let source = self.at.wrapping_offset(from.at as isize);
            let sink = origin.as_mut_ptr().wrapping_offset(to.at as isize);
            // SAFETY: as in `try_write_row`, with the roles swapped.
            unsafe { read(sink, to, source, from.stride, self.part) }
        }
        inside
    }

    /// As [`try_write_row`](Self::try_write_row), for rows that were checked: panics where that
    /// says no.
    #[inline]
    pub(crate) fn write_row(&self, to: Row, origin: &[u8], from: Row) {
        if !self.try_write_row(to, origin, from) {
            unchecked(to.at, from.at, to.len, to.count);
        }
    }

    /// As [`write_row`](Self::write_row), the other way.
    #[inline]
    pub(crate) fn read_row(&self, from: Row, origin: &mut [u8], to: Row) {
        if !self.try_read_row(from, origin, to) {
            unchecked(from.at, to.at, from.len, from.count);
        }
    }
}

/// A function of numbers, so that rows that are as they should be need not be in memory.
#[cold]
#[inline(never)]
fn unchecked(there: i64, here: i64, len: u64, count: u64) -> ! {
    panic!("rows were checked: {count} blocks of {len} bytes at {there} and {here}")
}

/// Copies the blocks of a row from private memory to window memory; `row` gives their number, their
/// length, and their distance at `to`.
///
/// # Safety
///
/// As [`copy::write`], for each block.
#[inline]
pub(super) unsafe fn write(
    to: *mut u8,
    row: Row,
    from: *const u8,
    from_stride: i64,
    part: CellBounds,
) {
    stores::made();
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if row.count > 1
        // SAFETY: forwarded to the caller.
        && unsafe { x86::blocks(to, row.stride, from, from_stride, row.len, row.count) }
    {
        return;
    }
    // SAFETY: forwarded to the caller.
    unsafe { write_each(to, row.stride, from, from_stride, row.len, row.count, part) }
}

/// As [`write`], a block at a time.
///
/// # Safety
///
/// As there.
#[inline(never)]
unsafe fn write_each(
    mut to: *mut u8,
    to_stride: i64,
    mut from: *const u8,
    from_stride: i64,
    len: u64,
    count: u64,
    part: CellBounds,
) {
    for _ in 0..count {
        // SAFETY: caller: this block is valid on both sides.
        unsafe { copy::write(to, from, len as usize, part) };
        to = to.wrapping_offset(to_stride as isize);
        from = from.wrapping_offset(from_stride as isize);
    }
}

/// Copies the blocks of a row from window memory to private memory.
///
/// # Safety
///
/// As [`copy::read`], for each block.
#[inline]
pub(super) unsafe fn read(
    to: *mut u8,
    row: Row,
    from: *const u8,
    from_stride: i64,
    part: CellBounds,
) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if row.count > 1
        // SAFETY: forwarded to the caller.
        && unsafe { x86::blocks(to, row.stride, from, from_stride, row.len, row.count) }
    {
        return;
    }
    // SAFETY: forwarded to the caller.
    unsafe { read_each(to, row.stride, from, from_stride, row.len, row.count, part) }
}

/// As [`read`], a block at a time.
///
/// # Safety
///
/// As there.
#[inline(never)]
unsafe fn read_each(
    mut to: *mut u8,
    to_stride: i64,
    mut from: *const u8,
    from_stride: i64,
    len: u64,
    count: u64,
    part: CellBounds,
) {
    for _ in 0..count {
        // SAFETY: caller: this block is valid on both sides.
        unsafe { copy::read(to, from, len as usize, part) };
        to = to.wrapping_offset(to_stride as isize);
        from = from.wrapping_offset(from_stride as isize);
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86 {
    use crate::memory::masked;
    use core::arch::asm;

    /// Copies the blocks if there is a loop for their length, and says so. Both sides are accessed
    /// in assembly, so one loop serves both directions.
    ///
    /// # Safety
    ///
    /// Each block is readable and writable, and no block of one side overlaps one of the other.
    // What it takes is in registers: its callers are part of the user's code.
    #[inline(never)]
    pub(super) unsafe fn blocks(
        to: *mut u8,
        to_stride: i64,
        from: *const u8,
        from_stride: i64,
        len: u64,
        count: u64,
    ) -> bool {
        // As many as fill vectors, if these may be used.
        let gaps = (len.cast_signed(), 2 * len.cast_signed());
        let some = match (from_stride, to_stride) {
            // SAFETY: forwarded to the caller.
            strides if strides == gaps => unsafe { masked::deal(to, from, len, count) },
            // SAFETY: forwarded to the caller.
            (apart, side) if (side, apart) == gaps => unsafe {
                masked::collect(to, from, len, count)
            },
            _ => 0,
        };
        let count = count - some;
        if count == 0 {
            return true;
        }
        let to = to.wrapping_offset(to_stride.wrapping_mul(some.cast_signed()) as isize);
        let from = from.wrapping_offset(from_stride.wrapping_mul(some.cast_signed()) as isize);
        match len {
            // SAFETY: forwarded to the caller; so in the other arms.
            1 => unsafe { blocks1(to, to_stride, from, from_stride, count) },
            // SAFETY: as above.
            2 => unsafe { blocks2(to, to_stride, from, from_stride, count) },
            // SAFETY: as above.
            4 => unsafe { blocks4(to, to_stride, from, from_stride, count) },
            // SAFETY: as above.
            8 if to_stride == 8 => unsafe { collect8(to, from, from_stride, count) },
            // SAFETY: as above.
            8 => unsafe { blocks8(to, to_stride, from, from_stride, count) },
            // SAFETY: as above.
            16 => unsafe { blocks16(to, to_stride, from, from_stride, count) },
            _ => return false,
        }
        true
    }

    /// Defines a loop over blocks of one length, four at a time: mnemonics of load and store, size
    /// of the operand, names of the register when loaded and when stored.
    macro_rules! blocks {
        ($name:ident, $class:ident, $load:literal, $store:literal, $size:literal,
         $wide:literal, $part:literal) => {
            unsafe fn $name(to: *mut u8, ts: i64, from: *const u8, fs: i64, count: u64) {
                // SAFETY: caller: every block is valid on both sides. Addresses beyond the last
                // block are computed, not accessed.
                unsafe {
                    asm!(
                        "sub {n}, 4",
                        "jb 3f",
                        "2:",
                        concat!($load, " {a", $wide, "}, ", $size, " [{f}]"),
                        concat!($load, " {b", $wide, "}, ", $size, " [{f} + {fs}]"),
                        concat!($load, " {c", $wide, "}, ", $size, " [{f} + 2*{fs}]"),
                        concat!($load, " {e", $wide, "}, ", $size, " [{f} + {fs3}]"),
                        "lea {f}, [{f} + 4*{fs}]",
                        concat!($store, " ", $size, " [{d}], {a", $part, "}"),
                        concat!($store, " ", $size, " [{d} + {ts}], {b", $part, "}"),
                        concat!($store, " ", $size, " [{d} + 2*{ts}], {c", $part, "}"),
                        concat!($store, " ", $size, " [{d} + {ts3}], {e", $part, "}"),
                        "lea {d}, [{d} + 4*{ts}]",
                        "sub {n}, 4",
                        "jae 2b",
                        "3:",
                        "add {n}, 4",
                        "jz 5f",
                        "4:",
                        concat!($load, " {a", $wide, "}, ", $size, " [{f}]"),
                        "add {f}, {fs}",
                        concat!($store, " ", $size, " [{d}], {a", $part, "}"),
                        "add {d}, {ts}",
                        "dec {n}",
                        "jnz 4b",
                        "5:",
                        f = inout(reg) from => _, d = inout(reg) to => _,
                        n = inout(reg) count => _,
                        fs = in(reg) fs, ts = in(reg) ts,
                        fs3 = in(reg) fs.wrapping_mul(3), ts3 = in(reg) ts.wrapping_mul(3),
                        a = out($class) _, b = out($class) _,
                        c = out($class) _, e = out($class) _,
                        options(nostack)
                    )
                }
            }
        };
    }
    /// Blocks of 8 bytes that shall lie side by side at `to`: two are stored at once.
    unsafe fn collect8(to: *mut u8, from: *const u8, fs: i64, count: u64) {
        // SAFETY: caller: as in `blocks`.
        unsafe {
            asm!(
                "sub {n}, 4",
                "jb 3f",
                "2:",
                "movq {a}, qword ptr [{f}]",
                "movq {b}, qword ptr [{f} + 2*{fs}]",
                "movhps {a}, qword ptr [{f} + {fs}]",
                "movhps {b}, qword ptr [{f} + {fs3}]",
                "lea {f}, [{f} + 4*{fs}]",
                "movups xmmword ptr [{d}], {a}",
                "movups xmmword ptr [{d} + 16], {b}",
                "add {d}, 32",
                "sub {n}, 4",
                "jae 2b",
                "3:",
                "add {n}, 4",
                "jz 5f",
                "4:",
                "movq {a}, qword ptr [{f}]",
                "add {f}, {fs}",
                "movq qword ptr [{d}], {a}",
                "add {d}, 8",
                "dec {n}",
                "jnz 4b",
                "5:",
                f = inout(reg) from => _, d = inout(reg) to => _,
                n = inout(reg) count => _,
                fs = in(reg) fs, fs3 = in(reg) fs.wrapping_mul(3),
                a = out(xmm_reg) _, b = out(xmm_reg) _,
                options(nostack)
            )
        }
    }

    blocks!(blocks1, reg, "movzx", "mov", "byte ptr", ":e", ":l");
    blocks!(blocks2, reg, "movzx", "mov", "word ptr", ":e", ":x");
    blocks!(blocks4, reg, "mov", "mov", "dword ptr", ":e", ":e");
    blocks!(blocks8, reg, "mov", "mov", "qword ptr", ":r", ":r");
    blocks!(blocks16, xmm_reg, "movups", "movups", "xmmword ptr", "", "");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Copies a row each way and compares with a copy byte by byte.
    fn check(len: u64, count: u64, window_stride: i64, origin_stride: i64) {
        let at = |stride: i64| if stride < 0 { -stride * (count as i64 - 1) } else { 0 } + 3;
        let window_row = Row { at: at(window_stride), stride: window_stride, len, count };
        let origin_row = Row { at: at(origin_stride), stride: origin_stride, len, count };
        let size = |stride: i64| (stride.unsigned_abs() * count + len + 10) as usize;
        let mut window = vec![0xEEu8; size(window_stride)];
        let mut origin: Vec<u8> = (0..size(origin_stride)).map(|i| (i * 7 + 3) as u8).collect();
        let mut expected = window.clone();
        for (to, from) in window_row.starts().zip(origin_row.starts()) {
            for i in 0..len as usize {
                expected[to as usize + i] = origin[from as usize + i];
            }
        }
        let all = size(window_stride) as u64;
        // SAFETY: live, and accessed through the span only until both rows are copied.
        let span = unsafe { Span::of_part(window.as_mut_ptr(), all, 0, all as usize) };
        let area = Area::new(span.unwrap());
        area.write_row(window_row, &origin, origin_row);
        let mut back = origin.clone();
        for start in origin_row.starts() {
            back[start as usize..][..len as usize].fill(0);
        }
        area.read_row(window_row, &mut back, origin_row);
        assert!(window == expected, "write {window_row:?} {origin_row:?}");
        // What was written came from there, so it is the same again.
        origin.truncate(back.len());
        assert!(back == origin, "read {window_row:?} {origin_row:?}");
    }

    #[test]
    fn all_small_rows() {
        let (lens, counts): (&[u64], &[u64]) = if cfg!(miri) {
            (&[1, 8], &[1, 5])
        } else {
            (&[1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 24, 70], &[1, 2, 3, 4, 5, 7, 8, 9, 33])
        };
        for (len, count) in lens.iter().flat_map(|len| counts.iter().map(move |c| (*len, *c))) {
            let len_i = len as i64;
            let strides = [len_i, len_i + 1, 2 * len_i, -len_i, -2 * len_i - 3];
            for window_stride in strides {
                for origin_stride in strides {
                    check(len, count, window_stride, origin_stride);
                }
            }
        }
    }

    #[test]
    fn rows_fit_or_not() {
        let row = Row { at: 4, stride: -2, len: 1, count: 3 };
        assert!(row.fits(5) && !row.fits(4));
        assert!(!Row { at: 3, ..row }.fits(100), "below the beginning");
        assert!(!Row { stride: i64::MIN, ..row }.fits(u64::MAX));
        assert!(!Row { count: u64::MAX, ..row }.fits(u64::MAX));
        assert!(!Row { at: i64::MAX, len: u64::MAX, count: 1, stride: 0 }.fits(u64::MAX));
        assert!(Row { count: 0, ..row }.fits(0), "nothing fits everywhere");
    }

    #[test]
    #[should_panic(expected = "rows were checked")]
    fn rows_outside_are_refused() {
        let mut memory = [0u8; 8];
        // SAFETY: live, and accessed through the span only.
        let area = Area::new(unsafe { Span::of_part(memory.as_mut_ptr(), 8, 0, 8) }.unwrap());
        let row = Row { at: 0, stride: 4, len: 1, count: 3 };
        area.write_row(row, &[1, 2, 3], Row { stride: 1, ..row });
    }

    #[test]
    fn rows_of_other_geometry_are_refused() {
        let (mut memory, mut origin) = ([1u8; 8], [2u8; 8]);
        // SAFETY: live, and accessed through the span only.
        let area = Area::new(unsafe { Span::of_part(memory.as_mut_ptr(), 8, 0, 8) }.unwrap());
        let row = Row { at: 0, stride: 2, len: 2, count: 2 };
        for other in [Row { len: 1, ..row }, Row { count: 3, ..row }, Row { len: 4, ..row }] {
            assert!(!area.try_write_row(row, &origin, other), "{other:?}");
            assert!(!area.try_read_row(row, &mut origin, other), "{other:?}");
        }
        assert_eq!((memory, origin), ([1; 8], [2; 8]));
    }
}
