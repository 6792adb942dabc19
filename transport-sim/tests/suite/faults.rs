//! Runs that go wrong end, and say why.

use core::time::Duration;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use crate::common::{config, receive, seeds, submit, wait_until};
use rma_core::transport::{Members, Messages, PeerState, Sleep, WorldRank};
use rma_transport_sim::{Cause, ConfigError, Net, NetConfig, Sim, run, run_traced};

/// Parks again and again until a rank failed.
fn park_until_failure(sim: &Sim) -> WorldRank {
    loop {
        let ticket = sim.arm();
        if let Some(rank) = sim.failed() {
            sim.disarm(ticket);
            return rank;
        }
        sim.park(ticket, None);
    }
}

#[test]
fn a_deadlock_names_the_ranks_that_wait() {
    for seed in seeds(30) {
        let woken = AtomicU32::new(0);
        let failure = run(&config(4, seed), |sim| {
            if sim.rank().0 == 2 {
                return;
            }
            assert_eq!(park_until_failure(&sim), WorldRank(0));
            assert_eq!(sim.peer_state(WorldRank(2)), PeerState::Departed);
            assert_eq!(sim.peer_state(sim.rank()), PeerState::Failed);
            woken.fetch_add(1, Ordering::Relaxed);
        })
        .unwrap_err();
        let Cause::Deadlock { waiting, .. } = &failure.cause else { panic!("{failure}") };
        let names: Vec<u32> = waiting.iter().map(|waiter| waiter.rank.0).collect();
        assert_eq!(names, [0, 1, 3]);
        assert_eq!(woken.into_inner(), 3, "every parked rank wakes up and ends");
        assert_eq!(failure.panics, []);
        let text = failure.to_string();
        assert!(text.contains("deadlock") && text.contains("rank 3 parked"), "{text}");
        assert!(text.ends_with(&format!("replay with seed {seed}")), "{text}");
    }
}

#[test]
fn a_deadlock_tells_of_unread_messages_and_full_queues() {
    let config = NetConfig { queue_max: 1, delay_max: 0, ..config(2, 4) };
    let failure = run(&config, |sim| {
        // No rank polls, so both queues stay full.
        let peer = WorldRank(1 - sim.rank().0);
        while submit(&sim, peer, &[1], &[]).is_ok() {}
        park_until_failure(&sim);
    })
    .unwrap_err();
    let Cause::Deadlock { waiting, .. } = &failure.cause else { panic!("{failure}") };
    assert_eq!(waiting.len(), 2);
    for waiter in waiting {
        assert_eq!(waiter.unread, 1);
        assert_eq!(waiter.refused_by, Some(WorldRank(1 - waiter.rank.0)));
    }
    assert!(failure.to_string().contains("refused by the full queue of rank 0"));
}

#[test]
fn the_timeout_of_a_wait_that_ended_early_does_not_move_the_clock() {
    for seed in seeds(20) {
        let failure = run(&config(2, seed), |sim| {
            let mut woken = sim.rank().0 == 0;
            if woken {
                submit(&sim, WorldRank(1), &[], &[]).unwrap();
            }
            while !woken {
                let ticket = sim.arm();
                woken = sim.poll(&mut |_, _| {}) > 0;
                if woken {
                    sim.disarm(ticket);
                } else {
                    sim.park(ticket, Some(Duration::from_secs(3600)));
                }
            }
            park_until_failure(&sim);
        })
        .unwrap_err();
        let Cause::Deadlock { at, .. } = failure.cause else { panic!("{failure}") };
        assert!(at < Duration::from_secs(1), "found at {at:?}");
    }
}

/// A wait that looks before `arm` and not after: the classic lost wake-up.
#[test]
fn a_lost_wake_up_is_found() {
    let found = (0..50).filter(|&seed| {
        let run = run(&config(2, seed), |sim| {
            if sim.rank().0 == 0 {
                submit(&sim, WorldRank(1), &[1], &[]).unwrap();
                wait_until(&sim, || sim.peer_state(WorldRank(1)) == PeerState::Departed);
                return;
            }
            loop {
                if sim.poll(&mut |_, _| {}) == 1 {
                    return;
                }
                sim.relax(0);
                let ticket = sim.arm();
                sim.park(ticket, None);
                assert_eq!(sim.failed(), None);
            }
        });
        run.is_err_and(|failure| matches!(failure.cause, Cause::Deadlock { .. }))
    });
    // Lazy: the first seed that finds it is enough.
    assert!(found.take(1).count() == 1, "no seed finds the lost wake-up");
}

#[test]
fn a_panic_ends_the_run_and_the_others_see_it() {
    for seed in seeds(30) {
        let seen = AtomicU32::new(0);
        let run = run_traced(&config(4, seed), |sim| {
            assert!(sim.rank().0 != 2, "rank {} gives up", sim.rank());
            assert_eq!(park_until_failure(&sim), WorldRank(2));
            assert_eq!(sim.peer_state(WorldRank(2)), PeerState::Failed);
            assert!(submit(&sim, WorldRank(2), &[], &[]).is_err());
            seen.fetch_add(1, Ordering::Relaxed);
        });
        let failure = run.outcome.unwrap_err();
        let Cause::Panic(panic) = &failure.cause else { panic!("{failure}") };
        assert_eq!(panic.rank, WorldRank(2));
        assert_eq!(panic.message, "rank 2 gives up");
        assert_eq!(failure.panics.len(), 1);
        assert_eq!(failure.trace, run.trace);
        assert_eq!(seen.into_inner(), 3);
        let text = failure.to_string();
        assert!(text.contains("rank 2 panicked: rank 2 gives up"), "{text}");
        assert!(text.contains(&format!("with seed {seed}")), "{text}");
    }
}

#[test]
fn the_first_panic_is_the_cause_and_the_others_are_listed() {
    for seed in seeds(20) {
        let failure = run(&config(3, seed), |sim| {
            assert!(sim.rank().0 != 0, "the cause");
            receive(&sim, 1);
        })
        .unwrap_err();
        let panics: Vec<&str> = failure.panics.iter().map(|panic| &*panic.message).collect();
        assert_eq!(panics[0], "the cause");
        assert_eq!(panics.len(), 3);
        assert!(panics[1..].iter().all(|message| message.starts_with("rank 0 failed while")));
    }
}

#[test]
fn failing_runs_replay_too() {
    for seed in seeds(10) {
        let failing = || {
            let failure = run(&config(3, seed), |sim| {
                (0..10).for_each(|_| _ = sim.relax(0));
                assert!(sim.rank().0 != 1, "oh");
                park_until_failure(&sim);
            });
            failure.unwrap_err()
        };
        assert_eq!(failing(), failing());
    }
}

#[test]
fn a_livelock_ends_even_if_no_rank_looks() {
    let config = NetConfig { step_max: 200, ..config(3, 8) };
    let failure = run(&config, |sim| {
        if sim.rank().0 == 0 {
            park_until_failure(&sim);
        } else {
            loop {
                sim.relax(0);
            }
        }
    })
    .unwrap_err();
    let Cause::Livelock { steps, waiting } = &failure.cause else { panic!("{failure}") };
    assert_eq!(*steps, 201);
    assert_eq!(waiting.len(), 1);
    assert_eq!(waiting[0].rank, WorldRank(0));
    assert_eq!(failure.panics, [], "being made to end is not a panic of the rank's own");
}

#[test]
fn ranks_that_ignore_a_deadlock_are_made_to_end() {
    let config = NetConfig { step_max: 200, ..config(2, 8) };
    let failure = run(&config, |sim| {
        loop {
            let ticket = sim.arm();
            sim.park(ticket, None);
        }
        #[expect(unreachable_code, reason = "fixes the type of the result")]
        ()
    })
    .unwrap_err();
    assert!(matches!(failure.cause, Cause::Deadlock { .. }), "{failure}");
}

#[test]
fn a_rank_that_waits_while_it_unwinds_is_named_as_such() {
    struct WaitsOnDrop<'a>(&'a Sim);
    impl Drop for WaitsOnDrop<'_> {
        fn drop(&mut self) {
            park_until_failure(self.0);
        }
    }
    let failure = run(&config(2, 6), |sim| {
        if sim.rank().0 == 1 {
            park_until_failure(&sim);
            return;
        }
        let _waits = WaitsOnDrop(&sim);
        panic!("the root of it");
    })
    .unwrap_err();
    let Cause::Deadlock { waiting, .. } = &failure.cause else { panic!("{failure}") };
    assert!(waiting[0].unwinding && !waiting[1].unwinding, "{failure}");
    assert_eq!(failure.panics[0].message, "the root of it");
    assert!(failure.to_string().contains("then rank 0 panicked: the root of it"), "{failure}");
}

#[test]
fn a_second_thread_of_a_rank_is_refused_clearly() {
    run(&config(2, 0), |sim| {
        let caught = thread::scope(|scope| {
            let calls = || catch_unwind(AssertUnwindSafe(|| sim.poll(&mut |_, _| {})));
            scope.spawn(calls).join().unwrap()
        });
        let payload = caught.unwrap_err();
        let message = payload.downcast_ref::<String>().unwrap();
        assert!(message.contains("called from another thread than the rank's own"), "{message}");
        sim.relax(0);
    })
    .unwrap();
}

#[test]
fn a_transport_used_too_early_or_too_late_is_refused_clearly() {
    let complaint = |sim: &Sim| {
        let payload = catch_unwind(AssertUnwindSafe(|| sim.relax(0))).unwrap_err();
        payload.downcast_ref::<String>().unwrap().clone()
    };
    let early = Net::new(config(1, 0)).unwrap().rank(WorldRank(0));
    assert!(complaint(&early).contains("before `Sim::enter`"));
    let late = run(&config(1, 0), |sim| sim).unwrap().pop().unwrap();
    assert!(complaint(&late).contains("after the rank's code ended"));
    assert_eq!(late.peer_state(WorldRank(0)), PeerState::Departed, "questions are answered");
    late.depart(rma_core::transport::Outcome::Failed);
    assert_eq!(late.failed(), None, "it left already");
}

#[test]
fn a_seat_dropped_by_a_panic_fails_its_rank() {
    let net = Net::new(config(2, 0)).unwrap();
    thread::scope(|scope| {
        let (one, other) = (net.rank(WorldRank(0)), net.rank(WorldRank(1)));
        let panics = scope.spawn(move || {
            let _seat = one.enter();
            panic!("by hand");
        });
        let sees = scope.spawn(move || {
            let _seat = other.enter();
            park_until_failure(&other)
        });
        assert!(panics.join().is_err());
        assert_eq!(sees.join().unwrap(), WorldRank(0));
    });
    let failure = net.failure().unwrap();
    let Cause::Panic(panic) = failure.cause else { panic!("{failure}") };
    assert_eq!(panic.rank, WorldRank(0));
}

#[test]
fn impossible_networks_are_refused() {
    let refused = |config: NetConfig| {
        let net = Net::new(config).err();
        let failure = run(&config, |_| {}).unwrap_err();
        assert_eq!(failure.cause, Cause::Config(net.unwrap()));
        net.unwrap()
    };
    assert_eq!(refused(config(0, 0)), ConfigError::NoRanks);
    assert_eq!(refused(NetConfig { queue_max: 0, ..config(1, 0) }), ConfigError::NoQueue);
    assert_eq!(refused(NetConfig { step_max: 0, ..config(1, 0) }), ConfigError::NoSteps);
}
