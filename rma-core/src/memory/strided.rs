//! Rows of bytes: equally long blocks at equal distances, copied between private memory and window
//! memory. The model is that of [`copy`]: one relaxed atomic access per byte of the window.
#![allow(unsafe_code)]

use super::copy;
use super::target::Span;
use core::marker::PhantomData;

/// `count` blocks of `len` bytes, `stride` bytes from one beginning to the next; the first begins
/// at `at`. Positions are relative to what the row is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) at: i64,
    pub(crate) stride: i64,
    pub(crate) len: u64,
    pub(crate) count: u64,
}

impl Row {
    /// A row of nothing.
    pub(crate) const NONE: Self = Self { at: 0, stride: 0, len: 0, count: 0 };

    /// Whether every byte lies in `0..size`.
    #[inline]
    pub(crate) fn fits(self, size: u64) -> bool {
        let Some(last) = self.count.checked_sub(1) else { return true };
        let end = || {
            let reach = self.stride.checked_mul(i64::try_from(last).ok()?)?;
            let first = self.at.checked_add(reach.min(0))?;
            let end = self.at.checked_add(reach.max(0))?.checked_add_unsigned(self.len)?;
            (first >= 0).then_some(end.cast_unsigned())
        };
        end().is_some_and(|end| end <= size)
    }

    /// Where its blocks begin.
    pub(crate) fn starts(self) -> impl Iterator<Item = i64> {
        (0..self.count).map(move |i| {
            self.at.wrapping_add(self.stride.wrapping_mul(i.cast_signed()))
        })
    }

    fn matches(self, other: Self) -> bool {
        (self.len, self.count) == (other.len, other.count)
    }
}

/// Window bytes that rows are copied to and from.
pub(crate) struct Area<'w> {
    at: *mut u8,
    len: u64,
    window: PhantomData<Span<'w>>,
}

impl<'w> Area<'w> {
    pub(crate) fn new(span: Span<'w>) -> Self {
        let (at, len) = span.into_raw();
        Self { at, len: len as u64, window: PhantomData }
    }

    /// Copies the row `from` of `origin` to the row `to` of this area, block by block. Panics
    /// unless both have the same shape and lie inside.
    #[inline]
    pub(crate) fn write_row(&self, to: Row, origin: &[u8], from: Row) {
        let inside = to.fits(self.len) && from.fits(origin.len() as u64);
        assert!(inside && to.matches(from), "rows were checked: {to:?} {from:?}");
        let sink = self.at.wrapping_offset(to.at as isize);
        let source = origin.as_ptr().wrapping_offset(from.at as isize);
        // SAFETY: every block lies inside the area and the slice, as just checked. `origin` is
        // private memory, because no reference to window memory exists.
        unsafe { write(sink, to, source, from.stride) }
    }

    /// Copies the row `from` of this area to the row `to` of `origin`. Panics as
    /// [`write_row`](Self::write_row).
    #[inline]
    pub(crate) fn read_row(&self, from: Row, origin: &mut [u8], to: Row) {
        let inside = from.fits(self.len) && to.fits(origin.len() as u64);
        assert!(inside && to.matches(from), "rows were checked: {from:?} {to:?}");
        let source = self.at.wrapping_offset(from.at as isize);
        let sink = origin.as_mut_ptr().wrapping_offset(to.at as isize);
        // SAFETY: as in `write_row`, with the roles swapped.
        unsafe { read(sink, to, source, from.stride) }
    }
}

/// Copies the blocks of a row from private memory to window memory; `row` gives their number, their
/// length, and their distance at `to`.
///
/// # Safety
///
/// As [`copy::write`], for each block.
#[inline]
unsafe fn write(to: *mut u8, row: Row, from: *const u8, from_stride: i64) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: forwarded to the caller.
    if unsafe { x86::blocks(to, row.stride, from, from_stride, row.len, row.count) } {
        return;
    }
    let (mut to, mut from) = (to, from);
    for _ in 0..row.count {
        // SAFETY: caller: this block is valid on both sides.
        unsafe { copy::write(to, from, row.len as usize) };
        to = to.wrapping_offset(row.stride as isize);
        from = from.wrapping_offset(from_stride as isize);
    }
}

/// Copies the blocks of a row from window memory to private memory.
///
/// # Safety
///
/// As [`copy::read`], for each block.
#[inline]
unsafe fn read(to: *mut u8, row: Row, from: *const u8, from_stride: i64) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: forwarded to the caller.
    if unsafe { x86::blocks(to, row.stride, from, from_stride, row.len, row.count) } {
        return;
    }
    let (mut to, mut from) = (to, from);
    for _ in 0..row.count {
        // SAFETY: caller: this block is valid on both sides.
        unsafe { copy::read(to, from, row.len as usize) };
        to = to.wrapping_offset(row.stride as isize);
        from = from.wrapping_offset(from_stride as isize);
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86 {
    use core::arch::asm;

    /// Copies the blocks if there is a loop for their length, and says so. Both sides are accessed
    /// in assembly, so one loop serves both directions.
    ///
    /// # Safety
    ///
    /// Each block is readable and writable, and no block of one side overlaps one of the other.
    #[inline(always)]
    pub(super) unsafe fn blocks(
        to: *mut u8,
        to_stride: i64,
        from: *const u8,
        from_stride: i64,
        len: u64,
        count: u64,
    ) -> bool {
        if count < 2 {
            return false;
        }
        match len {
            // SAFETY: forwarded to the caller; so in the other arms.
            1 => unsafe { blocks1(to, to_stride, from, from_stride, count) },
            // SAFETY: as above.
            2 => unsafe { blocks2(to, to_stride, from, from_stride, count) },
            // SAFETY: as above.
            4 => unsafe { blocks4(to, to_stride, from, from_stride, count) },
            // SAFETY: as above.
            8 => unsafe { blocks8(to, to_stride, from, from_stride, count) },
            // SAFETY: as above.
            16 => unsafe { blocks16(to, to_stride, from, from_stride, count) },
            _ => return false,
        }
        true
    }

    /// Defines a loop over blocks of one length, four at a time.
    macro_rules! blocks {
        ($name:ident, $class:ident, $load:literal, $wide:literal, $store:literal, $part:literal) => {
            unsafe fn $name(to: *mut u8, ts: i64, from: *const u8, fs: i64, count: u64) {
                // SAFETY: caller: every block is valid on both sides. Addresses beyond the last
                // block are computed, not accessed.
                unsafe {
                    asm!(
                        "sub {n}, 4",
                        "jb 3f",
                        "2:",
                        concat!($load, " {a", $wide, "}, [{f}]"),
                        concat!($load, " {b", $wide, "}, [{f} + {fs}]"),
                        concat!($load, " {c", $wide, "}, [{f} + 2*{fs}]"),
                        concat!($load, " {e", $wide, "}, [{f} + {fs3}]"),
                        "lea {f}, [{f} + 4*{fs}]",
                        concat!($store, " [{d}], {a", $part, "}"),
                        concat!($store, " [{d} + {ts}], {b", $part, "}"),
                        concat!($store, " [{d} + 2*{ts}], {c", $part, "}"),
                        concat!($store, " [{d} + {ts3}], {e", $part, "}"),
                        "lea {d}, [{d} + 4*{ts}]",
                        "sub {n}, 4",
                        "jae 2b",
                        "3:",
                        "add {n}, 4",
                        "jz 5f",
                        "4:",
                        concat!($load, " {a", $wide, "}, [{f}]"),
                        "add {f}, {fs}",
                        concat!($store, " [{d}], {a", $part, "}"),
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
    blocks!(blocks1, reg, "movzx", ":e}, byte ptr [{f}]", "mov byte ptr", ":l");
}
