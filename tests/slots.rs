//! Slots of messages to ranks that have left: others get them.
mod watched;

use rma::{Assert, Rank, RmaError, local_with};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use watched::{patient, watched, words};

/// What was put there and is never answered keeps no slot.
#[test]
fn a_slot_of_a_put_to_a_rank_that_left_comes_back() {
    watched(30, move || {
        let mut config = patient("messages", 20);
        (config.outstanding_messages, config.credit_messages) = (1, 1);
        config.progress_agent = rma::ProgressAgent::Never;
        let (put, left) = (Barrier::new(2), Barrier::new(2));
        let over = AtomicBool::new(false);
        local_with(config, 3, |universe| {
            let window = words(&universe, 1);
            universe.world().barrier().unwrap();
            match universe.world().rank().0 {
                0 => {
                    let epoch = window.lock_all_with(Assert::NO_CHECK).unwrap();
                    epoch.put(Rank(1), 0, &[1u64]).unwrap();
                    put.wait();
                    left.wait();
                    let got = epoch.get(Rank(2), 0, &mut [0u64]);
                    let first = epoch.flush(Rank(1));
                    let second = epoch.flush(Rank(2));
                    drop(epoch);
                    over.store(true, SeqCst);
                    let text = format!("{got:?}, {first:?}, {second:?}");
                    assert!(got.is_ok() && second.is_ok(), "{text}");
                    assert!(matches!(first, Err(RmaError::PeerLeft { .. })), "{text}");
                }
                1 => {
                    put.wait();
                    drop((window, universe));
                    left.wait();
                }
                _ => {
                    while !over.load(SeqCst) {
                        universe.progress();
                        thread::yield_now();
                    }
                }
            }
        })
        .unwrap();
    });
}
