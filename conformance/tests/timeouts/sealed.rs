//! Operations whose wait failed, and windows that are sealed or freed nevertheless.
use super::*;
use crate::sims::Jobs;
use rma_core::ProgressAgent;
use rma_transport_sim::NetConfig;
use std::hint::black_box;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Nobody serves messages while it computes.
fn without_agents() -> Config {
    let mut config = impatient();
    config.progress_agent = ProgressAgent::Never;
    config
}

/// What an origin gave up may arrive when it likes: not in memory that safe code has as a slice.
/// S-A10
#[test]
fn what_was_given_up_does_not_change_a_slice() {
    // Messages overtake each other by more than anybody waits.
    let net = |ranks, seed| NetConfig { delay_max: 30_000, ..NetConfig::new(ranks, seed) };
    let sealed = AtomicU32::new(0);
    let jobs = Jobs { seeds: 400, net, ..jobs(without_agents()) };
    jobs.run_those_that_start("timeouts::sealed::what_was_given_up", 2, &|universe| {
        let world = universe.world();
        let Ok(window) = world.window(8, 8).allocate() else { return };
        if world.rank() == Rank(1) {
            let epoch = window.lock_all_with(Assert::NO_CHECK).unwrap();
            epoch.put(Rank(0), 0, &[41u64]).unwrap();
            epoch.accumulate(Rank(0), 1, Op::Sum, &[41.0f64]).unwrap();
            epoch.accumulate(Rank(0), 2, Op::Sum, &[41u64]).unwrap();
            if epoch.unlock().is_ok() {
                return;
            }
        }
        let Ok(mut mine) = window.seal() else { return };
        sealed.fetch_add(world.rank().0 ^ 1, Relaxed);
        let words: &mut [u64] = mine.as_mut_slice().unwrap();
        let before = black_box(&*words).to_vec();
        let end = universe.transport().now() + Duration::from_millis(35);
        while universe.transport().now() < end {
            universe.progress();
            universe.transport().relax(0);
        }
        assert_eq!(black_box(&*words), before);
        drop(mine.unseal());
    });
    assert!(cfg!(miri) || sealed.load(Relaxed) > 0, "nobody came to have a slice");
}

/// Who goes on first finds the other's part open. S-A10
#[test]
fn an_unsealed_part_takes_what_comes() {
    run("timeouts::sealed::an_unsealed_part", 2, without_agents(), &|universe| {
        let world = universe.world();
        let window = words(&universe, 2).seal().unwrap().unseal().unwrap();
        let epoch = window.lock_all().unwrap();
        epoch.put(Rank(0), world.rank().into(), &[7u64]).unwrap();
        epoch.unlock().unwrap();
        world.barrier().unwrap();
        if world.rank() == Rank(0) {
            let mut got = [0u64; 2];
            window.local().read(0, &mut got).unwrap();
            assert_eq!(got, [7, 7]);
        }
        window.free().unwrap();
    });
}

/// An unlock that fails at one target has not waited for the others: sealing does. S-A10
#[test]
fn sealing_waits_for_what_an_unlock_left() {
    const RANKS: u32 = 5;
    run("timeouts::sealed::sealing_waits", RANKS, without_agents(), &|universe| {
        let world = universe.world();
        let window = words(&universe, 1);
        let end = universe.transport().now() + Duration::from_millis(25);
        if world.rank() == Rank(1) {
            let epoch = window.lock_all_with(Assert::NO_CHECK).unwrap();
            for target in world.ranks().filter(|target| *target != Rank(1)) {
                epoch.put(target, 0, &[9u64]).unwrap();
            }
            // Nobody serves: it gives up the first of them.
            let error = epoch.unlock().unwrap_err();
            assert!(matches!(error, RmaError::Timeout { .. }), "{error}");
        } else {
            compute_until(&universe, end);
        }
        let sealed = window.seal().unwrap();
        let got = sealed.as_slice::<u64>().unwrap()[0];
        let all = world.allreduce(&[got], Op::Sum).unwrap()[0];
        assert!(all >= 9 * u64::from(RANKS - 2), "{} of 4 puts have arrived", all / 9);
        sealed.unseal().unwrap().free().unwrap();
    });
}
