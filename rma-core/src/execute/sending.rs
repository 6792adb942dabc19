//! Operations that take a while, because a device or messages perform them: how they begin, and
//! what waits for them.
#![allow(unsafe_code)]

use super::{BOUNCE_BYTES, Completion, Left, Packed};
use crate::engine::{Buffer, Pending};
use crate::error::{RmaError, TryLimit};
use crate::layout::{Cursor, unpack};
use crate::object::Flavor;
use crate::operation::{Action, Operation, Pieces, Side, Sink};
use crate::rank::{Rank, WorldRank};
use crate::window::{DeviceRoute, Drain, Touched, Window};
use std::sync::Arc;
use std::thread::ThreadId;

/// An operation of which a part is sent. S-J1
pub(super) struct Sending<'w, 'a> {
    pub(super) window: &'w Window,
    pub(super) operation: &'w Operation<'a>,
    pub(super) world: WorldRank,
    device: Option<DeviceRoute>,
    /// The rest of its bytes at the target.
    pub(super) there: Pieces<'a>,
    /// And of what goes there.
    pub(super) from: Cursor<'a>,
}

impl Window {
    /// Sends a put or an accumulate of that thread. S-G2
    pub(super) fn update(
        &self,
        operation: &Operation<'_>,
        left: Left<'_>,
        by: ThreadId,
    ) -> Result<(), RmaError> {
        let (target, there) = (operation.target, left.there);
        if let (Action::Put, Side::Bytes { at, len }, Side::Bytes { at: from, .. }) =
            (operation.action, there, operation.from)
        {
            let data = &operation.origin[from as usize..][..len as usize];
            match (left.device, self.remote()) {
                (Some(route), Some((remote, _)))
                    if len <= remote.limits_to(route.world).transfer_max =>
                {
                    let pending = &self.putting(target, by).pending;
                    return self.put_by_device((remote, &route), operation, (at, data), pending);
                }
                // One that does not wait goes in messages whatever its size: all that have room at
                // once.
                (None, _) if !operation.tries => {
                    let wait = self.wait_for(operation.what, target);
                    let pending = &self.putting(target, by).pending;
                    return self.put_range(wait, left.world, at, data, pending);
                }
                _ => {}
            }
        }
        let (touched, mut sending) = self.in_order(operation, left)?;
        let Some(touched) = touched else {
            let pending = &self.putting(target, by).pending;
            // SAFETY: no buffer.
            return unsafe { sending.send(there.bytes().unwrap_or(0), Buffer::NONE, pending) };
        };
        let pending = Arc::new(Pending::of(by));
        // SAFETY: no buffer.
        let sent = unsafe { sending.send(there.bytes().unwrap_or(0), Buffer::NONE, &pending) };
        if sent.is_ok() || !operation.tries {
            self.far.add_accumulate(target, touched, &pending);
        }
        sent
    }

    /// Starts an operation that fetches something. It is in the sink when
    /// [`Completion::pending`] is done, and what was [packed](Completion::take_packed) then,
    /// unpacked.
    ///
    /// # Safety
    ///
    /// The sink's bytes stay valid, and are touched by nothing else, until that is done or was
    /// [cancelled](crate::engine::Outstanding::cancel); or it [keeps](Pending::keep) their owner.
    /// So do those that wait packed.
    pub(crate) unsafe fn begin_fetch(
        &self,
        operation: &Operation<'_>,
        left: Left<'_>,
        sink: Sink<'_>,
        completion: &mut Completion<'_>,
    ) -> Result<(), RmaError> {
        let (touched, mut sending) = self.in_order(operation, left)?;
        let buffer = match sink.into {
            Side::Bytes { .. } => Buffer { at: sink.bytes.as_mut_ptr(), len: sink.bytes.len() },
            Side::Layout(placed) if placed.bytes().unwrap_or(u64::MAX) <= completion.room => {
                let (packed, buffer) = Packed::of(placed);
                completion.packed = Some(packed);
                buffer
            }
            Side::Layout(_) if operation.tries => {
                let limit = TryLimit::Packed { bytes: completion.room };
                return Err(self.too_large_to_try(operation, limit));
            }
            Side::Layout(_) => return sending.fetch_in_pieces(left.there, sink),
        };
        // SAFETY: caller: the sink's bytes are this operation's until it is done; so are those
        // that wait packed.
        let sent = unsafe { sending.send(buffer.len as u64, buffer, completion.pending) };
        match touched {
            _ if sent.is_err() && operation.tries => {}
            Some(it) => self.far.add_accumulate(operation.target, it, completion.pending),
            // A flush waits for every accumulate.
            None if operation.action != Action::Get => {
                self.far.add_get(operation.target, completion.pending);
            }
            None => {}
        }
        sent
    }

    /// Waits for the operations that come before, where they could be overtaken.
    fn in_order<'w, 'a>(
        &'w self,
        operation: &'w Operation<'a>,
        left: Left<'a>,
    ) -> Result<(Option<Touched>, Sending<'w, 'a>), RmaError> {
        // Of these, no order is promised.
        if matches!(operation.action, Action::Put | Action::Get) {
            return Ok((None, Sending::new(self, operation, left)));
        }
        let base = match left.device {
            Some(route) => Some(route.base),
            None => self.alignment_of(operation.target),
        };
        if let Some((basic, base)) = operation.action.basic().zip(base) {
            self.check_aligned(operation, base, left.there, basic)?;
        }
        // A target that hears of them in order does them in order. A device is not asked; and
        // messages in the outbox, perhaps of an operation that did not wait, may be overtaken.
        let engine = self.engine();
        let device = left.device.is_some() || self.remote().is_some();
        let messages = &engine.transport.messages;
        let in_order = !device && messages.keeps_order(left.world) && engine.outgoing.is_empty();
        let one = matches!(left.there, Side::Bytes { len, .. } if len <= engine.body_max() as u64);
        let kept = operation.tries && !one;
        let touched = if in_order && !kept { None } else { Touched::of(operation, left.there) };
        if let Some(touched) = touched.as_ref().filter(|_| !in_order) {
            self.wait_for_earlier(operation, touched)?;
        }
        Ok((touched, Sending::new(self, operation, left)))
    }

    /// Where the part of a target begins, as far as alignment goes; `None` if only the target
    /// knows, and says whether an element is aligned there.
    pub(crate) fn alignment_of(&self, target: Rank) -> Option<u64> {
        if self.part.regions.is_some() {
            // Operations name addresses.
            return Some(0);
        }
        match self.peers.get(target) {
            Some(peer) => Some(peer.address),
            None if self.flavor() == Flavor::Create => None,
            // What was allocated at another node begins at a multiple of every alignment.
            None => Some(0),
        }
    }
}

impl<'w, 'a> Sending<'w, 'a> {
    fn new(
        window: &'w Window,
        operation: &'w Operation<'a>,
        Left { world, device, there }: Left<'a>,
    ) -> Self {
        let (there, from) = (Pieces::new(there), operation.from.cursor());
        Self { window, operation, world, device, there, from }
    }

    /// Sends the next `bytes` of the operation; what comes back goes to `result`, if that has
    /// room. S-G1
    ///
    /// # Safety
    ///
    /// As [`Outstanding::start`](crate::engine::Outstanding::start).
    unsafe fn send(
        &mut self,
        bytes: u64,
        result: Buffer,
        pending: &Arc<Pending>,
    ) -> Result<(), RmaError> {
        match (self.device, self.window.remote()) {
            // SAFETY: forwarded to the caller.
            (Some(route), Some((remote, _))) => unsafe {
                self.send_by_device((remote, &route), bytes, result, pending)
            },
            // SAFETY: forwarded to the caller.
            _ => unsafe { self.send_messages(bytes, result, pending) },
        }
    }

    /// Fetches what is too much to wait packed: a part at a time.
    fn fetch_in_pieces(mut self, there: Side<'_>, sink: Sink<'_>) -> Result<(), RmaError> {
        let (mut into, mut left) = (sink.into.cursor(), there.bytes().unwrap_or(0));
        while left > 0 {
            let mut packed = vec![0; left.min(BOUNCE_BYTES) as usize];
            let drain = Drain::new(self.window, self.operation.what, self.operation.target);
            let buffer = Buffer { at: packed.as_mut_ptr(), len: packed.len() };
            // SAFETY: `packed` is not touched before `drain` has waited, on every way out, and is
            // dropped after it.
            let sent = unsafe { self.send(buffer.len as u64, buffer, &drain.pending) };
            let finished = drain.finish();
            sent.and(finished)?;
            unpack(&mut into, &packed, sink.bytes);
            left -= packed.len() as u64;
        }
        Ok(())
    }
}
