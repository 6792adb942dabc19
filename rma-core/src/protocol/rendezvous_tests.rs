//! Senders and grants against each other, with every order of messages that a network may choose.
use super::credit::CREDIT_MAX;
use super::rendezvous::{Data, Key, Receiver, Reply, Rts, Sender};
use crate::rank::WorldRank;
use proptest::prelude::*;
use std::collections::BTreeSet;

const WINDOW: u64 = 7;

fn key(origin: u32, slot: u64) -> Key {
    Key { origin: WorldRank(origin), slot }
}

fn rts(length: u64) -> Rts {
    Rts { window: WINDOW, offset: 100, length }
}

fn granted(receiver: &mut Receiver) -> Option<(Key, u64)> {
    match receiver.poll()? {
        Reply::Cts { key, bytes, .. } => Some((key, bytes)),
        Reply::Freed { .. } => panic!("no window was freed"),
    }
}

#[test]
fn senders_stay_within_their_grants() {
    let mut sender = Sender::new(10);
    assert_eq!(sender.poll_data(4), None, "nothing is granted");
    assert!(!sender.handle_cts(0) && !sender.handle_cts(11));
    assert!(sender.handle_cts(6));
    assert!(!sender.handle_cts(5) && !sender.handle_cts(u64::MAX), "more than asked for");
    assert_eq!(sender.poll_data(4), Some(0..4));
    assert_eq!(sender.poll_data(4), Some(4..6));
    assert_eq!(sender.poll_data(4), None);
    assert!(!sender.is_sent() && sender.handle_cts(4));
    assert_eq!(sender.poll_data(99), Some(6..10));
    assert!(sender.is_sent() && !sender.handle_cts(1));
}

#[test]
fn grants_come_in_the_order_of_asking() {
    let mut receiver = Receiver::new(100, 1);
    assert!(receiver.handle_rts(key(1, 1), rts(150)));
    assert!(receiver.handle_rts(key(2, 1), rts(10)));
    assert_eq!(granted(&mut receiver), Some((key(1, 1), 100)));
    assert_eq!(granted(&mut receiver), None, "the budget is out");
    assert!(receiver.handle_data(key(1, 1), WINDOW, 0, 24).is_some());
    assert_eq!(granted(&mut receiver), None, "less than a quarter");
    assert!(receiver.handle_data(key(1, 1), WINDOW, 24, 30).is_some());
    assert_eq!(granted(&mut receiver), Some((key(1, 1), 50)), "the first goes on, to its end");
    assert_eq!(granted(&mut receiver), None);
    assert!(receiver.handle_data(key(1, 1), WINDOW, 60, 6).is_some());
    assert_eq!(granted(&mut receiver), Some((key(2, 1), 10)), "all of it, though it is little");
    assert!(receiver.is_idle());
}

#[test]
fn what_was_not_granted_is_refused() {
    let mut receiver = Receiver::new(40, 1);
    let mine = key(1, 5);
    assert!(!receiver.handle_rts(mine, rts(0)), "nothing");
    assert!(receiver.handle_rts(mine, rts(50)));
    assert!(!receiver.handle_rts(mine, rts(50)), "again");
    assert_eq!(receiver.handle_data(mine, WINDOW, 0, 1), None, "before the grant");
    assert_eq!(granted(&mut receiver), Some((mine, 40)));
    let mut refused = |key, window, offset, len| {
        assert_eq!(receiver.handle_data(key, window, offset, len), None);
    };
    refused(key(1, 6), WINDOW, 0, 1);
    refused(key(2, 5), WINDOW, 0, 1);
    refused(mine, WINDOW + 1, 0, 1);
    refused(mine, WINDOW, 0, 0);
    refused(mine, WINDOW, 0, 41);
    refused(mine, WINDOW, 40, 1);
    refused(mine, WINDOW, u64::MAX, 1);
    refused(mine, WINDOW, 1, u64::MAX);
    let placed = |offset, last| Some(Data { offset, last, lost: false });
    assert_eq!(receiver.handle_data(mine, WINDOW, 10, 30), placed(110, false));
    assert_eq!(receiver.handle_data(mine, WINDOW, 10, 11), None, "twice the same");
    assert_eq!(granted(&mut receiver), Some((mine, 10)));
    assert_eq!(receiver.handle_data(mine, WINDOW, 40, 10), placed(140, false));
    assert_eq!(receiver.handle_data(mine, WINDOW, 0, 10), placed(100, true));
    assert_eq!(receiver.handle_data(mine, WINDOW, 0, 1), None, "it is over");
    assert!(!receiver.handle_cancel(mine));
}

/// What one data message lost is told at the end, whatever becomes of the others.
#[test]
fn a_hole_is_told_at_the_end() {
    let (mut receiver, mine, other) = (Receiver::new(100, 40), key(1, 5), key(1, 6));
    assert!(receiver.handle_rts(mine, rts(50)) && receiver.handle_rts(other, rts(50)));
    while granted(&mut receiver).is_some() {}
    let lost = |receiver: &mut Receiver, key, offset, len| {
        receiver.handle_data(key, WINDOW, offset, len).map(|placed| placed.lost)
    };
    assert_eq!(lost(&mut receiver, mine, 0, 10), Some(false));
    receiver.handle_lost(mine);
    assert_eq!(lost(&mut receiver, other, 0, 50), Some(false));
    assert_eq!(lost(&mut receiver, mine, 10, 40), Some(true));
}

#[test]
fn an_origin_cannot_request_without_end() {
    let mut receiver = Receiver::new(10, 1);
    for slot in 0..CREDIT_MAX as u64 {
        assert!(receiver.handle_rts(key(1, slot), rts(100)));
    }
    assert!(!receiver.handle_rts(key(1, 999), rts(100)), "one too many");
    assert!(receiver.handle_rts(key(2, 999), rts(100)), "another origin");
    assert!(receiver.handle_cancel(key(1, 3)));
    assert!(receiver.handle_rts(key(1, 999), rts(100)));
}

#[test]
fn grants_come_back() {
    let mut receiver = Receiver::new(10, 1);
    assert!(receiver.handle_rts(key(1, 1), rts(30)));
    assert!(receiver.handle_rts(key(2, 1), rts(9)));
    assert!(receiver.handle_rts(key(3, 1), rts(7)));
    assert_eq!(receiver.holders().count(), 0);
    assert_eq!(granted(&mut receiver), Some((key(1, 1), 10)));
    assert_eq!(receiver.holders().collect::<Vec<_>>(), [key(1, 1)]);
    assert!(receiver.handle_cancel(key(2, 1)), "one that waits");
    assert_eq!(granted(&mut receiver), None);
    assert!(receiver.handle_cancel(key(1, 1)), "one that holds a grant");
    assert_eq!(granted(&mut receiver), Some((key(3, 1), 7)));
    assert_eq!(receiver.holders().count(), 0, "no origin waits for it");

    assert!(receiver.handle_rts(key(4, 1), Rts { window: 8, offset: 0, length: 20 }));
    assert!(receiver.handle_rts(key(5, 1), rts(20)));
    assert_eq!(granted(&mut receiver), Some((key(4, 1), 3)));
    receiver.handle_freed(WINDOW);
    let mut told = [receiver.poll().unwrap(), receiver.poll().unwrap()];
    told.sort_by_key(|tell| match tell {
        Reply::Cts { key, .. } | Reply::Freed { key, .. } => *key,
    });
    let freed = |key| Reply::Freed { key, window: WINDOW };
    assert_eq!(told, [freed(key(3, 1)), freed(key(5, 1))]);
    assert_eq!(granted(&mut receiver), Some((key(4, 1), 7)), "the budget of the freed one");
    assert!(receiver.handle_cancel(key(4, 1)) && receiver.is_idle());
}

/// What travels between origins and the target.
#[derive(Debug, Clone, Copy)]
enum Wire {
    Rts,
    Cts(u64),
    Data(u64, u64),
    Cancel,
}

/// One transfer of the model; its place in a list is origin and slot at once.
struct Origin {
    sender: Sender,
    total: u64,
    piece: u64,
    /// It gives up when it has received so much.
    patience: u64,
    received: u64,
    gone: bool,
    arrived: BTreeSet<u64>,
    done: bool,
}

impl Origin {
    fn new((total, piece, patience): (u64, u64, u64)) -> Self {
        let (received, arrived) = (0, BTreeSet::new());
        let sender = Sender::new(total);
        Self { sender, total, piece, patience, received, gone: false, arrived, done: false }
    }

    /// Takes a grant, and answers it as the runtime does.
    fn take(&mut self, bytes: u64) -> Vec<Wire> {
        if self.gone {
            return vec![Wire::Cancel];
        }
        assert!(self.sender.handle_cts(bytes), "a grant that was not asked for");
        self.received += bytes;
        if self.received > self.patience {
            self.gone = true;
            return vec![Wire::Cancel];
        }
        let pieces = std::iter::from_fn(|| self.sender.poll_data(self.piece));
        pieces.map(|range| Wire::Data(range.start, range.end - range.start)).collect()
    }
}

/// Runs all transfers to their end; `choices` decides which message arrives next. Returns the order
/// in which transfers got their first grant.
fn play(budget: u64, message: u64, origins: &mut [Origin], choices: &[usize]) -> Vec<usize> {
    let mut receiver = Receiver::new(budget, message);
    let mut wires: Vec<(usize, Wire)> = (0..origins.len()).map(|i| (i, Wire::Rts)).collect();
    let (mut asked, mut order, mut outstanding) = (Vec::new(), Vec::new(), vec![0; origins.len()]);
    let mut choices = choices.iter().cycle();
    while !wires.is_empty() {
        let (i, wire) = wires.remove(choices.next().unwrap() % wires.len());
        let (origin, key) = (&mut origins[i], key(i as u32, i as u64));
        match wire {
            Wire::Rts => {
                assert!(receiver.handle_rts(key, rts(origin.total)));
                asked.push(i);
            }
            Wire::Cts(bytes) => wires.extend(origin.take(bytes).into_iter().map(|w| (i, w))),
            Wire::Data(offset, len) => {
                // Dropped if the transfer was cancelled.
                if let Some(placed) = receiver.handle_data(key, WINDOW, offset, len) {
                    let bytes = placed.offset - 100..placed.offset - 100 + len;
                    assert!(bytes.into_iter().all(|at| origin.arrived.insert(at)), "once each");
                    outstanding[i] -= len;
                    origin.done = placed.last;
                }
            }
            Wire::Cancel => {
                if receiver.handle_cancel(key) {
                    outstanding[i] = 0;
                }
            }
        }
        while let Some((key, bytes)) = granted(&mut receiver) {
            let i = key.slot as usize;
            if !order.contains(&i) {
                order.push(i);
            }
            outstanding[i] += bytes;
            assert!(outstanding.iter().sum::<u64>() <= budget, "more than the budget");
            wires.push((i, Wire::Cts(bytes)));
        }
    }
    assert!(receiver.is_idle(), "no origin waits any more");
    assert_eq!(receiver.holders().count(), 0);
    asked.retain(|i| order.contains(i));
    assert_eq!(order, asked, "first asked, first granted");
    order
}

fn check(origins: &[Origin]) {
    for origin in origins {
        assert_eq!(origin.done, !origin.gone, "everything ends");
        assert!(origin.gone || origin.arrived.len() as u64 == origin.total);
    }
}

/// Every order of messages of a small case: two transfers, a budget of one piece.
#[test]
fn every_interleaving_of_two() {
    let choices_max = if cfg!(miri) { 2 } else { 7 };
    for code in 0..4usize.pow(choices_max) {
        let choices: Vec<usize> = (0..choices_max).map(|i| code >> (2 * i) & 3).collect();
        for patience in [0, 2, 99] {
            let mut origins = [Origin::new((5, 2, 99)), Origin::new((3, 2, patience))];
            play(2, 2, &mut origins, &choices);
            check(&origins);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 4 } else { 512 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]
    /// Never more than the budget on its way, every byte once, first come first served, and
    /// everything ends, whichever origin gives up.
    #[test]
    fn transfers_end_within_the_budget(
        budget in 1u64..60,
        message in 1u64..20,
        transfers in proptest::collection::vec((1u64..100, 1u64..30, 0u64..150), 1..6),
        choices in proptest::collection::vec(0usize..64, 1..40),
    ) {
        let mut origins: Vec<_> = transfers.into_iter().map(Origin::new).collect();
        play(budget, message, &mut origins, &choices);
        check(&origins);
    }
}
