//! Put and get with layouts on both sides: the checks, and near targets (MPI 4.1, sections 12.3.1
//! and 12.3.2). S-G9 S-G12 S-J1
use super::Window;
use super::choice::Path;
use super::direct::Region;
use crate::error::RmaError;
use crate::memory::strided::{Area, Row};
use crate::memory::target::{Span, held};
use crate::ops::layout::{Cursor, Shape, next_pair, only_pair};
use crate::rank::Rank;

/// A shape at its place in memory that this rank reaches.
pub(super) struct NearShape<'w, 's> {
    memory: Memory<'w>,
    pub(super) shape: Shape<'s>,
}

enum Memory<'w> {
    /// All of a part.
    Part(Span<'w>),
    /// A region, from its beginning to the last byte of the shape.
    Region(Region<'w>),
}

impl NearShape<'_, '_> {
    /// Where the shape's positions count from.
    pub(super) fn span(&self) -> Span<'_> {
        match &self.memory {
            Memory::Part(part) => *part,
            Memory::Region(region) => region.up_to_end(),
        }
    }
}

impl Window {
    /// Copies the bytes of `from` in `origin` to those of `to` at `disp` of the target.
    #[inline]
    pub(crate) fn put_shaped<const LAZY: bool>(
        &self,
        target: Rank,
        disp: u64,
        to: Shape<'_>,
        origin: &[u8],
        from: Shape<'_>,
    ) -> Result<(), RmaError> {
        match self.rows_hot::<LAZY>(target, disp, &to, &from) {
            Some((area, sink, source))
                if !to.overlaps() && area.try_write_row(sink, origin, source) =>
            {
                Ok(())
            }
            _ => self.put_shaped_any::<LAZY>(target, disp, to, origin, from),
        }
    }

    /// The hot path: both sides are a row each of a near target, and nothing stands in the way.
    /// Otherwise the long way finds out what does.
    #[inline]
    fn rows_hot<const LAZY: bool>(
        &self,
        target: Rank,
        disp: u64,
        there: &Shape<'_>,
        here: &Shape<'_>,
    ) -> Option<(Area<'_>, Row, Row)> {
        let entry = self.targets.get(target)?;
        let size = entry.size() as usize;
        let part = if LAZY { entry.held_span(0, size) } else { entry.span(0, size) }?;
        let offset = disp.checked_mul(u64::from(entry.disp_unit()))?;
        if !there.matches(here) {
            return None;
        }
        let (there, here) = only_pair(there, offset, here)?;
        Some((Area::new(part), there, here))
    }

    #[inline(never)]
    fn put_shaped_any<const LAZY: bool>(
        &self,
        target: Rank,
        disp: u64,
        to: Shape<'_>,
        origin: &[u8],
        from: Shape<'_>,
    ) -> Result<(), RmaError> {
        if target == Rank::NULL {
            return Ok(());
        }
        self.check_shapes(target, to, from, origin.len())?;
        if to.overlaps() {
            let side = "the target's layout of a put";
            return Err(RmaError::Overlap { window: self.id(), target, side });
        }
        let Some(near) = self.near_shaped::<LAZY>(target, disp, to)? else {
            return self.put_shaped_far_cold::<LAZY>(target, disp, to, origin, from);
        };
        let area = Area::new(near.span());
        let (mut sink, mut source) = (Cursor::new(near.shape), Cursor::new(from));
        while let Some((to, from)) = next_pair(&mut sink, &mut source) {
            area.write_row(to, origin, from);
        }
        Ok(())
    }

    /// Copies the bytes of `from` at `disp` of the target to those of `to` in `origin`.
    #[inline]
    pub(crate) fn get_shaped<const LAZY: bool>(
        &self,
        target: Rank,
        disp: u64,
        from: Shape<'_>,
        origin: &mut [u8],
        to: Shape<'_>,
    ) -> Result<(), RmaError> {
        match self.rows_hot::<LAZY>(target, disp, &from, &to) {
            Some((area, source, sink))
                if !to.overlaps() && area.try_read_row(source, origin, sink) =>
            {
                Ok(())
            }
            _ if self.get_shaped_near::<LAZY>(target, disp, from, origin, to)? => Ok(()),
            _ => self.get_shaped_far_cold::<LAZY>(target, disp, from, origin, to),
        }
    }

    /// As [`get_shaped`](Self::get_shaped); false if the target is far, after all checks that do
    /// not need it.
    #[inline(never)]
    pub(crate) fn get_shaped_near<const LAZY: bool>(
        &self,
        target: Rank,
        disp: u64,
        from: Shape<'_>,
        origin: &mut [u8],
        to: Shape<'_>,
    ) -> Result<bool, RmaError> {
        if target == Rank::NULL {
            return Ok(true);
        }
        self.check_shapes(target, from, to, origin.len())?;
        if to.overlaps() {
            let side = "the origin's layout of a get";
            return Err(RmaError::Overlap { window: self.id(), target, side });
        }
        let Some(near) = self.near_shaped::<LAZY>(target, disp, from)? else {
            return Ok(false);
        };
        let area = Area::new(near.span());
        let (mut source, mut sink) = (Cursor::new(near.shape), Cursor::new(to));
        while let Some((from, to)) = next_pair(&mut source, &mut sink) {
            area.read_row(from, origin, to);
        }
        Ok(true)
    }

    /// What does not depend on the target's part: both sides hold the same, and the origin's lies
    /// inside the buffer.
    pub(super) fn check_shapes(
        &self,
        target: Rank,
        there: Shape<'_>,
        origin: Shape<'_>,
        len: usize,
    ) -> Result<(), RmaError> {
        let window = self.id();
        let (Some(_), Some(_)) = (there.bytes(), origin.bytes()) else {
            return Err(RmaError::LayoutTooLarge { window, target });
        };
        if !there.matches(&origin) {
            let signature = |shape: Shape<'_>| shape.layout().signature(shape.count());
            let (there, origin) = (signature(there), signature(origin));
            return Err(RmaError::SignatureMismatch { window, target, there, origin });
        }
        match origin.wide_span() {
            Some((low, high)) if low < 0 || high > len as i128 => {
                let (low, high, len) = (narrow(low), narrow(high), len as u64);
                Err(RmaError::OriginOutOfRange { window, target, low, high, len })
            }
            _ => Ok(()),
        }
    }

    /// The target's part and the shape's place in it; `None` if the target is not near.
    pub(super) fn near_shaped<'s, const LAZY: bool>(
        &self,
        target: Rank,
        disp: u64,
        shape: Shape<'s>,
    ) -> Result<Option<NearShape<'_, 's>>, RmaError> {
        let Some(entry) = self.targets.get(target) else { return Ok(None) };
        if LAZY && entry.held() == held::NOT {
            self.admit_cold(target)?;
        }
        let entry = self.reach(target)?;
        let (size, disp_unit) = (entry.size(), entry.disp_unit());
        let shape = self.place_shape(target, disp, disp_unit, size, shape)?;
        if self.part.regions.is_some() {
            return self.region_shaped(target, shape);
        }
        if !self.loads(target) {
            return Ok(None);
        }
        self.counts.add(Path::LoadStore);
        // The whole part: mapped, and no longer than an address.
        let part = self.loaded_span(target, entry, 0, size as usize)?;
        Ok(part.map(|part| NearShape { memory: Memory::Part(part), shape }))
    }

    /// A shape at addresses of a dynamic window, which all must lie in one region.
    fn region_shaped<'s>(
        &self,
        target: Rank,
        shape: Shape<'s>,
    ) -> Result<Option<NearShape<'_, 's>>, RmaError> {
        // Without bytes there is nothing to reach.
        let Some((low, high)) = shape.wide_span() else { return Ok(None) };
        // `place_shape` has seen that both are addresses.
        let (low, len) = (low as u64, (high - low) as usize);
        let region = self.reach_region::<false>(target, low, len)?;
        Ok(region.map(|region| {
            let start = shape.start().wrapping_sub(low - region.offset());
            NearShape { memory: Memory::Region(region), shape: shape.starting_at(start) }
        }))
    }

    /// The shape at its place in the target's part, if every byte of it lies inside. S-G8
    pub(super) fn place_shape<'s>(
        &self,
        target: Rank,
        disp: u64,
        disp_unit: u32,
        size: u64,
        shape: Shape<'s>,
    ) -> Result<Shape<'s>, RmaError> {
        let offset = disp.checked_mul(u64::from(disp_unit));
        let start = offset.and_then(|offset| offset.checked_add(shape.start()));
        let placed = shape.starting_at(start.unwrap_or(u64::MAX));
        let start = i128::from(placed.start());
        // Without bytes it is a place all the same.
        let (low, high) = placed.wide_span().unwrap_or((start, start));
        if low >= 0 && high <= i128::from(size) {
            return Ok(placed);
        }
        let (low, high, window) = (narrow(low), narrow(high), self.id());
        Err(RmaError::LayoutOutOfRange { window, target, disp, disp_unit, low, high, size })
    }
}

/// As it stands in an error.
fn narrow(position: i128) -> i64 {
    position.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}
