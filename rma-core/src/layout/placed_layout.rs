//! What operations make of a layout, a count and a beginning.
use crate::element::Element;
use crate::layout::program::{Loop, LoopBody, is_next};
use crate::layout::{Layout, Row};

/// A layout, how many of it, and where it begins: one side of an operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlacedLayout<'l> {
    pub(super) layout: &'l Layout,
    pub(super) count: u64,
    pub(super) start: u64,
}

impl<'l> PlacedLayout<'l> {
    /// As this, with position 0 `start` bytes into the buffer, or after the displacement.
    pub(crate) fn starting_at(self, start: u64) -> Self {
        Self { start, ..self }
    }

    /// The layout.
    pub(crate) fn layout(&self) -> &'l Layout {
        self.layout
    }

    /// How many copies of it.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Bytes that take part; `None` if that is not a number of bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> Option<u64> {
        let bytes = self.layout.size().checked_mul(self.count)?;
        i64::try_from(bytes).ok().map(i64::cast_unsigned)
    }

    /// Where its position 0 is.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// The bytes, if there are some.
    #[inline]
    pub(super) fn part(&self) -> Option<&'l LoopBody> {
        self.layout.inner.part.as_ref().filter(|_| self.count > 0)
    }

    /// How many bytes, if they are one run from position 0 on, and there are some.
    #[inline(always)]
    pub(crate) fn run(&self) -> Option<u64> {
        let len = self.layout.inner.geometry.run.checked_mul(self.count)?;
        (len > 0).then_some(len)
    }

    /// All bytes as one row, if they are, and begin where it can be said; it begins `offset` later.
    #[inline(always)]
    pub(crate) fn only_row(&self, offset: u64) -> Option<Row> {
        self.row_from(i64::try_from(self.start.checked_add(offset)?).ok()?)
    }

    /// All bytes as one row, if they are, with position 0 at `start`.
    #[inline(always)]
    pub(super) fn row_from(&self, start: i64) -> Option<Row> {
        let row = self.layout.inner.geometry.row;
        if self.count == 1 && row.count > 0 {
            return Some(Row { at: start.wrapping_add(row.at), ..row });
        }
        match self.run() {
            Some(len) => Some(Row { at: start, stride: 0, len, count: 1 }),
            // Its fields, so that the row of a hot path need not be in memory.
            None => {
                let Row { at, stride, len, count } = self.row_of_copies(start)?;
                Some(Row { count, len, stride, at })
            }
        }
    }

    #[inline(never)]
    fn row_of_copies(&self, start: i64) -> Option<Row> {
        let part = self.part()?;
        let (at, extent, count) =
            (start.wrapping_add(part.at), self.layout.inner.extent, self.count);
        match &part.node {
            Loop::Run(len) if count == 1 || extent.cast_unsigned() == *len => {
                Some(Row { at, stride: 0, len: len.checked_mul(count)?, count: 1 })
            }
            Loop::Run(len) => Some(Row { at, stride: extent, len: *len, count }),
            Loop::Repeat { count: inner, stride, body } => match **body {
                Loop::Run(len) if count == 1 || is_next(*inner, *stride, extent) => {
                    Some(Row { at, stride: *stride, len, count: inner.checked_mul(count)? })
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// Lowest and highest position touched, the latter exclusive; `None` if nothing is.
    pub(crate) fn wide_span(&self) -> Option<(i128, i128)> {
        let (first, end) = self.layout.inner.bounds.data?;
        let last = self.count.checked_sub(1)?;
        let reach = match last {
            0 => 0,
            _ => i128::from(self.layout.extent()) * i128::from(last),
        };
        let start = i128::from(self.start);
        Some((start + i128::from(first) + reach.min(0), start + i128::from(end) + reach.max(0)))
    }

    /// Whether every element begins at a multiple of `align`, a power of two, if the buffer begins
    /// at `base`.
    pub(crate) fn is_aligned(&self, base: u64, align: usize) -> bool {
        let inner = &self.layout.inner;
        let steps = if self.count > 1 { inner.extent.cast_unsigned() } else { 0 };
        let apart = inner.part.is_none() || steps & (align as u64 - 1) == 0;
        let first = base.wrapping_add(self.start);
        self.count == 0 || apart && inner.bounds.are_aligned(first, align as u64)
    }

    /// Whether some byte is certainly in there twice. Cheap, so not found: interleaved blocks that
    /// meet somewhere.
    #[inline]
    pub(crate) fn overlaps(&self) -> bool {
        let inner = &self.layout.inner;
        let Some(part) = self.part() else { return false };
        let extent = inner.extent.unsigned_abs();
        let close = extent < part.solid().unwrap_or(1);
        inner.overlaps || self.count > 1 && close
    }

    /// Whether it holds so many elements of type `E`, and nothing else.
    #[inline]
    pub(crate) fn holds<E: Element>(&self, count: usize) -> bool {
        let fingerprint = &self.layout.inner.fingerprint;
        let elements = fingerprint.len().checked_mul(self.count);
        let bytes = size_of::<E>().saturating_mul(count);
        // Of nothing there is no type.
        if bytes == 0 {
            return elements == Some(0);
        }
        fingerprint.is_of::<E>() && elements == Some(count as u64)
    }

    /// Whether both hold the same sequence of types.
    #[inline]
    pub(crate) fn matches(&self, other: &Self) -> bool {
        let (mine, theirs) = (&self.layout.inner, &other.layout.inner);
        if core::ptr::eq::<crate::layout::Compiled>(&**mine, &**theirs) && self.count == other.count
        {
            return true;
        }
        mine.fingerprint.matches(self.count, &theirs.fingerprint, other.count)
    }
}
