//! Operations that own their buffer (MPI 4.1, section 12.3.5). S-I2 S-I3 S-I4 S-I5 S-I6 S-I7 S-I8
#![allow(unsafe_code)]

use super::access::GET;
use super::{Access, Lock, LockAll};
use crate::element::{BasicElement, Element, Op};
use crate::engine::Pending;
use crate::error::RmaError;
use crate::execute::{BOUNCE_BYTES, Completion, Packed};
use crate::layout::Shape;
use crate::operation::{Action, Operation, OriginBuffer, Side, Sink};
use crate::rank::Rank;
use crate::window::Window;
use bytemuck::{cast_slice, cast_slice_mut};
use std::sync::Arc;

const REQUEST_WAIT: &str = "a request";

/// An operation under way, and the buffer that it works on.
///
/// Dropping or forgetting it is harmless: the buffer then stays with the runtime until the last
/// answer is there.
#[must_use = "the buffer comes back from `wait`"]
pub struct Request<'w, B: OriginBuffer> {
    window: &'w Window,
    target: Rank,
    /// `None` if the operation was complete at once.
    pending: Option<Arc<Pending>>,
    // `Some` until `wait` or drop, which end the value.
    buffer: Option<Vec<B::Element>>,
    /// What goes to the buffer when it is there, if that has a layout.
    packed: Option<Packed>,
}

impl<'w, B: OriginBuffer> Request<'w, B> {
    /// One that was complete at once.
    fn complete(access: &Access<'w>, target: Rank, buffer: Vec<B::Element>) -> Self {
        let window = access.window();
        Self { window, target, pending: None, buffer: Some(buffer), packed: None }
    }

    /// Starts an operation that fetches something into those bytes of `buffer`.
    fn fetch(
        access: &Access<'w>,
        operation: &Operation<'_>,
        buffer: B,
        into: Side<'_>,
    ) -> Result<Self, RmaError> {
        let (window, target) = (access.window(), operation.target);
        let mut buffer = buffer.into_vec();
        let sink = Sink { bytes: cast_slice_mut(&mut buffer), into };
        let left = window.execute(operation, sink)?;
        let mut request = Self::complete(access, target, buffer);
        let (Some(left), Some(buffer)) = (left, &mut request.buffer) else { return Ok(request) };
        let pending = Arc::default();
        request.pending = Some(Arc::clone(&pending));
        let mut completion = Completion::new(&pending, BOUNCE_BYTES);
        let sink = Sink { bytes: cast_slice_mut(buffer), into };
        // SAFETY: the elements are on the heap (the trait is sealed), owned by `request`, which
        // touches them when `pending` is done only, or gives them to it in drop. So are the bytes
        // that wait packed.
        let started = unsafe { window.begin_fetch(operation, left, sink, &mut completion) };
        request.packed = completion.take_packed();
        if let Err(error) = started {
            _ = window.drain(operation.what, target, &pending);
            return Err(error);
        }
        if operation.action == Action::Get {
            // As every accumulate is waited for by a flush of its target.
            window.far.add_get(target, &pending);
        }
        drop(completion);
        Ok(request)
    }

    pub(crate) fn put(
        access: &Access<'w>,
        target: Rank,
        disp: u64,
        buffer: B,
    ) -> Result<Self, RmaError> {
        let buffer = buffer.into_vec();
        access.put(target, disp, &buffer)?;
        Ok(Self::complete(access, target, buffer))
    }

    pub(crate) fn get(
        access: &Access<'w>,
        target: Rank,
        disp: u64,
        buffer: B,
    ) -> Result<Self, RmaError> {
        let len = size_of_val(buffer.as_elements());
        if let Some(span) = access.near(target, disp, len) {
            let mut buffer = buffer.into_vec();
            span.read(cast_slice_mut(&mut buffer));
            return Ok(Self::complete(access, target, buffer));
        }
        let get = access.operation(GET, target, disp, len, &[]);
        Self::fetch(access, &get, buffer, Side::dense(len))
    }

    pub(crate) fn accumulate(
        access: &Access<'w>,
        target: Rank,
        disp: u64,
        op: Op,
        buffer: B,
    ) -> Result<Self, RmaError>
    where
        B::Element: BasicElement,
    {
        let buffer = buffer.into_vec();
        access.accumulate(target, disp, op, &buffer)?;
        Ok(Self::complete(access, target, buffer))
    }

    pub(crate) fn get_accumulate(
        access: &Access<'w>,
        target: Rank,
        disp: u64,
        op: Op,
        origin: &[B::Element],
        result: B,
    ) -> Result<Self, RmaError>
    where
        B::Element: BasicElement,
    {
        let mut buffer = result.into_vec();
        let left = access.get_accumulate_near(target, disp, op, origin, &mut buffer)?;
        let Some(fetch) = left else { return Ok(Self::complete(access, target, buffer)) };
        let into = Side::dense(size_of_val(&buffer[..]));
        Self::fetch(access, &fetch, B::from_vec(buffer), into)
    }

    pub(crate) fn put_shaped(
        access: &Access<'w>,
        target: Rank,
        disp: u64,
        to: Shape<'_>,
        buffer: B,
        from: Shape<'_>,
    ) -> Result<Self, RmaError> {
        let buffer = buffer.into_vec();
        access.put_shaped(target, disp, to, &buffer, from)?;
        Ok(Self::complete(access, target, buffer))
    }

    pub(crate) fn get_shaped(
        access: &Access<'w>,
        target: Rank,
        disp: u64,
        from: Shape<'_>,
        buffer: B,
        to: Shape<'_>,
    ) -> Result<Self, RmaError> {
        let get = access.between(GET, target, disp, from, (&[], Side::dense(0)));
        Self::fetch(access, &get, buffer, to.into())
    }

    /// The operands are in `buffer`.
    pub(crate) fn accumulate_shaped(
        access: &Access<'w>,
        target: Rank,
        disp: u64,
        to: Shape<'_>,
        op: Op,
        buffer: B,
        from: Shape<'_>,
    ) -> Result<Self, RmaError> {
        let buffer = buffer.into_vec();
        access.accumulate_shaped(target, disp, to, op, &buffer, from)?;
        Ok(Self::complete(access, target, buffer))
    }

    pub(crate) fn get_accumulate_shaped(
        access: &Access<'w>,
        fetch: &Operation<'_>,
        result: B,
        into: Shape<'_>,
    ) -> Result<Self, RmaError> {
        Self::fetch(access, fetch, result, into.into())
    }

    /// Waits until the operation is locally complete and gives the buffer back: to be reused after
    /// a put, filled after a get.
    pub fn wait(mut self) -> (B, Result<(), RmaError>) {
        let result = match &self.pending {
            Some(pending) => self.window.drain(REQUEST_WAIT, self.target, pending),
            None => Ok(()),
        };
        let mut buffer = self.buffer.take().expect("taken here only");
        if let (Some(packed), Ok(())) = (self.packed.take(), &result) {
            packed.unpack(cast_slice_mut(&mut buffer));
        }
        (B::from_vec(buffer), result)
    }

    /// As [`wait`](Self::wait) if the operation is complete, or if waiting would fail; otherwise
    /// the request, after some progress.
    ///
    /// It may be polled for ever, for as long as the target takes part (MPI's `MPI_Test`).
    pub fn test(self) -> Result<(B, Result<(), RmaError>), Self> {
        let Some(pending) = self.pending.as_ref().filter(|pending| !pending.is_done()) else {
            return Ok(self.wait());
        };
        let engine = self.window.engine();
        // Before the last look, which sees what the target did before it left.
        let wait = self.window.wait_for(REQUEST_WAIT, self.target);
        let trouble = engine.progress_or_trouble(wait);
        if pending.is_done() || trouble.is_some() { Ok(self.wait()) } else { Err(self) }
    }
}

impl<B: OriginBuffer> Drop for Request<'_, B> {
    fn drop(&mut self) {
        if let (Some(pending), Some(buffer)) = (&self.pending, self.buffer.take()) {
            pending.keep(Box::new((buffer, self.packed.take())));
        }
    }
}

/// The operations that give a request, which MPI has in passive epochs only: methods of `$guard`.
/// They go by `$access` to the target `$at`; where that is not the guard's, callers name it.
macro_rules! requests {
    ($guard:ident, |$this:ident $(, $target:ident)?| $access:expr, $at:expr) => {
        impl<'w> $guard<'w> {
            /// As [`put`](Access::put), with a buffer that the request owns until
            /// [`wait`](Request::wait) gives it back.
            ///
            /// Completion of the request is local: the data is at the target after a flush. The
            /// request may be waited for after the epoch, and dropped or forgotten without harm
            /// (MPI 4.1, section 12.3.5).
            pub fn rput<B: OriginBuffer>(
                &self,
                $($target: Rank,)?
                disp: u64,
                origin: B,
            ) -> Result<Request<'w, B>, RmaError> {
                let $this = self;
                Request::put(&$access, $at, disp, origin)
            }

            /// As [`get`](Access::get), into a buffer that the request owns until
            /// [`wait`](Request::wait) gives it back, filled.
            pub fn rget<B: OriginBuffer>(
                &self,
                $($target: Rank,)?
                disp: u64,
                origin: B,
            ) -> Result<Request<'w, B>, RmaError> {
                let $this = self;
                Request::get(&$access, $at, disp, origin)
            }

            /// As [`accumulate`](Access::accumulate), with a buffer that the request owns until
            /// [`wait`](Request::wait) gives it back.
            ///
            /// Completion of the request is local: the result is at the target after a flush (MPI
            /// 4.1, section 12.3.5).
            pub fn raccumulate<B: OriginBuffer<Element: BasicElement>>(
                &self,
                $($target: Rank,)?
                disp: u64,
                op: Op,
                origin: B,
            ) -> Result<Request<'w, B>, RmaError> {
                let $this = self;
                Request::accumulate(&$access, $at, disp, op, origin)
            }

            /// As [`get_accumulate`](Access::get_accumulate), into a buffer that the request owns
            /// until [`wait`](Request::wait) gives it back, filled. `origin` is yours again on
            /// return.
            pub fn rget_accumulate<B: OriginBuffer<Element: BasicElement>>(
                &self,
                $($target: Rank,)?
                disp: u64,
                op: Op,
                origin: &[B::Element],
                result: B,
            ) -> Result<Request<'w, B>, RmaError> {
                let $this = self;
                Request::get_accumulate(&$access, $at, disp, op, origin, result)
            }

            /// As [`put_shaped`](Access::put_shaped), with a buffer that the request owns until
            /// [`wait`](Request::wait) gives it back. The layouts are yours again on return.
            ///
            /// Completion of the request is local: the data is at the target after a flush (MPI
            /// 4.1, section 12.3.5).
            pub fn rput_shaped<'l, B: OriginBuffer>(
                &self,
                $($target: Rank,)?
                disp: u64,
                to: impl Into<Shape<'l>>,
                origin: B,
                from: impl Into<Shape<'l>>,
            ) -> Result<Request<'w, B>, RmaError> {
                let $this = self;
                Request::put_shaped(&$access, $at, disp, to.into(), origin, from.into())
            }

            /// As [`get_shaped`](Access::get_shaped), into a buffer that the request owns until
            /// [`wait`](Request::wait) gives it back, filled. The layouts are yours again on
            /// return.
            ///
            /// Bytes that do not come by load wait packed, up to a mebibyte; a larger get is
            /// complete when it returns (MPI 4.1, section 12.3.5).
            pub fn rget_shaped<'l, B: OriginBuffer>(
                &self,
                $($target: Rank,)?
                disp: u64,
                from: impl Into<Shape<'l>>,
                origin: B,
                to: impl Into<Shape<'l>>,
            ) -> Result<Request<'w, B>, RmaError> {
                let $this = self;
                Request::get_shaped(&$access, $at, disp, from.into(), origin, to.into())
            }

            /// As [`accumulate_shaped`](Access::accumulate_shaped), with a buffer that the request
            /// owns until [`wait`](Request::wait) gives it back. The layouts are yours again on
            /// return.
            ///
            /// Completion of the request is local: the result is at the target after a flush (MPI
            /// 4.1, section 12.3.5).
            pub fn raccumulate_shaped<'l, B: OriginBuffer>(
                &self,
                $($target: Rank,)?
                disp: u64,
                to: impl Into<Shape<'l>>,
                op: Op,
                origin: B,
                from: impl Into<Shape<'l>>,
            ) -> Result<Request<'w, B>, RmaError> {
                let $this = self;
                let (to, from) = (to.into(), from.into());
                Request::accumulate_shaped(&$access, $at, disp, to, op, origin, from)
            }

            /// As [`get_accumulate_shaped`](Access::get_accumulate_shaped), into a buffer that the
            /// request owns until [`wait`](Request::wait) gives it back, filled. `origin` and the
            /// layouts are yours again on return. What waits packed is as for
            /// [`rget_shaped`](Self::rget_shaped).
            pub fn rget_accumulate_shaped<'l, E: Element, B: OriginBuffer>(
                &self,
                $($target: Rank,)?
                disp: u64,
                at: impl Into<Shape<'l>>,
                op: Op,
                (origin, from): (&[E], impl Into<Shape<'l>>),
                (result, into): (B, impl Into<Shape<'l>>),
            ) -> Result<Request<'w, B>, RmaError> {
                let $this = self;
                let (access, from) = (&$access, (cast_slice(origin), from.into()));
                let fetch = access.get_accumulate_operation($at, disp, at.into(), op, from);
                Request::get_accumulate_shaped(access, &fetch, result, into.into())
            }
        }
    };
}

requests!(Lock, |guard| guard.own(), guard.target());
requests!(LockAll, |guard, target| **guard, target);
