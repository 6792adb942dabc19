//! Operations whose wait failed, and windows that are sealed or freed nevertheless.
use super::*;
use crate::sims::Jobs;
use rma_core::ProgressAgent;
use rma_transport_sim::NetConfig;
use std::hint::black_box;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Its messages are not served while it computes.
fn without_agents() -> Config {
    let mut config = impatient();
    config.progress_agent = ProgressAgent::Never;
    config
}

/// Messages overtake each other by more than any rank waits.
fn overtaken() -> Jobs {
    let net = |ranks, seed| NetConfig { delay_max: 100_000, ..NetConfig::new(ranks, seed) };
    Jobs { seeds: 2000, net, ..jobs(without_agents()) }
}

fn serve_until(universe: &Universe, end: Duration) {
    while universe.transport().now() < end {
        universe.progress();
        universe.transport().park(Duration::from_millis(1));
    }
}

/// What an origin gave up may arrive when it likes: not in memory that safe code has as a slice.
/// S-A10
#[test]
fn what_was_given_up_does_not_change_a_slice() {
    let sealed = AtomicU32::new(0);
    overtaken().run_those_that_start("timeouts::sealed::what_was_given_up", 2, &|universe| {
        let world = universe.world();
        let Ok(window) = world.window(8, 8).allocate() else { return };
        if world.rank() == Rank(1) {
            let epoch = window.lock_all_with(Assert::NO_CHECK).unwrap();
            let all = [
                epoch.put(Rank(0), 0, &[41u64]),
                epoch.accumulate(Rank(0), 1, Op::Sum, &[41.0f64]),
                epoch.accumulate(Rank(0), 2, Op::Sum, &[41u64]),
            ];
            if all.iter().any(Result::is_err) || epoch.unlock().is_ok() {
                return;
            }
        }
        let Ok(mut mine) = window.seal() else { return };
        sealed.fetch_add(world.rank().0 ^ 1, Relaxed);
        let words: &mut [u64] = mine.as_mut_slice().unwrap();
        let before = black_box(&*words).to_vec();
        let late = universe.transport().now() + Duration::from_millis(110);
        serve_until(&universe, late);
        assert_eq!(black_box(&*words), before);
        drop(mine.unseal());
    });
    let sealed = sealed.into_inner();
    assert!(sealed > 0 || !overtaken().plays_all(), "no rank came to have a slice");
}

/// The rank that goes on first finds the other's part open. S-A10
#[test]
fn an_unsealed_part_takes_what_comes() {
    run("timeouts::sealed::an_unsealed_part", 2, without_agents(), &|universe| {
        let world = universe.world();
        let window = words(&universe, 2).seal().unwrap().unseal().unwrap();
        let epoch = window.lock_all().unwrap();
        epoch.put(Rank(0), u64::from(world.rank()), &[7u64]).unwrap();
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

/// An unlock that fails at one target has not waited for the others: `close` does, and gives what
/// is in the part then.
fn waits_for_what_an_unlock_left(name: &str, close: fn(Window) -> Option<Vec<u64>>) {
    // As many, so that some are late.
    const PUTS: usize = 10;
    // When all have a window.
    const BEGIN: Duration = Duration::from_millis(400);
    let closed = AtomicU32::new(0);
    overtaken().run_those_that_start(name, 3, &|universe| {
        let world = universe.world();
        let Ok(window) = world.window(PUTS, 8).allocate() else { return };
        serve_until(&universe, BEGIN);
        let given_up = BEGIN + Duration::from_millis(21);
        match world.rank() {
            // It answers nothing before rank 1 has given up.
            Rank(0) => {
                while universe.transport().now() < given_up {
                    universe.transport().relax(0);
                }
            }
            Rank(1) => {
                let epoch = window.lock_all_with(Assert::NO_CHECK).unwrap();
                let to = |target, at| epoch.put(Rank(target), at, &[9u64]);
                let all = (0..PUTS as u64).flat_map(|at| [to(0, at), to(2, at)]);
                if all.collect::<Result<(), _>>().is_err() || epoch.unlock().is_ok() {
                    return;
                }
            }
            _ => serve_until(&universe, given_up),
        }
        let Some(mine) = close(window) else { return };
        if world.rank() == Rank(2) {
            closed.fetch_add(1, Relaxed);
            assert_eq!(mine, [9; PUTS]);
        }
    });
    let closed = closed.into_inner();
    assert!(closed > 0 || !overtaken().plays_all(), "no rank came to have what was put");
}

/// S-A10
#[test]
fn sealing_waits_for_what_an_unlock_left() {
    waits_for_what_an_unlock_left("timeouts::sealed::sealing_waits", |window| {
        let mine = window.seal().ok()?;
        let words = mine.as_slice::<u64>().unwrap().to_vec();
        drop(mine.unseal());
        Some(words)
    });
}

/// S-A9
#[test]
fn freeing_waits_for_what_an_unlock_left() {
    let free = |window: Window| window.free_into::<Vec<u64>>().ok();
    waits_for_what_an_unlock_left("timeouts::sealed::freeing_waits", free);
}
