//! Bounds of a layout, by MPI's rules (MPI 4.1, sections 5.1 and 5.1.7).
use crate::layout::error::{LayoutError, fits};

/// Where the bytes of a layout are, and where it pretends to begin and end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bounds {
    /// First byte, and the one after the last; `None` without bytes.
    pub(super) data: Option<(i64, i64)>,
    /// Lower and upper bound that the caller set: they outweigh the data, on every level above too.
    pub(super) set: Option<(i64, i64)>,
    /// Largest alignment of an element; the extent is a multiple of it unless set.
    pub(super) align: i64,
    /// Distances between elements, their bits or-ed: each is a multiple of a power of two if this
    /// is.
    pub(super) steps: u64,
}

const WHAT: &str = "a bound";

impl Bounds {
    pub(super) const NONE: Self = Self { data: None, set: None, align: 1, steps: 0 };

    pub(super) fn lower(&self) -> i64 {
        self.set.or(self.data).map_or(0, |bounds| bounds.0)
    }

    /// Checked when made: see [`checked`](Self::checked).
    pub(super) fn extent(&self) -> i64 {
        match (self.set, self.data) {
            (Some((lower, upper)), _) => upper - lower,
            (None, Some((first, end))) => {
                let len = end - first;
                len + (self.align - len % self.align) % self.align
            }
            (None, None) => 0,
        }
    }

    /// This, if the extent and the upper bound are numbers.
    pub(super) fn checked(self) -> Result<Self, LayoutError> {
        for (lower, upper) in self.set.into_iter().chain(self.data) {
            let extent = upper.checked_sub(lower).and_then(|len| len.checked_add(self.align));
            fits(extent.and_then(|extent| extent.checked_add(lower)), "the extent")?;
        }
        Ok(self)
    }

    /// The bounds of `count` copies at distances of `stride`.
    pub(super) fn repeated(self, count: u64, stride: i64) -> Result<Self, LayoutError> {
        let Some(last) = count.checked_sub(1) else { return Ok(Self::NONE) };
        let last = i64::try_from(last).ok();
        let reach = fits(last.and_then(|last| stride.checked_mul(last)), WHAT)?;
        let moved = self.moved(reach.min(0), reach.max(0))?;
        let more = if count > 1 && self.data.is_some() { stride.cast_unsigned() } else { 0 };
        Ok(Self { steps: self.steps | more, ..moved })
    }

    pub(super) fn shifted(self, by: i64) -> Result<Self, LayoutError> {
        self.moved(by, by)
    }

    fn moved(self, low: i64, high: i64) -> Result<Self, LayoutError> {
        let moved = |bounds: Option<(i64, i64)>| match bounds {
            None => Ok(None),
            Some((from, to)) => {
                let (from, to) = (from.checked_add(low), to.checked_add(high));
                Ok(Some((fits(from, WHAT)?, fits(to, WHAT)?)))
            }
        };
        Ok(Self { data: moved(self.data)?, set: moved(self.set)?, ..self })
    }

    /// The bounds of both together.
    pub(super) fn with(self, other: Self) -> Self {
        let hull = |a: Option<(i64, i64)>, b: Option<(i64, i64)>| match (a, b) {
            (Some(a), Some(b)) => Some((a.0.min(b.0), a.1.max(b.1))),
            _ => a.or(b),
        };
        Self {
            data: hull(self.data, other.data),
            set: hull(self.set, other.set),
            align: self.align.max(other.align),
            steps: match (self.data, other.data) {
                (Some(a), Some(b)) => self.steps | other.steps | a.0.abs_diff(b.0),
                (Some(_), None) => self.steps,
                (None, _) => other.steps,
            },
        }
    }

    /// Whether every element begins at a multiple of `align`, a power of two, if position 0 is
    /// `start`.
    pub(super) fn are_aligned(&self, start: u64, align: u64) -> bool {
        let Some((first, _)) = self.data else { return true };
        (start.wrapping_add_signed(first) | self.steps) & (align - 1) == 0
    }
}
