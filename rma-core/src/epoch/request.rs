//! Operations that own their buffer. S-I2 S-I3 S-I4 S-I5 S-I6 S-I7 S-I8
#![allow(unsafe_code)]

use super::Access;
use super::access::GET;
use crate::element::{BasicElement, Op};
use crate::engine::Pending;
use crate::error::RmaError;
use crate::execute::{BOUNCE_BYTES, Completion, Packed};
use crate::layout::Shape;
use crate::operation::{Action, Operation, OriginBuffer, Side, Sink};
use crate::rank::Rank;
use crate::window::Window;
use bytemuck::cast_slice_mut;
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
