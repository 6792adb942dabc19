//! Two threads of a rank that take what has arrived.
#![allow(unsafe_code)] // room: looks at what was taken

use super::Inbox;
use crate::doorbell::Doorbell;
use crate::ring::Ring;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Release};
use loom::thread;

/// Two messages, of which a drain takes one.
struct Shared {
    ring: Ring<2, 1, 1>,
    inbox: Inbox<2, 1, 1>,
    bell: Doorbell,
    /// What was taken. Only the thread that drains touches it: loom looks after that, as for the
    /// buffer.
    taken: UnsafeCell<Vec<u8>>,
}

impl Shared {
    fn new() -> Arc<Self> {
        let (ring, inbox) = (Ring::new(), Inbox::new());
        let (bell, taken) = (Doorbell::new(), UnsafeCell::new(Vec::new()));
        Arc::new(Self { ring, inbox, bell, taken })
    }

    fn send(&self, message: u8) {
        self.ring.push(0, &[message], &[]).unwrap();
        self.bell.ring_for_work();
    }

    fn drain(&self) -> usize {
        let mut sink = |_, bytes: &[u8]| {
            self.taken.with_mut(|taken| {
                // SAFETY: `Inbox` calls one sink at a time; loom sees if it does not.
                unsafe { (*taken).extend_from_slice(bytes) }
            });
        };
        self.inbox.drain(&self.ring, 1, &mut sink, |wake| {
            if wake.own {
                self.bell.ring_for_work();
            }
        })
    }

    /// Takes messages until none is left, and sleeps while it is turned away. If it is not rung
    /// then, that is a deadlock, which loom reports.
    fn empty(&self) {
        loop {
            let armed = self.bell.arm();
            if self.drain() == 0 && self.inbox.has_messages(&self.ring) {
                self.bell.park(armed, None);
            } else {
                self.bell.disarm();
                if !self.inbox.has_messages(&self.ring) {
                    return;
                }
            }
        }
    }
}

fn check(play: impl Fn(&Arc<Shared>) + Sync + Send + 'static) {
    loom::model(move || {
        let shared = Shared::new();
        play(&shared);
        shared.empty();
        shared.taken.with(|taken| {
            // SAFETY: no thread takes anything any more; loom sees if one does.
            assert_eq!(unsafe { &*taken }, &[1, 2]);
        });
    });
}

#[test]
fn loom_a_sender_that_is_refused_is_rung() {
    check(|shared| {
        shared.send(1);
        shared.send(2);
        let other = {
            let shared = shared.clone();
            thread::spawn(move || shared.drain())
        };
        shared.empty();
        other.join().unwrap();
    });
}

#[test]
fn loom_two_threads_take_what_a_sender_sends() {
    check(|shared| {
        let drainer = {
            let shared = shared.clone();
            thread::spawn(move || shared.drain())
        };
        let sender = {
            let shared = shared.clone();
            thread::spawn(move || {
                shared.send(1);
                shared.send(2);
            })
        };
        shared.empty();
        drainer.join().unwrap();
        sender.join().unwrap();
    });
}

/// As the core does: a thread that handled messages rings its own rank.
fn progress(shared: &Shared) -> usize {
    let count = shared.drain();
    if count > 0 {
        shared.bell.ring();
    }
    count
}

/// Waits for what a rank that leaves sent before, while another thread drains.
fn await_leaver(nonsense: bool) {
    loom::model(move || {
        let (shared, left) = (Shared::new(), Arc::new(AtomicBool::new(false)));
        let drainer = {
            let shared = shared.clone();
            thread::spawn(move || progress(&shared))
        };
        let leaver = {
            let (shared, left) = (shared.clone(), left.clone());
            thread::spawn(move || {
                let sender = u32::from(nonsense);
                shared.ring.push(sender, &[1], &[]).unwrap();
                shared.bell.ring_for_work();
                left.store(true, Release);
                shared.bell.ring_for_work();
            })
        };
        loop {
            let armed = shared.bell.arm();
            let mark = left.load(Acquire).then(|| shared.ring.claimed());
            let count = progress(&shared);
            if mark.is_some_and(|mark| shared.inbox.is_handled(mark)) {
                shared.bell.disarm();
                break;
            }
            if count > 0 { shared.bell.disarm() } else { shared.bell.park(armed, None) }
        }
        shared.taken.with(|taken| {
            // SAFETY: all is handled; loom sees if it is not.
            assert_eq!(unsafe { (*taken).is_empty() }, nonsense);
        });
        drainer.join().unwrap();
        leaver.join().unwrap();
    });
}

#[test]
fn loom_what_a_leaver_sent_is_seen_before_it_is_missed() {
    await_leaver(false);
}

#[test]
fn loom_a_receiver_that_waits_for_nonsense_is_woken() {
    await_leaver(true);
}
