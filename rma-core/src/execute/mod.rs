//! Performs operations: checks them, asks where they go, and hands them to the executor of that
//! route. All forms of a call come here: that a call returns when the operation is locally
//! complete, or that a scope or a request waits for that, is a [`Completion`] and no path of its
//! own.
#![allow(unsafe_code)]

mod cma;
mod device;
#[cfg(test)]
mod device_tests;
mod flush;
mod grant;
mod mapped;
mod message;
mod packed;
mod rendezvous;
mod sending;

pub(crate) use mapped::{FAR_APART, Placed};
pub(crate) use packed::{BOUNCE_BYTES, Packed};

use crate::element::Op;
use crate::engine::Pending;
use crate::error::RmaError;
use crate::layout::{PlacedLayout, Signature};
use crate::operation::{Action, Operation, Side, Sink};
use crate::rank::{Rank, WorldRank};
use crate::route::{Route, narrow};
use crate::thread;
use crate::transport::Touch;
use crate::window::{DeviceRoute, Drain, Window};
use mapped::Reached;
use std::sync::Arc;

/// How the caller learns that an operation which fetches something is complete.
pub(crate) struct Completion<'p> {
    /// Done when it is.
    pub(crate) pending: &'p Arc<Pending>,
    /// What is fetched for a layout waits here, packed, until then.
    packed: Option<Packed>,
    /// How many bytes may wait so; of more, the operation is complete when its call returns.
    room: u64,
}

impl<'p> Completion<'p> {
    pub(crate) fn new(pending: &'p Arc<Pending>, room: u64) -> Self {
        Self { pending, packed: None, room }
    }

    /// What waits packed, from now on in the caller's care.
    pub(crate) fn take_packed(&mut self) -> Option<Packed> {
        self.packed.take()
    }
}

impl Drop for Completion<'_> {
    fn drop(&mut self) {
        // In a panic, while answers may still come.
        if let Some(packed) = self.packed.take() {
            self.pending.keep(Box::new(packed));
        }
    }
}

/// What is left of an operation that takes a while: where its bytes are at the target.
#[derive(Clone, Copy)]
pub(crate) struct Left<'a> {
    world: WorldRank,
    /// What moves them; `None`: messages.
    device: Option<DeviceRoute>,
    there: Side<'a>,
}

impl Window {
    /// Performs a put or an accumulate, or has it wait for the grant of a lock. The origin's buffer
    /// is the caller's again on return. S-H16 S-I2
    #[cold]
    #[inline(never)]
    pub(crate) fn perform(&self, operation: &Operation<'_>) -> Result<(), RmaError> {
        if self.queued(operation)? {
            return Ok(());
        }
        match self.execute(operation, Sink::none())? {
            None => Ok(()),
            Some(left) => self.update(operation, left, thread::id()),
        }
    }

    /// Performs an operation that fetches something; it is there on return.
    #[cold]
    #[inline(never)]
    pub(crate) fn fetch(
        &self,
        operation: &Operation<'_>,
        mut sink: Sink<'_>,
    ) -> Result<(), RmaError> {
        match self.execute(operation, sink.by_ref())? {
            None => Ok(()),
            Some(left) => self.fetch_left(operation, left, sink),
        }
    }

    /// What is left of an operation that fetches something; it is there on return.
    fn fetch_left(
        &self,
        operation: &Operation<'_>,
        left: Left<'_>,
        mut sink: Sink<'_>,
    ) -> Result<(), RmaError> {
        let drain = Drain::new(self, operation.what, operation.target);
        let mut completion = Completion::new(&drain.pending, BOUNCE_BYTES);
        // SAFETY: the sink is borrowed until `drain` has waited, on every way out.
        let started = unsafe { self.begin_fetch(operation, left, sink.by_ref(), &mut completion) };
        let finished = drain.finish();
        started.and(finished)?;
        completion.take_packed().into_iter().for_each(|packed| packed.unpack(sink.bytes));
        Ok(())
    }

    /// Performs an operation, once the lock that it is under is granted, if this rank can do it
    /// alone; otherwise says what is left, and has done nothing.
    pub(crate) fn execute<'a>(
        &self,
        operation: &Operation<'a>,
        sink: Sink<'_>,
    ) -> Result<Option<Left<'a>>, RmaError> {
        if operation.target == Rank::NULL {
            return Ok(None);
        }
        self.check_operation(operation, &sink)?;
        self.wait_for_grant_of(operation)?;
        self.execute_granted(operation, sink)
    }

    /// As [`execute`](Self::execute), of one that was checked and waits for no lock.
    fn execute_granted<'a>(
        &self,
        operation: &Operation<'a>,
        sink: Sink<'_>,
    ) -> Result<Option<Left<'a>>, RmaError> {
        let (route, there) = self.route(operation)?;
        match route {
            Route::Null => {}
            Route::Mapped(memory) => {
                self.tell_views(operation.action);
                self.execute_mapped(operation, Reached { memory, begin: 0, there }, sink)?;
            }
            Route::Region(region) => {
                let (memory, begin) = (region.span(), region.start());
                let there = there.counted_from(begin);
                self.tell_views(operation.action);
                self.execute_mapped(operation, Reached { memory, begin, there }, sink)?;
            }
            Route::Cma(route) => self.execute_cma(operation, &route, sink)?,
            Route::Device(route) => {
                let (world, device) = (route.world, Some(route));
                return Ok(Some(Left { world, device, there }));
            }
            Route::Messages(world) => return Ok(Some(Left { world, device: None, there })),
        }
        Ok(None)
    }

    /// Load and store are about to touch window memory.
    fn tell_views(&self, action: Action) {
        let transport = &self.engine().transport;
        // A swap that fails changes nothing, and may be tried for ever.
        if action.carries() && !matches!(action, Action::Swap { .. }) {
            transport.touches(Touch::Change);
        }
        transport.touches(Touch::Look);
    }

    /// Everything that does not depend on the target's part.
    fn check_operation(&self, operation: &Operation<'_>, sink: &Sink<'_>) -> Result<(), RmaError> {
        let Operation { what, target, there, origin, from, .. } = *operation;
        match operation.action {
            Action::Put => {
                self.check_sides(target, there, from, origin.len())?;
                self.check_apart(target, there, "the target's layout of a put")
            }
            Action::Get => {
                self.check_sides(target, there, sink.into, sink.bytes.len())?;
                self.check_apart(target, sink.into, "the origin's layout of a get")
            }
            Action::Combine { op, basic, fetches } => {
                let element = || element_of(there, basic.map(|basic| basic.name()));
                let wrong = || self.wrong_op(what, target, op, element());
                // S-H13
                if op == Op::NoOp && !fetches {
                    return Err(wrong());
                }
                if fetches {
                    self.check_sides(target, there, sink.into, sink.bytes.len())?;
                    let side = "the result's layout of a get_accumulate";
                    self.check_apart(target, sink.into, side)?;
                }
                if op != Op::NoOp {
                    self.check_sides(target, there, from, origin.len())?;
                }
                self.check_apart(target, there, "the target's layout of an accumulate")?;
                match basic {
                    // Of no elements there is no type, and none is needed. S-G3
                    None if there.bytes() == Some(0) => Ok(()),
                    None => Err(self.not_basic(what, target, [there, from, sink.into])),
                    Some(basic) if basic.has(op) => Ok(()),
                    Some(_) => Err(wrong()),
                }
            }
            Action::Swap { .. } => Ok(()),
        }
    }

    /// Fails unless both sides hold the same, and the origin's lies inside its buffer. S-G9 S-J1
    fn check_sides(
        &self,
        target: Rank,
        there: Side<'_>,
        origin: Side<'_>,
        len: usize,
    ) -> Result<(), RmaError> {
        let window = self.id();
        let (Some(_), Some(_)) = (there.bytes(), origin.bytes()) else {
            return Err(RmaError::LayoutTooLarge { window, target });
        };
        // Between a layout and elements without one, the caller has checked that.
        if let (Side::Layout(there), Side::Layout(origin)) = (there, origin)
            && !there.matches(&origin)
        {
            let signature = |placed: PlacedLayout<'_>| placed.layout().signature(placed.count());
            let (there, origin) = (signature(there), signature(origin));
            return Err(RmaError::SignatureMismatch { window, target, there, origin });
        }
        let Side::Layout(origin) = origin else { return Ok(()) };
        match origin.wide_span() {
            Some((low, high)) if low < 0 || high > len as i128 => {
                let (low, high, len) = (narrow(low), narrow(high), len as u64);
                Err(RmaError::OriginOutOfRange { window, target, low, high, len })
            }
            _ => Ok(()),
        }
    }

    /// Fails if bytes of a side are certainly there twice. S-J8
    fn check_apart(
        &self,
        target: Rank,
        side: Side<'_>,
        name: &'static str,
    ) -> Result<(), RmaError> {
        match side {
            Side::Layout(placed) if placed.overlaps() => {
                Err(RmaError::Overlap { window: self.id(), target, side: name })
            }
            _ => Ok(()),
        }
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn wrong_op(
        &self,
        what: &'static str,
        target: Rank,
        op: Op,
        element: &'static str,
    ) -> RmaError {
        RmaError::WrongOp { window: self.id(), target, what, op, element }
    }

    /// No basic type is in the layout of one of these sides, which all hold the same.
    /// S-H13
    fn not_basic(&self, what: &'static str, target: Rank, sides: [Side<'_>; 3]) -> RmaError {
        let signature = |side| match side {
            Side::Layout(placed) => Some(placed.layout().signature(placed.count())),
            Side::Bytes { .. } => None,
        };
        let there = sides.into_iter().find_map(signature).unwrap_or(Signature::OTHER);
        RmaError::NotBasic { window: self.id(), target, what, there }
    }
}

/// The name of the elements at the target.
fn element_of(there: Side<'_>, basic: Option<&'static str>) -> &'static str {
    match there {
        Side::Layout(placed) => placed.layout().signature(1).element,
        Side::Bytes { .. } => basic.unwrap_or_default(),
    }
}
