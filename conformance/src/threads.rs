//! Several threads of one rank (FEATURES A; `Window` is `Send + Sync`).
use crate::help::{
    held_till_told, let_others_in, local_words, neighbour, pattern, reaches, times, words,
};
use core::task::Poll;
use core::time::Duration;
use rma_core::{Assert, LockKind, Op, Path, Rank, Universe};
use std::thread;

const THREADS: u64 = 3;

/// Runs `body` on several threads of this rank, each with its number.
fn on_threads(count: u64, body: impl Fn(u64) + Sync) {
    let body = &body;
    thread::scope(|scope| {
        for number in 0..count {
            scope.spawn(move || body(number));
        }
    });
}

/// Threads count in one epoch. S-F7 S-M6
pub fn atomics(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 2);
    let rounds = times(universe, 500);
    let epoch = window.lock_all().unwrap();
    on_threads(THREADS, |_| {
        for _ in 0..rounds {
            epoch.fetch_and_op(Rank(0), 0, Op::Sum, 1u64).unwrap();
            let mut seen = 0u64;
            loop {
                let found = epoch.compare_and_swap(Rank(1), 1, seen, seen + 1).unwrap();
                if found == seen {
                    break;
                }
                seen = found;
            }
        }
    });
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    let all = rounds * THREADS * u64::from(world.size());
    let expected = if world.rank() == Rank(0) { [all, 0] } else { [0, all] };
    assert_eq!(local_words(&window), expected);
    window.free().unwrap();
}

/// Threads queue what they do under one lock that is not granted yet, and one of them flushes: all
/// of it is done before the lock goes. S-E1 S-M6
pub fn queued_by_several(universe: &Universe) {
    let world = universe.world();
    let window = world.window(1 + THREADS as usize, 8).hint("rma_eager_bytes", "4096").unwrap();
    let (window, told) = (window.allocate().unwrap(), words(world, 1));
    let far = u64::from(!reaches(universe, Rank(0)));
    let epoch = told.lock_all().unwrap();
    if let Some(held) = held_till_told(universe, &window, &told) {
        assert_eq!(local_words(&window), [0; 1 + THREADS as usize]);
        held.unlock().unwrap();
    } else {
        let lock = window.lock(Rank(0), LockKind::Exclusive).unwrap();
        on_threads(THREADS, |thread| {
            lock.accumulate(0, Op::Sum, &[1u64]).unwrap();
            lock.put(1 + thread, &[1 + thread]).unwrap();
        });
        if far == 1 {
            epoch.fetch_and_op(Rank(0), 0, Op::Sum, 1u64).unwrap();
        }
        on_threads(THREADS, |_| lock.flush().unwrap());
        lock.unlock().unwrap();
    }
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    if world.rank() == Rank(0) {
        let sum = THREADS * (u64::from(world.size()) - 1);
        let expected: Vec<u64> = [sum].into_iter().chain(1..=THREADS).collect();
        assert_eq!(local_words(&window), expected);
    }
    told.free().unwrap();
    window.free().unwrap();
}

/// A lock that another thread is given before it is granted is waited for there. S-E1
pub fn a_lock_that_is_given_away(universe: &Universe) {
    let world = universe.world();
    let (window, told) = (words(world, 1), words(world, 1));
    let far = u64::from(!reaches(universe, Rank(0)));
    let epoch = told.lock_all().unwrap();
    if let Some(held) = held_till_told(universe, &window, &told) {
        held.put(0, &[1u64]).unwrap();
        held.unlock().unwrap();
    } else {
        let lock = window.lock(Rank(0), LockKind::Exclusive).unwrap();
        epoch.fetch_and_op(Rank(0), 0, Op::Sum, far).unwrap();
        let count = move || {
            let before = lock.fetch_and_op(0, Op::Sum, 1u64).unwrap();
            lock.unlock().unwrap();
            before
        };
        let before = thread::scope(|scope| scope.spawn(count).join().unwrap());
        assert!(before > 0, "the holder's was before");
        // The thread that asked for it has nothing on its way any more.
        window.lock(Rank(0), LockKind::Shared).unwrap().unlock().unwrap();
    }
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    if world.rank() == Rank(0) {
        assert_eq!(local_words(&window), [u64::from(world.size())]);
    }
    told.free().unwrap();
    window.free().unwrap();
}

/// Threads of one rank wait for values that each other store. S-M6
pub fn waiting_for_values(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 2);
    let (view, rounds) = (window.local(), times(universe, 200));
    thread::scope(|scope| {
        for own in [0, 1] {
            let view = &view;
            scope.spawn(move || {
                for round in 1..=rounds {
                    view.store(own, round).unwrap();
                    assert!(
                        view.wait_until(1 - own, |value: u64| value >= round).unwrap() >= round
                    );
                }
            });
        }
    });
    world.barrier().unwrap();
    window.free().unwrap();
}

/// Threads race for the first operation to each target of a start epoch, while another waits for
/// the exposure to end. S-M6
pub fn starts(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let all: Vec<Rank> = world.ranks().collect();
    let each = THREADS * u64::from(world.size());
    for round in 1..=times(universe, 200) {
        let exposure = window.post(&all, Assert::NONE).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| exposure.wait().unwrap());
            let epoch = window.start(&all, Assert::NONE).unwrap();
            on_threads(THREADS, |_| {
                for target in &all {
                    epoch.fetch_and_op(*target, 0, Op::Sum, 1u64).unwrap();
                }
            });
            epoch.complete().unwrap();
        });
        assert_eq!(window.local().load(0), Ok(round * each));
    }
    window.free().unwrap();
}

/// Threads of a rank fence one window: each fence meets one of every other rank, and no thread is
/// counted for another rank. S-C1 S-M6
pub fn fences(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let last = Rank(world.size() - 1);
    let value = || {
        let (epoch, mut seen) = (window.fence(Assert::NONE).unwrap(), [0u64]);
        epoch.get(last, 0, &mut seen).unwrap();
        seen[0]
    };
    for round in 1..=times(universe, 30) {
        world.barrier().unwrap();
        if world.rank() == last {
            // The threads of the others are there first.
            (0..300).for_each(|_| thread::yield_now());
            window.local().store(0, round).unwrap();
        }
        on_threads(THREADS, |_| assert_eq!(value(), round));
    }
    world.barrier().unwrap();
    // And one thread after that.
    for round in 100..100 + times(universe, 30) {
        if world.rank() == last {
            window.local().store(0, round).unwrap();
        }
        assert_eq!(value(), round);
        window.fence(Assert::NONE).unwrap().end().unwrap();
    }
    window.free().unwrap();
}

/// Threads put, flush and get in one epoch. S-F7 S-M6
pub fn puts_and_flushes(universe: &Universe) {
    let world = universe.world();
    let window = words(world, THREADS as usize * 10);
    let right = neighbour(world, 1);
    let rounds = times(universe, 300);
    let epoch = window.lock_all().unwrap();
    on_threads(THREADS, |thread| {
        for round in 1..=rounds {
            epoch.put(right, thread * 10, &[round * 10 + thread; 10]).unwrap();
            epoch.flush(right).unwrap();
            let mut got = [0; 10];
            epoch.ops(|ops| ops.get(right, thread * 10, &mut got)).unwrap();
            assert_eq!(got, [round * 10 + thread; 10]);
        }
        epoch.flush_all().unwrap();
    });
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    let expected = (0..THREADS).flat_map(|thread| [rounds * 10 + thread; 10]);
    assert_eq!(local_words(&window), expected.collect::<Vec<_>>());
    window.free().unwrap();
}

/// Threads put and get more than is sent at once, while others flush. S-F7 S-M6
pub fn large_payloads(universe: &Universe) {
    let world = universe.world();
    let len = if cfg!(miri) { 17_000 } else { 100_000 };
    let window = world.window(len * THREADS as usize, 1).allocate().unwrap();
    let right = neighbour(world, 1);
    let epoch = window.lock_all().unwrap();
    on_threads(THREADS, |thread| {
        let start = thread * len as u64;
        for round in 0..times(universe, 10) {
            let seed = (round * 100 + thread * 10) as u32 + world.rank().0;
            epoch.put(right, start, &pattern(seed, len)).unwrap();
            epoch.flush(right).unwrap();
            let mut got = vec![0u8; len];
            epoch.get(right, start, &mut got).unwrap();
            assert!(got == pattern(seed, len), "thread {thread} in round {round}");
            epoch.flush_all().unwrap();
        }
    });
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    window.free().unwrap();
}

/// Each thread locks a target of its own and counts there without atomics.
fn count_under_locks(universe: &Universe, rounds: u64) {
    let world = universe.world();
    let window = words(world, 1);
    on_threads(world.size().into(), |thread| {
        let target = neighbour(world, thread as i64);
        for _ in 0..rounds {
            let lock = window.lock(target, LockKind::Exclusive).unwrap();
            let mut value = [0u64];
            lock.get(0, &mut value).unwrap();
            let_others_in();
            lock.put(0, &[value[0] + 1]).unwrap();
            lock.unlock().unwrap();
        }
    });
    world.barrier().unwrap();
    assert_eq!(local_words(&window), [rounds * u64::from(world.size())]);
    window.free().unwrap();
}

/// Threads of one rank hold locks of different targets. S-E3 S-M6
pub fn locks_of_different_targets(universe: &Universe) {
    count_under_locks(universe, times(universe, 300));
}

/// More threads wait in line than a rank has queue nodes. S-M6
pub fn more_waiters_than_nodes(universe: &Universe) {
    count_under_locks(universe, times(universe, 60));
}

/// A request for a lock that waits does not keep other threads from what ends the wait. S-M6
pub fn a_lock_that_waits_keeps_no_credit(universe: &Universe) {
    let world = universe.world();
    let (locked, open) = (words(world, 1), words(world, 1));
    let (home, holder) = (Rank(0), Rank(2));
    let held = (world.rank() == holder).then(|| locked.lock(home, LockKind::Exclusive).unwrap());
    world.barrier().unwrap();
    if world.rank() == Rank(1) {
        let sent = || universe.counters().messages_sent();
        let before = sent();
        thread::scope(|scope| {
            scope.spawn(|| locked.lock(home, LockKind::Exclusive).unwrap().unlock().unwrap());
            let by_messages = locked.path(home) == Some(Path::Messages);
            while by_messages && sent() == before {
                let_others_in();
            }
            let epoch = open.lock_all_with(Assert::NO_CHECK).unwrap();
            epoch.put(home, 0, &[1u64]).unwrap();
            epoch.flush(home).unwrap();
            // Until it sees this, the holder goes on holding.
            epoch.fetch_and_op(holder, 0, Op::Replace, 1u64).unwrap();
            epoch.unlock().unwrap();
        });
    }
    held.into_iter().for_each(|held| {
        open.local().wait_until(0, |value: u64| value == 1).unwrap();
        held.unlock().unwrap();
    });
    world.barrier().unwrap();
    locked.free().unwrap();
    open.free().unwrap();
}

/// Each thread has its own window, and fences it. S-C9 S-M6
pub fn windows_of_their_own(universe: &Universe) {
    let world = universe.world();
    let windows: Vec<_> = (0..THREADS).map(|_| words(world, 1)).collect();
    on_threads(THREADS, |thread| {
        let window = &windows[thread as usize];
        let (right, left) = (neighbour(world, 1), u64::from(neighbour(world, -1)));
        let mut epoch = window.fence(Assert::NONE).unwrap();
        for round in 0..times(universe, 100) {
            let value = |rank: u64| round * 100 + rank * 10 + thread;
            epoch.put(right, 0, &[value(world.rank().into())]).unwrap();
            epoch = epoch.next(Assert::NONE).unwrap();
            assert_eq!(window.local().load(0), Ok(value(left)));
            epoch = epoch.next(Assert::NONE).unwrap();
        }
        epoch.end().unwrap();
    });
    for window in windows {
        window.free().unwrap();
    }
}

/// Each thread has its own communicator. S-M6
pub fn communicators_of_their_own(universe: &Universe) {
    let world = universe.world();
    let comms: Vec<_> = (0..THREADS).map(|_| world.dup().unwrap()).collect();
    on_threads(THREADS, |thread| {
        let comm = &comms[thread as usize];
        for round in 0..times(universe, 100) {
            let value = round * 10 + thread;
            let all = comm.allgather(&[value + u64::from(comm.rank())]).unwrap();
            assert!(all.iter().copied().eq(value..value + u64::from(comm.size())));
            let root = Rank((round % u64::from(comm.size())) as u32);
            let mut got = [if comm.rank() == root { value } else { 0 }];
            comm.bcast(&mut got, root).unwrap();
            assert_eq!(got, [value]);
            comm.barrier().unwrap();
        }
    });
}

/// Threads reach a target for the first time in an epoch at once, while writers want its lock.
/// S-M6
pub fn first_uses_race(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 2);
    let rounds = times(universe, 500);
    for _ in 0..rounds {
        if world.rank() == Rank(0) {
            let epoch = window.lock_all().unwrap();
            on_threads(THREADS, |_| {
                epoch.fetch_and_op(Rank(1), 0, Op::Sum, 1u64).unwrap();
            });
            epoch.unlock().unwrap();
        } else {
            let lock = window.lock(Rank(1), LockKind::Exclusive).unwrap();
            lock.fetch_and_op(1, Op::Sum, 1u64).unwrap();
            lock.unlock().unwrap();
        }
    }
    world.barrier().unwrap();
    if world.rank() == Rank(1) {
        let writers = u64::from(world.size()) - 1;
        assert_eq!(local_words(&window), [rounds * THREADS, rounds * writers]);
    }
    window.free().unwrap();
}

/// A request goes to another thread, which waits for it. S-M6
pub fn requests_cross_threads(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 100);
    window.local().write(0, &[u64::from(world.rank()) + 1; 100]).unwrap();
    world.barrier().unwrap();
    let epoch = window.lock_all().unwrap();
    let right = neighbour(world, 1);
    for _ in 0..times(universe, 50) {
        let request = epoch.rget(right, 0, vec![0u64; 100]).unwrap();
        let waits = || thread::scope(|scope| scope.spawn(move || request.wait()).join().unwrap());
        assert_eq!(waits().unwrap(), [u64::from(right) + 1; 100]);
    }
    epoch.unlock().unwrap();
    window.free().unwrap();
}

/// A thread that finds another of its rank in a barrier has a deadline all the same. S-M6
pub fn timed_barriers(universe: &Universe) {
    let world = universe.world();
    if world.rank() == Rank(0) {
        thread::scope(|scope| {
            let patient = scope.spawn(|| world.barrier_for(Duration::MAX));
            assert_eq!(world.barrier_for(Duration::from_millis(5)), Ok(Poll::Pending));
            world.barrier().unwrap();
            assert_eq!(patient.join().unwrap(), Ok(Poll::Ready(())));
        });
    } else {
        world.barrier().unwrap();
        assert_eq!(world.barrier_for(Duration::MAX), Ok(Poll::Ready(())));
    }
}
