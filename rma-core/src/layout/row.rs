//! Rows of bytes: equally long blocks at equal distances.

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
        (0..self.count)
            .map(move |i| self.at.wrapping_add(self.stride.wrapping_mul(i.cast_signed())))
    }

    pub(crate) fn matches(self, other: Self) -> bool {
        (self.len, self.count) == (other.len, other.count)
    }
}
