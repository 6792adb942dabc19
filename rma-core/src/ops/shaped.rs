//! Operations of a scope with layouts, and the gets among them whose bytes arrive packed.
#![allow(unsafe_code)]

use super::layout::{Cursor, Layout, Shape, unpack};
use super::scope::Ops;
use crate::completion::Buffer;
use crate::element::Element;
use crate::error::RmaError;
use crate::rank::Rank;
use crate::transport::Transport;
use crate::window::BOUNCE_BYTES;
use bytemuck::{cast_slice, cast_slice_mut};
use std::sync::{Mutex, PoisonError};

/// Gets of a scope that are unpacked when all answers are there.
#[derive(Default)]
pub(super) struct Packed<'scope> {
    gets: Mutex<Vec<PackedGet<'scope>>>,
}

struct PackedGet<'scope> {
    // Not a box: moving that asserts that nobody else has the address of its bytes.
    packed: Vec<u8>,
    origin: &'scope mut [u8],
    layout: Layout,
    count: u64,
    start: u64,
}

impl<'scope> Packed<'scope> {
    /// Bytes that wait here.
    fn bytes(&self) -> u64 {
        let gets = self.gets.lock().unwrap_or_else(PoisonError::into_inner);
        gets.iter().map(|get| get.packed.len() as u64).sum()
    }

    fn push(&self, get: PackedGet<'scope>) {
        self.gets.lock().unwrap_or_else(PoisonError::into_inner).push(get);
    }

    /// Puts the bytes where they belong; every answer is there.
    pub(super) fn unpack(&self) {
        let mut gets = self.gets.lock().unwrap_or_else(PoisonError::into_inner);
        for get in gets.drain(..) {
            let shape = get.layout.times(get.count).starting_at(get.start);
            unpack(&mut Cursor::new(shape), &get.packed, get.origin);
        }
    }
}

impl<'scope, T: Transport, const LAZY: bool> Ops<'scope, '_, T, LAZY> {
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
        let bytes = to.bytes().unwrap_or(0);
        if bytes > BOUNCE_BYTES.saturating_sub(self.packed.bytes()) {
            return window.get_shaped_far_cold::<LAZY>(target, disp, from, origin, to);
        }
        let Some(from) = window.place_far::<LAZY>(target, disp, from)? else { return Ok(()) };
        let mut packed = vec![0; bytes as usize];
        let buffer = Buffer { at: packed.as_mut_ptr(), len: packed.len() };
        let (layout, count, start) = (to.layout().clone(), to.count(), to.start());
        self.packed.push(PackedGet { packed, origin, layout, count, start });
        // SAFETY: the bytes are on the heap, owned by `self.packed`, where nobody looks at them
        // before `run` has drained, and which lives until `Drain` has. `Ops` is only handed out by
        // shared reference: nobody can forget or move it.
        unsafe { window.start_get_shaped_far(from, buffer, &self.drain.pending) }
    }
}
