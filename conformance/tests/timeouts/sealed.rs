//! Operations whose wait failed, and windows that are sealed or freed nevertheless.
use super::*;
use rma_core::ProgressAgent;
use std::hint::black_box;

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
    run("timeouts::sealed::what_was_given_up", 2, without_agents(), &|universe| {
        let world = universe.world();
        let window = words(&universe, 8);
        let begin = universe.transport().now();
        if world.rank() == Rank(0) {
            compute_until(&universe, begin + Duration::from_millis(30));
        } else {
            let epoch = window.lock_all_with(Assert::NO_CHECK).unwrap();
            epoch.put(Rank(0), 0, &[41u64]).unwrap();
            epoch.accumulate(Rank(0), 1, Op::Sum, &[41.0f64]).unwrap();
            epoch.accumulate(Rank(0), 2, Op::Sum, &[41u64]).unwrap();
            _ = epoch.unlock();
        }
        let Ok(mut sealed) = window.seal() else { return };
        let words: &mut [u64] = sealed.as_mut_slice().unwrap();
        let before = black_box(&*words).to_vec();
        for _ in 0..200 {
            universe.progress();
            universe.transport().relax(0);
        }
        assert_eq!(black_box(&*words), before);
        let window = sealed.unseal().unwrap();
        // The door is open again, before anybody can knock.
        let epoch = window.lock_all().unwrap();
        epoch.put(Rank(0), 3 + u64::from(world.rank()), &[7u64]).unwrap();
        epoch.unlock().unwrap();
        world.barrier().unwrap();
        if world.rank() == Rank(0) {
            let mut got = [0u64; 2];
            window.local().read(3, &mut got).unwrap();
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
