//! Two ports of one process. Where no libfabric is, or no tcp, each test says so and passes.
#![allow(unsafe_code)] // room: promises Members

use super::{NO_RANK, Port, SLOT_BYTES, SLOTS};
use crate::book::Book;
use crate::frame::Kind;
use crate::sys::{Caps, Opened, Passive, here};
use crate::watcher::{Bell, FAREWELL};
use rma_core::transport::{ImportError, Members, Outcome, PeerState, SubmitError, WorldRank};
use std::sync::atomic::Ordering::Acquire;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

const ONE: WorldRank = WorldRank(0);
const OTHER: WorldRank = WorldRank(1);
const PATIENCE: Duration = Duration::from_secs(20);

/// Ranks that all live.
struct Alive;

// SAFETY: nobody has failed or left.
unsafe impl Members for Alive {
    fn peer_state(&self, _: WorldRank) -> PeerState {
        PeerState::Alive
    }

    fn failed(&self) -> Option<WorldRank> {
        None
    }

    fn depart(&self, _: Outcome) {}
}

/// The port of a rank whose launcher is asked, or is gone, and never answers.
fn port(rank: WorldRank, is_asked: bool) -> Option<Port> {
    let (library, offer) = here::provider("tcp", false)?;
    let opened = Opened::open(&library, &offer, Some("127.0.0.1"), Caps::Messages).unwrap();
    let (endpoint, slots) = opened.endpoint((SLOTS, SLOT_BYTES)).unwrap();
    let (endpoint, waker) = (Arc::new(Passive::new(endpoint)), Arc::new(OnceLock::new()));
    let query = Box::new(move |_| is_asked);
    let book = Arc::new(Book::new((2, endpoint.address().len()), query, waker.clone()));
    let bells = (Arc::new(Bell::new().unwrap()), waker);
    Some(Port::new((endpoint, slots), (rank, 7), book, Arc::new(Alive), bells, (None, FAREWELL)))
}

/// Repeats `attempt` until it says that it is done.
fn until(mut attempt: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !attempt() {
        assert!(Instant::now() < deadline, "not done in {PATIENCE:?}");
    }
}

/// A rank that leaves sends its last replies once: it does not wait for a launcher.
#[test]
fn a_rank_that_sent_something_can_be_answered_at_once() {
    let Some(one) = port(ONE, true) else { return };
    let Some(other) = port(OTHER, true) else { return };
    assert!(one.book.learn(OTHER, other.endpoint.address()));
    until(|| {
        one.poll(&mut |_, _| ());
        other.poll(&mut |_, _| ());
        one.send(OTHER, b"ask", b"ed").is_ok()
    });
    let mut asked = Vec::new();
    until(|| {
        one.poll(&mut |_, _| ());
        other.poll(&mut |from, message| asked.push((from, message.to_vec())));
        !asked.is_empty()
    });
    assert_eq!(asked, [(ONE, b"asked".to_vec())], "what says where it is, is no message");
    assert_eq!(&*other.book.address(ONE).unwrap(), one.endpoint.address());
    let mut answered = Vec::new();
    until(|| {
        other.poll(&mut |_, _| ());
        _ = other.send(ONE, b"answer", b"");
        one.poll(&mut |from, message| answered.push((from, message.to_vec())));
        !answered.is_empty()
    });
    assert_eq!(answered[0], (OTHER, b"answer".to_vec()));
    assert_eq!(other.troubles(), "; the addresses of 1 of 2 ranks are known");
}

#[test]
fn a_peer_that_cannot_be_asked_for_a_key_is_lost() {
    let Some(one) = port(ONE, false) else { return };
    assert!(one.say_of_key(OTHER, Kind::KeyQuery, &[0; 16]));
    assert!(one.is_lost(OTHER));
    assert!(one.troubles().contains("rank 1 was lost"), "{}", one.troubles());
}

/// Nobody who asked for a key is lost for that: it asks again.
#[test]
fn an_answer_that_goes_nowhere_is_counted() {
    let Some(one) = port(ONE, false) else { return };
    assert!(one.say_of_key(OTHER, Kind::KeyTold, &[0; 17]));
    assert_eq!(one.lost.load(Acquire), NO_RANK);
    assert!(one.troubles().contains("left 1 questions of keys"), "{}", one.troubles());
}

/// So a thread that sleeps until there is room is woken.
#[test]
fn an_address_that_is_awaited_is_as_room_that_is() {
    let Some(one) = port(ONE, true) else { return };
    assert!(!one.is_starved());
    assert_eq!(one.send(OTHER, b"", b""), Err(SubmitError::Again));
    assert!(one.is_starved());
    // What says that there is no answer ends the wait.
    one.book.end();
    let error = one.send(OTHER, b"", b"").unwrap_err();
    let SubmitError::Unreachable(ImportError::NoAddress { owner, .. }) = error else {
        panic!("{error:?}")
    };
    assert_eq!(owner, OTHER);
    // What else waits to be sent there, as replies do, is given up.
    assert_eq!(one.send(OTHER, b"", b""), Err(SubmitError::PeerFailed(OTHER)));
    assert!(one.is_lost(OTHER));
}
