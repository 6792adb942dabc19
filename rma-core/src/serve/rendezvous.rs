//! Large puts by rendezvous at their target, and CTS at their origin: messages for the state
//! machines of `protocol/rendezvous.rs`.
use crate::engine::{Clearance, Engine, SlotId};
use crate::protocol::message::{Head, Kind, Status};
use crate::protocol::rendezvous::{Key, Receiver, Reply, Rts};
use crate::rank::WorldRank;
use crate::transport::PeerState;
use crate::window::Part;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

/// The large puts to one rank.
pub(crate) struct Incoming {
    receiver: Mutex<Receiver>,
    /// An origin waits for a CTS. The thread that sets it tells what there is to tell afterwards.
    waited_for: AtomicBool,
}

impl Incoming {
    pub(crate) fn new(budget: u64, message: usize) -> Self {
        let receiver = Mutex::new(Receiver::new(budget, message as u64));
        Self { receiver, waited_for: AtomicBool::new(false) }
    }

    /// Whether an origin waits for a CTS.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.waited_for.load(Relaxed)
    }

    fn with<R>(&self, act: impl FnOnce(&mut Receiver) -> R) -> R {
        let mut receiver = self.receiver.lock().unwrap_or_else(PoisonError::into_inner);
        let result = act(&mut receiver);
        self.waited_for.store(!receiver.is_idle(), Relaxed);
        result
    }
}

fn key(origin: WorldRank, head: &Head) -> Key {
    Key { origin, slot: head.slot.get() }
}

/// The end of a transfer.
fn done(window: u64, slot: u64, status: Status) -> Head {
    let mut head = Head::new(Kind::Done, window, 0).reply(Kind::Done, status);
    head.slot = slot.into();
    head.length = 1.into();
    head
}

impl Engine {
    /// An origin asks to put.
    pub(super) fn serve_rts(&self, from: WorldRank, head: &Head, body: &[u8], part: &Part) -> bool {
        let (window, slot) = (head.object.get(), head.slot.get());
        let rts = Rts { window, offset: head.offset.get(), length: head.length.get() };
        if !body.is_empty() || rts.length == 0 {
            self.reply(from, &done(window, slot, Status::Malformed), &[]);
            return false;
        }
        if !part.holds(rts.offset, rts.length) {
            self.reply(from, &done(window, slot, Status::OutOfRange), &[]);
            return true;
        }
        let taken =
            self.serving().incoming.with(|receiver| receiver.handle_rts(key(from, head), rts));
        self.tell_cts();
        taken
    }

    /// Takes data; false if it was not cleared.
    pub(crate) fn take_data(&self, from: WorldRank, head: &Head, body: &[u8]) -> bool {
        let (window, len) = (head.object.get(), body.len());
        let placed = self.serving().incoming.with(|receiver| {
            let offset = Some(head.offset.get()).filter(|_| head.length.get() == len as u64);
            receiver.handle_data(key(from, head), window, offset?, len as u64)
        });
        let Some(placed) = placed else { return false };
        let part = self.own_windows().get(window);
        let span = part.as_ref().and_then(|part| part.span(placed.offset, len));
        let status = match span {
            Some(span) => {
                span.get().write(body);
                Status::Ok
            }
            // Its owner has detached the region: the rest of the put comes in vain.
            None if part
                .as_ref()
                .is_some_and(|part| part.why_not(placed.offset, len) != Status::Freed) =>
            {
                Status::OutOfRange
            }
            // No origin waits for long: the first bytes that are cleared find out.
            None => {
                self.serving().incoming.with(|receiver| receiver.handle_freed(window));
                Status::Freed
            }
        };
        let lost = placed.lost && status == Status::Ok;
        let status = if lost { Status::OutOfRange } else { status };
        if placed.last {
            self.reply(from, &done(window, head.slot.get(), status), &[]);
        } else if status == Status::OutOfRange {
            self.serving().incoming.with(|receiver| receiver.handle_lost(key(from, head)));
        }
        self.tell_cts();
        true
    }

    /// An origin gave up; false if it has asked for nothing. The answer gives it its credit back.
    pub(crate) fn take_cancel(&self, from: WorldRank, head: &Head, body: &[u8]) -> bool {
        let cancelled = body.is_empty()
            && self.serving().incoming.with(|receiver| receiver.handle_cancel(key(from, head)));
        if cancelled {
            self.reply(from, &done(head.object.get(), head.slot.get(), Status::Ok), &[]);
        }
        self.tell_cts();
        cancelled
    }

    /// Takes the CTS of a put of this rank; false if it has no such RTS out.
    pub(crate) fn take_cts(&self, from: WorldRank, head: &Head, body: &[u8]) -> bool {
        let slot = SlotId(head.slot.get());
        let clearance = match body {
            [] => self.outstanding.handle_cts(from, slot, head.length.get()),
            _ => Clearance::Wrong,
        };
        if clearance == Clearance::Unknown {
            // The put gave up, and perhaps its cancel overtook its RTS: the target shall not wait.
            self.reply(from, &head.reply(Kind::Cancel, Status::Ok), &[]);
        }
        clearance == Clearance::Taken
    }

    fn tell_cts(&self) {
        while let Some(tell) = self.serving().incoming.with(Receiver::poll) {
            match tell {
                Reply::Cts { key, window, bytes } => {
                    let mut head = Head::new(Kind::Cts, window, 0);
                    (head.slot, head.length) = (key.slot.into(), bytes.into());
                    self.tell(key.origin, &head);
                }
                Reply::Freed { key, window } => {
                    self.tell(key.origin, &done(window, key.slot, Status::Freed));
                }
            }
        }
    }

    /// Takes back what was cleared for origins that are gone, where others wait for them.
    pub(crate) fn recover_cts(&self) {
        if !self.serving().incoming.is_waited_for() {
            return;
        }
        self.tell_cts();
        let holders: Vec<Key> =
            self.serving().incoming.with(|receiver| receiver.holders().collect());
        for key in holders {
            if self.transport.members.peer_state(key.origin) != PeerState::Alive {
                self.serving().incoming.with(|receiver| receiver.handle_cancel(key));
                self.tell_cts();
            }
        }
    }
}
