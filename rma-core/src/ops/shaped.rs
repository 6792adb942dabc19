//! Operations of a scope with layouts, and results of scopes and requests that arrive packed.
#![allow(unsafe_code)]

use super::layout::{Cursor, Layout, Shape, unpack};
use super::op::Op;
use super::scope::Ops;
use crate::completion::Buffer;
use crate::element::Element;
use crate::error::RmaError;
use crate::rank::Rank;
use crate::window::{BOUNCE_BYTES, ShapedUpdate};
use bytemuck::{cast_slice, cast_slice_mut};
use std::sync::{Mutex, PoisonError};

/// Gets of a scope that are unpacked when all answers are there.
#[derive(Default)]
pub(super) struct Packed<'scope> {
    gets: Mutex<Vec<PackedGet<'scope>>>,
}

struct PackedGet<'scope> {
    packed: PackedBytes,
    origin: &'scope mut [u8],
}

/// The bytes of a layout, packed, and where they belong.
pub(super) struct PackedBytes {
    // Not a box: moving that asserts that nobody else has the address of its bytes.
    bytes: Vec<u8>,
    layout: Layout,
    count: u64,
    start: u64,
}

impl PackedBytes {
    /// Room for the bytes of a shape, and its address. Nobody looks at them before
    /// [`unpack`](Self::unpack).
    pub(super) fn of(shape: Shape<'_>) -> (Self, Buffer) {
        let mut bytes = vec![0; shape.bytes().unwrap_or(0) as usize];
        let buffer = Buffer { at: bytes.as_mut_ptr(), len: bytes.len() };
        let (layout, count, start) = (shape.layout().clone(), shape.count(), shape.start());
        (Self { bytes, layout, count, start }, buffer)
    }

    /// Puts the bytes where they belong; they are all there.
    pub(super) fn unpack(&self, origin: &mut [u8]) {
        let shape = self.layout.times(self.count).starting_at(self.start);
        unpack(&mut Cursor::new(shape), &self.bytes, origin);
    }
}

impl<'scope> Packed<'scope> {
    /// Bytes that wait here.
    fn bytes(&self) -> u64 {
        let gets = self.gets.lock().unwrap_or_else(PoisonError::into_inner);
        gets.iter().map(|get| get.packed.bytes.len() as u64).sum()
    }

    /// Room for the bytes of a shape in `origin`. They are on the heap, owned by this, where nobody
    /// looks at them before [`unpack`](Self::unpack).
    fn push(&self, origin: &'scope mut [u8], shape: Shape<'_>) -> Buffer {
        let (packed, buffer) = PackedBytes::of(shape);
        let get = PackedGet { packed, origin };
        self.gets.lock().unwrap_or_else(PoisonError::into_inner).push(get);
        buffer
    }

    /// Whether the bytes of a shape may wait here too.
    fn has_room(&self, shape: Shape<'_>) -> bool {
        shape.bytes().unwrap_or(0) <= BOUNCE_BYTES.saturating_sub(self.bytes())
    }

    /// Puts the bytes where they belong; every answer is there.
    pub(super) fn unpack(&self) {
        let mut gets = self.gets.lock().unwrap_or_else(PoisonError::into_inner);
        for get in gets.drain(..) {
            get.packed.unpack(get.origin);
        }
    }
}

impl<'scope, const LAZY: bool> Ops<'scope, '_, LAZY> {
    /// Starts a put with layouts; `origin` is borrowed until the scope ends, the layouts are yours
    /// again on return. Errors as [`Access::put_shaped`](crate::Access::put_shaped).
    pub fn put_shaped<'l, E: Element>(
        &'scope self,
        target: Rank,
        disp: u64,
        to: impl Into<Shape<'l>>,
        origin: &'scope [E],
        from: impl Into<Shape<'l>>,
    ) -> Result<(), RmaError> {
        self.check(target)?;
        let (to, from) = (to.into(), from.into());
        self.drain.window.put_shaped::<LAZY>(target, disp, to, cast_slice(origin), from)
    }

    /// Starts a get with layouts; `origin` is mutably borrowed until the scope ends, and filled
    /// then; the layouts are yours again on return. Errors as
    /// [`Access::get_shaped`](crate::Access::get_shaped).
    ///
    /// Bytes that do not come by load wait packed until the scope ends, up to a mebibyte for each
    /// scope; a get beyond that is complete when it returns.
    pub fn get_shaped<'l, E: Element>(
        &'scope self,
        target: Rank,
        disp: u64,
        from: impl Into<Shape<'l>>,
        origin: &'scope mut [E],
        to: impl Into<Shape<'l>>,
    ) -> Result<(), RmaError> {
        self.check(target)?;
        let (from, to): (Shape<'_>, Shape<'_>) = (from.into(), to.into());
        let (window, origin) = (self.drain.window, cast_slice_mut(origin));
        if window.get_shaped_near::<LAZY>(target, disp, from, origin, to)? {
            return Ok(());
        }
        if !self.packed.has_room(to) {
            return window.get_shaped_far_cold::<LAZY>(target, disp, from, origin, to);
        }
        let Some(from) = window.place_far::<LAZY>(target, disp, from)? else { return Ok(()) };
        let buffer = self.packed.push(origin, to);
        // SAFETY: the bytes are on the heap, owned by `self.packed`, where nobody looks at them
        // before `run` has drained, and which lives until `Drain` has. `Ops` is only handed out by
        // shared reference: nobody can forget or move it.
        unsafe { window.start_get_shaped_far(from, buffer, &self.drain.pending) }
    }

    /// Combines elements of `origin` into the target, with layouts; `origin` is borrowed until the
    /// scope ends, the layouts are yours again on return. Operations of the scope on one element
    /// happen in the order of their calls. Errors as
    /// [`Access::accumulate_shaped`](crate::Access::accumulate_shaped).
    pub fn accumulate_shaped<'l, E: Element>(
        &'scope self,
        target: Rank,
        disp: u64,
        to: impl Into<Shape<'l>>,
        op: Op,
        origin: &'scope [E],
        from: impl Into<Shape<'l>>,
    ) -> Result<(), RmaError> {
        self.check(target)?;
        let (there, from, origin) = (to.into(), from.into(), cast_slice(origin));
        let update = ShapedUpdate { target, disp, there, op, origin, from };
        self.drain.window.accumulate_shaped::<LAZY>(update)
    }

    /// As [`accumulate_shaped`](Self::accumulate_shaped); the buffer of `result` is mutably
    /// borrowed until the scope ends, and holds then, where its layout says, what was there
    /// before. What waits packed is as for [`get_shaped`](Self::get_shaped). Errors as
    /// [`Access::get_accumulate_shaped`](crate::Access::get_accumulate_shaped).
    pub fn get_accumulate_shaped<'l, E: Element, F: Element>(
        &'scope self,
        target: Rank,
        disp: u64,
        at: impl Into<Shape<'l>>,
        op: Op,
        (origin, from): (&'scope [E], impl Into<Shape<'l>>),
        (result, into): (&'scope mut [F], impl Into<Shape<'l>>),
    ) -> Result<(), RmaError> {
        self.check(target)?;
        let (there, from, into) = (at.into(), from.into(), into.into());
        let (window, origin, result) =
            (self.drain.window, cast_slice(origin), cast_slice_mut(result));
        let update = ShapedUpdate { target, disp, there, op, origin, from };
        let far = window.get_accumulate_shaped_near::<LAZY>(update, result, into)?;
        let Some(far) = far else { return Ok(()) };
        if !self.packed.has_room(into) {
            return window.get_accumulate_shaped_far_cold(far, result, into);
        }
        let buffer = self.packed.push(result, into);
        // SAFETY: as in `get_shaped`.
        unsafe { window.start_get_accumulate_shaped(far, buffer, &self.drain.pending) }
    }
}
