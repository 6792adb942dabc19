//! Operations that overlap, in a closure scope (the shape of `std::thread::scope`).
#![allow(unsafe_code)]

use super::Access;
use super::access::GET;
use crate::element::{BasicElement, Element, Op};
use crate::error::RmaError;
use crate::execute::{BOUNCE_BYTES, Completion, Packed};
use crate::layout::Shape;
use crate::operation::{Operation, Side, Sink};
use crate::rank::Rank;
use crate::window::Drain;
use bytemuck::{cast_slice, cast_slice_mut};
use core::marker::PhantomData;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Issues operations that overlap; from [`Access::ops`](crate::Access::ops).
///
/// Every buffer handed in stays borrowed for `'scope`, and the scope does not end before the
/// runtime has let go of all of them: forgetting any value inside the closure changes nothing.
pub struct Ops<'scope, 'env: 'scope> {
    // First: waits before what follows is dropped.
    drain: Drain<'env>,
    /// What is unpacked when all answers are there.
    packed: Mutex<Vec<(Packed, &'scope mut [u8])>>,
    access: Access<'env>,
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

impl<'env> Ops<'_, 'env> {
    /// Runs `scope` with operations to the targets of an epoch.
    pub(super) fn run<F, R>(access: Access<'env>, scope: F) -> Result<R, RmaError>
    where
        F: for<'scope> FnOnce(&'scope Ops<'scope, 'env>) -> R,
    {
        let drain = Drain::new(access.window(), "a scope of operations", Rank::NULL);
        let packed = Mutex::default();
        let ops = Ops { drain, packed, access, scope: PhantomData, env: PhantomData };
        let result = scope(&ops);
        ops.drain.finish()?;
        ops.packed().drain(..).for_each(|(packed, sink)| packed.unpack(sink));
        Ok(result)
    }
}

impl<'scope, 'env> Ops<'scope, 'env> {
    fn packed(&self) -> MutexGuard<'_, Vec<(Packed, &'scope mut [u8])>> {
        self.packed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts an operation that fetches something.
    fn fetch(
        &'scope self,
        operation: &Operation<'_>,
        bytes: &'scope mut [u8],
        into: Side<'_>,
    ) -> Result<(), RmaError> {
        let window = self.drain.window;
        let left = window.execute(operation, Sink { bytes: &mut *bytes, into })?;
        let Some(left) = left else { return Ok(()) };
        let waiting: u64 = self.packed().iter().map(|(packed, _)| packed.len()).sum();
        let room = BOUNCE_BYTES.saturating_sub(waiting);
        let mut completion = Completion::new(&self.drain.pending, room);
        let sink = Sink { bytes: &mut *bytes, into };
        // SAFETY: `bytes` is exclusively borrowed for `'scope`, which outlives the closure that
        // `run` called; what waits packed is on the heap, owned by `self.packed`, where nobody
        // looks at it before `run` has drained. `run` drains before it returns, and `Drain` if it
        // unwinds. `Ops` is only handed out by shared reference: nobody can forget or move it.
        let started = unsafe { window.begin_fetch(operation, left, sink, &mut completion) };
        if let Some(packed) = completion.take_packed() {
            self.packed().push((packed, bytes));
        }
        started
    }

    /// Starts a put; `origin` is borrowed until the scope ends. Errors as
    /// [`Access::put`](crate::Access::put).
    #[inline]
    pub fn put<E: Element>(
        &'scope self,
        target: Rank,
        disp: u64,
        origin: &'scope [E],
    ) -> Result<(), RmaError> {
        self.access.put(target, disp, origin)
    }

    /// Starts a get; `origin` is mutably borrowed until the scope ends, and filled then. Errors as
    /// [`Access::get`](crate::Access::get).
    #[inline]
    pub fn get<E: Element>(
        &'scope self,
        target: Rank,
        disp: u64,
        origin: &'scope mut [E],
    ) -> Result<(), RmaError> {
        let origin = cast_slice_mut(origin);
        if let Some(span) = self.access.near(target, disp, origin.len()) {
            span.read(origin);
            return Ok(());
        }
        let (len, into) = (origin.len(), Side::dense(origin.len()));
        self.fetch(&self.access.operation(GET, target, disp, len, &[]), origin, into)
    }

    /// Combines `origin` into the target; `origin` is borrowed until the scope ends. Operations of
    /// the scope on one element happen in the order of their calls. Errors as
    /// [`Access::accumulate`](crate::Access::accumulate).
    pub fn accumulate<E: BasicElement>(
        &'scope self,
        target: Rank,
        disp: u64,
        op: Op,
        origin: &'scope [E],
    ) -> Result<(), RmaError> {
        self.access.accumulate(target, disp, op, origin)
    }

    /// As [`accumulate`](Self::accumulate); `result` is mutably borrowed until the scope ends, and
    /// holds then what was there before. Errors as
    /// [`Access::get_accumulate`](crate::Access::get_accumulate).
    pub fn get_accumulate<E: BasicElement>(
        &'scope self,
        target: Rank,
        disp: u64,
        op: Op,
        origin: &'scope [E],
        result: &'scope mut [E],
    ) -> Result<(), RmaError> {
        match self.access.get_accumulate_near(target, disp, op, origin, result)? {
            None => Ok(()),
            Some(fetch) => {
                let bytes: &mut [u8] = cast_slice_mut(result);
                let into = Side::dense(bytes.len());
                self.fetch(&fetch, bytes, into)
            }
        }
    }

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
        self.access.put_shaped(target, disp, to, origin, from)
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
        let (from, to): (Shape<'_>, Shape<'_>) = (from.into(), to.into());
        let get = self.access.between(GET, target, disp, from, (&[], Side::dense(0)));
        self.fetch(&get, cast_slice_mut(origin), to.into())
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
        self.access.accumulate_shaped(target, disp, to, op, origin, from)
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
        let origin = (cast_slice(origin), from.into());
        let fetch = self.access.get_accumulate_operation(target, disp, at.into(), op, origin);
        let into: Shape<'_> = into.into();
        self.fetch(&fetch, cast_slice_mut(result), into.into())
    }
}
