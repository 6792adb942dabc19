//! Homes of far locks that leave in order while others stand in line there: in virtual time, so
//! that all is where it should be when they do.
use crate::jobs;
use crate::sims::Jobs;
use rma_core::{Assert, Config, Lock, LockKind, Rank, RmaError, Universe, Window};
use std::time::Duration;

/// Has the locks of all homes.
const HOLDER: Rank = Rank(0);
/// More than a rank has queue nodes. Each leaves in its turn.
const HOMES: [Rank; 5] = [Rank(1), Rank(2), Rank(3), Rank(4), Rank(5)];
/// Stands in line at each home, then leaves.
const WAITER: Rank = Rank(6);
/// Waits for a lock of the holder when the waiter has left.
const LAST: Rank = Rank(7);
/// Does as the waiter does.
const SECOND: Rank = Rank(8);
/// In which each of them counts at the last one, under its lock.
const ROUNDS: u64 = 20;

type Waits = fn(&Window, Rank) -> Result<(), RmaError>;

fn until(universe: &Universe, tenths: u32) {
    let transport = universe.transport();
    let end = Duration::from_millis(100) * tenths;
    while transport.now() < end {
        transport.park(end.saturating_sub(transport.now()));
    }
}

fn leaves_with(error: RmaError, home: Rank) {
    let by_it = matches!(error, RmaError::PeerLeft { world, .. } if world.0 == home.0);
    assert!(by_it, "{home}: {error}");
}

/// Where the holder has the lock of each home and of its own part, or all of them.
fn play(universe: Universe, waits: Waits) {
    let window = universe.world().window(1, 8).allocate().unwrap();
    let rank = universe.world().rank();
    let held = (rank == HOLDER).then(|| {
        let homes = HOMES.into_iter().chain([HOLDER]);
        homes.map(|home| window.lock(home, LockKind::Exclusive).unwrap()).collect::<Vec<_>>()
    });
    universe.world().barrier().unwrap();
    match rank {
        HOLDER => {
            until(&universe, 9);
            let mut held = held.unwrap();
            held.pop().unwrap().unlock().unwrap();
            // Their homes have left: they take none back.
            held.into_iter().for_each(|lock| lock.unlock().unwrap());
            until(&universe, 10);
        }
        WAITER | SECOND => {
            for home in HOMES {
                leaves_with(waits(&window, home).unwrap_err(), home);
                // Known to be gone by now.
                leaves_with(waits(&window, home).unwrap_err(), home);
            }
            // Without a node in a queue that no rank takes it out of.
            let own = window.lock(rank, LockKind::Exclusive).unwrap();
            window.lock(LAST, LockKind::Shared).unwrap().unlock().unwrap();
            for _ in 0..ROUNDS {
                let (lock, mut count) = (window.lock(LAST, LockKind::Exclusive).unwrap(), [0u64]);
                lock.get(0, &mut count).unwrap();
                lock.put(0, &[count[0] + 1]).unwrap();
                lock.unlock().unwrap();
            }
            own.unlock().unwrap();
        }
        LAST => {
            until(&universe, 8);
            assert_eq!(window.local().load(0), Ok(2 * ROUNDS), "no rank was in between");
            // The waiters hold nothing, and no rank waits for them.
            let lock = window.lock(HOLDER, LockKind::Exclusive).unwrap();
            lock.flush().unwrap();
            assert!(universe.transport().now() >= Duration::from_millis(900));
            lock.unlock().unwrap();
        }
        home => until(&universe, 1 + home.0),
    }
}

/// Every one in line ends with its home, and can wait elsewhere then.
#[test]
fn a_home_takes_its_queue_along() {
    let shared = |window: &Window, home| window.lock(home, LockKind::Shared).and_then(Lock::unlock);
    let exclusive =
        |window: &Window, home| window.lock(home, LockKind::Exclusive).and_then(Lock::unlock);
    let both: [Waits; 2] = [shared, exclusive];
    for waits in both {
        let body = |universe: Universe| play(universe, waits);
        Jobs { seeds: 5, ..jobs(Config::default()) }.run("homes", 9, &body);
    }
}

/// Its pass comes back, be it that the news of its leaving is here before.
#[test]
fn a_home_that_leaves_takes_no_pass_along() {
    let body = |universe: Universe| {
        let window = universe.world().window(1, 8).allocate().unwrap();
        let rank = universe.world().rank();
        if rank == Rank(2) {
            // Once the second one is granted, the first one is back.
            for kind in [LockKind::Exclusive, LockKind::Shared] {
                window.lock(Rank(1), kind).unwrap().unlock().unwrap();
            }
        }
        universe.world().barrier().unwrap();
        if rank == Rank(0) {
            window.lock_all().unwrap().unlock().unwrap();
        }
    };
    Jobs { seeds: 200, ..jobs(Config::default()) }.run("passes", 3, &body);
}

/// The global lock is of the first rank.
#[test]
fn the_global_lock_leaves_with_its_home() {
    let body = |universe: Universe| {
        let window = universe.world().window(1, 8).allocate().unwrap();
        let all = (universe.world().rank() == Rank(1)).then(|| window.lock_all().unwrap());
        universe.world().barrier().unwrap();
        match all {
            Some(all) => {
                until(&universe, 3);
                all.unlock().unwrap();
            }
            None if universe.world().rank() == Rank(0) => until(&universe, 1),
            None => {
                let error = window.lock(Rank(2), LockKind::Exclusive).err().unwrap();
                leaves_with(error, Rank(0));
                let epoch = window.lock_all_with(Assert::NO_CHECK).unwrap();
                epoch.unlock().unwrap();
            }
        }
    };
    Jobs { seeds: 5, ..jobs(Config::default()) }.run("global lock", 3, &body);
}
