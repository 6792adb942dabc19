//! Sending: at once where the transport has room, from the outbox where it has not.
use crate::engine::{Cause, Engine, Pending, SlotId, Wait, WaitError};
use crate::protocol::message::{Head, Kind, Status};
use crate::protocol::outbox::{Outbox, Parcel};
use crate::rank::WorldRank;
use crate::transport::{Count, SubmitError};
use core::mem;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

/// The outbox of one rank.
#[derive(Default)]
pub(crate) struct Outgoing {
    outbox: Mutex<Outbox>,
    /// Something waits there, or is being tried. A thread that puts something in sends the outbox
    /// afterwards.
    waits: AtomicBool,
}

/// What became of an attempt to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// All of it; or the peer is gone, and does not read it.
    All,
    /// A piece.
    Piece,
    /// Nothing: there is no room.
    Nothing,
}

impl Outgoing {
    fn with<R>(&self, act: impl FnOnce(&mut Outbox) -> R) -> R {
        let mut outbox = self.outbox.lock().unwrap_or_else(PoisonError::into_inner);
        let result = act(&mut outbox);
        self.waits.store(!outbox.is_empty(), Relaxed);
        result
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.waits.load(Relaxed)
    }

    /// Whether a message that gives a lock back is not sent yet.
    pub(crate) fn gives_back(&self) -> bool {
        self.with(|outbox| outbox.gives_back())
    }

    /// Whether an answer to this peer would find room, or its request is one too many.
    pub(crate) fn accepts(&self, peer: WorldRank) -> bool {
        self.is_empty() || self.with(|outbox| outbox.accepts(peer))
    }
}

impl Engine {
    /// Sends one message, waiting for room.
    pub(crate) fn send(
        &self,
        to: WorldRank,
        head: &Head,
        body: &[u8],
        wait: Wait<'_>,
    ) -> Result<(), WaitError> {
        // wait: room
        self.wait_until(wait, || self.send_now(to, head, body, wait)).flatten()
    }

    /// Sends one message, an attempt of `wait`: `None` if there is no room.
    pub(crate) fn send_now(
        &self,
        to: WorldRank,
        head: &Head,
        body: &[u8],
        wait: Wait<'_>,
    ) -> Option<Result<(), WaitError>> {
        let cause = match self.transport.send(to, head.as_bytes(), body) {
            Ok(()) => {
                self.counters.add(Count::Sent, 1);
                return Some(Ok(()));
            }
            Err(SubmitError::Again) => return None,
            Err(SubmitError::Unreachable(error)) => Cause::Import(error),
            // It may also have left in order.
            Err(SubmitError::PeerFailed(peer)) => {
                let cause = self.trouble(wait).or_else(|| self.gone(peer));
                cause.unwrap_or(Cause::PeerFailed(peer))
            }
        };
        Some(Err(self.given_up(wait, cause)))
    }

    /// Answers a message without waiting, from within its handler.
    pub(crate) fn reply(&self, to: WorldRank, head: &Head, body: &[u8]) {
        self.send_or_keep(to, head, body, true);
    }

    /// Sends something on this rank's own account without waiting.
    pub(crate) fn tell(&self, to: WorldRank, head: &Head) {
        self.send_or_keep(to, head, &[], false);
    }

    /// Sends a request that has its slot, without waiting.
    pub(crate) fn send_later(&self, to: WorldRank, head: &Head, body: &[u8]) {
        self.send_or_keep(to, head, body, false);
    }

    fn send_or_keep(&self, to: WorldRank, head: &Head, body: &[u8], answer: bool) {
        if self.is_excused(head) {
            return;
        }
        if !self.outgoing.is_empty() || self.try_send(to, head, body) == Sent::Nothing {
            self.keep(to, Parcel::Message { bytes: [head.as_bytes(), body].concat(), answer });
            if !answer {
                // A thread that was just emptying the outbox may be done, and this one may not come
                // by again.
                self.ring_agent();
            }
        }
    }

    /// Whether an answer is not given: the window is gone because some rank failed, and that is
    /// what the peer shall hear.
    pub(crate) fn is_excused(&self, head: &Head) -> bool {
        head.status() == Some(Status::Freed) && self.transport.members.failed().is_some()
    }

    /// Puts something into the outbox. What is refused answers a request that no honest peer had
    /// credit for.
    pub(crate) fn keep(&self, to: WorldRank, parcel: Parcel) {
        if !self.outgoing.with(|outbox| outbox.handle(to, parcel)) {
            self.counters.add(Count::Dropped, 1);
        }
    }

    /// Sends one message if there is room.
    pub(crate) fn try_send(&self, to: WorldRank, head: &Head, body: &[u8]) -> Sent {
        self.try_send_bytes(to, head.kind(), head.as_bytes(), body)
    }

    fn try_send_bytes(&self, to: WorldRank, kind: Option<Kind>, head: &[u8], body: &[u8]) -> Sent {
        // The thread that waits for an answer takes it: the agent has nothing to do with it.
        let sent = match kind.is_some_and(Kind::answers) {
            true => self.transport.answer(to, head, body),
            false => self.transport.send(to, head, body),
        };
        match sent {
            Ok(()) => self.counters.add(Count::Sent, 1),
            // What this process is short of, it may have again later.
            Err(SubmitError::Again | SubmitError::Unreachable(_)) => return Sent::Nothing,
            Err(SubmitError::PeerFailed(_)) => {}
        }
        Sent::All
    }

    /// Sends what waits, one message for each peer in turn, until no peer takes any.
    pub(crate) fn send_outbox(&self) {
        let (mut after, mut again, mut has_come) = (None, false, false);
        while !self.outgoing.is_empty() {
            // One at a time, so that no lock is held while sending.
            let polled = self.outgoing.with(|outbox| {
                if !mem::replace(&mut has_come, true) {
                    outbox.visit();
                }
                outbox.poll(after).map(|(to, parcel)| (to, parcel, outbox.visits()))
            });
            let Some((to, mut parcel, visits)) = polled else {
                if !again {
                    return;
                }
                (after, again) = (None, false);
                continue;
            };
            let sent = match &mut parcel {
                Parcel::Message { bytes, .. } => {
                    let kind = Head::parse(bytes).and_then(|(head, _)| head.kind());
                    self.try_send_bytes(to, kind, bytes, &[])
                }
                Parcel::Get(cursor) => self.service.send_piece(self, to, cursor),
            };
            let is_alone = self.outgoing.with(|outbox| {
                match sent {
                    Sent::All => outbox.handle_sent(to, &parcel),
                    Sent::Piece | Sent::Nothing => outbox.handle_again(to, parcel),
                }
                outbox.visits() == visits
            });
            // Another thread that came meanwhile did not see it. If that was rung for room, no
            // thread is rung for the same room again.
            again |= sent != Sent::Nothing || !is_alone;
            after = Some(to);
        }
    }

    /// The peer in the way of so many messages to `peer` that find no slots, or no credit: this
    /// one, if there are slots. These are many peers'; those that have left keep none.
    pub(crate) fn in_the_way(&self, peer: WorldRank, needed: usize) -> Option<WorldRank> {
        let Some(keepers) = self.outstanding.keepers(needed) else { return Some(peer) };
        let left = |keeper: &WorldRank| matches!(self.gone(*keeper), Some(Cause::PeerLeft(_)));
        let heard = keepers.into_iter().filter(left).filter(|keeper| self.is_all_heard(*keeper));
        if heard.filter(|keeper| self.outstanding.end(*keeper)).count() > 0 {
            // Other threads may wait for what is over, or for a slot.
            self.transport.sleep.ring(self.transport.job.rank);
        }
        None
    }

    /// The message of a slot was not sent after all. Others may wait for what it had.
    pub(crate) fn set_unsent(&self, slot: SlotId) {
        if self.outstanding.set_unsent(slot) {
            self.transport.sleep.ring(self.transport.job.rank);
        }
    }

    /// Takes back the buffers of `pending`. Others may wait for the same, or for slots and credit.
    pub(crate) fn cancel(&self, pending: &Arc<Pending>) {
        self.outstanding.cancel(pending);
        self.queues.cancel(pending);
        self.transport.sleep.ring(self.transport.job.rank);
    }

    /// As [`cancel`](Self::cancel), of one message.
    pub(crate) fn cancel_one(&self, slot: SlotId) {
        self.outstanding.cancel_one(slot);
        self.transport.sleep.ring(self.transport.job.rank);
    }

    /// Bytes of payload in one message.
    pub(crate) fn body_max(&self) -> usize {
        self.transport.messages.limits().message_max.saturating_sub(Head::LEN).max(1)
    }
}
