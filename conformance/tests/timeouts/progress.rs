//! What a target without an agent does to its origins, and the end of an agent.
use super::{impatient, run, words};
use rma_core::{LockKind, ProgressAgent, Rank, RmaError, Universe};
use std::time::Duration;

fn pass(universe: &Universe, time: Duration) {
    let end = universe.transport().now() + time;
    while universe.transport().now() < end {
        universe.transport().relax(0);
    }
}

/// Rank 1 puts to rank 0, which passes 200 ms without a call of the library; patience is 20 ms.
fn put_to_one_that_computes(name: &str, progress_agent: ProgressAgent) {
    let mut config = impatient();
    config.progress_agent = progress_agent;
    run(name, 2, config, &|universe| {
        let window = words(&universe, 1);
        if window.rank() == Rank(0) {
            return pass(&universe, Duration::from_millis(200));
        }
        // Until the other has come out of the window's creation, where it serves.
        pass(&universe, Duration::from_millis(50));
        let put = window.lock(Rank(0), LockKind::Shared).and_then(|epoch| {
            epoch.put(0, &[1u64])?;
            epoch.unlock()
        });
        match progress_agent {
            ProgressAgent::Never => {
                assert!(matches!(put, Err(RmaError::Timeout { .. })), "{put:?}");
                assert!(universe.explain().contains("progress_agent is Never"));
            }
            _ => put.unwrap(),
        }
    });
}

/// The cases of the topic `progress` can fail.
#[test]
fn without_an_agent_a_put_times_out() {
    put_to_one_that_computes("timeouts::progress::without", ProgressAgent::Never);
}

#[test]
fn with_an_agent_it_does_not() {
    put_to_one_that_computes("timeouts::progress::with_an", ProgressAgent::Auto);
}

/// The agent of a forgotten universe is not stopped, so the simulation ends it with its rank.
#[test]
fn a_forgotten_universe_ends_with_its_rank() {
    run("timeouts::progress::a_forgotten", 3, impatient(), &|universe| {
        let window = words(&universe, 1);
        universe.world().barrier().unwrap();
        core::mem::forget((window, universe));
    });
}
