//! What waits for room in the transport's queues: a queue for each peer, without I/O.
//!
//! It is bounded by what peers may ask. A get is a [`GetCursor`] of a few dozen bytes: its data is
//! read from the window when a piece of it is sent. All other answers are one message, most of
//! them a header. Each answer belongs to a message of the peer that is not answered, so there are
//! at most [`CREDIT_MAX`](super::credit::CREDIT_MAX) of one peer here; more are refused. What this
//! rank sends on its own account is at most one post for each window and peer, one cancel for each
//! slot, the grants, which have a budget, and requests of operations that do not wait, each with a
//! slot.
use super::credit::Credit;
use super::message::{Head, Kind};
use crate::rank::WorldRank;
use core::ops::Bound::{Excluded, Unbounded};
use std::collections::{BTreeMap, VecDeque};

/// A get that is being answered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GetCursor {
    /// The request.
    pub(crate) head: Head,
    /// Bytes that were sent.
    pub(crate) sent: u64,
}

/// Something to be sent.
#[derive(Debug)]
pub(crate) enum Parcel {
    /// A whole message; whether it answers one of the peer's.
    Message { bytes: Vec<u8>, answer: bool },
    /// The rest of what a get asked for.
    Get(GetCursor),
}

impl Parcel {
    fn is_answer(&self) -> bool {
        !matches!(self, Self::Message { answer: false, .. })
    }

    /// Whether it gives a lock back.
    fn unlocks(&self) -> bool {
        let Self::Message { bytes, .. } = self else { return false };
        Head::parse(bytes).is_some_and(|(head, _)| head.kind() == Some(Kind::Unlock))
    }
}

/// Parcels of all peers.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    queues: BTreeMap<WorldRank, VecDeque<Parcel>>,
    answers: Credit,
    /// Locks that are given back by what was taken and is not sent, be it here or being tried.
    unlocks: usize,
    /// Parcels that are being tried.
    tried: usize,
    /// How often a thread has come to send what is here.
    visits: u64,
}

impl Outbox {
    /// Takes a parcel; false if it is one answer too many for this peer.
    pub(crate) fn handle(&mut self, to: WorldRank, parcel: Parcel) -> bool {
        if parcel.is_answer() && !self.answers.take(to) {
            return false;
        }
        self.unlocks += usize::from(parcel.unlocks());
        self.queues.entry(to).or_default().push_back(parcel);
        true
    }

    /// Whether another answer to this peer would find room.
    pub(crate) fn accepts(&self, peer: WorldRank) -> bool {
        self.answers.has_room(peer)
    }

    /// A thread has come to send what is here. It does not see what another one is trying, and may
    /// be the only one that was rung for the room which that has just not found: a thread that
    /// tries in vain tries again if [another has come](Self::visits) since it was given the parcel.
    pub(crate) fn visit(&mut self) {
        self.visits = self.visits.wrapping_add(1);
    }

    /// How often a thread [has come](Self::visit).
    pub(crate) fn visits(&self) -> u64 {
        self.visits
    }

    /// The next parcel of the first peer behind `after`, to be tried. It then either was
    /// [sent](Self::handle_sent) or [comes back](Self::handle_again).
    pub(crate) fn poll(&mut self, after: Option<WorldRank>) -> Option<(WorldRank, Parcel)> {
        let behind = (after.map_or(Unbounded, Excluded), Unbounded);
        let (to, queue) = self.queues.range_mut(behind).next()?;
        let (to, parcel) = (*to, queue.pop_front()?);
        if queue.is_empty() {
            self.queues.remove(&to);
        }
        self.tried += 1;
        Some((to, parcel))
    }

    /// All of the parcel was sent, or its receiver is gone.
    pub(crate) fn handle_sent(&mut self, to: WorldRank, parcel: &Parcel) {
        self.tried -= 1;
        self.unlocks -= usize::from(parcel.unlocks());
        if parcel.is_answer() {
            self.answers.give_back(to);
        }
    }

    /// Takes back what could not be sent, or not all of it: it is the next one again.
    pub(crate) fn handle_again(&mut self, to: WorldRank, parcel: Parcel) {
        self.tried -= 1;
        self.queues.entry(to).or_default().push_front(parcel);
    }

    /// Whether a lock is given back by something that is not sent yet.
    pub(crate) fn gives_back(&self) -> bool {
        self.unlocks > 0
    }

    /// Whether all was sent: nothing waits, and nothing is being tried.
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty() && self.tried == 0
    }
}

#[cfg(test)]
mod tests {
    use super::super::credit::CREDIT_MAX;
    use super::*;

    fn message(byte: u8, answer: bool) -> Parcel {
        Parcel::Message { bytes: vec![byte], answer }
    }

    /// What is inside of it.
    fn byte(parcel: &Parcel) -> u8 {
        match parcel {
            Parcel::Message { bytes, .. } => bytes[0],
            Parcel::Get(cursor) => cursor.sent as u8,
        }
    }

    #[test]
    fn peers_take_turns_and_one_that_is_full_stops_no_other() {
        let mut outbox = Outbox::default();
        for (to, what) in [(3, 30), (1, 10), (3, 31), (2, 20)] {
            assert!(outbox.handle(WorldRank(to), message(what, true)));
        }
        let mut after = None;
        let mut round = |outbox: &mut Outbox| {
            let (to, parcel) = outbox.poll(after)?;
            after = Some(to);
            Some((to, parcel))
        };
        let (first, parcel) = round(&mut outbox).unwrap();
        assert_eq!((first, byte(&parcel)), (WorldRank(1), 10));
        outbox.handle_again(first, parcel);
        let (second, parcel) = round(&mut outbox).unwrap();
        assert_eq!((second, byte(&parcel)), (WorldRank(2), 20));
        outbox.handle_sent(second, &parcel);
        let (third, parcel) = round(&mut outbox).unwrap();
        assert_eq!((third, byte(&parcel)), (WorldRank(3), 30));
        outbox.handle_sent(third, &parcel);
        assert!(round(&mut outbox).is_none(), "the end of the round");
        assert_eq!(outbox.queues.len(), 2);
        for expected in [10, 31] {
            let (to, parcel) = outbox.poll(None).unwrap();
            assert_eq!(byte(&parcel), expected, "nothing is lost or changes its place");
            outbox.handle_sent(to, &parcel);
        }
        assert!(outbox.poll(None).is_none() && outbox.is_empty() && outbox.answers.is_unused());
    }

    /// Also while a thread tries to send it.
    #[test]
    fn what_gives_a_lock_back_does_so_until_it_is_sent() {
        let (mut outbox, peer) = (Outbox::default(), WorldRank(1));
        let unlock = Head::new(Kind::Unlock, 1, 0);
        assert!(outbox.handle(peer, message(7, false)) && !outbox.gives_back());
        let bytes = unlock.as_bytes().to_vec();
        assert!(outbox.handle(peer, Parcel::Message { bytes, answer: false }));
        let (to, first) = outbox.poll(None).unwrap();
        outbox.handle_sent(to, &first);
        assert!(outbox.gives_back());
        for _ in 0..2 {
            let (to, parcel) = outbox.poll(None).unwrap();
            assert!(outbox.gives_back() && !outbox.is_empty(), "being tried");
            outbox.handle_again(to, parcel);
        }
        let (to, parcel) = outbox.poll(None).unwrap();
        outbox.handle_sent(to, &parcel);
        assert!(!outbox.gives_back());
    }

    #[test]
    fn one_peer_cannot_fill_it() {
        let (mut outbox, peer) = (Outbox::default(), WorldRank(5));
        let get = || Parcel::Get(GetCursor { head: Head::new(Kind::Get, 1, 0), sent: 0 });
        for _ in 0..CREDIT_MAX {
            assert!(outbox.accepts(peer) && outbox.handle(peer, get()));
        }
        assert!(!outbox.accepts(peer) && !outbox.handle(peer, get()), "one too many");
        assert!(!outbox.handle(peer, message(0, true)));
        assert!(outbox.handle(peer, message(0, false)), "this rank's own account");
        assert!(outbox.handle(WorldRank(6), get()), "another peer");
        let (to, parcel) = outbox.poll(None).unwrap();
        assert!(!outbox.accepts(peer), "it is not sent yet");
        outbox.handle_sent(to, &parcel);
        assert!(outbox.handle(peer, get()));
    }
}
