//! Operations that take a while, and those by messages, which the target serves. The bytes at the
//! target travel as one range or as rows; this rank's own are packed and unpacked here. S-G1 S-G2
//! S-J1
#![allow(unsafe_code)]

use super::{BOUNCE_BYTES, Completion, Drain, Left, Packed, Touched};
use crate::completion::{Buffer, Expected, On, Pending, SlotId, Wait};
use crate::device::DeviceRoute;
use crate::error::RmaError;
use crate::operation::layout::{Cursor, unpack};
use crate::operation::{Action, Operation, Pieces, Room, Side, Sink};
use crate::protocol::message::{Card, Head, Kind};
use crate::rank::Rank;
use crate::transport::WorldRank;
use crate::window::{Flavor, Window};
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

/// Bytes that one slot asks a target for: with the credit, this bounds what is on its way here.
pub(crate) const GET_BYTES: usize = 64 << 10;

/// An operation of which a part is sent.
pub(super) struct Sending<'w, 'a> {
    pub(super) window: &'w Window,
    pub(super) operation: &'w Operation<'a>,
    world: WorldRank,
    device: Option<DeviceRoute>,
    head: Head,
    pub(super) there: Pieces<'a>,
    pub(super) from: Cursor<'a>,
}

impl Window {
    /// Sends a put or an accumulate.
    pub(super) fn update(&self, operation: &Operation<'_>, left: Left<'_>) -> Result<(), RmaError> {
        let (target, there) = (operation.target, left.there);
        let (touched, mut sending) = self.in_order(operation, left)?;
        let Some(touched) = touched else {
            let putting = self.putting(target);
            let pending = &putting.pending;
            if let (Side::Bytes { at, len }, Side::Bytes { .. }) = (there, operation.from)
                && left.device.is_none()
                && len > self.process().config.eager_bytes as u64
            {
                let wait = self.wait_for(operation.what, target);
                return self.put_by_grants(wait, left.world, at, operation.origin, pending);
            }
            // SAFETY: no buffer.
            return unsafe { sending.send(there.bytes().unwrap_or(0), Buffer::NONE, pending) };
        };
        let pending = Arc::new(Pending::of_this_thread());
        // SAFETY: no buffer.
        let sent = unsafe { sending.send(there.bytes().unwrap_or(0), Buffer::NONE, &pending) };
        self.far.add_accumulate(target, touched, &pending);
        sent
    }

    /// Starts an operation that fetches something. It is in the sink when
    /// [`Completion::pending`] is done, and what was [packed](Completion::take_packed) then,
    /// unpacked.
    ///
    /// # Safety
    ///
    /// The sink's bytes stay valid, and are not touched by anybody else, until that is done or was
    /// [cancelled](crate::completion::Slots::cancel); or it [keeps](Pending::keep) their owner.
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
            Side::Layout(shape) if shape.bytes().unwrap_or(u64::MAX) <= completion.room => {
                let (packed, buffer) = Packed::of(shape);
                completion.packed = Some(packed);
                buffer
            }
            Side::Layout(_) => return sending.fetch_in_pieces(left.there, sink),
        };
        // SAFETY: caller: the sink's bytes are this operation's until it is done; so are those
        // that wait packed.
        let sent = unsafe { sending.send(buffer.len as u64, buffer, completion.pending) };
        if let Some(touched) = touched {
            self.far.add_accumulate(operation.target, touched, completion.pending);
        }
        sent
    }

    /// Waits for the operations that come before.
    fn in_order<'w, 'a>(
        &'w self,
        operation: &'w Operation<'a>,
        left: Left<'a>,
    ) -> Result<(Option<Touched>, Sending<'w, 'a>), RmaError> {
        let base = match left.device {
            Some(route) => Some(route.base),
            None => self.alignment_of(operation.target),
        };
        if let Some((basic, base)) = operation.action.basic().zip(base) {
            self.check_aligned(operation, base, left.there, basic)?;
        }
        let touched = Touched::of(operation, left.there);
        if let Some(touched) = &touched {
            self.wait_for_earlier(operation.what, operation.target, touched)?;
        }
        Ok((touched, Sending::new(self, operation, left)))
    }

    /// Where the part of a target begins, as far as alignment goes; `None` if only the target
    /// knows, and says whether an element is aligned there.
    fn alignment_of(&self, target: Rank) -> Option<u64> {
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

    /// Asks a target what is to be known of its part.
    pub(crate) fn ask_card(&self, target: Rank, world: WorldRank) -> Result<Card, RmaError> {
        const WHAT: &str = "asking for a target's size";
        // Before `drain`, and so dropped after it.
        let mut bytes = vec![0; Card::LEN];
        let drain = Drain::new(self, WHAT, target);
        let mut head = Head::new(Kind::Card, self.id().0, 0);
        head.length = (Card::LEN as u64).into();
        let buffer = Buffer { at: bytes.as_mut_ptr(), len: bytes.len() };
        let wait = self.wait_for(WHAT, target);
        // SAFETY: `bytes` is not touched before `drain` has waited, on every way out.
        let asked = unsafe { self.issue_into(wait, world, head, &[], buffer, &drain.pending) };
        let answered = drain.finish();
        asked.and(answered)?;
        Card::read_from_bytes(&bytes).map_err(|_| self.no_such_rank(target))
    }

    /// Sends a request that brings no bytes back, waiting for a slot, for credit at its target and
    /// for room.
    pub(crate) fn issue(
        &self,
        wait: Wait<'_>,
        world: WorldRank,
        head: Head,
        body: &[u8],
        pending: &Arc<Pending>,
    ) -> Result<SlotId, RmaError> {
        // SAFETY: no buffer.
        unsafe { self.issue_into(wait, world, head, body, Buffer::NONE, pending) }
    }

    /// As [`issue`](Self::issue), for bytes that come to `buffer`.
    ///
    /// # Safety
    ///
    /// As [`Slots::start`](crate::completion::Slots::start).
    unsafe fn issue_into(
        &self,
        wait: Wait<'_>,
        world: WorldRank,
        mut head: Head,
        body: &[u8],
        buffer: Buffer,
        pending: &Arc<Pending>,
    ) -> Result<SlotId, RmaError> {
        let (process, expected) = (self.process(), Expected::of(&head, buffer));
        // SAFETY: forwarded to the caller.
        let start = || unsafe { process.slots.start(world, expected, pending) };
        let gone = |peer| process.gone(peer).is_some();
        let in_the_way = |_| process.slots.in_the_way(world, gone);
        let place = Wait { on: On::Whoever(&in_the_way), ..wait };
        // wait: slot
        let slot = process.wait_until(place, start).map_err(|error| self.wait_failed(error))?;
        head.slot = slot.0.into();
        if let Err(error) = process.send(world, &head, body, wait) {
            process.cancel_one(slot);
            return Err(self.wait_failed(error));
        }
        Ok(slot)
    }
}

impl<'w, 'a> Sending<'w, 'a> {
    fn new(
        window: &'w Window,
        operation: &'w Operation<'a>,
        Left { world, device, there }: Left<'a>,
    ) -> Self {
        let kind = match operation.action {
            Action::Put => Kind::Put,
            Action::Get => Kind::Get,
            Action::Combine { fetches: false, .. } => Kind::Accumulate,
            Action::Combine { fetches: true, .. } => Kind::GetAccumulate,
            Action::Swap { .. } => Kind::CompareSwap,
        };
        let mut head = Head::new(kind, window.id().0, 0);
        if let Action::Combine { op, .. } = operation.action {
            head.op = op as u8;
        }
        head.basic = operation.action.basic().map_or(0, |basic| basic.to_wire());
        let (there, from) = (Pieces::new(there), operation.from.cursor());
        Self { window, operation, world, device, head, there, from }
    }

    /// What one of the messages may hold.
    fn room(&self) -> Room {
        let body = self.window.process().body_max();
        let width = self.operation.action.basic().map_or(1, |basic| basic.width()) as u64;
        let bytes = match (self.operation.action, &self.there) {
            // The answer may come in pieces.
            (Action::Get, Pieces::Dense { .. }) => GET_BYTES as u64,
            // The answer is one message.
            _ => (body as u64).max(width),
        };
        Room { body, bytes, carried: self.operation.action.carries(), width }
    }

    /// Sends the next `bytes` of the operation; what comes back goes to `result`, if that has
    /// room.
    ///
    /// # Safety
    ///
    /// As [`Slots::start`](crate::completion::Slots::start).
    unsafe fn send(
        &mut self,
        bytes: u64,
        result: Buffer,
        pending: &Arc<Pending>,
    ) -> Result<(), RmaError> {
        if let (Some(route), Some((remote, _))) = (self.device, self.window.remote()) {
            // SAFETY: forwarded to the caller.
            return unsafe { self.send_by_device((remote, &route), bytes, result, pending) };
        }
        let (room, operation) = (self.room(), self.operation);
        let mut done = 0;
        while done < bytes {
            let room = Room { bytes: room.bytes.min(bytes - done), ..room };
            let piece = self.there.next(room);
            if piece.bytes == 0 {
                break;
            }
            let buffer = match result.len {
                0 => Buffer::NONE,
                _ => {
                    Buffer { at: result.at.wrapping_add(done as usize), len: piece.bytes as usize }
                }
            };
            let mut head = self.head;
            head.tag = (piece.rows.len() as u32).into();
            (head.offset, head.length) = (piece.at.into(), piece.bytes.into());
            let body = match operation.action {
                // Two values for one.
                Action::Swap { .. } => operation.origin.into(),
                action if action.carries() => piece.body(&mut self.from, operation.origin),
                _ => piece.rows.as_bytes().into(),
            };
            let wait = self.window.wait_for(operation.what, operation.target);
            // SAFETY: a part of the buffer that the caller vouches for.
            unsafe { self.window.issue_into(wait, self.world, head, &body, buffer, pending) }?;
            done += piece.bytes;
        }
        Ok(())
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
