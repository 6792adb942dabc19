//! Every interleaving (up to a bound on preemptions) of the ring.
#![allow(unsafe_code)] // room: calls `pop`

use super::{Full, Popped, Ring};
use crate::sync::AtomicU64;
use loom::sync::Arc;
use loom::thread;

struct Shared<const SLOTS: usize> {
    ring: Ring<SLOTS, 2, 2>,
    head: AtomicU64,
}

impl<const SLOTS: usize> Shared<SLOTS> {
    fn new() -> Arc<Self> {
        Arc::new(Self { ring: Ring::new(), head: AtomicU64::new(0) })
    }

    fn pop(&self) -> Option<(u32, [u8; 2])> {
        let mut buffer = [0; 2];
        // SAFETY: only the main thread of a model pops.
        match unsafe { self.ring.pop(&self.head, 2, &mut buffer) } {
            Popped::Empty => None,
            Popped::Message { sender, len } => {
                assert_eq!(len, 2);
                Some((sender, buffer))
            }
            Popped::Corrupt => panic!("a message was torn"),
        }
    }
}

fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(f);
}

/// Two senders with two messages each into a ring of two slots: what was taken arrives whole, once
/// and in its sender's order; nothing else does.
#[test]
fn loom_two_senders_one_receiver() {
    model(|| {
        let shared = Shared::<2>::new();
        let senders: Vec<_> = (0..2u32)
            .map(|rank| {
                let shared = shared.clone();
                thread::spawn(move || {
                    let push = |n| shared.ring.push(rank, &[rank as u8], &[n]) != Err(Full);
                    (0..2u8).filter(|&n| push(n)).collect::<Vec<_>>()
                })
            })
            .collect();
        let mut arrived = [Vec::new(), Vec::new()];
        let mut receive = || {
            let popped = shared.pop();
            if let Some((sender, [first, n])) = popped {
                assert_eq!(u32::from(first), sender, "torn");
                arrived[sender as usize].push(n);
            }
            popped.is_some()
        };
        receive();
        receive();
        let taken: Vec<_> = senders.into_iter().map(|sender| sender.join().unwrap()).collect();
        while receive() {}
        assert_eq!(taken, arrived);
        assert!(taken.iter().map(Vec::len).sum::<usize>() >= 2, "refused with room");
    });
}

/// A refused sender is known to the receiver that makes room.
#[test]
fn loom_no_refused_sender_is_forgotten() {
    model(|| {
        let shared = Shared::<1>::new();
        shared.ring.push(0, &[0], &[0]).unwrap();
        let sender = {
            let shared = shared.clone();
            thread::spawn(move || shared.ring.push(1, &[1], &[1]))
        };
        assert_eq!(shared.pop(), Some((0, [0, 0])));
        let refused = shared.ring.take_refused(1);
        if sender.join().unwrap() == Err(Full) {
            assert_eq!(
                refused,
                1 << 1,
                "refused after room was made, and the receiver does not know"
            );
        } else {
            assert_eq!(shared.pop(), Some((1, [1, 1])));
        }
    });
}

/// A second thread of the receiver that looks while the first one pops never misses a message
/// that is there for good.
#[test]
fn loom_a_look_from_aside_finds_what_is_there() {
    model(|| {
        let shared = Shared::<2>::new();
        shared.ring.push(0, &[0], &[0]).unwrap();
        shared.ring.push(1, &[1], &[1]).unwrap();
        let onlooker = {
            let shared = shared.clone();
            thread::spawn(move || shared.ring.has(&shared.head))
        };
        assert_eq!(shared.pop(), Some((0, [0, 0])));
        assert!(onlooker.join().unwrap());
    });
}

/// Two senders, whose messages take two slots each: one that is found is there whole.
#[test]
fn loom_a_long_message_is_found_whole() {
    model(|| {
        let shared = Arc::new((Ring::<4, 1, 2>::new(), AtomicU64::new(0)));
        let senders: Vec<_> = (0..2u32)
            .map(|rank| {
                let shared = shared.clone();
                let byte = [rank as u8 + 1];
                thread::spawn(move || shared.0.push(rank, &byte, &byte).unwrap())
            })
            .collect();
        let mut arrived = Vec::new();
        let mut receive = || {
            let mut buffer = [0; 2];
            // SAFETY: only this thread pops.
            match unsafe { shared.0.pop(&shared.1, 2, &mut buffer) } {
                Popped::Empty => false,
                Popped::Message { sender, len } => {
                    assert_eq!((len, buffer), (2, [sender as u8 + 1; 2]), "torn");
                    arrived.push(sender);
                    true
                }
                Popped::Corrupt => panic!("a message was torn"),
            }
        };
        receive();
        receive();
        for sender in senders {
            sender.join().unwrap();
        }
        while receive() {}
        arrived.sort_unstable();
        assert_eq!(arrived, [0, 1]);
    });
}

/// A sender that finds room for a part of its message only is refused, and known to the receiver.
#[test]
fn loom_a_sender_that_finds_half_of_its_room_is_not_forgotten() {
    model(|| {
        let shared = Arc::new((Ring::<4, 1, 2>::new(), AtomicU64::new(0)));
        let pop = |shared: &(Ring<4, 1, 2>, AtomicU64)| {
            let mut buffer = [0; 2];
            // SAFETY: only the main thread pops.
            let popped = unsafe { shared.0.pop(&shared.1, 2, &mut buffer) };
            (popped, buffer)
        };
        for n in 0..3 {
            shared.0.push(0, &[n], &[]).unwrap();
        }
        let sender = {
            let shared = shared.clone();
            thread::spawn(move || shared.0.push(1, &[7], &[8]))
        };
        assert_eq!(pop(&shared), (Popped::Message { sender: 0, len: 1 }, [0, 0]));
        let refused = shared.0.take_refused(1);
        if sender.join().unwrap() == Err(Full) {
            assert_eq!(
                refused,
                1 << 1,
                "refused after room was made, and the receiver does not know"
            );
        } else {
            pop(&shared);
            pop(&shared);
            assert_eq!(pop(&shared), (Popped::Message { sender: 1, len: 2 }, [7, 8]));
        }
    });
}
