//! Operations that overlap, in a closure scope (the shape of `std::thread::scope`).
#![allow(unsafe_code)]

use super::peer::{GET, Peer};
use super::{Access, Operands};
use crate::element::Op;
use crate::error::RmaError;
use crate::execute::{BOUNCE_BYTES, Completion, Packed};
use crate::memory::target::Table;
use crate::operation::{Displacement, Operation, Origin, OriginMut, Side, Sink};
use crate::rank::Rank;
use crate::window::{Drain, Window};
use bytemuck::cast_slice_mut;
use core::marker::PhantomData;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Issues operations that overlap; from [`Access::ops`](crate::Access::ops).
///
/// Every buffer handed in stays borrowed for `'scope`, and the scope does not end before the
/// runtime has let go of all of them: forgetting any value inside the closure changes nothing.
pub struct Ops<'scope, 'env: 'scope> {
    /// Of operations that are not complete at once, if there were some. On the heap, so that a
    /// scope without them is made and dropped at little cost; and only referred to, so that a hot
    /// path need not have the rest of this in memory.
    under_way: &'scope ScopeRest<'scope, 'env>,
    access: Access<'env>,
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// What a scope has under way, once it has something.
type ScopeRest<'scope, 'env> = OnceLock<Box<Overlapping<'scope, 'env>>>;

/// Operations of a scope that are not complete.
struct Overlapping<'scope, 'env> {
    // First: waits before what follows is dropped.
    drain: Drain<'env>,
    /// What is unpacked when all answers are there.
    packed: Mutex<Waiting<'scope>>,
}

impl<'scope> Overlapping<'scope, '_> {
    fn packed(&self) -> MutexGuard<'_, Waiting<'scope>> {
        self.packed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for what is not complete.
    #[cold]
    #[inline(never)]
    fn finish(&self) -> Result<(), RmaError> {
        self.drain.finish()?;
        self.packed().all.drain(..).for_each(|(packed, sink)| packed.unpack(sink));
        Ok(())
    }
}

/// What waits packed, and how many bytes that is.
#[derive(Default)]
struct Waiting<'scope> {
    all: Vec<(Packed, &'scope mut [u8])>,
    bytes: u64,
}

impl<'env> Ops<'_, 'env> {
    /// Runs `scope` with operations to the targets of an epoch.
    #[inline]
    pub(super) fn run<F, R>(access: Access<'env>, scope: F) -> Result<R, RmaError>
    where
        F: for<'scope> FnOnce(&'scope Ops<'scope, 'env>) -> Result<R, RmaError>,
    {
        let under_way = OnceLock::new();
        let ops = Ops { under_way: &under_way, access, scope: PhantomData, env: PhantomData };
        let result = scope(&ops);
        match under_way.get() {
            None => result,
            Some(under_way) => {
                let finished = under_way.finish();
                result.and_then(|result| finished.map(|()| result))
            }
        }
    }
}

impl<'scope, 'env> Ops<'scope, 'env> {
    /// Starts an operation that fetches something.
    #[cold]
    #[inline(never)]
    fn fetch(
        window: &'env Window,
        under_way: &'scope ScopeRest<'scope, 'env>,
        operation: &Operation<'_>,
        bytes: &'scope mut [u8],
        into: Side<'_>,
    ) -> Result<(), RmaError> {
        let left = window.execute(operation, Sink { bytes: &mut *bytes, into })?;
        let Some(left) = left else { return Ok(()) };
        let under_way = under_way.get_or_init(|| {
            let drain = Drain::new(window, "a scope of operations", Rank::NULL);
            Box::new(Overlapping { drain, packed: Mutex::default() })
        });
        let room = BOUNCE_BYTES.saturating_sub(under_way.packed().bytes);
        let mut completion = Completion::new(&under_way.drain.pending, room);
        let sink = Sink { bytes: &mut *bytes, into };
        // SAFETY: `bytes` is exclusively borrowed for `'scope`, which outlives the closure that
        // `run` called; what waits packed is on the heap, owned by `under_way`, and not
        // looked at before `run` has drained. `run` drains before it returns, and `Drain` if it
        // unwinds. The cell is a local of `run`, of which the closure has a shared reference: it
        // cannot forget or move it.
        let started = unsafe { window.begin_fetch(operation, left, sink, &mut completion) };
        if let Some(packed) = completion.take_packed() {
            let mut waiting = under_way.packed();
            // Each takes more than its bytes.
            waiting.bytes += packed.len() + size_of::<(Packed, &mut [u8])>() as u64;
            waiting.all.push((packed, bytes));
        }
        started
    }

    /// Starts a get of bytes that load does not reach. Gets what it makes a peer of, so that a hot
    /// path need not have one in memory.
    #[cold]
    #[inline(never)]
    fn fetch_bytes(
        (window, table): (&'env Window, Table<'env>),
        under_way: &'scope ScopeRest<'scope, 'env>,
        (target, disp): (Rank, u64),
        bytes: &'scope mut [u8],
    ) -> Result<(), RmaError> {
        let (len, into) = (bytes.len(), Side::dense(bytes.len()));
        let get = Peer::new(window, table, target).operation(GET, disp, len, &[]);
        Self::fetch(window, under_way, &get, bytes, into)
    }

    /// Starts a put; `origin` is borrowed until the scope ends, layouts are yours again on return.
    /// Errors as [`Access::put`](crate::Access::put).
    #[inline]
    pub fn put(
        &'scope self,
        target: Rank,
        disp: impl Displacement,
        origin: impl Origin<Buffer: 'scope>,
    ) -> Result<(), RmaError> {
        self.access.put(target, disp, origin)
    }

    /// As [`put`](Self::put), started at once or not at all; see
    /// [`Access::try_put`](crate::Access::try_put).
    #[inline]
    pub fn try_put(
        &'scope self,
        target: Rank,
        disp: impl Displacement,
        origin: impl Origin<Buffer: 'scope>,
    ) -> Result<(), RmaError> {
        self.access.try_put(target, disp, origin)
    }

    /// Starts a get; `origin` is mutably borrowed until the scope ends, and filled then; layouts
    /// are yours again on return. Errors as [`Access::get`](crate::Access::get).
    ///
    /// Bytes of a layout that do not come by load wait packed until the scope ends, up to a
    /// mebibyte for each scope; a get beyond that is complete when it returns.
    #[inline]
    pub fn get(
        &'scope self,
        target: Rank,
        disp: impl Displacement,
        origin: impl OriginMut<'scope>,
    ) -> Result<(), RmaError> {
        let (peer, spot) = (self.access.to(target), disp.spot());
        origin.lend(
            #[inline(always)]
            |elements, to| {
                let Some(of) = spot.placed.or(to) else {
                    let bytes: &mut [u8] = cast_slice_mut(elements);
                    if let Some(span) = peer.near(spot.disp, bytes.len()) {
                        span.read(bytes);
                        return Ok(());
                    }
                    let (access, place) = ((peer.window(), peer.table()), (target, spot.disp));
                    return Self::fetch_bytes(access, self.under_way, place, bytes);
                };
                match peer.get_layout(spot, of, elements, to)? {
                    None => Ok(()),
                    Some((get, into)) => {
                        let bytes = cast_slice_mut(elements);
                        Self::fetch(peer.window(), self.under_way, &get, bytes, into)
                    }
                }
            },
        )
    }

    /// Combines `origin` into the target; `origin` is borrowed until the scope ends, layouts are
    /// yours again on return. Operations of the scope on one element happen in the order of their
    /// calls. Errors as [`Access::accumulate`](crate::Access::accumulate).
    #[inline]
    pub fn accumulate(
        &'scope self,
        target: Rank,
        disp: impl Displacement,
        op: Op,
        origin: impl Operands<Buffer: 'scope>,
    ) -> Result<(), RmaError> {
        self.access.accumulate(target, disp, op, origin)
    }

    /// As [`accumulate`](Self::accumulate), started at once or not at all; see
    /// [`Access::try_accumulate`](crate::Access::try_accumulate).
    #[inline]
    pub fn try_accumulate(
        &'scope self,
        target: Rank,
        disp: impl Displacement,
        op: Op,
        origin: impl Operands<Buffer: 'scope>,
    ) -> Result<(), RmaError> {
        self.access.try_accumulate(target, disp, op, origin)
    }

    /// As [`accumulate`](Self::accumulate); `result` is mutably borrowed until the scope ends, and
    /// holds then what was there before. What waits packed is as for [`get`](Self::get). Errors as
    /// [`Access::get_accumulate`](crate::Access::get_accumulate).
    #[inline]
    pub fn get_accumulate<O: Operands<Buffer: 'scope>>(
        &'scope self,
        target: Rank,
        disp: impl Displacement,
        op: Op,
        origin: O,
        result: impl OriginMut<'scope, Element = O::Element>,
    ) -> Result<(), RmaError> {
        let (peer, spot) = (self.access.to(target), disp.spot());
        result.lend(
            #[inline(always)]
            |result, into| match origin.get_accumulate(&peer, spot, op, result, into)? {
                None => Ok(()),
                Some((fetch, into)) => {
                    let bytes = cast_slice_mut(result);
                    Self::fetch(peer.window(), self.under_way, &fetch, bytes, into)
                }
            },
        )
    }
}
