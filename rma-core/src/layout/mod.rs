//! Layouts: which bytes of a buffer, or of a target's part, take part in an operation, and in
//! which order (MPI's derived datatypes; MPI 4.1, chapter 5).
mod bounds;
mod build;
mod cursor;
mod error;
mod placed;
mod placed_layout;
mod program;
mod row;
mod scattered;
mod signature;
#[cfg(test)]
mod tests;

pub use build::Order;
pub use error::LayoutError;
pub use placed::{Copies, LayoutAt, LayoutOf};
pub use signature::Signature;

pub(crate) use cursor::{Cursor, next_planes, only_pair, pack, unpack};
pub(crate) use placed_layout::PlacedLayout;
pub(crate) use row::{Plane, Row};

use crate::element::{BasicType, Element};
use bounds::Bounds;
use core::fmt;
use program::LoopBody;
use signature::Fingerprint;
use std::sync::Arc;

/// Which bytes take part in an operation, and in which order: MPI's derived datatype.
///
/// A layout starts as [one element](Self::element) and is put together by the methods that carry
/// the names of MPI's constructors. They compile it: adjacent blocks become one, nested loops that
/// continue each other too, so it does not matter how it was described. A layout is immutable,
/// cheap to clone, and may be dropped as soon as the operation was called; there is nothing to
/// commit, and no null layout.
///
/// Operations take it [at](Self::at) a displacement of the target, and [of](Self::of) a buffer of
/// the origin.
///
/// ```
/// use rma_core::Layout;
///
/// // A column of a matrix with 4 columns and 3 rows, in row order.
/// let column = Layout::element::<f64>().vector(3, 1, 4)?;
/// assert_eq!((column.size(), column.extent()), (24, 72));
/// // As an element, columns lie next to each other.
/// let column = column.resized(0, 8)?;
/// let runs: Vec<_> = column.runs(2)?.collect();
/// assert_eq!(runs, [(0, 8), (32, 8), (64, 8), (8, 8), (40, 8), (72, 8)]);
/// # Ok::<(), rma_core::LayoutError>(())
/// ```
#[derive(Clone)]
pub struct Layout {
    inner: Arc<Compiled>,
}

/// What a layout was compiled to: operations look at it during their call only. S-J6 S-J7
struct Compiled {
    /// Bytes, gaps not counted.
    size: u64,
    bounds: Bounds,
    /// That of the bounds: rounding it takes time.
    extent: i64,
    fingerprint: Fingerprint,
    /// Some byte is certainly there twice.
    overlaps: bool,
    /// `None` without bytes.
    part: Option<LoopBody>,
    geometry: Geometry,
}

/// What operations ask first.
#[derive(Debug, Clone, Copy)]
struct Geometry {
    /// Bytes of a copy that is one run from position 0 to the next copy; otherwise 0.
    run: u64,
    /// A copy, if it is one row; otherwise [`Row::NONE`].
    row: Row,
}

impl Geometry {
    const NOTHING: Self = Self { run: 0, row: Row::NONE };

    /// Of a part, and the distance to that of the next copy.
    fn of(part: &Option<LoopBody>, extent: i64) -> Self {
        let row = part.as_ref().and_then(LoopBody::row).unwrap_or(Row::NONE);
        let is_run = row.count == 1 && row.at == 0 && row.len == extent.cast_unsigned();
        Self { run: if is_run { row.len } else { 0 }, row }
    }
}

impl Layout {
    /// One element of type `E`, whose bytes stand as they do in Rust: MPI's predefined datatypes.
    ///
    /// A struct is one element here: its fields are not told apart when signatures are compared.
    pub fn element<E: Element>() -> Self {
        let len = size_of::<E>();
        if len == 0 {
            return Self::nothing();
        }
        let data = Some((0, len as i64));
        let bounds = Bounds { data, align: align_of::<E>() as i64, ..Bounds::NONE };
        let (extent, part) = (bounds.extent(), Some(LoopBody::run(len as u64)));
        Self {
            inner: Arc::new(Compiled {
                size: len as u64,
                bounds,
                extent,
                fingerprint: Fingerprint::of::<E>(),
                overlaps: false,
                geometry: Geometry::of(&part, extent),
                part,
            }),
        }
    }

    fn nothing() -> Self {
        Self {
            inner: Arc::new(Compiled {
                size: 0,
                bounds: Bounds::NONE,
                extent: 0,
                fingerprint: Fingerprint::NOTHING,
                overlaps: false,
                part: None,
                geometry: Geometry::NOTHING,
            }),
        }
    }

    /// Bytes that take part, gaps not counted.
    pub fn size(&self) -> u64 {
        self.inner.size
    }

    /// Where the layout pretends to begin: its first byte, unless [`resized`](Self::resized).
    pub fn lower_bound(&self) -> i64 {
        self.inner.bounds.lower()
    }

    /// Where the layout pretends to end.
    pub fn upper_bound(&self) -> i64 {
        self.lower_bound() + self.extent()
    }

    /// Bytes from one copy of the layout to the next: from the lower to the upper bound, rounded
    /// up to a multiple of the largest alignment of its elements; or what was
    /// [set](Self::resized).
    pub fn extent(&self) -> i64 {
        self.inner.extent
    }

    /// Position of the first byte that takes part; 0 if none does.
    pub fn true_lower_bound(&self) -> i64 {
        self.inner.bounds.data.map_or(0, |data| data.0)
    }

    /// Bytes from the first that takes part to the last.
    pub fn true_extent(&self) -> u64 {
        self.inner.bounds.data.map_or(0, |data| data.0.abs_diff(data.1))
    }

    /// What `count` of it are made of.
    pub fn signature(&self, count: u64) -> Signature {
        self.inner.fingerprint.signature(count)
    }

    /// Whether it is made of elements of type `E`, and of nothing else.
    pub fn is_made_of<E: Element>(&self) -> bool {
        self.inner.fingerprint.is_of::<E>()
    }

    /// The basic type that all its elements have, if they have one.
    pub(crate) fn basic(&self) -> Option<BasicType> {
        self.inner.fingerprint.basic()
    }

    /// Lowest and highest position (the latter exclusive) that `count` of it touch; `None` if they
    /// touch nothing.
    pub fn span(&self, count: u64) -> Result<Option<(i64, i64)>, LayoutError> {
        let span = self.placed(count).wide_span();
        let narrow = |wide: i128| error::fits(i64::try_from(wide).ok(), "the span");
        span.map(|(low, high)| Ok((narrow(low)?, narrow(high)?))).transpose()
    }

    /// Position and length of the blocks of `count` copies, in the order of the type map, adjacent
    /// ones joined as far as the layout was compiled to.
    pub fn runs(&self, count: u64) -> Result<impl Iterator<Item = (i64, u64)>, LayoutError> {
        let placed = self.placed(count);
        self.span(count)?;
        error::fits(placed.bytes(), "the size")?;
        let mut cursor = Cursor::new(placed);
        let rows = core::iter::from_fn(move || cursor.take(u64::MAX));
        Ok(rows.flat_map(|row| row.starts().map(move |at| (at, row.len))))
    }

    pub(crate) fn placed(&self, count: u64) -> PlacedLayout<'_> {
        PlacedLayout { layout: self, count, start: 0 }
    }
}

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layout")
            .field("signature", &format_args!("{}", self.signature(1)))
            .field("size", &self.size())
            .field("lower_bound", &self.lower_bound())
            .field("extent", &self.extent())
            .field("true_lower_bound", &self.true_lower_bound())
            .field("true_extent", &self.true_extent())
            .finish_non_exhaustive()
    }
}
