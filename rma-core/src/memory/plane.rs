//! Planes: rows at equal distances, copied between private memory and window memory. The model is
//! that of [`copy`](super::copy).
//!
//! Where one side lies across the lines of the other, as in a transpose, the plane is walked in
//! tiles: a line of either side is used as a whole while it is in the cache.
#![allow(unsafe_code)]

use super::copy::CellBounds;
use super::stores;
use super::strided::{self, Area};
use crate::layout::{Plane, Row};

/// Bytes of a line of the caches, or some such number: only speed depends on it.
const LINE: u64 = 64;

/// Steps of a loop that is worth to be the inner one.
const STEPS: u64 = 8;

impl Area<'_> {
    /// Copies the plane `from` of `origin` to the plane `to` of this area, which were checked.
    pub(crate) fn write_plane(&self, to: Plane, origin: &[u8], from: Plane) {
        let inside = to.fits(self.len) && from.fits(origin.len() as u64) && to.matches(from);
        assert!(inside, "planes were checked: {to:?} {from:?}");
        stores::made();
        let sink = self.at.wrapping_offset(to.row.at as isize);
        let source = origin.as_ptr().wrapping_offset(from.row.at as isize);
        let walk = Walk::new(sink, to, source, from, strided::write, self.part);
        // SAFETY: every block lies inside the area and the slice, as just checked. `origin` is
        // private memory, because no reference to window memory exists.
        unsafe { walk.copy() }
    }

    /// Copies the plane `from` of this area to the plane `to` of `origin`, as
    /// [`write_plane`](Self::write_plane).
    pub(crate) fn read_plane(&self, from: Plane, origin: &mut [u8], to: Plane) {
        let inside = from.fits(self.len) && to.fits(origin.len() as u64) && to.matches(from);
        assert!(inside, "planes were checked: {from:?} {to:?}");
        let source = self.at.wrapping_offset(from.row.at as isize);
        let sink = origin.as_mut_ptr().wrapping_offset(to.row.at as isize);
        let walk = Walk::new(sink, to, source, from, strided::read, self.part);
        // SAFETY: as in `write_plane`, with the roles swapped.
        unsafe { walk.copy() }
    }
}

/// Copies the blocks of a row: [`strided::write`] or [`strided::read`].
type CopyRow = unsafe fn(*mut u8, Row, *const u8, i64, CellBounds);

/// So many steps, and the distance of two on either side.
#[derive(Debug, Clone, Copy)]
struct Steps {
    count: u64,
    to: i64,
    from: i64,
}

impl Steps {
    /// The place after so many of them.
    fn after(self, count: u64, to: *mut u8, from: *const u8) -> (*mut u8, *const u8) {
        let by = |step: i64| step.wrapping_mul(count.cast_signed()) as isize;
        (to.wrapping_offset(by(self.to)), from.wrapping_offset(by(self.from)))
    }

    fn first(self, count: u64) -> Self {
        Self { count: self.count.min(count), ..self }
    }
}

/// Blocks of `len` bytes, in two loops: in any order.
#[derive(Clone, Copy)]
struct Walk {
    to: *mut u8,
    from: *const u8,
    len: u64,
    inner: Steps,
    outer: Steps,
    copy_row: CopyRow,
    part: CellBounds,
}

impl Walk {
    fn new(
        sink: *mut u8,
        to: Plane,
        source: *const u8,
        from: Plane,
        copy_row: CopyRow,
        part: CellBounds,
    ) -> Self {
        let inner = Steps { count: to.row.count, to: to.row.stride, from: from.row.stride };
        let outer = Steps { count: to.times, to: to.step, from: from.step };
        Self { to: sink, from: source, len: to.row.len, inner, outer, copy_row, part }
    }

    fn swapped(self) -> Self {
        Self { inner: self.outer, outer: self.inner, ..self }
    }

    /// # Safety
    ///
    /// As `copy_row`, for each block.
    unsafe fn copy(self) {
        let Self { inner, outer, .. } = self;
        let is_across = |inner: i64, outer: i64| outer.unsigned_abs() < inner.unsigned_abs();
        let is_wide = |inner: i64, outer: i64| inner.abs_diff(0).max(outer.abs_diff(0)) >= LINE;
        let (to, from) = (is_across(inner.to, outer.to), is_across(inner.from, outer.from));
        let tiles =
            inner.count >= STEPS && is_wide(inner.to, outer.to) && is_wide(inner.from, outer.from);
        match (to, from) {
            // SAFETY: forwarded to the caller.
            _ if outer.count < STEPS => unsafe { self.rows() },
            // SAFETY: as above.
            (true, true) => unsafe { self.swapped().rows() },
            // SAFETY: as above.
            (true, false) if tiles => unsafe { self.tiles() },
            // SAFETY: as above.
            (false, true) if tiles => unsafe { self.swapped().tiles() },
            // SAFETY: as above.
            _ => unsafe { self.rows() },
        }
    }

    /// Row by row.
    ///
    /// # Safety
    ///
    /// As [`copy`](Self::copy).
    unsafe fn rows(self) {
        let Self { mut to, mut from, len, inner, outer, copy_row, part } = self;
        let solid = len.cast_signed();
        if inner.to == solid && inner.from == solid {
            let row = Row { at: 0, stride: outer.to, len: len * inner.count, count: outer.count };
            // SAFETY: caller: the blocks of each row lie side by side.
            return unsafe { copy_row(to, row, from, outer.from, part) };
        }
        let row = Row { at: 0, stride: inner.to, len, count: inner.count };
        for _ in 0..outer.count {
            // SAFETY: forwarded to the caller.
            unsafe { copy_row(to, row, from, inner.from, part) };
            (to, from) = outer.after(1, to, from);
        }
    }

    /// In strips of as many inner steps as a line of the source has blocks: outer steps go along
    /// the lines of the sink, and from one of the source to the next.
    ///
    /// # Safety
    ///
    /// As [`copy`](Self::copy).
    unsafe fn tiles(self) {
        let width = (LINE / self.len).max(1);
        // Those before the first whole line of the source.
        let before = (self.from.addr() as u64).wrapping_neg() % LINE / self.len % width;
        let mut rest = self;
        let mut next = if before == 0 { width } else { before };
        while rest.inner.count > 0 {
            let strip = Self { inner: rest.inner.first(next), ..rest };
            // SAFETY: forwarded to the caller: these are some of the blocks.
            unsafe { strip.strip() };
            (rest.to, rest.from) = rest.inner.after(strip.inner.count, rest.to, rest.from);
            rest.inner.count -= strip.inner.count;
            next = width;
        }
    }

    /// # Safety
    ///
    /// As [`copy`](Self::copy).
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    unsafe fn strip(self) {
        // SAFETY: forwarded to the caller.
        unsafe { self.rows() }
    }

    /// # Safety
    ///
    /// As [`copy`](Self::copy).
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    unsafe fn strip(self) {
        let Self { inner, outer, .. } = self;
        let is_tile = self.len == 8 && inner.count == x86::SIDE && inner.from == 8 && outer.to == 8;
        if !is_tile || !is_x86_feature_detected!("avx") {
            // SAFETY: forwarded to the caller.
            return unsafe { self.rows() };
        }
        // Those before the first whole line of the sink.
        let before = outer.first((self.to.addr() as u64).wrapping_neg() % LINE / 8);
        let tiles = (outer.count - before.count) / x86::SIDE;
        let body = tiles * x86::SIDE;
        let behind = Steps { count: outer.count - before.count - body, ..outer };
        // SAFETY: caller: `before`, the tiles and `behind` are the outer steps.
        unsafe { Self { outer: before, ..self }.rows() };
        let (to, from) = outer.after(before.count, self.to, self.from);
        // SAFETY: as above; the CPU has AVX.
        unsafe { x86::transpose(to, inner.to, from, outer.from, tiles) };
        let (to, from) = outer.after(body, to, from);
        // SAFETY: as above.
        unsafe { Self { to, from, outer: behind, ..self }.rows() };
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86 {
    use core::arch::asm;

    /// Blocks of 8 bytes along either side of a tile: a line.
    pub(super) const SIDE: u64 = 8;

    /// Transposes tiles of 8 lines of 8 blocks of 8 bytes: `ts` is the distance of the lines of the
    /// sink, where tiles lie side by side, `fs` that of the lines of the source, where they lie one
    /// below the other.
    ///
    /// # Safety
    ///
    /// Each block is readable and writable, and no block of one side overlaps one of the other. The
    /// CPU has AVX.
    #[target_feature(enable = "avx")]
    pub(super) unsafe fn transpose(to: *mut u8, ts: i64, from: *const u8, fs: i64, tiles: u64) {
        let (mut to, mut from) = (to, from);
        for _ in 0..tiles {
            // SAFETY: caller: a tile is left. Addresses beyond the last block are computed, not
            // accessed.
            unsafe { tile(to, ts, from, fs) };
            to = to.wrapping_add(64);
            from = from.wrapping_offset(8 * fs as isize);
        }
    }

    /// # Safety
    ///
    /// As [`transpose`].
    #[target_feature(enable = "avx")]
    unsafe fn tile(to: *mut u8, ts: i64, from: *const u8, fs: i64) {
        // Of half a tile, four lines of the sink: pairs of blocks of lines 0 and 2, and 1 and 3, of
        // the source are put into one register each, and dealt to the lines from there.
        // SAFETY: caller: every block of the tile is valid on both sides.
        unsafe {
            asm!(
                "mov {n:e}, 2",
                "2:",
                "vmovups {a:x}, [{f}]",
                "vinsertf128 {a:y}, {a:y}, [{f} + 2*{fs}], 1",
                "vmovups {b:x}, [{f} + {fs}]",
                "vinsertf128 {b:y}, {b:y}, [{f} + {fs3}], 1",
                "vmovups {c:x}, [{f} + 16]",
                "vinsertf128 {c:y}, {c:y}, [{f} + 2*{fs} + 16], 1",
                "vmovups {e:x}, [{f} + {fs} + 16]",
                "vinsertf128 {e:y}, {e:y}, [{f} + {fs3} + 16], 1",
                "vmovups {h:x}, [{g}]",
                "vinsertf128 {h:y}, {h:y}, [{g} + 2*{fs}], 1",
                "vmovups {i:x}, [{g} + {fs}]",
                "vinsertf128 {i:y}, {i:y}, [{g} + {fs3}], 1",
                "vmovups {j:x}, [{g} + 16]",
                "vinsertf128 {j:y}, {j:y}, [{g} + 2*{fs} + 16], 1",
                "vmovups {k:x}, [{g} + {fs} + 16]",
                "vinsertf128 {k:y}, {k:y}, [{g} + {fs3} + 16], 1",
                "vunpcklpd {l:y}, {a:y}, {b:y}",
                "vunpckhpd {a:y}, {a:y}, {b:y}",
                "vunpcklpd {b:y}, {c:y}, {e:y}",
                "vunpckhpd {c:y}, {c:y}, {e:y}",
                "vunpcklpd {m:y}, {h:y}, {i:y}",
                "vunpckhpd {h:y}, {h:y}, {i:y}",
                "vunpcklpd {i:y}, {j:y}, {k:y}",
                "vunpckhpd {j:y}, {j:y}, {k:y}",
                "vmovups [{d}], {l:y}",
                "vmovups [{d} + 32], {m:y}",
                "vmovups [{d} + {ts}], {a:y}",
                "vmovups [{d} + {ts} + 32], {h:y}",
                "vmovups [{d} + 2*{ts}], {b:y}",
                "vmovups [{d} + 2*{ts} + 32], {i:y}",
                "vmovups [{d} + {ts3}], {c:y}",
                "vmovups [{d} + {ts3} + 32], {j:y}",
                "lea {d}, [{d} + 4*{ts}]",
                "add {f}, 32",
                "add {g}, 32",
                "dec {n:e}",
                "jnz 2b",
                f = inout(reg) from => _,
                g = inout(reg) from.wrapping_offset(4 * fs as isize) => _,
                d = inout(reg) to => _,
                n = out(reg) _,
                fs = in(reg) fs, fs3 = in(reg) fs.wrapping_mul(3),
                ts = in(reg) ts, ts3 = in(reg) ts.wrapping_mul(3),
                a = out(ymm_reg) _, b = out(ymm_reg) _, c = out(ymm_reg) _, e = out(ymm_reg) _,
                h = out(ymm_reg) _, i = out(ymm_reg) _, j = out(ymm_reg) _, k = out(ymm_reg) _,
                l = out(ymm_reg) _, m = out(ymm_reg) _,
                options(nostack)
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::target::Span;
    use proptest::prelude::*;

    /// Two loops over blocks of `len` bytes, each with its number of steps and their distance.
    fn plane(len: u64, [inner, outer]: [(u64, i64); 2], skip: i64) -> Plane {
        let below = |(count, step): (u64, i64)| (-step).max(0) * (count as i64 - 1).max(0);
        let at = skip + below(inner) + below(outer);
        let row = Row { at, stride: inner.1, len, count: inner.0 };
        Plane { row, step: outer.1, times: outer.0 }
    }

    fn size(plane: Plane) -> usize {
        let reach = |count: u64, step: i64| count.saturating_sub(1) * step.unsigned_abs();
        let Plane { row, step, times } = plane;
        (row.at as u64 + reach(row.count, row.stride) + reach(times, step) + row.len + 40) as usize
    }

    /// Copies a plane each way, and compares with a copy byte by byte. The origin's blocks do not
    /// overlap; nor do the window's.
    fn check(window_plane: Plane, origin_plane: Plane) {
        let mut window = vec![0xEEu8; size(window_plane)];
        let origin: Vec<u8> = (0..size(origin_plane)).map(|i| (i % 251) as u8).collect();
        let (mut expected, mut expected_back) = (window.clone(), vec![0x11u8; origin.len()]);
        for (to, from) in window_plane.rows().zip(origin_plane.rows()) {
            for (to, from) in to.starts().zip(from.starts()) {
                for i in 0..window_plane.row.len as usize {
                    expected[to as usize + i] = origin[from as usize + i];
                    expected_back[from as usize + i] = origin[from as usize + i];
                }
            }
        }
        let all = window.len();
        // SAFETY: live, and accessed through the span only until both planes are copied.
        let span = unsafe { Span::of_part(window.as_mut_ptr(), all as u64, 0, all) };
        let area = Area::new(span.unwrap());
        area.write_plane(window_plane, &origin, origin_plane);
        let mut back = vec![0x11u8; origin.len()];
        area.read_plane(window_plane, &mut back, origin_plane);
        assert!(window == expected, "write {window_plane:?} {origin_plane:?}");
        assert!(back == expected_back, "read {window_plane:?} {origin_plane:?}");
    }

    /// Rows of one side are columns of the other, with gaps behind rows and blocks; `signs` turn
    /// the walk round.
    fn transposed(len: u64, sides: [u64; 2], gaps: [i64; 4], signs: [i64; 4], skips: [i64; 2]) {
        let [rows, columns] = sides;
        let size = len as i64;
        let block = |gap: i64| size + gap;
        let line = |count: u64, block: i64, gap: i64| count as i64 * block + gap;
        let (a, b) = (block(gaps[0]), block(gaps[1]));
        let along = [(columns, a * signs[0]), (rows, line(columns, a, gaps[2]) * signs[1])];
        let across = [(columns, line(rows, b, gaps[3]) * signs[2]), (rows, b * signs[3])];
        let (along, across) = (plane(len, along, skips[0]), plane(len, across, skips[1]));
        check(along, across);
        check(across, along);
        check(along, along);
        check(across, across);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 300 }))]

        #[test]
        fn planes_are_copied_block_by_block(
            len in prop_oneof![Just(1u64), Just(2), Just(4), Just(8), Just(8), Just(16), 1u64..80],
            sides in prop::array::uniform2(if cfg!(miri) { 1u64..12 } else { 1u64..40 }),
            gaps in prop::array::uniform4(prop_oneof![Just(0i64), Just(0), 0i64..9]),
            signs in prop::array::uniform4(prop_oneof![Just(1i64), Just(1), Just(1), Just(-1)]),
            skips in prop::array::uniform2(0i64..70),
        ) {
            transposed(len, sides, gaps, signs, skips);
        }
    }

    #[test]
    fn tiles_and_what_is_around_them() {
        let sides: &[u64] = if cfg!(miri) { &[8, 9] } else { &[7, 8, 9, 15, 16, 17, 40, 64, 65] };
        let skips = [[0, 0], [3, 5], [8, 0], [0, 8], [56, 40]];
        for rows in sides {
            for columns in sides {
                for skips in &skips[..if cfg!(miri) { 2 } else { skips.len() }] {
                    transposed(8, [*rows, *columns], [0; 4], [1; 4], *skips);
                }
            }
        }
    }

    #[repr(align(64))]
    struct Lines([u8; 512]);

    /// Nothing but tiles, which no kernel of rows copies.
    #[test]
    fn tiles_make_the_next_flush_a_fence() {
        let (mut window, origin) = (Lines([0; 512]), Lines([7; 512]));
        // SAFETY: live, and accessed through the span only.
        let span = unsafe { Span::of_part(window.0.as_mut_ptr(), 512, 0, 512) };
        let (along, across) = ([(8, 8), (8, 64)], [(8, 64), (8, 8)]);
        stores::complete();
        Area::new(span.unwrap()).write_plane(plane(8, across, 0), &origin.0, plane(8, along, 0));
        assert!(stores::is_fence_due());
    }

    #[test]
    fn planes_fit_or_not() {
        let of =
            |step, times| Plane { row: Row { at: 4, stride: 2, len: 1, count: 3 }, step, times };
        assert!(of(10, 3).fits(29) && !of(10, 3).fits(28));
        assert!(of(-2, 3).fits(9) && !of(-3, 3).fits(9));
        assert!(of(-2, 0).fits(0), "nothing fits everywhere");
        assert!(!of(i64::MAX, 3).fits(u64::MAX) && !of(1, u64::MAX).fits(u64::MAX));
    }

    #[test]
    #[should_panic(expected = "planes were checked")]
    fn planes_outside_are_refused() {
        let mut memory = [0u8; 8];
        // SAFETY: live, and accessed through the span only.
        let area = Area::new(unsafe { Span::of_part(memory.as_mut_ptr(), 8, 0, 8) }.unwrap());
        let to = plane(1, [(2, 1), (3, 4)], 0);
        area.write_plane(to, &[0; 100], to);
    }
}
