//! Far locks that ranks give up to wait for, in virtual time: what is left of them in line, or on
//! its way, is in no waiter's way.
use crate::jobs;
use crate::sims::Jobs;
use rma_core::{
    Assert, Communicator, Config, Lock, LockKind, Op, ProgressAgent, Rank, RmaError, Universe,
    Window,
};
use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
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

/// A call of a communicator of its rank alone, and a window over it.
type Call = fn(&Communicator, &Window);

/// How long the home has its lock.
const HELD_MS: u64 = 100;

/// The lock of the home, which has it for a while: to ask for it takes no time.
fn asked<'w>(universe: &Universe, window: &'w Window) -> Lock<'w> {
    let lock = window.lock(HOME, LockKind::Exclusive).unwrap();
    assert!(!is_granted(universe));
    lock
}

fn is_granted(universe: &Universe) -> bool {
    universe.transport().now() >= Duration::from_millis(HELD_MS)
}

/// Has each rank but the home do something while the home has its lock, which it keeps if it says
/// so.
fn while_held(ranks: u32, keeps: bool, others: &(dyn Fn(&Universe, &Window) + Sync)) {
    let body = |universe: Universe| {
        let window = window(&universe);
        let home = universe.world().rank() == HOME;
        let held = home.then(|| window.lock(HOME, LockKind::Exclusive).unwrap());
        universe.world().barrier().unwrap();
        match held {
            Some(held) => {
                until(&universe, HELD_MS);
                if keeps {
                    forget(held)
                } else {
                    held.unlock().unwrap()
                }
                until(&universe, if keeps { HELD_MS } else { 2 * HELD_MS });
            }
            None => others(&universe, &window),
        }
    };
    Jobs { seeds: 3, ..jobs(Config::default()) }.run("lines", ranks, &body);
}

/// Has a rank do something on a window of its own while it waits for the home's lock; whether that
/// waits for the lock.
fn with_asked(calls: &[Call], waits: bool) {
    for call in calls {
        let body = |universe: Universe| {
            let (world, window) = (universe.world(), window(&universe));
            let alone = world.split(Some(world.rank().0), 0).unwrap().unwrap();
            let other = alone.window(1, 8).allocate().unwrap();
            if world.rank() == HOME {
                let held = window.lock(HOME, LockKind::Exclusive).unwrap();
                world.barrier().unwrap();
                until(&universe, HELD_MS);
                held.unlock().unwrap();
            } else {
                world.barrier().unwrap();
                let lock = asked(&universe, &window);
                call(&alone, &other);
                assert_eq!(is_granted(&universe), waits);
                lock.unlock().unwrap();
                assert!(is_granted(&universe));
            }
            other.free().unwrap();
            window.free().unwrap();
        };
        Jobs { seeds: 2, ..jobs(Config::default()) }.run("lines", 2, &body);
    }
}

/// What the thread that asked for a lock does next that others may see or wait for, it does when it
/// has the lock.
#[test]
fn what_others_may_see_comes_after_the_grant() {
    const KIND: LockKind = LockKind::Shared;
    let calls: [Call; 16] = [
        |_, other| drop(other.lock(Rank(0), KIND).unwrap()),
        |_, other| drop(other.lock_with(Rank(0), KIND, Assert::NONE).unwrap()),
        |_, other| drop(other.lock_with(Rank(0), KIND, Assert::NO_CHECK).unwrap()),
        |_, other| drop(other.lock_all_with(Assert::NO_CHECK).unwrap()),
        |_, other| drop(other.try_lock(Rank(0), KIND).unwrap().unwrap()),
        |_, other| drop(other.try_lock_for(Rank(0), KIND, Duration::MAX).unwrap().unwrap()),
        |_, other| drop(other.request_lock(Rank(0), KIND).unwrap()),
        |_, other| drop(other.lock_all().unwrap()),
        |_, other| drop(other.lock_all_with(Assert::NONE).unwrap()),
        |_, other| other.fence(Assert::NONE).unwrap().end().unwrap(),
        |_, other| other.post(&[], Assert::NONE).unwrap().wait().unwrap(),
        |_, other| other.start(&[], Assert::NONE).unwrap().complete().unwrap(),
        |_, other| other.sync().unwrap(),
        |_, other| assert_eq!(other.local().wait_until(0, |it: u64| it == 0), Ok(0)),
        |alone, _| alone.barrier().unwrap(),
        |alone, _| drop(alone.window(1, 8).allocate().unwrap()),
    ];
    with_asked(&calls, true);
}

/// What others cannot see, or is no rank's, does not wait; what waits for a while at most waits no
/// longer, and comes to nothing.
#[test]
fn what_no_other_rank_sees_does_not_wait_for_the_grant() {
    const KIND: LockKind = LockKind::Shared;
    const SHORT: Duration = Duration::from_millis(5);
    let calls: [Call; 4] = [
        |_, other| other.local().store(0, 1u64).unwrap(),
        |_, other| assert!(other.try_lock_for(Rank(0), KIND, SHORT).unwrap().is_none()),
        |_, other| assert_eq!(other.local().wait_until_for(0, SHORT, |_: u64| true), Ok(None)),
        |alone, _| assert!(alone.barrier_for(SHORT).unwrap().is_pending()),
    ];
    with_asked(&calls, false);
}

/// A lock that goes in a panic is not waited for: its holder may wait for the thread. It is in no
/// other waiter's way.
#[test]
fn a_panic_does_not_wait_for_a_lock() {
    while_held(3, false, &|universe, window| {
        let panics = AssertUnwindSafe(|| {
            let _lock = asked(universe, window);
            resume_unwind(Box::new(()));
        });
        assert!(catch_unwind(panics).is_err() && !is_granted(universe));
        let lock = asked(universe, window);
        lock.put(0, &[1u64]).unwrap();
        assert!(!is_granted(universe), "the put waits, and not its caller");
        lock.flush().unwrap();
        assert!(is_granted(universe));
        lock.unlock().unwrap();
    });
}

/// The grant of a lock whose guard was forgotten comes to no holder: its rank leaves with it.
#[test]
fn a_rank_that_forgets_a_lock_before_it_is_granted_leaves_with_it() {
    while_held(3, false, &|universe, window| {
        if universe.world().rank() == Rank(1) {
            forget(asked(universe, window));
            return;
        }
        until(universe, HELD_MS / 2);
        let error = window.lock(HOME, LockKind::Exclusive).and_then(Lock::unlock).unwrap_err();
        assert!(matches!(error, RmaError::PeerLeft { world, .. } if world.0 == 1), "{error}");
    });
}

/// All that is done under a lock that cannot come any more fails, and so does giving it back; the
/// window and its other locks are as they were.
#[test]
fn a_lock_that_cannot_come_fails_where_it_is_used() {
    while_held(2, true, &|universe, window| {
        let lock = asked(universe, window);
        // That others may see this is no matter of what became of the lock.
        window.sync().unwrap();
        assert!(is_granted(universe));
        let left = |error: RmaError| {
            assert!(matches!(error, RmaError::PeerLeft { world, .. } if world.0 == HOME.0));
        };
        left(lock.put(0, &[1u64]).unwrap_err());
        left(lock.access().fetch_and_op(HOME, 0, Op::Sum, 1u64).unwrap_err());
        let mut got = [0u64];
        left(lock.ops(|ops| ops.get(HOME, 0, &mut got)).unwrap_err());
        left(lock.flush().unwrap_err());
        left(lock.unlock().unwrap_err());
        assert_eq!(window.lock(window.rank(), LockKind::Shared).and_then(Lock::unlock), Ok(()));
    });
}
