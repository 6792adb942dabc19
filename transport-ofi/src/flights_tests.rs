//! What is tried again, and when.

use super::{CUTS, CUTS_MOST, Flights, Key, PAUSE, QUERY_AGAIN, UNSENT_MOST, UnderWay, Work};
use crate::queue::Lent;
use crate::sys::{Combining, Direction, Far};
use rma_core::transport::{Atomic, WorldRank};
use rma_core::{BasicElement, Op};
use std::time::Instant;

const HERE: WorldRank = WorldRank(1);
const THERE: WorldRank = WorldRank(2);
const KEY: Key = [0; 16];

fn transfer(peer: WorldRank, posted: u64) -> UnderWay {
    UnderWay {
        peer,
        posted,
        id: None,
        work: Work::Move(Direction::Write),
        local: Lent::NONE,
        far: Far { peer: 0, key: 0, at: 0 },
        start: 0,
        cuts: 0,
        unsent: 0,
        queries: None,
        is_cut: false,
    }
}

/// Those with these slots have failed so.
fn fail(flights: &mut Flights<usize>, slots: &[usize], code: i32, now: Instant) {
    for slot in slots {
        let failed = flights.take(*slot).unwrap();
        assert!(flights.fail((*slot, failed), code, now).is_ok(), "{slot}");
    }
}

/// Slots of what is tried again in one round; there is room for peers other than `full`.
fn round(flights: &mut Flights<usize>, full: Option<WorldRank>, now: Instant) -> Vec<usize> {
    let (mut place, mut begun) = (0, Vec::new());
    while let Some((slot, waiting)) = flights.next_again(&mut place, now) {
        if full == Some(waiting.peer) {
            flights.wait_longer(&mut place, (slot, waiting));
        } else {
            flights.begin(slot, waiting);
            begun.push(slot);
        }
    }
    begun
}

/// With two transfers to each of two peers, posted in turn.
fn two_to_each() -> (Flights<usize>, Instant) {
    let mut flights = Flights::new(5);
    for (slot, (peer, posted)) in
        [(HERE, 0), (THERE, 0), (HERE, 1), (THERE, 1)].into_iter().enumerate()
    {
        flights.begin(slot, transfer(peer, posted));
    }
    (flights, Instant::now())
}

#[test]
fn each_peer_gets_its_own_in_the_order_of_posting() {
    let (mut flights, now) = two_to_each();
    // In another order than that in which they were posted.
    fail(&mut flights, &[3, 2, 1, 0], libc::ECANCELED, now);
    assert_eq!(round(&mut flights, None, now), [0; 0], "the connection may not be over");
    let now = now + PAUSE;
    let mut first = round(&mut flights, None, now);
    first.sort_unstable();
    assert_eq!(first, [0, 1], "the first of each, alone");
    assert_eq!(round(&mut flights, None, now), [0; 0]);
    flights.take(1).unwrap();
    assert_eq!(round(&mut flights, None, now), [3]);
    flights.take(0).unwrap();
    assert_eq!(round(&mut flights, None, now), [2]);
}

#[test]
fn nothing_is_posted_beside_what_is_tried_again() {
    let mut flights = Flights::new(2);
    let now = Instant::now();
    flights.begin(0, transfer(HERE, 0));
    assert!(!flights.owes(HERE));
    fail(&mut flights, &[0], libc::ECANCELED, now);
    assert!(flights.owes(HERE) && !flights.owes(THERE));
    assert_eq!(round(&mut flights, None, now + PAUSE), [0]);
    assert!(flights.owes(HERE), "it is under way again");
    assert!(flights.take(0).is_some());
    assert!(!flights.owes(HERE));
}

#[test]
fn a_peer_without_room_holds_up_no_other() {
    for full in [HERE, THERE] {
        let (mut flights, now) = two_to_each();
        fail(&mut flights, &[0, 1, 2, 3], libc::ENOTCONN, now);
        let now = now + PAUSE;
        let (kept, goes) = if full == HERE { (0, 1) } else { (1, 0) };
        assert_eq!(round(&mut flights, Some(full), now), [goes]);
        assert_eq!(round(&mut flights, None, now), [kept], "the first before the second");
    }
}

#[test]
fn a_peer_whose_post_fails_holds_up_no_other() {
    let (mut flights, start) = two_to_each();
    fail(&mut flights, &[0, 1, 2, 3], libc::ENOTCONN, start);
    let (now, mut place) = (start + PAUSE, 0);
    let (slot, waiting) = flights.next_again(&mut place, now).unwrap();
    assert_eq!((slot, waiting.peer), (0, HERE));
    assert!(flights.fail((slot, waiting), libc::ENOTCONN, now).is_ok());
    let (slot, waiting) = flights.next_again(&mut place, now).unwrap();
    assert_eq!((slot, waiting.peer), (1, THERE));
    flights.begin(slot, waiting);
    assert!(flights.next_again(&mut place, now).is_none(), "not in this round");
    assert_eq!(round(&mut flights, None, now + PAUSE), [0]);
}

/// What never has a connection is given up, and so is what connections always take with them.
#[test]
fn how_often_it_is_tried() {
    for (code, most) in [(libc::ECANCELED, CUTS_MOST), (libc::EPIPE, UNSENT_MOST)] {
        let (mut flights, mut now) = (Flights::new(1), Instant::now());
        let mut failed = transfer(HERE, 0);
        for _ in 0..most {
            assert!(flights.fail((0, failed), code, now).is_ok());
            now += PAUSE;
            flights.has_key(HERE, &KEY);
            failed = flights.next_again(&mut 0, now).unwrap().1;
        }
        assert!(flights.fail((0, failed), code, now).is_err());
    }
}

/// Each time that it was cut off while alone, its target is asked, and nothing is tried meanwhile.
#[test]
fn a_target_says_whether_it_has_a_key() {
    let (mut flights, mut now) = (Flights::new(1), Instant::now());
    let mut failed = transfer(HERE, 0);
    for round in 1..=2 * CUTS {
        let queries = flights.fail((0, failed), libc::ECANCELED, now).ok();
        assert_eq!(queries, Some(round % CUTS == 0), "round {round}");
        now += PAUSE;
        if queries == Some(true) {
            assert!(flights.next_again(&mut 0, now).is_none(), "not before the answer");
            flights.has_key(THERE, &KEY);
            flights.has_key(HERE, &[8; 16]);
            assert!(flights.next_again(&mut 0, now).is_none(), "that was of another");
            flights.has_key(HERE, &KEY);
        }
        failed = flights.next_again(&mut 0, now).unwrap().1;
    }
    // The answer is that it is gone.
    assert!(flights.fail((0, failed), libc::ECANCELED, now).is_ok());
    assert!(flights.take_waiting(|it| it.queries.is_some()).is_none(), "it was not asked for");
    assert!(flights.take_waiting(|it| it.peer == HERE).is_some() && !flights.is_waiting());
}

/// The question, or its answer, may be lost.
#[test]
fn a_target_that_does_not_answer_is_asked_again() {
    let (mut flights, mut now) = (Flights::new(1), Instant::now());
    let mut failed = transfer(HERE, 0);
    for _ in 1..CUTS {
        assert_eq!(flights.fail((0, failed), libc::ECANCELED, now).ok(), Some(false));
        now += PAUSE;
        failed = flights.next_again(&mut 0, now).unwrap().1;
    }
    assert_eq!(flights.fail((0, failed), libc::ECANCELED, now).ok(), Some(true));
    for _ in 0..2 {
        assert_eq!(flights.unheard(now + QUERY_AGAIN - PAUSE), []);
        now += QUERY_AGAIN;
        assert_eq!(flights.unheard(now), [(HERE, KEY)]);
        assert_eq!(flights.unheard(now), [], "it was asked just now");
    }
    let is_silent = |flights: &Flights<usize>, now| {
        flights.again.iter().any(|(_, it)| it.is_unanswered(now, 3 * QUERY_AGAIN))
    };
    // Since the first question, two before.
    assert!(!is_silent(&flights, now + QUERY_AGAIN - PAUSE));
    assert!(is_silent(&flights, now + QUERY_AGAIN));
    flights.has_key(HERE, &[8; 16]);
    assert!(is_silent(&flights, now + QUERY_AGAIN), "it has answered another question");
    flights.has_key(HERE, &KEY);
    assert!(!is_silent(&flights, now + QUERY_AGAIN));
    assert_eq!(flights.unheard(now + QUERY_AGAIN), [], "it has answered");
}

/// What was cut off, and is under way still, the core has given up: it keeps nothing from being
/// tried again.
#[test]
fn what_is_cut_off_holds_up_nothing() {
    let (mut flights, now) = (Flights::new(2), Instant::now());
    flights.begin(0, transfer(HERE, 0));
    assert!(flights.cut_off(HERE).is_empty());
    flights.begin(1, transfer(HERE, 1));
    fail(&mut flights, &[1], libc::ECANCELED, now);
    assert_eq!(round(&mut flights, None, now + PAUSE), [1]);
}

/// An atomic that a connection took with it may have happened; one that never had one has not.
#[test]
fn nothing_is_combined_twice() {
    let sum = Combining::new(Atomic::Combine(Op::Sum, u64::BASIC), 1, true).unwrap();
    for (code, is_again) in [(libc::ECANCELED, false), (libc::ENOTCONN, true)] {
        let failed = UnderWay { work: Work::Combine(sum), ..transfer(HERE, 0) };
        let mut flights = Flights::new(1);
        assert_eq!(flights.fail((0, failed), code, Instant::now()).is_ok(), is_again, "{code}");
    }
}

#[test]
fn other_errors_are_told_at_once() {
    let mut flights = Flights::new(1);
    let failed = flights.fail((0, transfer(HERE, 0)), libc::EKEYREJECTED, Instant::now());
    assert!(failed.is_err() && !flights.owes(HERE));
}

#[test]
fn of_a_peer_that_is_cut_off_nothing_is_tried_again() {
    let (mut flights, now) = two_to_each();
    fail(&mut flights, &[0, 1], libc::ECANCELED, now);
    assert_eq!(flights.cut_off(HERE), [0]);
    assert!(!flights.owes(HERE) && flights.owes(THERE));
    // That of the peer which was under way.
    let cut = flights.take(2).unwrap();
    assert!(cut.is_cut && flights.fail((2, cut), libc::ECANCELED, now).is_err());
}
