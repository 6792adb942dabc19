//! Sleeping, ringing and virtual time.

use core::time::Duration;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::common::{config, receive, seeds, submit, wait_until};
use rma_core::transport::{
    Members, Messages, Outcome, PeerState, Sleep, SubmitError, Touch, Views, WorldRank,
};
use rma_transport_sim::{Cause, NetConfig, Sim, run, run_traced};

#[test]
fn a_park_times_out_in_virtual_time() {
    for seed in seeds(20) {
        let hour = Duration::from_secs(3600);
        let run = run_traced(&config(2, seed), |sim| {
            let start = sim.now();
            while sim.now() < start + hour {
                let ticket = sim.arm();
                let left = (start + hour).saturating_sub(sim.now());
                sim.park(ticket, Some(left));
            }
            sim.now() - start
        });
        for slept in run.outcome.unwrap() {
            assert!(slept >= hour);
            assert!(slept < hour + Duration::from_millis(1), "slept {slept:?}");
        }
        assert!(run.trace.steps < 100, "the clock jumps: {} steps", run.trace.steps);
    }
}

#[test]
fn timeouts_wake_in_the_order_of_their_deadlines() {
    for seed in seeds(20) {
        let turn = AtomicU32::new(0);
        run(&config(4, seed), |sim| {
            let due = Duration::from_millis(u64::from(10 * (4 - sim.rank().0)));
            while sim.now() < due {
                let ticket = sim.arm();
                sim.park(ticket, Some(due - sim.now()));
            }
            assert_eq!(turn.fetch_add(1, Ordering::Relaxed), 3 - sim.rank().0);
        })
        .unwrap();
    }
}

#[test]
fn a_ring_wakes_a_parked_rank() {
    let mut slept = 0;
    for seed in seeds(50) {
        let flag = AtomicBool::new(false);
        let parks = run(&config(2, seed), |sim| {
            if sim.rank().0 == 0 {
                (0..5).for_each(|_| _ = sim.relax(0));
                flag.store(true, Ordering::Relaxed);
                sim.ring(WorldRank(1));
                // Nothing else may wake the sleeper: neither a message nor this rank's end.
                let later = sim.now() + Duration::from_secs(1);
                while sim.now() < later {
                    let ticket = sim.arm();
                    sim.park(ticket, Some(later - sim.now()));
                }
                return 0;
            }
            let mut parks = 0;
            loop {
                let ticket = sim.arm();
                if flag.load(Ordering::Relaxed) {
                    sim.disarm(ticket);
                    assert!(sim.now() < Duration::from_millis(1), "woken by something else");
                    return parks;
                }
                sim.park(ticket, None);
                parks += 1;
            }
        });
        slept += parks.unwrap()[1];
    }
    assert!(slept > 0, "no seed let the rank sleep");
}

#[test]
fn a_ring_between_arm_and_park_is_not_lost_and_one_before_arm_does_not_count() {
    for seed in seeds(20) {
        run(&config(1, seed), |sim| {
            let ticket = sim.arm();
            sim.ring(sim.rank());
            sim.park(ticket, None);
            assert!(sim.now() < Duration::from_secs(1));

            sim.ring(sim.rank());
            let end = sim.now() + Duration::from_secs(1);
            let mut parks = 0;
            while sim.now() < end {
                let ticket = sim.arm();
                sim.park(ticket, Some(end - sim.now()));
                parks += 1;
            }
            // A park may return early, but hardly five times in a row.
            assert!(parks < 6, "{parks} parks");
        })
        .unwrap();
    }
}

#[test]
fn an_arriving_message_wakes_its_receiver() {
    for seed in seeds(20) {
        run(&config(2, seed), |sim| {
            if sim.rank().0 == 0 {
                (0..50).for_each(|_| _ = sim.relax(0));
                submit(&sim, WorldRank(1), b"wake", b" up").unwrap();
                assert_eq!(receive(&sim, 1)[0].1, b"thanks");
            } else {
                assert_eq!(receive(&sim, 1)[0].1, b"wake up");
                submit(&sim, WorldRank(0), b"thanks", &[]).unwrap();
            }
        })
        .unwrap();
    }
}

#[test]
fn messages_take_time_and_no_longer_than_the_longest_delay() {
    let delay_max = 500;
    let mut longest = Duration::ZERO;
    for seed in seeds(100) {
        let config = NetConfig { delay_max, ..config(1, seed) };
        let took = run(&config, |sim| {
            submit(&sim, sim.rank(), &[], &[]).unwrap();
            let sent = sim.now();
            receive(&sim, 1);
            sim.now() - sent
        });
        longest = longest.max(took.unwrap()[0]);
    }
    // A few ticks pass while the receiver looks.
    assert!(longest < Duration::from_micros(delay_max + 10), "{longest:?}");
    assert!(longest > Duration::from_micros(10), "{longest:?}");
}

#[test]
fn a_loop_that_only_polls_lets_time_pass_and_others_run() {
    let config = NetConfig { step_max: 1_000, ..config(2, 3) };
    run(&config, |sim| {
        if sim.rank().0 == 0 {
            while sim.now() < Duration::from_micros(20) {}
            while sim.peer_state(WorldRank(1)) == PeerState::Alive {}
        }
    })
    .unwrap();
}

#[test]
fn a_departed_peer_is_seen() {
    for seed in seeds(20) {
        run(&config(3, seed), |sim| {
            if sim.rank().0 == 2 {
                sim.depart(Outcome::Departed);
                sim.depart(Outcome::Failed);
                return;
            }
            wait_until(&sim, || sim.peer_state(WorldRank(2)) != PeerState::Alive);
            assert_eq!(sim.peer_state(WorldRank(2)), PeerState::Departed);
            assert_eq!(sim.failed(), None);
            assert!(submit(&sim, WorldRank(2), &[], &[]).is_err());
        })
        .unwrap();
    }
}

#[test]
fn a_rank_that_just_returns_departs_in_order() {
    run(&config(2, 1), |sim| {
        if sim.rank().0 == 0 {
            wait_until(&sim, || sim.peer_state(WorldRank(1)) == PeerState::Departed);
        }
    })
    .unwrap();
}

#[test]
fn a_rank_that_fails_without_a_panic_is_seen_and_the_run_goes_on() {
    for seed in seeds(20) {
        let seen = run(&config(2, seed), |sim| {
            if sim.rank().0 == 0 {
                sim.depart(Outcome::Failed);
                sim.depart(Outcome::Departed);
                return sim.peer_state(WorldRank(0));
            }
            wait_until(&sim, || sim.peer_state(WorldRank(0)) != PeerState::Alive);
            assert_eq!(sim.failed(), Some(WorldRank(0)));
            sim.peer_state(WorldRank(0))
        });
        assert_eq!(seen.unwrap(), [PeerState::Failed; 2]);
    }
}

#[test]
fn an_orderly_departure_is_seen_after_everything_sent_before_it() {
    for seed in seeds(50) {
        run(&config(2, seed), |sim| {
            if sim.rank().0 == 0 {
                (0..5).for_each(|n| submit(&sim, WorldRank(1), &[n], &[]).unwrap());
                return;
            }
            wait_until(&sim, || sim.peer_state(WorldRank(0)) == PeerState::Departed);
            assert_eq!(sim.poll(&mut |_, _| {}), 5);
        })
        .unwrap();
    }
}

#[test]
fn news_of_a_departure_travels_and_messages_sent_meanwhile_are_lost() {
    let mut lost = 0;
    for seed in seeds(50) {
        let left = AtomicBool::new(false);
        let config = NetConfig { queue_max: 2, ..config(2, seed) };
        let sent = run(&config, |sim| {
            if sim.rank().0 == 0 {
                left.store(true, Ordering::Relaxed);
                return 0;
            }
            let mut sent = 0;
            // Ends although the receiver makes no room in the queue.
            wait_until(&sim, || match submit(&sim, WorldRank(0), &[], &[]) {
                Ok(()) => {
                    sent += u32::from(left.load(Ordering::Relaxed));
                    false
                }
                Err(error) => error == SubmitError::PeerFailed(WorldRank(0)),
            });
            sent
        });
        lost += sent.unwrap()[1];
    }
    assert!(lost > 0, "no seed lets a rank send to one that left");
}

/// Looks at memory that never tells that it may stop.
fn look_for_ever(sim: &Sim) {
    loop {
        sim.touches(Touch::Look);
    }
}

#[test]
fn a_rank_that_looks_at_its_memory_lets_the_others_run() {
    for seed in seeds(20) {
        let flag = AtomicBool::new(false);
        run(&config(3, seed), |sim| {
            if sim.rank().0 == 0 {
                while !flag.load(Ordering::Relaxed) {
                    sim.touches(Touch::Look);
                }
            } else if sim.rank().0 == 1 {
                submit(&sim, WorldRank(2), &[], &[]).unwrap();
            } else {
                receive(&sim, 1);
                flag.store(true, Ordering::Relaxed);
            }
        })
        .unwrap();
    }
}

#[test]
fn ranks_that_look_in_vain_are_a_deadlock_that_names_them() {
    for seed in seeds(3) {
        let failure = run(&config(4, seed), |sim| match sim.rank().0 {
            0 => look_for_ever(&sim),
            1 => {
                while sim.failed().is_none() {
                    sim.poll(&mut |_, _| {});
                }
            }
            2 => _ = receive(&sim, 1),
            _ => {}
        })
        .unwrap_err();
        let Cause::Deadlock { waiting, .. } = &failure.cause else { panic!("{failure}") };
        let seen: Vec<_> = waiting.iter().map(|waiter| (waiter.rank.0, waiter.polls)).collect();
        assert_eq!(seen, [(0, true), (1, true), (2, false)], "{failure}");
        assert!(failure.to_string().contains("rank 0 polls in vain since"), "{failure}");
        assert!(failure.trace.steps < 1_000_000, "the rank need not be waited for: {failure}");
    }
}

/// A rank that sleeps a little between two looks does nothing else either; unless it waits for a
/// time.
#[test]
fn ranks_that_nap_and_look_in_vain_are_a_deadlock() {
    let nap = |sim: &Sim| {
        let ticket = sim.arm();
        sim.poll(&mut |_, _| {});
        sim.park(ticket, Some(Duration::from_millis(1)));
    };
    let end = Duration::from_secs(if cfg!(miri) { 1 } else { 30 });
    for seed in seeds(3) {
        let failure = run(&config(3, seed), |sim| match sim.rank().0 {
            0 => {
                while sim.failed().is_none() {
                    nap(&sim);
                }
            }
            1 => _ = receive(&sim, 1),
            _ => {
                while sim.now() < end {
                    nap(&sim);
                }
            }
        })
        .unwrap_err();
        let Cause::Deadlock { at, waiting } = &failure.cause else { panic!("{failure}") };
        let seen: Vec<_> = waiting.iter().map(|waiter| (waiter.rank.0, waiter.polls)).collect();
        assert_eq!(seen, [(0, true), (1, false)], "{failure}");
        assert!(*at >= end, "the one that waits for a time: {failure}");
    }
}

#[test]
fn a_rank_that_looks_lets_the_deadlines_of_others_come() {
    for seed in seeds(3) {
        let end = Duration::from_secs(3600);
        run(&config(2, seed), |sim| {
            if sim.rank().0 == 0 {
                while sim.peer_state(WorldRank(1)) == PeerState::Alive {
                    sim.touches(Touch::Look);
                }
                return;
            }
            while sim.now() < end {
                let ticket = sim.arm();
                sim.park(ticket, Some(end - sim.now()));
            }
        })
        .unwrap();
    }
}

/// A large window is worked through while the others wait.
#[test]
fn a_rank_that_reads_or_changes_much_does_not_look_in_vain() {
    let count = if cfg!(miri) { 100 } else { 1_000_000 };
    run(&config(2, 5), |sim| {
        if sim.rank().0 == 0 {
            (0..count).for_each(|_| sim.touches(Touch::Look));
            for _ in 0..2 * count {
                sim.touches(Touch::Change);
                sim.touches(Touch::Look);
            }
            submit(&sim, WorldRank(1), &[], &[]).unwrap();
        } else {
            receive(&sim, 1);
        }
    })
    .unwrap();
}
