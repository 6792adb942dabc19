//! OutstandingTable, their credit and what is refused.
#![allow(unsafe_code)]

use crate::engine::outstanding::{
    Answer, Buffer, Clearance, Expected, Failure, Next, OutstandingTable, Pending, SlotId,
};
use crate::protocol::message::{Kind, Status};
use crate::protocol::rendezvous::Sender;
use crate::rank::WorldRank;
use std::sync::Arc;

const PEER: WorldRank = WorldRank(1);

fn ok(offset: u64, units: u64) -> Answer {
    Answer { kind: Kind::Data, status: Status::Ok, value: 0, units, offset }
}

fn acknowledged(units: u64) -> Answer {
    Answer { kind: Kind::Done, ..ok(0, units) }
}

fn data(units: u64, buffer: Buffer) -> Expected {
    Expected { kind: Kind::Data, units, buffer, sender: None }
}

fn done(units: u64) -> Expected {
    Expected { kind: Kind::Done, ..data(units, Buffer::NONE) }
}

fn asked(total: u64) -> Expected {
    Expected { sender: Some(Sender::new(total)), ..done(1) }
}

fn buffer(bytes: &mut [u8]) -> Buffer {
    Buffer { at: bytes.as_mut_ptr(), len: bytes.len() }
}

#[test]
fn pieces_in_any_order_complete_a_get() {
    let (slots, pending) = (OutstandingTable::new(2, 9), Arc::default());
    let mut bytes = [0u8; 4];
    // SAFETY: `bytes` outlives the slot, which is freed by its last answer below.
    let id = unsafe { slots.start(PEER, data(4, buffer(&mut bytes)), &pending) }.unwrap();
    assert!(slots.answer(PEER, id, ok(2, 2), &[3, 4]));
    assert!(!pending.is_done());
    assert!(slots.answer(PEER, id, ok(0, 2), &[1, 2]));
    assert!(pending.is_done());
    assert_eq!(bytes, [1, 2, 3, 4]);
    assert!(!slots.answer(PEER, id, ok(0, 2), &[9, 9]), "a freed slot takes no answer");
}

#[test]
fn answers_that_do_not_fit_are_refused() {
    let (slots, pending) = (OutstandingTable::new(1, 9), Arc::default());
    let mut bytes = [0u8; 4];
    // SAFETY: `bytes` outlives the slot, which is cancelled below.
    let id = unsafe { slots.start(PEER, data(4, buffer(&mut bytes)), &pending) }.unwrap();
    assert!(!slots.answer(WorldRank(2), id, ok(0, 4), &[1; 4]), "from another peer");
    assert!(!slots.answer(PEER, id, ok(1, 4), &[1; 4]), "past the end");
    assert!(!slots.answer(PEER, id, ok(u64::MAX, 4), &[1; 4]), "overflow");
    assert!(!slots.answer(PEER, id, ok(0, 5), &[1; 5]), "more than asked");
    assert!(!slots.answer(PEER, id, ok(0, 4), &[1; 3]), "length is a lie");
    assert!(!slots.answer(PEER, SlotId(77), ok(0, 4), &[1; 4]), "no such slot");
    assert!(!slots.answer(PEER, id, Answer { kind: Kind::Done, ..ok(0, 4) }, &[]), "no bytes");
    assert!(!slots.answer(PEER, id, Answer { kind: Kind::Value, ..ok(0, 1) }, &[]));
    let failed = Answer { status: Status::Freed, ..ok(0, 4) };
    assert!(!slots.answer(PEER, id, failed, &[1; 4]), "a failure has no bytes");
    assert_eq!(slots.handle_cts(PEER, id, 1), Clearance::Wrong, "a get needs no CTS");
    slots.cancel(&pending);
    assert!(pending.is_done() && !slots.is_unused());
    assert!(!slots.answer(WorldRank(2), id, ok(0, 4), &[1; 4]), "from another peer");
    assert!(!slots.answer(PEER, id, ok(0, 5), &[1; 5]), "more than asked");
    assert!(slots.answer(PEER, id, ok(0, 3), &[1; 3]) && !slots.is_unused(), "a piece");
    assert!(slots.answer(PEER, id, ok(3, 1), &[1]) && slots.is_unused(), "the last one");
    assert!(!slots.answer(PEER, id, ok(0, 4), &[1; 4]), "ended");
    assert_eq!(bytes, [0; 4], "no thread waits for it");
}

#[test]
fn slots_run_out_and_come_back_with_another_id() {
    let (slots, pending) = (OutstandingTable::new(1, 9), Arc::default());
    // SAFETY: no buffer.
    let first = unsafe { slots.start(PEER, done(1), &pending) }.unwrap();
    // SAFETY: no buffer.
    assert!(unsafe { slots.start(PEER, done(1), &pending) }.is_none());
    slots.cancel(&pending);
    // SAFETY: no buffer.
    assert!(unsafe { slots.start(PEER, done(1), &pending) }.is_none(), "the target has it");
    assert!(slots.answer(PEER, first, acknowledged(1), &[]), "late, and the end of it");
    // SAFETY: no buffer.
    let second = unsafe { slots.start(PEER, done(1), &pending) }.unwrap();
    assert_ne!(first, second);
    assert!(!slots.answer(PEER, first, ok(0, 1), &[]), "the id of an earlier life");
}

#[test]
fn what_is_kept_lives_until_the_last_answer() {
    let (slots, pending) = (OutstandingTable::new(1, 9), Arc::<Pending>::default());
    let owner = Arc::new(0u8);
    let mut owned = vec![0u8; 2];
    // SAFETY: `pending` keeps the buffer.
    let id = unsafe { slots.start(PEER, data(2, buffer(&mut owned)), &pending) }.unwrap();
    let watch = Arc::downgrade(&owner);
    pending.keep(Box::new((owned, owner)));
    drop(pending);
    assert!(watch.upgrade().is_some());
    assert!(slots.answer(PEER, id, ok(0, 2), &[7, 7]));
    assert!(watch.upgrade().is_none());
}

#[test]
fn the_first_failure_is_remembered() {
    let (slots, pending) = (OutstandingTable::new(2, 9), Arc::default());
    let failed = Answer { status: Status::Freed, ..acknowledged(1) };
    // SAFETY: no buffer.
    let id = unsafe { slots.start(PEER, done(8), &pending) }.unwrap();
    assert!(slots.answer(PEER, id, failed, &[]));
    assert!(pending.is_done());
    assert_eq!(pending.failure(), Some(Failure::Answered(Status::Freed, PEER)));
}

#[test]
fn credit_is_per_peer_and_comes_back() {
    let (slots, pending) = (OutstandingTable::new(4, 2), Arc::default());
    // SAFETY: no buffer.
    let start = |peer| unsafe { slots.start(peer, done(1), &pending) };
    let first = start(PEER).unwrap();
    let second = start(PEER).unwrap();
    assert!(start(PEER).is_none(), "no credit");
    let other = start(WorldRank(2)).unwrap();
    assert!(slots.answer(PEER, first, acknowledged(1), &[]));
    let third = start(PEER).unwrap();
    assert!(start(PEER).is_none());
    assert!(!slots.set_unsent(second), "it stays reserved");
    assert!(start(PEER).is_none() && !slots.answer(PEER, second, acknowledged(1), &[]));
    assert!(slots.resume(second) && !slots.resume(second) && !slots.set_unsent(second));
    assert!(slots.cancel_one(second) && !slots.cancel_one(second) && !slots.resume(second));
    let fourth = start(PEER).unwrap();
    assert!(!pending.is_done());
    for (peer, id) in [(WorldRank(2), other), (PEER, third), (PEER, fourth)] {
        assert!(slots.answer(peer, id, acknowledged(1), &[]));
    }
    assert!(pending.is_done());
    // All four again: none was lost.
    for peer in [1, 1, 2, 2] {
        assert!(start(WorldRank(peer)).is_some());
    }
    assert!(start(WorldRank(3)).is_none(), "no slot");
    slots.cancel(&pending);
}

/// What was cancelled lies at its target: its credit comes back with the late answer, how ever that
/// turns out, and what is sent meanwhile has no part in it.
#[test]
fn credit_of_what_was_sent_comes_back_with_its_answer() {
    fn start(
        slots: &OutstandingTable,
        expected: Expected,
        pending: &Arc<Pending>,
    ) -> Option<SlotId> {
        // SAFETY: no buffer, but one that nothing is written to after a cancel.
        unsafe { slots.start(PEER, expected, pending) }
    }
    let mut bytes = [0u8; 4];
    let freed = |kind| Answer { kind, status: Status::Freed, ..ok(0, 1) };
    for (expected, late, body) in [
        (done(4), acknowledged(4), 0),
        (done(4), freed(Kind::Done), 0),
        (data(4, buffer(&mut bytes)), ok(0, 4), 4),
        (data(4, buffer(&mut bytes)), freed(Kind::Data), 0),
        (asked(9), acknowledged(1), 0),
    ] {
        let (slots, pending, next) = (OutstandingTable::new(9, 2), Arc::default(), Arc::default());
        let id = start(&slots, expected, &pending).unwrap();
        let one = start(&slots, expected, &pending).unwrap();
        assert!(slots.cancel_one(one) && !pending.is_done() && pending.failure().is_none());
        slots.cancel(&pending);
        assert!(pending.is_done() && pending.failure() == Some(Failure::Cancelled));
        assert!(start(&slots, done(1), &next).is_none(), "no credit");
        assert!(slots.answer(PEER, id, late, &vec![7; body]));
        assert!(start(&slots, done(1), &next).is_some() && start(&slots, done(1), &next).is_none());
        assert!(slots.end(PEER) && slots.is_unused(), "it is gone");
        assert_eq!(next.failure(), Some(Failure::Answered(Status::HolderLeft, PEER)));
    }
    assert_eq!(bytes, [0; 4]);
}

/// A message that found no room is not sent once it is cancelled, and owes nothing.
#[test]
fn what_was_not_sent_gives_its_credit_back() {
    let (slots, pending) = (OutstandingTable::new(1, 1), Arc::default());
    // SAFETY: no buffer.
    let start = || unsafe { slots.start(PEER, done(1), &pending) }.unwrap();
    let id = start();
    assert!(!slots.set_unsent(id));
    slots.cancel(&pending);
    assert!(slots.is_unused() && pending.is_done() && !slots.resume(id));
    let id = start();
    // In the middle of the attempt.
    slots.cancel(&pending);
    assert!(!slots.is_unused() && slots.set_unsent(id) && slots.is_unused());
    let id = start();
    assert!(!slots.set_unsent(id) && slots.cancel_one(id) && slots.is_unused());
}

/// Whether the target is to be told does not depend on what else failed.
#[test]
fn a_rendezvous_knows_how_it_ended() {
    let (slots, pending) = (OutstandingTable::new(3, 9), Arc::default());
    // SAFETY: no buffer.
    let start = |expected| unsafe { slots.start(PEER, expected, &pending) }.unwrap();
    let (failed, cleared, answered) = (start(done(1)), start(asked(10)), start(asked(10)));
    let freed = Answer { status: Status::Freed, ..acknowledged(1) };
    assert!(slots.answer(PEER, failed, freed, &[]));
    assert_eq!(slots.handle_cts(PEER, cleared, 4), Clearance::Taken);
    assert!(slots.answer(PEER, answered, freed, &[]));
    slots.cancel(&pending);
    assert_eq!(pending.failure(), Some(Failure::Answered(Status::Freed, PEER)));
    assert_eq!(slots.next(cleared, 4), Next::Cancelled);
    assert_eq!(slots.next(answered, 4), Next::Answered);
    assert_eq!(slots.handle_cts(PEER, cleared, 4), Clearance::Unknown, "another cancel is due");
    assert!(slots.answer(PEER, cleared, acknowledged(1), &[]), "of the cancel");
    assert!(slots.is_unused());
}

#[test]
fn a_rendezvous_ends_when_all_is_sent() {
    let (slots, pending) = (OutstandingTable::new(2, 9), Arc::default());
    // SAFETY: no buffer.
    let id = unsafe { slots.start(PEER, asked(10), &pending) }.unwrap();
    assert_eq!(slots.next(id, 4), Next::Wait);
    let grant = |peer, id, bytes| slots.handle_cts(WorldRank(peer), id, bytes);
    assert_eq!(grant(2, id, 4), Clearance::Unknown, "from another peer");
    assert_eq!(grant(1, SlotId(id.0 + 1), 4), Clearance::Unknown, "another slot");
    assert_eq!(grant(1, SlotId(id.0 + (1 << 32)), 4), Clearance::Unknown, "another generation");
    assert_eq!(grant(1, id, 11), Clearance::Wrong, "more than was asked for");
    assert_eq!(grant(1, id, 0), Clearance::Wrong, "nothing");
    assert_eq!(grant(1, id, 6), Clearance::Taken);
    assert_eq!(grant(1, id, 5), Clearance::Wrong, "more than is left");
    assert_eq!(slots.next(id, 4), Next::Data(0..4));
    assert_eq!(slots.next(id, 4), Next::Data(4..6));
    assert_eq!(slots.next(id, 4), Next::Wait);
    assert!(!slots.answer(PEER, id, acknowledged(1), &[]), "not all is sent");
    assert_eq!(grant(1, id, 4), Clearance::Taken);
    assert_eq!(slots.next(id, 4), Next::Data(6..10));
    assert_eq!(slots.next(id, 4), Next::Wait, "for the end");
    assert!(slots.answer(PEER, id, acknowledged(1), &[]));
    assert_eq!(slots.next(id, 4), Next::Answered);
    assert!(grant(1, id, 1) == Clearance::Unknown && pending.is_done());

    // SAFETY: no buffer.
    let id = unsafe { slots.start(PEER, asked(10), &pending) }.unwrap();
    let freed = Answer { status: Status::Freed, ..acknowledged(1) };
    assert!(slots.answer(PEER, id, freed, &[]), "the window is gone, whatever was sent");
    assert_eq!(slots.next(id, 4), Next::Answered);
    assert_eq!(pending.failure(), Some(Failure::Answered(Status::Freed, PEER)));
}

/// A waiter for credit at a peer waits for that peer; one for a slot, for any peer that keeps one.
/// Those that have left keep none, and their operations have failed.
#[test]
fn a_target_that_has_left_keeps_no_slot() {
    let (slots, pending, kept) = (OutstandingTable::new(2, 1), Arc::default(), Arc::default());
    let (one, other, third) = (WorldRank(1), WorldRank(2), WorldRank(3));
    let start = |peer, pending: &Arc<Pending>| {
        // SAFETY: no buffer.
        unsafe { slots.start(peer, done(1), pending) }
    };
    assert!(start(one, &pending).is_some() && start(one, &pending).is_none());
    assert_eq!(slots.keepers(1), None, "there is a slot");
    assert_eq!(slots.keepers(2), Some(vec![one]), "there is one slot only");
    assert!(start(other, &kept).is_some() && start(third, &kept).is_none());
    assert_eq!(slots.keepers(1), Some(vec![one, other]));
    assert!(!slots.end(third) && slots.end(one) && !slots.end(one));
    assert_eq!(pending.failure(), Some(Failure::Answered(Status::HolderLeft, one)));
    assert!(pending.is_done() && !kept.is_done());
    assert!(start(third, &kept).is_some());
    slots.cancel(&kept);
}
