//! Answers, senders and those that give up, each a thread, at one slot.
#![allow(unsafe_code)]

use super::*;
use loom::thread;
use std::sync::Arc;

const PEER: WorldRank = WorldRank(1);

struct Shared {
    table: OutstandingTable,
    pending: Arc<Pending>,
}

/// One slot, which is taken for a get of so many bytes.
fn with_get(buffer: Buffer) -> (loom::sync::Arc<Shared>, SlotId) {
    let shared = Shared { table: OutstandingTable::new(1, 1), pending: Arc::default() };
    let expected = Expected { kind: Kind::Data, units: buffer.len as u64, buffer, sender: None };
    // SAFETY: every test keeps the buffer until all its threads are joined.
    let id = unsafe { shared.table.start(PEER, expected, &shared.pending) }.unwrap();
    (loom::sync::Arc::new(shared), id)
}

impl Shared {
    fn answer(&self, id: SlotId, offset: u64, byte: u8) -> bool {
        let answer = Answer { kind: Kind::Data, status: Status::Ok, value: 7, units: 1, offset };
        self.table.answer(PEER, id, answer, &[byte])
    }

    /// Takes the slot, as soon as it is free, for a message of which nothing comes back.
    fn start_next(&self, pending: &Arc<Pending>) -> SlotId {
        let expected = Expected { kind: Kind::Done, units: 1, buffer: Buffer::NONE, sender: None };
        loop {
            // SAFETY: no buffer.
            if let Some(id) = unsafe { self.table.start(PEER, expected, pending) } {
                return id;
            }
            thread::yield_now();
        }
    }
}

/// After a cancel no answer is written, and the credit comes back with the answer: not before.
#[test]
fn an_answer_crosses_a_cancel() {
    loom::model(|| {
        let mut bytes = vec![0u8; 1];
        let (shared, id) = with_get(Buffer { at: bytes.as_mut_ptr(), len: 1 });
        let other = shared.clone();
        let answers = thread::spawn(move || {
            assert!(!other.table.is_unused(), "the target has it");
            assert!(other.answer(id, 0, 9), "the one answer, late or not");
        });
        shared.table.cancel(&shared.pending);
        // SAFETY: nothing writes to it after the cancel; that is what is tested.
        let seen = unsafe { bytes.as_ptr().read_volatile() };
        answers.join().unwrap();
        assert_eq!(bytes[0], seen, "written after the cancel");
        assert!(shared.pending.is_done() && shared.table.is_unused());
    });
}

/// One that gives up meets a sender that finds no room, and tries again: what was cancelled before
/// it was sent owes nothing and is not sent; what was sent owes an answer.
#[test]
fn a_cancel_crosses_an_attempt_to_send() {
    loom::model(|| {
        let mut bytes = vec![0u8; 1];
        let (shared, id) = with_get(Buffer { at: bytes.as_mut_ptr(), len: 1 });
        let other = shared.clone();
        let sender = thread::spawn(move || {
            other.table.set_unsent(id);
            other.table.resume(id)
        });
        shared.table.cancel(&shared.pending);
        let sent = sender.join().unwrap();
        assert!(shared.pending.is_done());
        assert_eq!(shared.table.is_unused(), !sent);
        assert_eq!(shared.answer(id, 0, 9), sent);
        assert!(shared.table.is_unused() && bytes[0] == 0);
    });
}

/// The thread that takes a slot sees it as the one left it that answered.
#[test]
fn a_slot_goes_from_thread_to_thread() {
    loom::model(|| {
        let mut bytes = vec![0u8; 1];
        let (shared, id) = with_get(Buffer { at: bytes.as_mut_ptr(), len: 1 });
        let other = shared.clone();
        let answers = thread::spawn(move || assert!(other.answer(id, 0, 9)));
        let pending = Arc::default();
        let next = shared.start_next(&pending);
        assert!(next != id && !shared.answer(id, 0, 8), "the id of an earlier life");
        answers.join().unwrap();
        assert_eq!((bytes[0], shared.pending.is_done(), pending.is_done()), (9, true, false));
        shared.table.cancel(&pending);
        assert!(pending.is_done() && !shared.table.is_unused());
    });
}

/// Pieces of one answer, in the hands of two threads: a waiter that sees all done sees both.
#[test]
fn pieces_come_side_by_side() {
    loom::model(|| {
        let mut bytes = vec![0u8; 2];
        let (shared, id) = with_get(Buffer { at: bytes.as_mut_ptr(), len: 2 });
        let other = shared.clone();
        let answers = thread::spawn(move || assert!(other.answer(id, 1, 4)));
        assert!(shared.answer(id, 0, 3));
        while !shared.pending.is_done() {
            thread::yield_now();
        }
        assert_eq!((&bytes[..], shared.pending.value()), (&[3, 4][..], 7));
        answers.join().unwrap();
        assert!(shared.table.is_unused());
    });
}

/// A peer that has left is heard of beside its last answer: the slot is given back once.
#[test]
fn a_peer_leaves_beside_its_answer() {
    loom::model(|| {
        let mut bytes = vec![0u8; 1];
        let (shared, id) = with_get(Buffer { at: bytes.as_mut_ptr(), len: 1 });
        let last = shared.clone();
        let answers = thread::spawn(move || last.answer(id, 0, 9));
        let (ended, answered) = (shared.table.end(PEER), answers.join().unwrap());
        assert!(ended != answered && shared.pending.is_done() && shared.table.is_unused());
    });
}
