//! The constructors, after MPI's.
use crate::integer::Integer;
use crate::layout::bounds::Bounds;
use crate::layout::error::{LayoutError, fits};
use crate::layout::program::LoopBody;
use crate::layout::signature::Fingerprint;
use crate::layout::{Compiled, Geometry, Layout};
use std::sync::Arc;

/// Copies of a layout, side by side, at a displacement in bytes.
type Placement<'l> = (i64, u64, &'l Layout);

const DISPLACEMENT: &str = "a displacement";
const STRIDE: &str = "a stride";

impl Layout {
    /// `count` copies, one extent after the other.
    pub fn contiguous(&self, count: impl Integer) -> Result<Self, LayoutError> {
        self.hvector(count, 1, self.extent())
    }

    /// `count` blocks of `block_length` copies, `stride` extents from one beginning to the next.
    pub fn vector(
        &self,
        count: impl Integer,
        block_length: impl Integer,
        stride: impl Integer,
    ) -> Result<Self, LayoutError> {
        let stride = self.extents(fits(stride.to_i64(), STRIDE)?)?;
        self.hvector(count, block_length, stride)
    }

    /// As [`vector`](Self::vector), with the stride in bytes.
    pub fn hvector(
        &self,
        count: impl Integer,
        block_length: impl Integer,
        stride: impl Integer,
    ) -> Result<Self, LayoutError> {
        let block = match block_length.to_u64() {
            1 => self.clone(),
            length => self.strided(length, self.extent())?,
        };
        block.strided(count.to_u64(), fits(stride.to_i64(), STRIDE)?)
    }

    /// Blocks at displacements, each of a length of its own, both in extents.
    pub fn indexed(&self, blocks: &[(i64, u64)]) -> Result<Self, LayoutError> {
        Self::assemble(
            &mut blocks.iter().map(|(at, length)| Ok((self.extents(*at)?, *length, self))),
        )
    }

    /// As [`indexed`](Self::indexed), with displacements in bytes.
    pub fn hindexed(&self, blocks: &[(i64, u64)]) -> Result<Self, LayoutError> {
        Self::assemble(&mut blocks.iter().map(|(at, length)| Ok((*at, *length, self))))
    }

    /// Blocks of `block_length` copies at displacements, in extents.
    pub fn indexed_block(&self, block_length: u64, at: &[i64]) -> Result<Self, LayoutError> {
        Self::assemble(&mut at.iter().map(|at| Ok((self.extents(*at)?, block_length, self))))
    }

    /// As [`indexed_block`](Self::indexed_block), with displacements in bytes.
    pub fn hindexed_block(&self, block_length: u64, at: &[i64]) -> Result<Self, LayoutError> {
        Self::assemble(&mut at.iter().map(|at| Ok((*at, block_length, self))))
    }

    /// Blocks at displacements in bytes, of a length and a layout of their own: MPI's struct.
    ///
    /// ```
    /// use rma_core::Layout;
    ///
    /// // The second and third field of `#[repr(C)] struct { a: u64, b: u32, c: [f32; 5] }`.
    /// let (id, place) = (Layout::element::<u32>(), Layout::element::<f32>());
    /// let fields = Layout::structure(&[(8, 1, id), (12, 5, place)])?;
    /// assert_eq!((fields.size(), fields.lower_bound(), fields.extent()), (24, 8, 24));
    /// // As elements of an array of such structs.
    /// assert_eq!(fields.resized(0, 32)?.span(10)?, Some((8, 320)));
    /// # Ok::<(), rma_core::LayoutError>(())
    /// ```
    pub fn structure(blocks: &[(i64, u64, Self)]) -> Result<Self, LayoutError> {
        Self::assemble(&mut blocks.iter().map(|(at, count, layout)| Ok((*at, *count, layout))))
    }

    /// Part of an array of any number of dimensions: `subsizes` elements from `starts` on, of an
    /// array of `sizes`. Its extent is the whole array's.
    ///
    /// # Errors
    ///
    /// [`LayoutError::Dimensions`], [`LayoutError::OutsideArray`], [`LayoutError::Overflow`].
    pub fn subarray(
        &self,
        sizes: &[u64],
        subsizes: &[u64],
        starts: &[u64],
        order: Order,
    ) -> Result<Self, LayoutError> {
        let dimensions = sizes.len();
        if dimensions == 0 || subsizes.len() != dimensions || starts.len() != dimensions {
            let (sizes, subsizes, starts) = (dimensions, subsizes.len(), starts.len());
            return Err(LayoutError::Dimensions { sizes, subsizes, starts });
        }
        let (mut layout, mut stride, mut at) = (self.clone(), self.extent(), 0i64);
        for i in 0..dimensions {
            let dimension = match order {
                Order::RowMajor => dimensions - 1 - i,
                Order::ColumnMajor => i,
            };
            let (size, subsize) = (sizes[dimension], subsizes[dimension]);
            let start = starts[dimension];
            if start.checked_add(subsize).is_none_or(|end| end > size) {
                return Err(LayoutError::OutsideArray { dimension, size, subsize, start });
            }
            layout = layout.strided(subsize, stride)?;
            let offset = multiple(stride, start);
            at = fits(offset.and_then(|offset| at.checked_add(offset)), DISPLACEMENT)?;
            stride = fits(multiple(stride, size), "the array")?;
        }
        Self::assemble(&mut core::iter::once(Ok((at, 1, &layout))))?.resized(0, stride)
    }

    /// The same bytes, with another lower bound and extent.
    ///
    /// These outweigh the bytes, in layouts made of it too.
    pub fn resized(&self, lower_bound: i64, extent: i64) -> Result<Self, LayoutError> {
        let upper = fits(lower_bound.checked_add(extent), "the upper bound")?;
        let inner = &self.inner;
        let bounds = Bounds { set: Some((lower_bound, upper)), ..inner.bounds }.checked()?;
        let (extent, part) = (bounds.extent(), inner.part.clone());
        let geometry = Geometry::of(&part, extent);
        Ok(Self { inner: Arc::new(Compiled { bounds, extent, part, geometry, ..**inner }) })
    }

    /// So many extents, in bytes.
    fn extents(&self, count: i64) -> Result<i64, LayoutError> {
        fits(self.extent().checked_mul(count), DISPLACEMENT)
    }

    /// `count` copies at distances of `stride` bytes.
    fn strided(&self, count: u64, stride: i64) -> Result<Self, LayoutError> {
        let inner = &self.inner;
        let size = checked_size(inner.size.checked_mul(count))?;
        let bounds = inner.bounds.repeated(count, stride)?.checked()?;
        let mut layout = Compiled {
            size,
            bounds,
            extent: bounds.extent(),
            fingerprint: inner.fingerprint.repeated(count),
            overlaps: false,
            part: None,
            geometry: Geometry::NOTHING,
        };
        if let Some(part) = inner.part.as_ref().filter(|_| count > 0) {
            let close = stride.unsigned_abs() < part.solid().unwrap_or(1);
            layout.overlaps = inner.overlaps || count > 1 && close;
            layout.part = part.clone().repeated(count, stride)?;
            layout.geometry = Geometry::of(&layout.part, layout.extent);
        }
        Ok(Self { inner: Arc::new(layout) })
    }

    /// Blocks one after the other, in the order of the type map.
    fn assemble<'l>(
        blocks: &mut dyn Iterator<Item = Result<Placement<'l>, LayoutError>>,
    ) -> Result<Self, LayoutError> {
        let (mut size, mut bounds) = (0u64, Bounds::NONE);
        let (mut fingerprint, mut overlaps) = (Fingerprint::NOTHING, false);
        let (mut parts, mut solids) = (Vec::new(), Vec::new());
        for block in blocks {
            let (at, count, layout) = block?;
            let inner = if count == 1 {
                layout.inner.clone()
            } else {
                layout.strided(count, layout.extent())?.inner
            };
            size = checked_size(size.checked_add(inner.size))?;
            bounds = bounds.with(inner.bounds.shifted(at)?);
            fingerprint = fingerprint.then(inner.fingerprint);
            overlaps |= inner.overlaps;
            if let Some(part) = &inner.part {
                let part = part.clone().shifted(at)?;
                solids.extend(part.solid().map(|len| (part.at, len)));
                parts.push(part);
            }
        }
        let part = LoopBody::sequence(parts)?;
        let bounds = bounds.checked()?;
        overlaps = overlaps || meet(&mut solids);
        let extent = bounds.extent();
        let geometry = Geometry::of(&part, extent);
        let compiled = Compiled { size, bounds, extent, fingerprint, overlaps, part, geometry };
        Ok(Self { inner: Arc::new(compiled) })
    }
}

/// Which index of an array changes from one element to the next in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    /// The last one, as in C and Rust.
    RowMajor,
    /// The first one, as in Fortran.
    ColumnMajor,
}

fn multiple(stride: i64, count: u64) -> Option<i64> {
    stride.checked_mul(i64::try_from(count).ok()?)
}

fn checked_size(size: Option<u64>) -> Result<u64, LayoutError> {
    fits(size.filter(|size| i64::try_from(*size).is_ok()), "the size")
}

/// Whether two of these runs share a byte.
fn meet(runs: &mut [(i64, u64)]) -> bool {
    if !runs.is_sorted() {
        runs.sort_unstable();
    }
    // The bounds were checked, so the ends are numbers.
    runs.windows(2).any(|pair| pair[0].0.wrapping_add_unsigned(pair[0].1) > pair[1].0)
}
