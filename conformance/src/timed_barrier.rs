//! Barriers with deadlines of their own (FEATURES A8).
use crate::help::{times, words};
use core::task::Poll;
use core::time::Duration;
use rma_core::{Communicator, Op, Rank, Universe};

const NO_TIME: Duration = Duration::ZERO;
const ALL_TIME: Duration = Duration::MAX;

fn ready(comm: &Communicator, timeout: Duration) {
    while comm.barrier_for(timeout).unwrap().is_pending() {}
}

/// Ranks that wait, that look once, and that wait for a short time.
fn impatience(rank: Rank, round: u64) -> Duration {
    [ALL_TIME, NO_TIME, Duration::from_micros(50)][(usize::from(rank) + round as usize) % 3]
}

/// Many times, each rank with another timeout each time.
pub fn in_a_row(universe: &Universe) {
    let world = universe.world();
    for round in 0..times(universe, 100) {
        ready(world, impatience(world.rank(), round));
    }
}

/// What was done before the first call is seen when it is ready.
pub fn orders(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    for round in 1..=times(universe, 50) {
        let epoch = window.lock_all().unwrap();
        epoch.fetch_and_op(Rank(0), 0, Op::Sum, 1u64).unwrap();
        epoch.unlock().unwrap();
        ready(world, impatience(world.rank(), round));
        if world.rank() == Rank(0) {
            let sum: u64 = window.local().load(0).unwrap();
            assert_eq!(sum, round * u64::from(world.size()));
        }
        ready(world, impatience(world.rank(), round + 1));
    }
    window.free().unwrap();
}

/// While one rank has not come, the others hear so; whatever they do with the communicator then,
/// they go on with the same barrier afterwards.
pub fn goes_on(universe: &Universe) {
    let world = universe.world();
    for late in world.ranks() {
        for timeout in [NO_TIME, Duration::from_millis(1)] {
            let pending = || {
                if world.rank() != late {
                    assert_eq!(world.barrier_for(timeout), Ok(Poll::Pending));
                }
            };
            pending();
            world.barrier().unwrap();
            pending();
            assert_eq!(world.allreduce(&[1u64], Op::Sum).unwrap(), [world.size().into()]);
            let dup = world.dup().unwrap();
            ready(&dup, ALL_TIME);
            pending();
            let window = words(&dup, 1);
            window.free().unwrap();
            assert_eq!(world.barrier_for(ALL_TIME), Ok(Poll::Ready(())));
        }
    }
}

/// A rank may never come: the others have their communicator all the same.
pub fn given_up(universe: &Universe) {
    let comm = universe.world().dup().unwrap();
    if comm.rank() != Rank(0) {
        assert_eq!(comm.barrier_for(Duration::from_micros(200)), Ok(Poll::Pending));
    }
    for round in 0..40u64 {
        assert_eq!(comm.allreduce(&[round], Op::Max).unwrap(), [round]);
    }
    ready(universe.world(), ALL_TIME);
}

/// There is no other rank.
pub fn alone(universe: &Universe) {
    for timeout in [NO_TIME, ALL_TIME] {
        assert_eq!(universe.world().barrier_for(timeout), Ok(Poll::Ready(())));
    }
}
