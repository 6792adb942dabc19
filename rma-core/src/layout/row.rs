//! Rows of bytes: equally long blocks at equal distances; planes: equal rows at equal distances.

use core::ops::Range;

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
    #[inline(always)]
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

    /// From the first byte to the last, of a row that fits somewhere.
    pub(crate) fn hull(self) -> Range<u64> {
        let Some(last) = self.count.checked_sub(1) else { return 0..0 };
        let reach = self.stride.wrapping_mul(last.cast_signed());
        let first = self.at.wrapping_add(reach.min(0)).cast_unsigned();
        first..first.wrapping_add(reach.unsigned_abs()).wrapping_add(self.len)
    }

    /// The first blocks, at most `count`, and the others.
    #[inline]
    pub(crate) fn split(self, count: u64) -> (Self, Self) {
        let first = Self { count: self.count.min(count), ..self };
        let passed = self.stride.wrapping_mul(first.count.cast_signed());
        let (at, count) = (self.at.wrapping_add(passed), self.count - first.count);
        (first, Self { at, count, ..self })
    }

    /// Where its blocks begin.
    pub(crate) fn starts(self) -> impl Iterator<Item = i64> {
        (0..self.count)
            .map(move |i| self.at.wrapping_add(self.stride.wrapping_mul(i.cast_signed())))
    }

    pub(crate) fn matches(self, other: Self) -> bool {
        (self.len, self.count) == (other.len, other.count)
    }
}

/// `times` rows of the geometry of `row`, which is the first, `step` bytes from one to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plane {
    pub(crate) row: Row,
    pub(crate) step: i64,
    pub(crate) times: u64,
}

impl Plane {
    /// Whether every byte lies in `0..size`.
    pub(crate) fn fits(self, size: u64) -> bool {
        let Some(last) = self.times.checked_sub(1) else { return true };
        let last = || {
            let reach = self.step.checked_mul(i64::try_from(last).ok()?)?;
            Some(Row { at: self.row.at.checked_add(reach)?, ..self.row })
        };
        // Every other row lies between these.
        self.row.fits(size) && last().is_some_and(|last| last.fits(size))
    }

    pub(crate) fn matches(self, other: Self) -> bool {
        self.row.matches(other.row) && self.times == other.times
    }

    /// Its rows, one after the other.
    #[cfg(test)]
    pub(crate) fn rows(self) -> impl Iterator<Item = Row> {
        let starts = Row { stride: self.step, count: self.times, ..self.row }.starts();
        starts.map(move |at| Row { at, ..self.row })
    }
}
