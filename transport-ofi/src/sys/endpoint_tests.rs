//! Two endpoints of one process. Where no libfabric is, or no tcp, each says so and passes.

use super::*;
use crate::sys::{Caps, Opened, here};
use crate::{Libfabric, Offer};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

fn tcp() -> Option<(Libfabric, Offer)> {
    here::provider("tcp", false)
}

fn open((library, offer): &(Libfabric, Offer), count: u32) -> (Endpoint, Vec<Slot>) {
    let opened = Opened::open(library, offer, Some("127.0.0.1"), Caps::Messages).unwrap();
    opened.endpoint((count, 1024)).unwrap()
}

/// Reads both until `done` says so.
fn until(ends: [&Endpoint; 2], mut done: impl FnMut(usize, Completion) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        for (number, end) in ends.iter().enumerate() {
            let mut over = Vec::new();
            end.read(&mut over);
            for completion in over {
                if done(number, completion) {
                    return;
                }
            }
        }
        assert!(Instant::now() < deadline, "nothing more in {PATIENCE:?}");
    }
}

/// As a caller does: makes progress and tries again as long as there is no room.
fn send(ends: [&Endpoint; 2], mut slot: Slot, len: usize, to: u64, over: &mut Vec<Completion>) {
    let deadline = Instant::now() + PATIENCE;
    while let Err(Full(again, failure)) = ends[0].send(slot, len, to) {
        assert_eq!(failure, None);
        assert!(Instant::now() < deadline, "no room in {PATIENCE:?}");
        slot = again;
        ends[0].read(over);
        ends[1].read(&mut Vec::new());
    }
}

#[test]
fn messages_arrive_whole_and_slots_come_back() {
    let Some(tcp) = tcp() else { return };
    let ((one, mut slots), (other, rooms)) = (open(&tcp, 4), open(&tcp, 4));
    for room in rooms {
        other.receive(room).unwrap();
    }
    let to = one.insert(other.address()).unwrap();
    for number in 0..4_u8 {
        let mut slot = slots.pop().unwrap();
        let len = 1 + 341 * usize::from(number);
        one.bytes_mut(&mut slot)[..len].fill(number);
        send([&one, &other], slot, len, to, &mut Vec::new());
    }
    let (mut sent, mut received) = (0, Vec::new());
    until([&one, &other], |_, completion| {
        match completion {
            Completion::Sent(_, Ok(())) => sent += 1,
            Completion::Received(slot, Ok(len)) => {
                received.push(other.bytes(&slot)[..len].to_vec());
            }
            other => panic!("{other:?}"),
        }
        sent == 4 && received.len() == 4
    });
    received.sort();
    let expected: Vec<Vec<u8>> =
        (0..4).map(|number| vec![number; 1 + 341 * usize::from(number)]).collect();
    assert_eq!(received, expected);
}

/// A receiver that reads nothing stops its sender, by `Full` and not by memory.
#[test]
fn a_receiver_that_does_not_read_is_back_pressure() {
    let Some(tcp) = tcp() else { return };
    let ((one, slots), (other, _)) = (open(&tcp, 64), open(&tcp, 1));
    let to = one.insert(other.address()).unwrap();
    let mut over = Vec::new();
    let mut free = slots;
    let mut sent: u64 = 0;
    let mut refused = 0;
    // The connection is made while both make progress; then the other end stands still.
    let first = free.pop().unwrap();
    send([&one, &other], first, 1024, to, &mut over);
    while refused < 100 {
        one.read(&mut over);
        for completion in over.drain(..) {
            match completion {
                Completion::Sent(slot, Ok(())) => free.push(slot),
                other => panic!("{other:?}"),
            }
        }
        let Some(slot) = free.pop() else {
            refused += 1;
            continue;
        };
        match one.send(slot, 1024, to) {
            Ok(()) => sent += 1,
            Err(Full(slot, failure)) => {
                assert_eq!(failure, None);
                free.push(slot);
                refused += 1;
            }
        }
        assert!(sent < 1 << 20, "a gigabyte is on its way to nobody");
    }
}

#[test]
fn a_waiter_sleeps_at_the_file_until_something_comes() {
    let Some(tcp) = tcp() else { return };
    let ((one, mut slots), (other, mut rooms)) = (open(&tcp, 2), open(&tcp, 2));
    other.receive(rooms.pop().unwrap()).unwrap();
    let to = one.insert(other.address()).unwrap();
    let Some(file) = other.file() else { panic!("tcp has a file to wait at") };
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let deadline = Instant::now() + PATIENCE;
            let mut over = Vec::new();
            loop {
                other.read(&mut over);
                if let Some(completion) = over.pop() {
                    return completion;
                }
                assert!(Instant::now() < deadline, "nothing has come");
                if other.may_wait() {
                    let mut files =
                        [rustix::event::PollFd::new(&file, rustix::event::PollFlags::IN)];
                    let timeout = rustix::time::Timespec { tv_sec: 20, tv_nsec: 0 };
                    rustix::event::poll(&mut files, Some(&timeout)).unwrap();
                }
            }
        });
        let mut slot = slots.pop().unwrap();
        let deadline = Instant::now() + PATIENCE;
        while let Err(Full(again, failure)) = one.send(slot, 5, to) {
            assert_eq!(failure, None);
            assert!(Instant::now() < deadline, "no room in {PATIENCE:?}");
            slot = again;
            one.read(&mut Vec::new());
        }
        // The sender makes its progress until the message is out.
        let mut over = Vec::new();
        while !waiter.is_finished() {
            one.read(&mut over);
        }
        assert!(matches!(waiter.join().unwrap(), Completion::Received(_, Ok(5))));
    });
}

/// What a peer does that goes away is an error of the operation, with a reason.
#[test]
fn an_endpoint_that_is_gone_fails_what_is_sent_to_it() {
    let Some(tcp) = tcp() else { return };
    let ((one, mut slots), (other, rooms)) = (open(&tcp, 8), open(&tcp, 8));
    for room in rooms {
        other.receive(room).unwrap();
    }
    let to = one.insert(other.address()).unwrap();
    send([&one, &other], slots.pop().unwrap(), 8, to, &mut Vec::new());
    until([&one, &other], |_, completion| matches!(completion, Completion::Received(..)));
    drop(other);
    let deadline = Instant::now() + PATIENCE;
    let mut over = Vec::new();
    let failure = loop {
        assert!(Instant::now() < deadline, "no error in {PATIENCE:?}");
        if let Some(slot) = slots.pop() {
            match one.send(slot, 8, to) {
                Ok(()) => {}
                Err(Full(slot, None)) => slots.push(slot),
                Err(Full(_, Some(failure))) => break failure,
            }
        }
        one.read(&mut over);
        let mut failed = None;
        for completion in over.drain(..) {
            match completion {
                Completion::Sent(slot, Ok(())) => slots.push(slot),
                Completion::Sent(_, Err(failure)) => {
                    failed = Some(failure);
                }
                Completion::Stray => {}
                other => panic!("{other:?}"),
            }
        }
        if let Some(failure) = failed {
            break failure;
        }
    };
    assert!(failure.code > 0, "{failure:?}");
}

#[test]
fn addresses_are_those_of_the_provider() {
    let Some(tcp) = tcp() else { return };
    let (one, _) = open(&tcp, 1);
    assert!(one.shown(one.address()).contains("127.0.0.1"), "{}", one.shown(one.address()));
    assert_eq!(one.insert(&[0; 3]), None);
    let nowhere = Opened::open(&tcp.0, &tcp.1, Some("192.0.2.77"), Caps::Messages);
    let refused =
        nowhere.and_then(|opened| opened.endpoint((1, 64)).map_err(|failed| opened.failed(failed)));
    let refused = refused.err().unwrap();
    assert!(refused.to_string().contains("192.0.2.77"), "{refused}");
}

/// What is on its way when an endpoint is dropped is the endpoint's.
#[test]
fn slots_on_their_way_are_dropped_with_the_endpoint() {
    let Some(tcp) = tcp() else { return };
    for _ in 0..20 {
        let ((one, mut slots), (other, rooms)) = (open(&tcp, 4), open(&tcp, 4));
        for room in rooms {
            other.receive(room).unwrap();
        }
        let to = one.insert(other.address()).unwrap();
        // Accepted or not: neither is waited for.
        _ = one.send(slots.pop().unwrap(), 1024, to);
    }
}
