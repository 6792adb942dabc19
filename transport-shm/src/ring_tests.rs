//! The ring without other processes.
#![allow(unsafe_code)] // room: calls `pop`, writes a corrupt slot

use super::{Full, Popped, Ring};
use crate::sync::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use std::collections::VecDeque;

struct Receiver<const SLOTS: usize, const BYTES: usize, const MAX: usize> {
    ring: Ring<SLOTS, BYTES, MAX>,
    head: AtomicU64,
}

impl<const SLOTS: usize, const BYTES: usize, const MAX: usize> Receiver<SLOTS, BYTES, MAX> {
    fn new() -> Self {
        Self { ring: Ring::new(), head: AtomicU64::new(0) }
    }

    fn pop(&self) -> (Popped, [u8; MAX]) {
        let mut buffer = [0; MAX];
        // SAFETY: each test pops from one thread.
        (unsafe { self.ring.pop(&self.head, 70, &mut buffer) }, buffer)
    }
}

#[test]
fn messages_come_out_in_order_over_many_laps() {
    let r = Receiver::<4, 8, 8>::new();
    let mut expected = VecDeque::new();
    for n in 0..1_000u32 {
        let word = n.to_le_bytes();
        let (head, body) = word.split_at(n as usize % 5);
        if r.ring.push(n % 3, head, body).is_ok() {
            expected.push_back(n);
        } else {
            assert_eq!(expected.len(), 4, "refused with room");
        }
        assert_eq!(r.ring.has(&r.head), !expected.is_empty());
        if n % 7 > 2 {
            let (popped, bytes) = r.pop();
            match expected.pop_front() {
                None => assert_eq!(popped, Popped::Empty),
                Some(n) => {
                    assert_eq!(popped, Popped::Message { sender: n % 3, len: 4 });
                    assert_eq!(bytes[..4], n.to_le_bytes());
                }
            }
        }
    }
}

/// Wherever its header ends, and wherever in the ring it begins.
#[test]
fn a_long_message_goes_on_in_the_slots_behind() {
    let r = Receiver::<8, 4, 15>::new();
    let mut filled = Vec::new();
    for n in 0..2_000usize {
        let bytes: Vec<u8> = (0..n % 16).map(|i| (n + i) as u8).collect();
        let (head, body) = bytes.split_at(n / 16 % (bytes.len() + 1));
        let free = 8 - filled.iter().map(|b: &Vec<u8>| b.len().div_ceil(4).max(1)).sum::<usize>();
        let fits = bytes.len().div_ceil(4).max(1) <= free;
        assert_eq!(r.ring.push(n as u32 % 3, head, body).is_ok(), fits, "{n}: {free} are free");
        if fits {
            filled.push(bytes);
        } else {
            let (popped, buffer) = r.pop();
            let first = filled.remove(0);
            let Popped::Message { len, .. } = popped else { panic!("{popped:?}") };
            assert_eq!(buffer[..len], first[..]);
            // As the drain does, which looks for the refused.
            r.ring.take_refused(r.head.load(Relaxed));
        }
    }
}

#[test]
fn a_message_that_goes_on_in_slots_without_a_sender_is_skipped() {
    let r = Receiver::<8, 4, 16>::new();
    r.ring.push(1, b"ab", b"").unwrap();
    r.ring.slot(0).message.with_mut(|message| {
        // SAFETY: this test is the only thread.
        unsafe { (*message).len = 16 };
    });
    assert_eq!(r.pop().0, Popped::Corrupt);
    r.ring.push(1, b"12345678", b"9").unwrap();
    let (popped, buffer) = r.pop();
    assert_eq!((popped, &buffer[..9]), (Popped::Message { sender: 1, len: 9 }, &b"123456789"[..]));
    r.ring.push(1, b"12345678", b"").unwrap();
    r.ring.slot(4).message.with_mut(|message| {
        // SAFETY: as above.
        unsafe { (*message).len = 17 };
    });
    assert_eq!(
        [r.pop().0, r.pop().0],
        [Popped::Corrupt, Popped::Corrupt],
        "no message begins there"
    );
    assert_eq!(r.pop().0, Popped::Empty);
}

#[test]
fn a_refused_sender_leaves_its_bit_until_it_is_taken() {
    let r = Receiver::<2, 8, 8>::new();
    assert_eq!(r.ring.take_refused(0), 0);
    r.ring.push(0, b"", b"").unwrap();
    r.ring.push(0, b"12345678", b"").unwrap();
    assert_eq!(r.ring.push(3, b"x", b""), Err(Full));
    assert_eq!(r.ring.push(66, b"", b"x"), Err(Full));
    assert_eq!(r.ring.take_refused(0), 1 << 3 | 1 << 2);
    assert_eq!(r.ring.take_refused(0), 0);
    assert_eq!(r.pop().0, Popped::Message { sender: 0, len: 0 });
    r.ring.push(3, b"x", b"").unwrap();
}

#[test]
fn a_corrupt_slot_is_skipped() {
    let r = Receiver::<4, 8, 8>::new();
    for (sender, len) in [(70, 1), (u32::MAX, 1), (1, 9), (1, u32::MAX)] {
        r.ring.push(1, b"ab", b"").unwrap();
        let position = r.head.load(Relaxed);
        r.ring.slot(position).message.with_mut(|message| {
            // SAFETY: this test is the only thread.
            unsafe { (*message).sender = sender };
            // SAFETY: as above.
            unsafe { (*message).len = len };
        });
        r.ring.push(2, b"cd", b"").unwrap();
        assert_eq!(r.pop().0, Popped::Corrupt);
        assert_eq!(r.pop().0, Popped::Message { sender: 2, len: 2 });
    }
    assert_eq!(r.pop().0, Popped::Empty);
}

#[test]
fn wild_words_neither_hang_nor_panic() {
    let r = Receiver::<2, 8, 8>::new();
    r.ring.slot(0).turn.store(77, Relaxed);
    assert_eq!(r.pop().0, Popped::Empty);
    assert!(!r.ring.has(&r.head));
    r.ring.freed.0.store(u64::MAX, Relaxed);
    for _ in 0..9 {
        r.ring.push(1, b"a", b"").unwrap();
    }
    r.ring.claims.tail.store(u64::MAX, Relaxed);
    assert_eq!(r.ring.push(1, b"a", b""), Err(Full));
}

/// A receiver that looks only when it owes a look still finds every refused sender.
#[test]
fn looks_that_are_owed_find_the_refused() {
    let r = Receiver::<16, 8, 8>::new();
    let position = || r.head.load(Relaxed);
    while r.ring.push(5, b"", b"").is_ok() {}
    let before = position();
    r.pop();
    assert!(r.ring.owes_look(before, position()));
    assert_eq!(r.ring.take_refused(position()), 1 << 5);
    assert!(r.ring.push(5, b"", b"").is_ok());
    let mut looks = 0;
    let mut before = position();
    while r.pop().0 != Popped::Empty {
        looks += u32::from(r.ring.owes_look(before, position()));
        before = position();
    }
    assert_eq!(looks, 4, "one a step");
}

#[test]
fn senders_on_threads_keep_their_own_order() {
    const EACH: u32 = 20_000;
    let r = Receiver::<8, 16, 16>::new();
    std::thread::scope(|scope| {
        for sender in 0..3u32 {
            let ring = &r.ring;
            scope.spawn(move || {
                for n in 0..EACH {
                    while ring.push(sender, &n.to_le_bytes(), &(!n).to_le_bytes()).is_err() {
                        std::thread::yield_now();
                    }
                }
            });
        }
        let mut next = [0u32; 3];
        while next != [EACH; 3] {
            let (popped, bytes) = r.pop();
            let Popped::Message { sender, len: 8 } = popped else {
                assert_eq!(popped, Popped::Empty);
                std::thread::yield_now();
                continue;
            };
            let n = &mut next[sender as usize];
            assert_eq!(bytes[..4], n.to_le_bytes());
            assert_eq!(bytes[4..8], (!*n).to_le_bytes());
            *n += 1;
        }
    });
}
