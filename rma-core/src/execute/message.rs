//! Operations by messages, which the target serves. The bytes at the target travel as one range or
//! as rows; this rank's own are packed and unpacked here. S-G1 S-G2 S-J1
#![allow(unsafe_code)]

use super::Drain;
use super::sending::Sending;
use crate::completion::{Buffer, Expected, On, Pending, SlotId, Wait};
use crate::error::RmaError;
use crate::operation::{Action, Pieces, Room};
use crate::protocol::message::{Card, Head, Kind};
use crate::rank::Rank;
use crate::transport::WorldRank;
use crate::window::Window;
use core::cell::Cell;
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

/// Bytes that one slot asks a target for: with the credit, this bounds what is on its way here.
pub(crate) const GET_BYTES: usize = 64 << 10;

impl Window {
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

    /// Puts one range of bytes: at once, or as the target grants them.
    pub(super) fn put_range(
        &self,
        wait: Wait<'_>,
        world: WorldRank,
        mut at: u64,
        origin: &[u8],
        pending: &Arc<Pending>,
    ) -> Result<(), RmaError> {
        let process = self.process();
        if origin.len() > process.config.eager_bytes {
            return self.put_by_grants(wait, world, at, origin, pending);
        }
        for piece in origin.chunks(process.body_max()) {
            let mut head = Head::new(Kind::Put, self.id().0, 0);
            (head.offset, head.length) = (at.into(), (piece.len() as u64).into());
            self.issue(wait, world, head, piece, pending)?;
            at += piece.len() as u64;
        }
        Ok(())
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
        // Kept while there is no room: the target alone makes that, and waits for no slot of ours.
        let taken = Cell::new(None);
        let attempt = || {
            // SAFETY: forwarded to the caller.
            let start = || unsafe { process.slots.start(world, expected, pending) };
            let slot = taken.get().or_else(start)?;
            taken.set(Some(slot));
            head.slot = slot.0.into();
            process.send_now(world, &head, body, wait).map(|sent| sent.map(|()| slot))
        };
        let gone = |peer| process.gone(peer).is_some();
        let in_the_way = |_| match taken.get() {
            Some(_) => Some(world),
            None => process.slots.in_the_way(world, gone),
        };
        let place = Wait { on: On::Whoever(&in_the_way), ..wait };
        // wait: slot
        process.wait_until(place, attempt).flatten().map_err(|error| {
            taken.get().into_iter().for_each(|slot| process.cancel_one(slot));
            self.wait_failed(error)
        })
    }
}

impl Sending<'_, '_> {
    /// What each of the messages says of the operation.
    fn head(&self) -> Head {
        let action = self.operation.action;
        let kind = match action {
            Action::Put => Kind::Put,
            Action::Get => Kind::Get,
            Action::Combine { fetches: false, .. } => Kind::Accumulate,
            Action::Combine { fetches: true, .. } => Kind::GetAccumulate,
            Action::Swap { .. } => Kind::CompareSwap,
        };
        let mut head = Head::new(kind, self.window.id().0, 0);
        if let Action::Combine { op, .. } = action {
            head.op = op as u8;
        }
        head.basic = action.basic().map_or(0, |basic| basic.to_wire());
        head
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

    /// Sends messages of the next `bytes` of the operation; what comes back goes to `result`, if
    /// that has room.
    ///
    /// # Safety
    ///
    /// As [`Slots::start`](crate::completion::Slots::start).
    pub(super) unsafe fn send_messages(
        &mut self,
        bytes: u64,
        result: Buffer,
        pending: &Arc<Pending>,
    ) -> Result<(), RmaError> {
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
            let mut head = self.head();
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
}
