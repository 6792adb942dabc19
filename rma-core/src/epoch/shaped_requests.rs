//! Requests with layouts (MPI 4.1, section 12.3.5).
use super::{Lock, LockAll, Request};
use crate::element::{Element, Op};
use crate::error::RmaError;
use crate::layout::Shape;
use crate::operation::OriginBuffer;
use crate::rank::Rank;
use bytemuck::cast_slice;

impl<'w> LockAll<'w> {
    /// As [`put_shaped`](crate::Access::put_shaped), with a buffer that the request owns until
    /// [`wait`](Request::wait) gives it back. The layouts are yours again on return.
    ///
    /// Completion of the request is local: the data is at the target after a flush (MPI 4.1,
    /// section 12.3.5).
    pub fn rput_shaped<'l, B: OriginBuffer>(
        &self,
        target: Rank,
        disp: u64,
        to: impl Into<Shape<'l>>,
        origin: B,
        from: impl Into<Shape<'l>>,
    ) -> Result<Request<'w, B>, RmaError> {
        let (to, from) = (to.into(), from.into());
        Request::put_shaped(self, target, disp, to, origin, from)
    }

    /// As [`get_shaped`](crate::Access::get_shaped), into a buffer that the request owns until
    /// [`wait`](Request::wait) gives it back, filled. The layouts are yours again on return.
    ///
    /// Bytes that do not come by load wait packed, up to a mebibyte; a larger get is complete when
    /// it returns (MPI 4.1, section 12.3.5).
    pub fn rget_shaped<'l, B: OriginBuffer>(
        &self,
        target: Rank,
        disp: u64,
        from: impl Into<Shape<'l>>,
        origin: B,
        to: impl Into<Shape<'l>>,
    ) -> Result<Request<'w, B>, RmaError> {
        let (from, to) = (from.into(), to.into());
        Request::get_shaped(self, target, disp, from, origin, to)
    }

    /// As [`accumulate_shaped`](crate::Access::accumulate_shaped), with a buffer that the request
    /// owns until [`wait`](Request::wait) gives it back. The layouts are yours again on return.
    ///
    /// Completion of the request is local: the result is at the target after a flush (MPI 4.1,
    /// section 12.3.5).
    pub fn raccumulate_shaped<'l, B: OriginBuffer>(
        &self,
        target: Rank,
        disp: u64,
        to: impl Into<Shape<'l>>,
        op: Op,
        origin: B,
        from: impl Into<Shape<'l>>,
    ) -> Result<Request<'w, B>, RmaError> {
        Request::accumulate_shaped(self, target, disp, to.into(), op, origin, from.into())
    }

    /// As [`get_accumulate_shaped`](crate::Access::get_accumulate_shaped), into a buffer that the
    /// request owns until [`wait`](Request::wait) gives it back, filled. `origin` and the layouts
    /// are yours again on return. What waits packed is as for [`rget_shaped`](Self::rget_shaped).
    pub fn rget_accumulate_shaped<'l, E: Element, B: OriginBuffer>(
        &self,
        target: Rank,
        disp: u64,
        at: impl Into<Shape<'l>>,
        op: Op,
        (origin, from): (&[E], impl Into<Shape<'l>>),
        (result, into): (B, impl Into<Shape<'l>>),
    ) -> Result<Request<'w, B>, RmaError> {
        let origin = (cast_slice(origin), from.into());
        let fetch = self.get_accumulate_operation(target, disp, at.into(), op, origin);
        Request::get_accumulate_shaped(self, &fetch, result, into.into())
    }
}

impl<'w> Lock<'w> {
    /// See [`LockAll::rput_shaped`].
    pub fn rput_shaped<'l, B: OriginBuffer>(
        &self,
        disp: u64,
        to: impl Into<Shape<'l>>,
        origin: B,
        from: impl Into<Shape<'l>>,
    ) -> Result<Request<'w, B>, RmaError> {
        Request::put_shaped(&self.own(), self.target(), disp, to.into(), origin, from.into())
    }

    /// See [`LockAll::rget_shaped`].
    pub fn rget_shaped<'l, B: OriginBuffer>(
        &self,
        disp: u64,
        from: impl Into<Shape<'l>>,
        origin: B,
        to: impl Into<Shape<'l>>,
    ) -> Result<Request<'w, B>, RmaError> {
        Request::get_shaped(&self.own(), self.target(), disp, from.into(), origin, to.into())
    }

    /// See [`LockAll::raccumulate_shaped`].
    pub fn raccumulate_shaped<'l, B: OriginBuffer>(
        &self,
        disp: u64,
        to: impl Into<Shape<'l>>,
        op: Op,
        origin: B,
        from: impl Into<Shape<'l>>,
    ) -> Result<Request<'w, B>, RmaError> {
        let target = self.target();
        Request::accumulate_shaped(&self.own(), target, disp, to.into(), op, origin, from.into())
    }

    /// See [`LockAll::rget_accumulate_shaped`].
    pub fn rget_accumulate_shaped<'l, E: Element, B: OriginBuffer>(
        &self,
        disp: u64,
        at: impl Into<Shape<'l>>,
        op: Op,
        (origin, from): (&[E], impl Into<Shape<'l>>),
        (result, into): (B, impl Into<Shape<'l>>),
    ) -> Result<Request<'w, B>, RmaError> {
        let origin = (cast_slice(origin), from.into());
        let target = self.target();
        let fetch = self.own().get_accumulate_operation(target, disp, at.into(), op, origin);
        Request::get_accumulate_shaped(&self.own(), &fetch, result, into.into())
    }
}
