//! The accumulate family: what an epoch allows on arrays.
//! S-G4 S-H2 S-H3 S-H11 S-H12
use super::{Access, Lock};
use crate::element::{BasicElement, Op};
use crate::error::RmaError;
use crate::execute::Placed;
use crate::operation::{Action, Operation, Sink};
use crate::rank::Rank;
use bytemuck::{cast_slice, cast_slice_mut};

pub(super) const ACCUMULATE: &str = "an accumulate";
pub(super) const GET_ACCUMULATE: &str = "a get_accumulate";

impl Access<'_> {
    /// Combines the elements from displacement `disp` of `target` on with those of `origin`, each
    /// atomically: `target[i] = target[i] op origin[i]`.
    ///
    /// `origin` is yours again on return. The result is at the target after a flush or the end of
    /// the epoch. Accumulates of this rank on one element happen in program order, whatever their
    /// lengths; towards all ranks each element is combined as a whole, against every other
    /// operation of the accumulate family with the same element type. Nothing more: two elements
    /// of one call may be seen apart. To [`Rank::NULL`] it does nothing.
    ///
    /// # Errors
    ///
    /// As [`put`](Self::put), [`RmaError::Misaligned`] if an element is not aligned to the width
    /// of its components, and [`RmaError::WrongOp`] if `E` does not have `op`, or if `op` is
    /// [`Op::NoOp`]. Nothing was combined then (MPI 4.1, section 12.3.4).
    #[inline]
    pub fn accumulate<E: BasicElement>(
        &self,
        target: Rank,
        disp: u64,
        op: Op,
        origin: &[E],
    ) -> Result<(), RmaError> {
        if let [operand] = origin
            && op != Op::NoOp
            && self.combine_one(target, disp, op, *operand).is_some()
        {
            return Ok(());
        }
        self.accumulate_array(target, disp, op, origin)
    }

    /// As [`accumulate`](Self::accumulate).
    #[inline(never)]
    fn accumulate_array<E: BasicElement>(
        &self,
        target: Rank,
        disp: u64,
        op: Op,
        origin: &[E],
    ) -> Result<(), RmaError> {
        if op != Op::NoOp
            && op.is_defined_on::<E>()
            && let Some(place) = self.near_place(target, disp, size_of_val(origin))
        {
            return self.window().combine(place, op, origin, None);
        }
        let action = Action::Combine { op, basic: Some(E::BASIC), fetches: false };
        let bytes = cast_slice(origin);
        self.window().perform(&self.operation(
            (ACCUMULATE, action),
            target,
            disp,
            bytes.len(),
            bytes,
        ))
    }

    /// The elements, if nothing stands in the way of load and store.
    fn near_place(&self, target: Rank, disp: u64, len: usize) -> Option<Placed<'_>> {
        let (part, offset) = self.near_part(target, disp)?;
        let span = part.part(usize::try_from(offset).ok()?, len)?;
        Some(Placed { target, disp, offset, span })
    }

    /// As [`accumulate`](Self::accumulate), and copies to `result` what was there before, each
    /// element as its own update found it.
    ///
    /// `origin` and `result` are yours on return, the latter filled (unchanged if the target is
    /// [`Rank::NULL`]). With [`Op::NoOp`] it is an atomic get: `origin` is ignored, and may be
    /// empty.
    ///
    /// # Errors
    ///
    /// As [`accumulate`](Self::accumulate), and [`RmaError::WrongCount`] if `origin` and `result`
    /// have different lengths (MPI 4.1, section 12.3.4).
    #[inline]
    pub fn get_accumulate<E: BasicElement>(
        &self,
        target: Rank,
        disp: u64,
        op: Op,
        origin: &[E],
        result: &mut [E],
    ) -> Result<(), RmaError> {
        if let ([operand], [place]) = (origin, &mut *result)
            && let Some(old) = self.combine_one(target, disp, op, *operand)
        {
            *place = old;
            return Ok(());
        }
        match self.get_accumulate_near(target, disp, op, origin, result)? {
            None => Ok(()),
            Some(fetch) => self.window().fetch(&fetch, Sink::new(cast_slice_mut(result))),
        }
    }

    /// Does it if nothing stands in the way of load and store; otherwise gives the operation.
    pub(super) fn get_accumulate_near<'a, E: BasicElement>(
        &self,
        target: Rank,
        disp: u64,
        op: Op,
        origin: &'a [E],
        result: &mut [E],
    ) -> Result<Option<Operation<'a>>, RmaError> {
        let (window, len) = (self.window(), size_of_val(result));
        let origin = if op == Op::NoOp { &[] } else { origin };
        if op.is_defined_on::<E>() {
            if op != Op::NoOp && origin.len() != result.len() {
                let (origin, result) = (origin.len() as u64, result.len() as u64);
                return Err(RmaError::WrongCount { window: window.id(), target, origin, result });
            }
            if let Some(place) = self.near_place(target, disp, len) {
                return window.combine(place, op, origin, Some(result)).map(|()| None);
            }
        }
        let action = Action::Combine { op, basic: Some(E::BASIC), fetches: true };
        Ok(Some(self.operation((GET_ACCUMULATE, action), target, disp, len, cast_slice(origin))))
    }
}

impl Lock<'_> {
    /// See [`Access::accumulate`].
    #[inline]
    pub fn accumulate<E: BasicElement>(
        &self,
        disp: u64,
        op: Op,
        origin: &[E],
    ) -> Result<(), RmaError> {
        self.own().accumulate(self.target(), disp, op, origin)
    }

    /// See [`Access::get_accumulate`].
    #[inline]
    pub fn get_accumulate<E: BasicElement>(
        &self,
        disp: u64,
        op: Op,
        origin: &[E],
        result: &mut [E],
    ) -> Result<(), RmaError> {
        self.own().get_accumulate(self.target(), disp, op, origin, result)
    }
}
