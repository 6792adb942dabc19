//! The target's side of gets: the data is read when a piece of it is sent.
use crate::engine::{Engine, Sent};
use crate::protocol::message::{Card, GET_BYTES, Head, Kind, Status};
use crate::protocol::outbox::{GetCursor, Parcel};
use crate::rank::WorldRank;
use crate::window::Part;

/// Pieces up to this many bytes need no memory of the heap.
const SMALL: usize = 256;

impl Engine {
    pub(super) fn serve_get(&self, from: WorldRank, head: &Head, body: &[u8], part: &Part) -> bool {
        if head.tag.get() > 0 {
            return self.serve_get_rows(from, head, body, part);
        }
        let (offset, length) = (head.offset.get(), head.length.get());
        let wrong = if length == 0 || length > GET_BYTES as u64 || !body.is_empty() {
            Some(Status::Malformed)
        } else if !part.holds(offset, length) {
            Some(Status::OutOfRange)
        } else {
            None
        };
        if let Some(status) = wrong {
            self.reply(from, &head.reply(Kind::Data, status), &[]);
            return status != Status::Malformed;
        }
        let mut cursor = GetCursor { head: *head, sent: 0 };
        let mut sent = Sent::Nothing;
        // What waits already is not overtaken again and again.
        while self.outgoing.is_empty() {
            sent = self.send_piece_of(Some(part), from, &mut cursor);
            if sent != Sent::Piece {
                break;
            }
        }
        if sent != Sent::All {
            self.keep(from, Parcel::Get(cursor));
        }
        true
    }

    /// What origins need to know of the part, or of a region of it.
    pub(super) fn serve_card(
        &self,
        from: WorldRank,
        head: &Head,
        body: &[u8],
        part: &Part,
    ) -> bool {
        let sound = body.is_empty() && head.length.get() == Card::LEN as u64;
        let card = part.card(head.offset.get()).filter(|_| sound);
        let status = match &card {
            Some(_) => Status::Ok,
            None if sound => Status::OutOfRange,
            None => Status::Malformed,
        };
        let mut reply = head.reply(Kind::Data, status);
        // In the origin's buffer.
        reply.offset = 0.into();
        self.reply(from, &reply, card.as_ref().map_or(&[], Card::as_bytes));
        sound
    }

    /// All in one piece.
    fn serve_get_rows(&self, from: WorldRank, head: &Head, body: &[u8], part: &Part) -> bool {
        let (status, packed) = match part.get_rows(head, body, self.body_max()) {
            Ok(packed) => (Status::Ok, packed),
            Err(status) => (status, Vec::new()),
        };
        let mut reply = head.reply(Kind::Data, status);
        // In the origin's buffer.
        reply.offset = 0.into();
        self.reply(from, &reply, &packed);
        status != Status::Malformed
    }

    /// Sends the next piece of what a get asked for, if there is room.
    pub(crate) fn send_piece(&self, to: WorldRank, cursor: &mut GetCursor) -> Sent {
        let part = self.own_windows().get(cursor.head.object.get());
        self.send_piece_of(part.as_deref(), to, cursor)
    }

    fn send_piece_of(&self, part: Option<&Part>, to: WorldRank, cursor: &mut GetCursor) -> Sent {
        let request = &cursor.head;
        let left = request.length.get() - cursor.sent;
        let len = left.min(self.body_max() as u64) as usize;
        let mut reply = request.reply(Kind::Data, Status::Ok);
        // The range was checked when the request came.
        let at = request.offset.get() + cursor.sent;
        let Some(span) = part.and_then(|part| part.span(at, len)) else {
            // Between two pieces its owner may have detached a region.
            let status = part.map_or(Status::Freed, |part| part.why_not(at, len));
            reply = request.reply(Kind::Data, status);
            reply.length = left.into();
            if self.is_excused(&reply) {
                return Sent::All;
            }
            return self.try_send(to, &reply, &[]);
        };
        // In the origin's buffer, not in the window.
        reply.offset = cursor.sent.into();
        reply.length = (len as u64).into();
        let (mut small, mut large) = ([0; SMALL], Vec::new());
        let piece = if len <= SMALL {
            &mut small[..len]
        } else {
            large.resize(len, 0);
            &mut large[..]
        };
        span.get().read(piece);
        match self.try_send(to, &reply, piece) {
            Sent::All => {
                cursor.sent += len as u64;
                if cursor.sent < request.length.get() { Sent::Piece } else { Sent::All }
            }
            sent => sent,
        }
    }
}
