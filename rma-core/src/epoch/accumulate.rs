//! The accumulate family: what an epoch allows on arrays, and its requests.
//! S-G4 S-H2 S-H3 S-H11 S-H12
use super::{Access, Lock, LockAll};
use crate::element::BasicElement;
use crate::error::RmaError;
use crate::ops::{Op, OriginBuffer, Request};
use crate::rank::Rank;

impl<const LAZY: bool> Access<'_, LAZY> {
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
            && self.window().combine_one_hot::<LAZY, E>(target, disp, op, *operand).is_some()
        {
            return Ok(());
        }
        self.window().accumulate::<LAZY, E>(target, disp, op, origin)
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
            && let Some(old) = self.window().combine_one_hot::<LAZY, E>(target, disp, op, *operand)
        {
            *place = old;
            return Ok(());
        }
        self.window().get_accumulate::<LAZY, E>(target, disp, op, origin, result)
    }
}

impl<'w> LockAll<'w> {
    /// As [`accumulate`](Access::accumulate), with a buffer that the request owns until
    /// [`wait`](Request::wait) gives it back.
    ///
    /// Completion of the request is local: the result is at the target after a flush (MPI 4.1,
    /// section 12.3.5).
    pub fn raccumulate<B>(
        &self,
        target: Rank,
        disp: u64,
        op: Op,
        origin: B,
    ) -> Result<Request<'w, B>, RmaError>
    where
        B: OriginBuffer<Element: BasicElement>,
    {
        Request::accumulate(self.window(), target, disp, op, origin)
    }

    /// As [`get_accumulate`](Access::get_accumulate), into a buffer that the request owns until
    /// [`wait`](Request::wait) gives it back, filled. `origin` is yours again on return.
    pub fn rget_accumulate<B>(
        &self,
        target: Rank,
        disp: u64,
        op: Op,
        origin: &[B::Element],
        result: B,
    ) -> Result<Request<'w, B>, RmaError>
    where
        B: OriginBuffer<Element: BasicElement>,
    {
        Request::get_accumulate(self.window(), target, disp, op, origin, result)
    }
}

impl<'w> Lock<'w> {
    /// See [`Access::accumulate`].
    #[inline]
    pub fn accumulate<E: BasicElement>(
        &self,
        disp: u64,
        op: Op,
        origin: &[E],
    ) -> Result<(), RmaError> {
        self.access().accumulate(self.target(), disp, op, origin)
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
        self.access().get_accumulate(self.target(), disp, op, origin, result)
    }

    /// See [`LockAll::raccumulate`].
    pub fn raccumulate<B>(&self, disp: u64, op: Op, origin: B) -> Result<Request<'w, B>, RmaError>
    where
        B: OriginBuffer<Element: BasicElement>,
    {
        Request::accumulate(self.access().window(), self.target(), disp, op, origin)
    }

    /// See [`LockAll::rget_accumulate`].
    pub fn rget_accumulate<B>(
        &self,
        disp: u64,
        op: Op,
        origin: &[B::Element],
        result: B,
    ) -> Result<Request<'w, B>, RmaError>
    where
        B: OriginBuffer<Element: BasicElement>,
    {
        let (window, target) = (self.access().window(), self.target());
        Request::get_accumulate(window, target, disp, op, origin, result)
    }
}
