//! Operations by messages, which the target serves. The bytes at the target travel as one range or
//! as rows; this rank's own are packed and unpacked here.
#![allow(unsafe_code)]

use super::sending::Sending;
use crate::config::Hint;
use crate::engine::{Buffer, Pending, Wait};
use crate::error::{RmaError, TryLimit};
use crate::layout::Cursor;
use crate::operation::{Action, Operation, Piece, PieceRoom, Pieces};
use crate::protocol::message::{GET_BYTES, Head, Kind};
use crate::rank::WorldRank;
use crate::window::Window;
use bytemuck::cast_slice;
use std::borrow::Cow;
use std::sync::Arc;

impl Window {
    /// Puts one range of bytes: at once, or as the target grants them. S-G1
    pub(super) fn put_range(
        &self,
        wait: Wait<'_>,
        world: WorldRank,
        mut at: u64,
        origin: &[u8],
        pending: &Arc<Pending>,
    ) -> Result<(), RmaError> {
        let engine = self.engine();
        if origin.len() as u64 > self.settings.hints.get(Hint::EagerBytes) {
            return self.put_by_rendezvous(wait, world, at, origin, pending);
        }
        for piece in origin.chunks(engine.body_max()) {
            let mut head = Head::new(Kind::Put, self.id().0, 0);
            (head.offset, head.length) = (at.into(), (piece.len() as u64).into());
            // Waits for room behind those that are under way. S-G2
            self.issue(wait, world, head, piece, pending)?;
            at += piece.len() as u64;
        }
        Ok(())
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
    fn room(&self) -> PieceRoom {
        let body = self.window.engine().body_max();
        let width = self.operation.action.basic().map_or(1, |basic| basic.width()) as u64;
        let bytes = match (self.operation.action, &self.there) {
            // The answer may come in pieces.
            (Action::Get, Pieces::Dense { .. }) => GET_BYTES as u64,
            // The answer is one message.
            _ => (body as u64).max(width),
        };
        PieceRoom { body, bytes, carried: self.operation.action.carries(), width }
    }

    /// Sends messages of the next `bytes` of the operation; what comes back goes to `result`, if
    /// that has room. S-J1
    ///
    /// # Safety
    ///
    /// As [`Outstanding::start`](crate::engine::Outstanding::start).
    pub(super) unsafe fn send_messages(
        &mut self,
        bytes: u64,
        result: Buffer,
        pending: &Arc<Pending>,
    ) -> Result<(), RmaError> {
        let (mut tried, mut done) = (Vec::new(), 0);
        while let Some(piece) = self.next_piece(bytes - done) {
            let buffer = match result.len {
                0 => Buffer::NONE,
                _ => {
                    Buffer { at: result.at.wrapping_add(done as usize), len: piece.bytes as usize }
                }
            };
            done += piece.bytes;
            let head = self.head_of(&piece);
            if self.operation.tries {
                let (needed, limit) = (tried.len() + 1, self.window.try_max());
                if needed > limit {
                    let [needed, limit] = [needed, limit].map(|messages| messages as u32);
                    let limit = TryLimit::Messages { needed, limit };
                    return Err(self.window.too_large_to_try(self.operation, limit));
                }
                tried.push((piece, (head, buffer)));
                continue;
            }
            let body = body_of(&piece, self.operation, &mut self.from);
            let wait = self.window.wait_for(self.operation.what, self.operation.target);
            // SAFETY: a part of the buffer that the caller vouches for.
            unsafe { self.window.issue_into(wait, self.world, head, &body, buffer, pending) }?;
        }
        if tried.is_empty() {
            return Ok(());
        }
        let (window, operation, world) = (self.window, self.operation, self.world);
        let (pieces, requests): (Vec<_>, Vec<_>) = tried.into_iter().unzip();
        let body = |number: usize| body_of(&pieces[number], operation, &mut self.from);
        // SAFETY: parts of the buffer that the caller vouches for.
        unsafe { window.try_issue(operation, world, requests, body, pending) }
    }

    /// What the next message is about, of at most so many bytes; `None` at the end.
    fn next_piece(&mut self, bytes: u64) -> Option<Piece> {
        let room = self.room();
        let room = PieceRoom { bytes: room.bytes.min(bytes), ..room };
        let piece = if bytes > 0 { self.there.next(room) } else { Piece::default() };
        (piece.bytes > 0).then_some(piece)
    }

    /// What the message of a piece says.
    fn head_of(&self, piece: &Piece) -> Head {
        let mut head = self.head();
        head.tag = (piece.rows.len() as u32).into();
        (head.offset, head.length) = (piece.at.into(), piece.bytes.into());
        head
    }
}

/// What the message of a piece carries: the next bytes that go to the target, behind their rows.
fn body_of<'p>(
    piece: &'p Piece,
    operation: &Operation<'p>,
    from: &mut Cursor<'_>,
) -> Cow<'p, [u8]> {
    match operation.action {
        // Two values for one.
        Action::Swap { .. } => operation.origin.into(),
        action if action.carries() => piece.body(from, operation.origin),
        _ => cast_slice(&piece.rows[..]).into(),
    }
}
