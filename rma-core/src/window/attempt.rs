//! Requests of an operation that does not wait: all of them are issued, or none is.
#![allow(unsafe_code)]

use super::Window;
use crate::engine::{Buffer, Expected, On, Pending, SlotId, Wait};
use crate::error::{RmaError, Shortage, TryLimit};
use crate::operation::Operation;
use crate::protocol::message::Head;
use crate::rank::WorldRank;
use std::borrow::Cow;
use std::sync::Arc;

/// Slots of requests that are not sent: given back when this is dropped.
struct Unsent<'w> {
    window: &'w Window,
    slots: Vec<SlotId>,
}

impl Drop for Unsent<'_> {
    fn drop(&mut self) {
        if self.slots.is_empty() {
            return;
        }
        let engine = self.window.engine();
        for slot in self.slots.drain(..) {
            engine.outstanding.set_unsent(slot);
            engine.outstanding.cancel_one(slot);
        }
        // Other threads may wait for them.
        engine.transport.sleep.ring(engine.transport.job.rank);
    }
}

impl Window {
    /// The error of an operation of which nothing was issued.
    pub(crate) fn would_block(&self, operation: &Operation<'_>, shortage: Shortage) -> RmaError {
        let (window, Operation { target, what, .. }) = (self.id(), *operation);
        RmaError::WouldBlock { window, target, what, shortage }
    }

    /// As [`would_block`](Self::would_block), of one that no room is enough for.
    pub(crate) fn too_large_to_try(&self, operation: &Operation<'_>, limit: TryLimit) -> RmaError {
        let (window, Operation { target, what, .. }) = (self.id(), *operation);
        RmaError::TooLargeToTry { window, target, what, limit }
    }

    /// Has `attempt` give a value now; otherwise that is what the operation is short of.
    pub(crate) fn try_for<R>(
        &self,
        operation: &Operation<'_>,
        wait: Wait<'_>,
        shortage: Shortage,
        attempt: impl FnMut() -> Option<R>,
    ) -> Result<R, RmaError> {
        let came =
            self.engine().try_once(wait, attempt).map_err(|error| self.wait_failed(error))?;
        came.ok_or_else(|| self.would_block(operation, shortage))
    }

    /// Requests of an operation, at most: no target ever has credit for more.
    pub(crate) fn try_max(&self) -> usize {
        let (slots, credit) = self.engine().outstanding.limits();
        slots.min(credit)
    }

    /// Sends requests of an operation without waiting: all of them, or none. `body` makes the bytes
    /// of each in turn. What the transport has no room for, once it took the first, waits in the
    /// outbox: as many messages as have slots, at most.
    ///
    /// # Safety
    ///
    /// As [`Outstanding::start`](crate::engine::Outstanding::start), of each buffer.
    pub(crate) unsafe fn try_issue<'o>(
        &self,
        operation: &Operation<'_>,
        world: WorldRank,
        requests: Vec<(Head, Buffer)>,
        mut body: impl FnMut(usize) -> Cow<'o, [u8]>,
        pending: &Arc<Pending>,
    ) -> Result<(), RmaError> {
        let (engine, needed) = (self.engine(), requests.len());
        let wait = self.wait_for(operation.what, operation.target);
        let start = || {
            let (slots, credit) = engine.outstanding.free(world);
            if slots.min(credit) < needed {
                return None;
            }
            let mut taken = Unsent { window: self, slots: Vec::with_capacity(needed) };
            for (head, buffer) in &requests {
                let expected = Expected::of(head, *buffer);
                // SAFETY: forwarded to the caller.
                let slot = unsafe { engine.outstanding.start(world, expected, pending) };
                // Another thread may have been faster: those that were taken are given back.
                taken.slots.push(slot?);
            }
            Some(taken)
        };
        let in_the_way = |_| engine.in_the_way(world, needed);
        let place = Wait { on: On::Named(&in_the_way), ..wait };
        let started = engine.try_once(place, start).map_err(|error| self.wait_failed(error))?;
        let Some(mut unsent) = started else {
            return Err(self.would_block(operation, self.shortage_of(world, needed)));
        };
        // The next one is the last.
        unsent.slots.reverse();
        for (number, (mut head, _)) in requests.into_iter().enumerate() {
            let Some(slot) = unsent.slots.last() else { break };
            head.slot = slot.0.into();
            let body = body(number);
            if number == 0 {
                let send = || engine.send_now(world, &head, &body, wait);
                let sent = self.try_for(operation, wait, Shortage::Queue, send)?;
                sent.map_err(|error| self.wait_failed(error))?;
            } else {
                engine.send_later(world, &head, &body);
            }
            unsent.slots.pop();
        }
        Ok(())
    }

    /// What is missing for so many messages to a process.
    fn shortage_of(&self, world: WorldRank, needed: usize) -> Shortage {
        let outstanding = &self.engine().outstanding;
        let ((slots, credit), (slots_max, credit_max)) =
            (outstanding.free(world), outstanding.limits());
        let [needed, slots, credit, slots_max, credit_max] =
            [needed, slots, credit, slots_max, credit_max].map(|it| it as u32);
        // Both may have come meanwhile: then it is what came last.
        if slots < needed && slots <= credit {
            Shortage::Messages { needed, free: slots, limit: slots_max }
        } else {
            Shortage::Credit { needed, free: credit, limit: credit_max }
        }
    }
}
