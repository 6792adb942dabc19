//! Far locks that ranks give up to wait for, in virtual time: what is left of them in line, or on
//! its way, is in no waiter's way.
use crate::jobs;
use crate::sims::Jobs;
use rma_core::{Config, Lock, LockKind, ProgressAgent, Rank, RmaError, Universe, Window};
use std::time::Duration;

const HOME: Rank = Rank(0);

fn patient_for(ms: u64) -> Config {
    let mut config = Config::default();
    config.wait_timeout = Some(Duration::from_millis(ms));
    config
}

/// Does nothing until then; only an agent serves.
fn until(universe: &Universe, ms: u64) {
    let (transport, end) = (universe.transport(), Duration::from_millis(ms));
    while transport.now() < end {
        transport.park(end.saturating_sub(transport.now()));
    }
}

/// Serves until then.
fn serve_until(universe: &Universe, ms: u64) {
    let transport = universe.transport();
    while transport.now() < Duration::from_millis(ms) {
        universe.progress();
        transport.park(Duration::from_millis(1));
    }
}

fn is_late(end: Result<(), RmaError>) {
    assert!(matches!(end, Err(RmaError::Timeout { .. })), "{end:?}");
}

fn window(universe: &Universe) -> Window {
    universe.world().window(1, 8).allocate().unwrap()
}

/// Rank 3 is the first in line, 1 and 2 are behind. When 3 and 2 have given up, and 2 has given the
/// window away, 1 gets the lock, and the waiter after it.
#[test]
fn a_rank_that_gave_up_and_dropped_the_window_is_not_waited_for() {
    let body = |universe: Universe| {
        let window = window(&universe);
        let take = |window: &Window| window.lock(HOME, LockKind::Exclusive).and_then(Lock::unlock);
        match universe.world().rank() {
            HOME => {
                let held = window.lock(HOME, LockKind::Exclusive).unwrap();
                universe.world().barrier().unwrap();
                until(&universe, 270);
                held.unlock().unwrap();
                until(&universe, 300);
                take(&window).unwrap();
            }
            Rank(1) => {
                universe.world().barrier().unwrap();
                until(&universe, 180);
                take(&window).unwrap();
                assert!(universe.transport().now() >= Duration::from_millis(270));
            }
            Rank(2) => {
                universe.world().barrier().unwrap();
                until(&universe, 140);
                is_late(take(&window));
                drop(window);
            }
            _ => {
                universe.world().barrier().unwrap();
                until(&universe, 100);
                is_late(take(&window));
            }
        }
        until(&universe, 350);
        universe.finalize().unwrap();
    };
    Jobs { seeds: 5, ..jobs(patient_for(100)) }.run("lines", 4, &body);
}

/// Rank 2 gives up because the home does not answer; what it has sent arrives later, and takes
/// nothing from rank 1, which holds the lock.
#[test]
fn a_rank_that_never_held_a_lock_gives_none_back() {
    let mut config = patient_for(20);
    config.progress_agent = ProgressAgent::Never;
    let body = |universe: Universe| {
        let window = window(&universe);
        let rank = universe.world().rank();
        let held = (rank == Rank(1)).then(|| window.lock(HOME, LockKind::Shared).unwrap());
        universe.world().barrier().unwrap();
        match rank {
            HOME => until(&universe, 100),
            Rank(2) => {
                until(&universe, 20);
                is_late(window.lock(HOME, LockKind::Shared).and_then(Lock::unlock));
            }
            Rank(3) => {
                serve_until(&universe, 150);
                is_late(window.lock(HOME, LockKind::Exclusive).and_then(Lock::unlock));
            }
            _ => {}
        }
        serve_until(&universe, 200);
        held.map_or(Ok(()), |held| held.unlock()).unwrap();
        serve_until(&universe, 250);
        universe.finalize().unwrap();
    };
    Jobs { seeds: 5, ..jobs(config) }.run("lines", 4, &body);
}

/// Rank 1 does not have it in time, and is out of line when rank 2 gets it.
#[test]
fn a_rank_that_waits_for_a_while_is_back_in_time() {
    let body = |universe: Universe| {
        let (window, transport) = (window(&universe), universe.transport());
        let rank = universe.world().rank();
        let held = (rank == HOME).then(|| window.lock(HOME, LockKind::Exclusive).unwrap());
        universe.world().barrier().unwrap();
        let lock_for = |ms| {
            let begin = transport.now();
            let lock =
                window.try_lock_for(HOME, LockKind::Exclusive, Duration::from_millis(ms)).unwrap();
            (lock, (transport.now() - begin).as_millis())
        };
        match rank {
            HOME => {
                until(&universe, 1000);
                held.unwrap().unlock().unwrap();
            }
            Rank(1) => {
                let (lock, took_ms) = lock_for(100);
                assert!(lock.is_none() && (100..300).contains(&took_ms), "{took_ms}");
            }
            _ => {
                until(&universe, 200);
                let (lock, took_ms) = lock_for(10_000);
                lock.unwrap().unlock().unwrap();
                assert!((500..2000).contains(&took_ms), "{took_ms}");
            }
        }
        universe.finalize().unwrap();
    };
    Jobs { seeds: 5, ..jobs(Config::default()) }.run("lines", 3, &body);
}
