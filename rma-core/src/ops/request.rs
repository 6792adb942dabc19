//! Operations that own their buffer. S-I2 S-I3 S-I4 S-I5 S-I6 S-I7 S-I8
#![allow(unsafe_code)]

use super::layout::Shape;
use super::shaped::PackedBytes;
use crate::completion::{Buffer, Pending};
use crate::element::{BasicElement, Element};
use crate::error::RmaError;
use crate::ops::Op;
use crate::rank::Rank;
use crate::window::{BOUNCE_BYTES, ShapedUpdate, Window};
use bytemuck::{cast_slice, cast_slice_mut};
use std::sync::Arc;

const REQUEST_WAIT: &str = "a request";

mod sealed {
    pub trait Sealed {}
}

/// A buffer on the heap: its elements stay where they are when the value moves.
///
/// Implemented for `Vec<E>` and `Box<[E]>`.
pub trait OriginBuffer: Send + 'static + sealed::Sealed {
    /// What it holds.
    type Element: Element;
    // Not a box while an operation is under way: moving a box asserts that nobody else has its
    // address.
    #[doc(hidden)]
    fn into_vec(self) -> Vec<Self::Element>;
    #[doc(hidden)]
    fn from_vec(vec: Vec<Self::Element>) -> Self;
    #[doc(hidden)]
    fn as_elements(&self) -> &[Self::Element];
}

impl<E: Element> sealed::Sealed for Vec<E> {}
impl<E: Element> OriginBuffer for Vec<E> {
    type Element = E;
    fn into_vec(self) -> Vec<E> {
        self
    }
    fn from_vec(vec: Vec<E>) -> Self {
        vec
    }
    fn as_elements(&self) -> &[E] {
        self
    }
}

impl<E: Element> sealed::Sealed for Box<[E]> {}
impl<E: Element> OriginBuffer for Box<[E]> {
    type Element = E;
    fn into_vec(self) -> Vec<E> {
        self.into()
    }
    fn from_vec(vec: Vec<E>) -> Self {
        vec.into()
    }
    fn as_elements(&self) -> &[E] {
        self
    }
}

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
    packed: Option<PackedBytes>,
}

impl<'w, B: OriginBuffer> Request<'w, B> {
    /// One that was complete at once.
    fn complete(window: &'w Window, target: Rank, buffer: Vec<B::Element>) -> Self {
        Self { window, target, pending: None, buffer: Some(buffer), packed: None }
    }

    /// One that is under way; if it could not be started, nobody touches what it owns any more.
    fn under_way(
        self,
        what: &'static str,
        started: Result<(), RmaError>,
    ) -> Result<Self, RmaError> {
        let Err(error) = started else { return Ok(self) };
        if let Some(pending) = &self.pending {
            _ = self.window.drain(what, self.target, pending);
        }
        Err(error)
    }

    pub(crate) fn put(
        window: &'w Window,
        target: Rank,
        disp: u64,
        buffer: B,
    ) -> Result<Self, RmaError> {
        let buffer = buffer.into_vec();
        let origin = cast_slice(&buffer);
        match window.near::<false>(target, disp, origin.len())? {
            Some(span) => span.write(origin),
            None => window.put_far_cold::<false>(target, disp, origin)?,
        }
        Ok(Self::complete(window, target, buffer))
    }

    pub(crate) fn get(
        window: &'w Window,
        target: Rank,
        disp: u64,
        buffer: B,
    ) -> Result<Self, RmaError> {
        let mut buffer = buffer.into_vec();
        let origin = cast_slice_mut(&mut buffer);
        if let Some(span) = window.near::<false>(target, disp, origin.len())? {
            span.read(origin);
            return Ok(Self::complete(window, target, buffer));
        }
        let pending = Arc::default();
        let at = Buffer { at: origin.as_mut_ptr(), len: origin.len() };
        // SAFETY: the elements are on the heap (the trait is sealed), owned by `buffer`, which is
        // from here on only touched when `pending` is done, or given to it by drop. If starting
        // fails, `under_way` takes the address back before `buffer` dies.
        let started = unsafe { window.start_get_far_cold::<false>(target, disp, at, &pending) };
        let started = started.map(|()| window.far.add_get(target, &pending));
        Self { window, target, pending: Some(pending), buffer: Some(buffer), packed: None }
            .under_way("a get", started)
    }

    pub(crate) fn accumulate(
        window: &'w Window,
        target: Rank,
        disp: u64,
        op: Op,
        buffer: B,
    ) -> Result<Self, RmaError>
    where
        B::Element: BasicElement,
    {
        let buffer = buffer.into_vec();
        window.accumulate::<false, B::Element>(target, disp, op, &buffer)?;
        Ok(Self::complete(window, target, buffer))
    }

    pub(crate) fn get_accumulate(
        window: &'w Window,
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
        let far = window.get_accumulate_near::<false, B::Element>(
            target,
            disp,
            op,
            origin,
            &mut buffer,
        )?;
        let Some(update) = far else {
            return Ok(Self::complete(window, target, buffer));
        };
        let bytes: &mut [u8] = cast_slice_mut(&mut buffer);
        let pending = Arc::default();
        let at = Buffer { at: bytes.as_mut_ptr(), len: bytes.len() };
        // SAFETY: as in `get`.
        let started = unsafe { window.start_get_accumulate_cold::<false>(update, at, &pending) };
        // A flush of the target waits for it, as for every accumulate.
        Self { window, target, pending: Some(pending), buffer: Some(buffer), packed: None }
            .under_way("a get_accumulate", started)
    }

    pub(crate) fn put_shaped(
        window: &'w Window,
        target: Rank,
        disp: u64,
        to: Shape<'_>,
        buffer: B,
        from: Shape<'_>,
    ) -> Result<Self, RmaError> {
        let buffer = buffer.into_vec();
        window.put_shaped::<false>(target, disp, to, cast_slice(&buffer), from)?;
        Ok(Self::complete(window, target, buffer))
    }

    pub(crate) fn get_shaped(
        window: &'w Window,
        target: Rank,
        disp: u64,
        from: Shape<'_>,
        buffer: B,
        to: Shape<'_>,
    ) -> Result<Self, RmaError> {
        let mut buffer = buffer.into_vec();
        let origin = cast_slice_mut(&mut buffer);
        if window.get_shaped_near::<false>(target, disp, from, origin, to)? {
            return Ok(Self::complete(window, target, buffer));
        }
        if to.bytes().is_none_or(|bytes| bytes > BOUNCE_BYTES) {
            window.get_shaped_far_cold::<false>(target, disp, from, origin, to)?;
            return Ok(Self::complete(window, target, buffer));
        }
        let Some(from) = window.place_far::<false>(target, disp, from)? else {
            return Ok(Self::complete(window, target, buffer));
        };
        let pending = Arc::default();
        let (packed, at) = PackedBytes::of(to);
        // SAFETY: the bytes are on the heap, owned by `packed`, which is from here on only touched
        // when `pending` is done, or given to it by drop. If starting fails, `under_way` takes the
        // address back before `packed` dies.
        let started = unsafe { window.start_get_shaped_far(from, at, &pending) };
        let started = started.map(|()| window.far.add_get(target, &pending));
        let (pending, packed) = (Some(pending), Some(packed));
        Self { window, target, pending, buffer: Some(buffer), packed }.under_way("a get", started)
    }

    /// The operands are in `buffer`.
    pub(crate) fn accumulate_shaped(
        window: &'w Window,
        update: ShapedUpdate<'_>,
        buffer: B,
    ) -> Result<Self, RmaError> {
        let buffer = buffer.into_vec();
        let update = ShapedUpdate { origin: cast_slice(&buffer), ..update };
        window.accumulate_shaped::<false>(update)?;
        let target = update.target;
        Ok(Self::complete(window, target, buffer))
    }

    pub(crate) fn get_accumulate_shaped(
        window: &'w Window,
        update: ShapedUpdate<'_>,
        result: B,
        into: Shape<'_>,
    ) -> Result<Self, RmaError> {
        let (target, mut buffer) = (update.target, result.into_vec());
        let bytes = cast_slice_mut(&mut buffer);
        let far = window.get_accumulate_shaped_near::<false>(update, bytes, into)?;
        let Some(far) = far else {
            return Ok(Self::complete(window, target, buffer));
        };
        if into.bytes().is_none_or(|bytes| bytes > BOUNCE_BYTES) {
            window.get_accumulate_shaped_far_cold(far, bytes, into)?;
            return Ok(Self::complete(window, target, buffer));
        }
        let pending = Arc::default();
        let (packed, at) = PackedBytes::of(into);
        // SAFETY: as in `get_shaped`.
        let started = unsafe { window.start_get_accumulate_shaped(far, at, &pending) };
        // A flush of the target waits for it, as for every accumulate.
        let (pending, packed) = (Some(pending), Some(packed));
        Self { window, target, pending, buffer: Some(buffer), packed }
            .under_way("a get_accumulate", started)
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
        let process = self.window.process();
        // Before the last look, which sees what the target did before it left.
        let wait = self.window.wait_for(REQUEST_WAIT, self.target);
        let trouble = process.progress_or_trouble(wait);
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
