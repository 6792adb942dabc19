//! Operations that own their buffer. S-I2 S-I3 S-I4 S-I5 S-I6 S-I7 S-I8
#![allow(unsafe_code)]

use crate::completion::{Buffer, Pending};
use crate::element::{BasicElement, Element};
use crate::error::RmaError;
use crate::ops::Op;
use crate::rank::Rank;
use crate::transport::Transport;
use crate::window::Window;
use bytemuck::{cast_slice, cast_slice_mut};
use std::sync::Arc;

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
pub struct Request<'w, T: Transport, B: OriginBuffer> {
    window: &'w Window<T>,
    target: Rank,
    /// `None` if the operation was complete at once.
    pending: Option<Arc<Pending>>,
    // `Some` until `wait` or drop, which end the value.
    buffer: Option<Vec<B::Element>>,
}

impl<'w, T: Transport, B: OriginBuffer> Request<'w, T, B> {
    pub(crate) fn put<const LAZY: bool>(
        window: &'w Window<T>,
        target: Rank,
        disp: u64,
        buffer: B,
    ) -> Result<Self, RmaError> {
        let buffer = buffer.into_vec();
        let origin = cast_slice(&buffer);
        match window.near::<LAZY>(target, disp, origin.len())? {
            Some(span) => span.write(origin),
            None => window.put_far_cold::<LAZY>(target, disp, origin)?,
        }
        Ok(Self { window, target, pending: None, buffer: Some(buffer) })
    }

    pub(crate) fn get<const LAZY: bool>(
        window: &'w Window<T>,
        target: Rank,
        disp: u64,
        buffer: B,
    ) -> Result<Self, RmaError> {
        let mut buffer = buffer.into_vec();
        let origin = cast_slice_mut(&mut buffer);
        if let Some(span) = window.near::<LAZY>(target, disp, origin.len())? {
            span.read(origin);
            return Ok(Self { window, target, pending: None, buffer: Some(buffer) });
        }
        let pending = Arc::default();
        let at = Buffer { at: origin.as_mut_ptr(), len: origin.len() };
        // SAFETY: the elements are on the heap (the trait is sealed), owned by `buffer`, which is
        // from here on only touched when `pending` is done, or given to it by drop. If starting
        // fails, the drain below takes the address back before `buffer` dies.
        let started = unsafe { window.start_get_far_cold::<LAZY>(target, disp, at, &pending) };
        if let Err(error) = started {
            _ = window.drain("a get", target, &pending);
            return Err(error);
        }
        window.far.add_get(target, &pending);
        let pending = Some(pending);
        Ok(Self { window, target, pending, buffer: Some(buffer) })
    }

    pub(crate) fn accumulate<const LAZY: bool>(
        window: &'w Window<T>,
        target: Rank,
        disp: u64,
        op: Op,
        buffer: B,
    ) -> Result<Self, RmaError>
    where
        B::Element: BasicElement,
    {
        let buffer = buffer.into_vec();
        window.accumulate::<LAZY, B::Element>(target, disp, op, &buffer)?;
        Ok(Self { window, target, pending: None, buffer: Some(buffer) })
    }

    pub(crate) fn get_accumulate<const LAZY: bool>(
        window: &'w Window<T>,
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
        let far = window.get_accumulate_near::<LAZY, B::Element>(
            target,
            disp,
            op,
            origin,
            &mut buffer,
        )?;
        let Some(update) = far else {
            return Ok(Self { window, target, pending: None, buffer: Some(buffer) });
        };
        let bytes: &mut [u8] = cast_slice_mut(&mut buffer);
        let pending = Arc::default();
        let at = Buffer { at: bytes.as_mut_ptr(), len: bytes.len() };
        // SAFETY: as in `get`.
        let started = unsafe { window.start_get_accumulate_cold::<LAZY>(update, at, &pending) };
        if let Err(error) = started {
            _ = window.drain("a get_accumulate", target, &pending);
            return Err(error);
        }
        // A flush of the target waits for it, as for every accumulate.
        Ok(Self { window, target, pending: Some(pending), buffer: Some(buffer) })
    }

    /// Waits until the operation is locally complete and gives the buffer back: to be reused after
    /// a put, filled after a get.
    pub fn wait(mut self) -> (B, Result<(), RmaError>) {
        let result = match &self.pending {
            Some(pending) => self.window.drain("a request", self.target, pending),
            None => Ok(()),
        };
        let buffer = self.buffer.take().expect("taken here only");
        (B::from_vec(buffer), result)
    }

    /// As [`wait`](Self::wait) if the operation is complete; otherwise the request, after some
    /// progress.
    pub fn test(self) -> Result<(B, Result<(), RmaError>), Self> {
        if let Some(pending) = &self.pending {
            self.window.process().progress();
            if !pending.is_done() {
                return Err(self);
            }
        }
        Ok(self.wait())
    }
}

impl<T: Transport, B: OriginBuffer> Drop for Request<'_, T, B> {
    fn drop(&mut self) {
        if let (Some(pending), Some(buffer)) = (&self.pending, self.buffer.take()) {
            pending.keep(Box::new(buffer));
        }
    }
}
