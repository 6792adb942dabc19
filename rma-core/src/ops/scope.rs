//! Operations that overlap, in a closure scope (the shape of `std::thread::scope`).
#![allow(unsafe_code)]

use super::shaped::Packed;
use crate::completion::{Buffer, Pending};
use crate::element::{BasicElement, Element};
use crate::error::RmaError;
use crate::ops::Op;
use crate::rank::Rank;
use crate::window::Window;
use bytemuck::{cast_slice, cast_slice_mut};
use core::marker::PhantomData;
use std::sync::Arc;

/// Issues operations that overlap; from [`Access::ops`](crate::Access::ops).
///
/// Every buffer handed in stays borrowed for `'scope`, and the scope does not end before the
/// runtime has let go of all of them: forgetting any value inside the closure changes nothing.
pub struct Ops<'scope, 'env: 'scope, const LAZY: bool> {
    // First: waits before what follows is dropped.
    pub(super) drain: Drain<'env>,
    pub(super) packed: Packed<'scope>,
    only: Option<Rank>,
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// Waits for the answers on every way out of the scope, unwinding included.
pub(super) struct Drain<'env> {
    pub(super) window: &'env Window,
    pub(super) pending: Arc<Pending>,
}

impl Drop for Drain<'_> {
    fn drop(&mut self) {
        // A forked child has copies of the buffers, and nobody answers it.
        if !self.window.process().transport.members.is_fork() {
            // If that fails, the buffers were taken back: nothing is written to them any more.
            _ = self.window.drain("a scope of operations", Rank::NULL, &self.pending);
        }
    }
}

impl<'env, const LAZY: bool> Ops<'_, 'env, LAZY> {
    /// Runs `scope` with operations to all targets, or to `only` one.
    pub(crate) fn run<F, R>(
        window: &'env Window,
        only: Option<Rank>,
        scope: F,
    ) -> Result<R, RmaError>
    where
        F: for<'scope> FnOnce(&'scope Ops<'scope, 'env, LAZY>) -> R,
    {
        let drain = Drain { window, pending: Arc::default() };
        let packed = Packed::default();
        let ops = Ops { drain, packed, only, scope: PhantomData, env: PhantomData };
        let result = scope(&ops);
        window.drain("a scope of operations", Rank::NULL, &ops.drain.pending)?;
        ops.packed.unpack();
        Ok(result)
    }
}

impl<'scope, 'env, const LAZY: bool> Ops<'scope, 'env, LAZY> {
    pub(super) fn check(&self, target: Rank) -> Result<(), RmaError> {
        match self.only {
            Some(only) if target != only && target != Rank::NULL => {
                Err(RmaError::NotLocked { window: self.drain.window.id(), target, locked: only })
            }
            _ => Ok(()),
        }
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
        self.check(target)?;
        let origin = cast_slice(origin);
        let window = self.drain.window;
        match window.near::<LAZY>(target, disp, origin.len())? {
            Some(span) => {
                span.write(origin);
                Ok(())
            }
            None => window.put_far_cold::<LAZY>(target, disp, origin),
        }
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
        self.check(target)?;
        let origin = cast_slice_mut(origin);
        let window = self.drain.window;
        match window.near::<LAZY>(target, disp, origin.len())? {
            Some(span) => {
                span.read(origin);
                Ok(())
            }
            None => {
                let buffer = Buffer { at: origin.as_mut_ptr(), len: origin.len() };
                let pending = &self.drain.pending;
                // SAFETY: `origin` is exclusively borrowed for `'scope`, which outlives the
                // closure that `run` called; `run` drains before it returns, and `Drain` if it
                // unwinds. `Ops` is only handed out by shared reference: nobody can forget it.
                unsafe { window.start_get_far_cold::<LAZY>(target, disp, buffer, pending) }
            }
        }
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
        self.check(target)?;
        self.drain.window.accumulate::<LAZY, E>(target, disp, op, origin)
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
        self.check(target)?;
        let window = self.drain.window;
        let far = window.get_accumulate_near::<LAZY, E>(target, disp, op, origin, result)?;
        let Some(update) = far else { return Ok(()) };
        let bytes: &mut [u8] = cast_slice_mut(result);
        let buffer = Buffer { at: bytes.as_mut_ptr(), len: bytes.len() };
        // SAFETY: as in `get`.
        unsafe { window.start_get_accumulate_cold::<LAZY>(update, buffer, &self.drain.pending) }
    }
}
