//! Locks on one target (FEATURES A6).
use crate::help::{
    held_till_told, let_others_in, local_words, locked, neighbour, reaches, times, words,
};
use core::time::Duration;
use rma_core::{Assert, Lock, LockAll, LockKind, LockRequest, Op, Rank, RmaError, Universe};

/// Adds one without atomics: right only if no other rank is at it.
fn increment(lock: &Lock<'_>, disp: u64) {
    let mut value = [0u64];
    lock.get(disp, &mut value).unwrap();
    let_others_in();
    lock.put(disp, &[value[0] + 1]).unwrap();
    lock.flush().unwrap();
}

/// An exclusive lock excludes all others, also when ranks outnumber cores. S-E1 S-E13
pub fn exclusive_excludes(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let rounds = times(universe, 500);
    world.barrier().unwrap();
    for _ in 0..rounds {
        let lock = window.lock(Rank(0), LockKind::Exclusive).unwrap();
        increment(&lock, 0);
        lock.unlock().unwrap();
    }
    world.barrier().unwrap();
    if world.rank() == Rank(0) {
        assert_eq!(local_words(&window), [rounds * u64::from(world.size())]);
    }
    window.free().unwrap();
}

/// All ranks hold the lock shared at the same time. S-E1
pub fn readers_coexist(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    for _ in 0..times(universe, 50) {
        let lock = window.lock(Rank(1), LockKind::Shared).unwrap();
        // No rank comes out of it before all hold the lock.
        world.barrier().unwrap();
        lock.fetch_and_op(0, Op::Sum, 1u64).unwrap();
        lock.unlock().unwrap();
    }
    window.free().unwrap();
}

/// Readers never see what a writer has half done. S-E1
pub fn readers_against_writers(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 2);
    let rounds = times(universe, 300);
    let (mut last, writes) = (0, world.rank().0.is_multiple_of(2));
    for _ in 0..rounds {
        if writes {
            let lock = window.lock(Rank(0), LockKind::Exclusive).unwrap();
            increment(&lock, 0);
            increment(&lock, 1);
            lock.unlock().unwrap();
            continue;
        }
        let lock = window.lock(Rank(0), LockKind::Shared).unwrap();
        let (mut first, mut second) = ([0u64], [0u64]);
        lock.get(1, &mut second).unwrap();
        let_others_in();
        lock.get(0, &mut first).unwrap();
        lock.unlock().unwrap();
        assert_eq!(first, second);
        assert!(first[0] >= last, "a lock sees what the one before it saw");
        last = first[0];
    }
    world.barrier().unwrap();
    if world.rank() == Rank(0) {
        let writers = u64::from(world.size().div_ceil(2));
        assert_eq!(local_words(&window), [writers * rounds; 2]);
    }
    window.free().unwrap();
}

/// Shared locks on all targets at once, given back in another order. S-E3
pub fn several_targets(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    for round in 0..times(universe, 50) {
        let hold = |target| window.lock(target, LockKind::Shared).unwrap();
        let mut locks: Vec<Lock<'_>> = world.ranks().map(hold).collect();
        for lock in &locks {
            lock.fetch_and_op(0, Op::Sum, 1u64).unwrap();
        }
        locks.rotate_left((round % 3) as usize);
        locks.swap(0, 1);
        for lock in locks {
            lock.unlock().unwrap();
        }
    }
    world.barrier().unwrap();
    assert_eq!(local_words(&window), [times(universe, 50) * u64::from(world.size())]);
    window.free().unwrap();
}

/// Exclusive locks on two targets at once, always taken in the same order. S-E3
pub fn several_targets_exclusively(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let rounds = times(universe, 100);
    for round in 0..rounds {
        let skipped = Rank(((round + u64::from(world.rank())) % 3) as u32);
        let targets = world.ranks().filter(|target| *target != skipped);
        let hold = |target| window.lock(target, LockKind::Exclusive).unwrap();
        let locks: Vec<Lock<'_>> = targets.map(hold).collect();
        for lock in &locks {
            increment(lock, 0);
        }
        for lock in locks {
            lock.unlock().unwrap();
        }
    }
    world.barrier().unwrap();
    let sum = world.allreduce(&local_words(&window), Op::Sum).unwrap();
    assert_eq!(sum, [rounds * 2 * u64::from(world.size())]);
    window.free().unwrap();
}

/// A far lock is asked for and not waited for: others see what its rank does next, on other
/// windows, and what it does under the lock comes after the holder. S-E1
pub fn asked_for(universe: &Universe) {
    let world = universe.world();
    let (window, told) = (words(world, 1), words(world, 1));
    let far = !reaches(universe, Rank(0));
    let epoch = told.lock_all().unwrap();
    if let Some(held) = held_till_told(universe, &window, &told) {
        held.put(0, &[1u64]).unwrap();
        held.unlock().unwrap();
    } else {
        let lock = window.lock(Rank(0), LockKind::Exclusive).unwrap();
        if far {
            epoch.fetch_and_op(Rank(0), 0, Op::Sum, 1u64).unwrap();
        }
        assert!(lock.fetch_and_op(0, Op::Sum, 1u64).unwrap() > 0, "the holder's was before");
        lock.unlock().unwrap();
    }
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    if world.rank() == Rank(0) {
        assert_eq!(local_words(&window), [u64::from(world.size())]);
    }
    told.free().unwrap();
    window.free().unwrap();
}

/// Puts and accumulates under a lock that was asked for wait until the holder is gone, and their
/// callers do not: others see what these do next. They are performed in order. S-E1
pub fn queued(universe: &Universe) {
    let world = universe.world();
    let (rank, size) = (u64::from(world.rank()), u64::from(world.size()));
    let window = world.window(2 * size as usize, 8).hint("rma_eager_bytes", "4096").unwrap();
    let (window, told) = (window.allocate().unwrap(), words(world, 1));
    let far = !reaches(universe, Rank(0));
    let epoch = told.lock_all().unwrap();
    if let Some(held) = held_till_told(universe, &window, &told) {
        assert_eq!(local_words(&window), vec![0; 2 * size as usize], "the lock excludes them");
        held.unlock().unwrap();
    } else {
        let lock = window.lock(Rank(0), LockKind::Exclusive).unwrap();
        lock.accumulate(0, Op::Sum, &[1u64]).unwrap();
        lock.put(size + rank, &[rank]).unwrap();
        lock.accumulate(rank, Op::Replace, &[5u64]).unwrap();
        lock.raccumulate(rank, Op::Sum, vec![rank]).unwrap().wait().unwrap();
        let beyond = lock.put(2 * size, &[1u64]).unwrap_err();
        assert!(matches!(beyond, RmaError::OutOfRange { .. }), "{beyond}");
        if far {
            epoch.fetch_and_op(Rank(0), 0, Op::Sum, 1u64).unwrap();
        }
        lock.flush().unwrap();
        assert!(lock.fetch_and_op(0, Op::NoOp, 0u64).unwrap() > 0, "what waited is done");
        lock.unlock().unwrap();
    }
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    if rank == 0 {
        let accumulated = (1..size).map(|rank| 5 + rank);
        let expected = [size - 1].into_iter().chain(accumulated).chain(0..size);
        assert_eq!(local_words(&window), expected.collect::<Vec<_>>());
    }
    told.free().unwrap();
    window.free().unwrap();
}

/// Locks of two windows, in an order that all agree on, of which the second is had in every way
/// that there is: none is asked for before the first is granted. S-E3
pub fn several_windows(universe: &Universe) {
    let world = universe.world();
    let (first, second) = (words(world, 1), words(world, 1));
    let rounds = 5 * times(universe, 20);
    for round in 0..rounds {
        let target = Rank((round % u64::from(world.size())) as u32);
        let outer = first.lock(target, LockKind::Exclusive).unwrap();
        // Of those that lock all parts, each waits for those inside that lock one.
        let inner = match round % 5 {
            0 => Ok(second.lock(target, LockKind::Exclusive).unwrap()),
            1 => Ok(second.request_lock(target, LockKind::Exclusive).unwrap().wait().unwrap()),
            2 => Ok(second.try_lock_for(target, LockKind::Exclusive, LONG).unwrap().unwrap()),
            3 => Err(second.lock_all().unwrap()),
            _ => Ok(loop {
                if let Some(lock) = second.try_lock(target, LockKind::Exclusive).unwrap() {
                    break lock;
                }
            }),
        };
        increment(&outer, 0);
        match inner {
            Ok(lock) => {
                increment(&lock, 0);
                lock.unlock().unwrap();
            }
            Err(all) => {
                all.fetch_and_op(target, 0, Op::Sum, 1u64).unwrap();
                all.unlock().unwrap();
            }
        }
        outer.unlock().unwrap();
    }
    world.barrier().unwrap();
    let mine = [local_words(&first)[0], local_words(&second)[0]];
    let sums = world.allreduce(&mine, Op::Sum).unwrap();
    assert_eq!(sums, [rounds * u64::from(world.size()); 2]);
    second.free().unwrap();
    first.free().unwrap();
}

/// A lock keeps others out of a window whose epochs take none. S-E1 S-E7
pub fn unchecked_below_a_lock(universe: &Universe) {
    let world = universe.world();
    let (guard, window) = (words(world, 1), words(world, 2));
    let rounds = times(universe, 50);
    for _ in 0..rounds {
        let outer = guard.lock(Rank(0), LockKind::Exclusive).unwrap();
        let one = window.lock_with(Rank(0), LockKind::Shared, Assert::NO_CHECK).unwrap();
        increment(&one, 0);
        one.unlock().unwrap();
        outer.unlock().unwrap();
        let outer = guard.lock(Rank(0), LockKind::Exclusive).unwrap();
        let all = window.lock_all_with(Assert::NO_CHECK).unwrap();
        let mut value = [0u64];
        all.get(Rank(0), 1, &mut value).unwrap();
        let_others_in();
        all.put(Rank(0), 1, &[value[0] + 1]).unwrap();
        all.unlock().unwrap();
        outer.unlock().unwrap();
    }
    world.barrier().unwrap();
    if world.rank() == Rank(0) {
        assert_eq!(local_words(&window), [rounds * u64::from(world.size()); 2]);
    }
    world.barrier().unwrap();
    window.free().unwrap();
    guard.free().unwrap();
}

/// A lock on this rank protects its loads and stores from the operations of others. S-E4 S-M2
pub fn own_rank(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let rounds = times(universe, 300);
    for _ in 0..rounds {
        let lock = window.lock(Rank(0), LockKind::Exclusive).unwrap();
        if world.rank() == Rank(0) {
            let view = window.local();
            let value: u64 = view.load(0).unwrap();
            let_others_in();
            view.store(0, value + 1).unwrap();
        } else {
            increment(&lock, 0);
        }
        lock.unlock().unwrap();
    }
    world.barrier().unwrap();
    if world.rank() == Rank(0) {
        assert_eq!(local_words(&window), [rounds * u64::from(world.size())]);
    }
    window.free().unwrap();
}

/// Locks with nothing to do, of both kinds, on every target. S-E2
pub fn without_operations(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    for _ in 0..times(universe, 50) {
        for target in world.ranks() {
            for kind in [LockKind::Shared, LockKind::Exclusive] {
                let lock = window.lock(target, kind).unwrap();
                assert_eq!(lock.target(), target);
                lock.unlock().unwrap();
            }
        }
    }
    window.free().unwrap();
}

/// Without the check no lock is taken: two that exclude each other are held at once. S-E5
pub fn no_check(universe: &Universe) {
    let world = universe.world();
    let window = words(world, world.size() as usize);
    let lock = window.lock_with(Rank(0), LockKind::Exclusive, Assert::NO_CHECK).unwrap();
    world.barrier().unwrap();
    lock.put(u64::from(world.rank()), &[u64::from(world.rank()) + 1]).unwrap();
    lock.unlock().unwrap();
    world.barrier().unwrap();
    if world.rank() == Rank(0) {
        let expected: Vec<u64> = (1..=u64::from(world.size())).collect();
        assert_eq!(local_words(&window), expected);
    }
    // The real lock is free.
    window.lock(Rank(0), LockKind::Exclusive).unwrap().unlock().unwrap();
    window.free().unwrap();
}

/// The null target can be locked, any number of times. S-E12
pub fn null(universe: &Universe) {
    let window = words(universe.world(), 1);
    let first = window.lock(Rank::NULL, LockKind::Exclusive).unwrap();
    let second = window.lock(Rank::NULL, LockKind::Shared).unwrap();
    let real = window.lock(Rank(0), LockKind::Shared).unwrap();
    assert_eq!(first.target(), Rank::NULL);
    first.flush().unwrap();
    first.unlock().unwrap();
    real.unlock().unwrap();
    drop(second);
    window.free().unwrap();
}

/// Dropping the guard unlocks.
pub fn dropped_guard(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let rounds = times(universe, 50);
    for _ in 0..rounds {
        let lock = window.lock(Rank(0), LockKind::Exclusive).unwrap();
        let mut value = [0u64];
        lock.get(0, &mut value).unwrap();
        let_others_in();
        lock.put(0, &[value[0] + 1]).unwrap();
    }
    world.barrier().unwrap();
    if world.rank() == Rank(0) {
        assert_eq!(local_words(&window), [rounds * u64::from(world.size())]);
    }
    window.free().unwrap();
}

/// After unlock the data is at the target: a third rank sees it. S-E6
pub fn unlock_completes(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 500);
    for round in 1..=times(universe, 50) {
        if world.rank() == Rank(0) {
            let lock = window.lock(Rank(1), LockKind::Shared).unwrap();
            lock.put(0, &[round; 500]).unwrap();
            lock.unlock().unwrap();
        }
        world.barrier().unwrap();
        if world.rank() == Rank(2) {
            let lock = window.lock(Rank(1), LockKind::Shared).unwrap();
            let mut got = [0; 500];
            lock.get(0, &mut got).unwrap();
            lock.unlock().unwrap();
            assert_eq!(got, [round; 500]);
        }
        if world.rank() == Rank(1) {
            assert_eq!(local_words(&window), [round; 500]);
        }
        world.barrier().unwrap();
    }
    window.free().unwrap();
}

/// The target is inside another call, which has nothing to do with the window. S-E7 S-M7
pub fn passive_target(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let rounds = times(universe, 100);
    if world.rank() != Rank(0) {
        for _ in 0..rounds {
            let lock = window.lock(Rank(0), LockKind::Exclusive).unwrap();
            increment(&lock, 0);
            lock.unlock().unwrap();
        }
    }
    world.barrier().unwrap();
    if world.rank() == Rank(0) {
        assert_eq!(local_words(&window), [rounds * u64::from(world.size() - 1)]);
    }
    window.free().unwrap();
}

/// A rank that only tries has it at once, or not at all. S-E1
pub fn tried(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    for target in world.ranks() {
        let holder = neighbour(world, 0) == target;
        let (shared, exclusive) = (LockKind::Shared, LockKind::Exclusive);
        for (kind, others) in [(exclusive, 0), (shared, 1)] {
            let held = holder.then(|| locked(&window, target, kind));
            world.barrier().unwrap();
            if !holder {
                assert!(window.try_lock(target, exclusive).unwrap().is_none());
                let lock = window.try_lock(target, shared).unwrap();
                assert_eq!(lock.is_some(), others == 1);
                lock.map_or(Ok(()), |lock| lock.unlock()).unwrap();
            }
            world.barrier().unwrap();
            held.map_or(Ok(()), |held| held.unlock()).unwrap();
            world.barrier().unwrap();
        }
        // What was tried in vain has left nothing behind.
        let lock = match window.try_lock(target, exclusive).unwrap() {
            Some(lock) => lock,
            None => window.lock(target, exclusive).unwrap(),
        };
        increment(&lock, 0);
        lock.unlock().unwrap();
        world.barrier().unwrap();
        if holder {
            assert_eq!(local_words(&window), [u64::from(world.size())]);
            let all = window.lock_all().unwrap();
            world.barrier().unwrap();
            world.barrier().unwrap();
            all.unlock().unwrap();
        } else {
            world.barrier().unwrap();
            assert!(window.try_lock(target, exclusive).unwrap().is_none(), "all are locked");
            let lock = window.try_lock(target, shared).unwrap().unwrap();
            lock.unlock().unwrap();
            world.barrier().unwrap();
        }
        world.barrier().unwrap();
    }
    assert!(window.try_lock(Rank::NULL, LockKind::Exclusive).unwrap().is_some());
    window.free().unwrap();
}

/// A time in which nothing comes that does not come at all.
const SHORT: Duration = Duration::from_millis(5);
/// A time that no waiter sees the end of.
const LONG: Duration = Duration::from_secs(3600);

/// A rank that waits for a while has it if it comes meanwhile, and leaves nothing behind if not.
/// S-E1
pub fn timed(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let (shared, exclusive) = (LockKind::Shared, LockKind::Exclusive);
    for target in world.ranks() {
        let holder = neighbour(world, 0) == target;
        for (held, kinds) in [
            (Some(exclusive), &[exclusive, shared][..]),
            (Some(shared), &[exclusive]),
            // Of all parts.
            (None, &[exclusive]),
        ] {
            let lock = held.filter(|_| holder).map(|kind| locked(&window, target, kind));
            let all = (holder && held.is_none()).then(|| window.lock_all().unwrap());
            world.barrier().unwrap();
            if !holder {
                for (kind, timeout) in kinds.iter().zip([SHORT, Duration::ZERO]) {
                    assert!(window.try_lock_for(target, *kind, timeout).unwrap().is_none());
                    // Again: more often than a rank may stand in line.
                    for _ in 0..5 {
                        let timeout = timeout / 5;
                        assert!(window.try_lock_for(target, *kind, timeout).unwrap().is_none());
                    }
                }
            }
            world.barrier().unwrap();
            // Some come before, some while it is given back.
            lock.map_or(Ok(()), Lock::unlock).unwrap();
            all.map_or(Ok(()), LockAll::unlock).unwrap();
            let lock = window.try_lock_for(target, exclusive, LONG).unwrap().unwrap();
            increment(&lock, 0);
            lock.unlock().unwrap();
            world.barrier().unwrap();
        }
        if holder {
            assert_eq!(local_words(&window), [3 * u64::from(world.size())]);
        }
    }
    assert!(window.try_lock_for(Rank::NULL, exclusive, SHORT).unwrap().is_some());
    window.free().unwrap();
}

/// The waiter behind one that gives up gets the lock, and so does that one when it comes again.
/// S-E1 S-E13
pub fn timed_in_line(universe: &Universe) {
    let world = universe.world();
    let (window, flags) = (words(world, 1), words(world, 1));
    let exclusive = LockKind::Exclusive;
    for _ in 0..times(universe, 10) {
        let held = (world.rank() == Rank(0)).then(|| locked(&window, Rank(0), exclusive));
        world.barrier().unwrap();
        let told = flags.lock_all_with(Assert::NO_CHECK).unwrap();
        let lock = match world.rank() {
            Rank(0) => {
                // Until rank 1 has given up.
                while told.fetch_and_op(Rank(0), 0, Op::NoOp, 0u64).unwrap() == 0 {
                    let_others_in();
                }
                told.fetch_and_op(Rank(0), 0, Op::Replace, 0u64).unwrap();
                held
            }
            Rank(1) => {
                assert!(window.try_lock_for(Rank(0), exclusive, SHORT).unwrap().is_none());
                told.fetch_and_op(Rank(0), 0, Op::Replace, 1u64).unwrap();
                window.try_lock_for(Rank(0), exclusive, LONG).unwrap()
            }
            _ => Some(window.lock(Rank(0), exclusive).unwrap()),
        };
        let lock = lock.unwrap();
        increment(&lock, 0);
        lock.unlock().unwrap();
        told.unlock().unwrap();
        world.barrier().unwrap();
    }
    if world.rank() == Rank(0) {
        let rounds = times(universe, 10) * u64::from(world.size());
        assert_eq!(local_words(&window), [rounds]);
    }
    flags.free().unwrap();
    window.free().unwrap();
}

/// A rank that asks first and waits later has the lock, alone. S-E1 S-E13
pub fn requested(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let rounds = times(universe, 100);
    for round in 0..rounds {
        let mut request = window.request_lock(Rank(0), LockKind::Exclusive).unwrap();
        assert_eq!(request.target(), Rank(0));
        let again = window.lock(Rank(0), LockKind::Shared).err();
        assert!(matches!(again, Some(RmaError::AlreadyLocked { .. })), "{again:?}");
        let tested = round % 2 == 1;
        while tested && !request.test().unwrap() {
            let_others_in();
        }
        if round % 3 == 2 {
            // Granted, perhaps, and the waiter has not seen it.
            drop(request);
            continue;
        }
        let lock = request.wait().unwrap();
        increment(&lock, 0);
        lock.unlock().unwrap();
    }
    world.barrier().unwrap();
    if world.rank() == Rank(0) {
        let kept = rounds - rounds / 3;
        assert_eq!(local_words(&window), [kept * u64::from(world.size())]);
    }
    let null = window.request_lock(Rank::NULL, LockKind::Exclusive).unwrap();
    null.wait().unwrap().unlock().unwrap();
    window.free().unwrap();
}

/// A request that cannot be granted is not there until it can; one that is dropped is in no rank's
/// way. S-E1 S-E13
pub fn requested_while_held(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    for target in world.ranks() {
        let held = (world.rank() == target).then(|| locked(&window, target, LockKind::Exclusive));
        world.barrier().unwrap();
        let mut request = None;
        if held.is_none() {
            drop(window.request_lock(target, LockKind::Exclusive).unwrap());
            let mut shared = window.request_lock(target, LockKind::Shared).unwrap();
            for _ in 0..3 {
                assert!(!shared.test().unwrap());
            }
            drop(shared);
            let mut again = window.request_lock(target, LockKind::Exclusive).unwrap();
            assert!(!again.test().unwrap());
            request = Some(again);
        }
        world.barrier().unwrap();
        held.map_or(Ok(()), Lock::unlock).unwrap();
        if let Some(request) = request {
            let lock = request.wait().unwrap();
            increment(&lock, 0);
            lock.unlock().unwrap();
        }
        world.barrier().unwrap();
        if world.rank() == target {
            assert_eq!(local_words(&window), [u64::from(world.size()) - 1]);
        }
    }
    world.barrier().unwrap();
    // Several at a time, which others share.
    let requests: Vec<LockRequest<'_>> = world
        .ranks()
        .map(|target| window.request_lock(target, LockKind::Shared).unwrap())
        .collect();
    for request in requests {
        let lock = request.wait().unwrap();
        lock.fetch_and_op(0, Op::Sum, 1u64).unwrap();
        lock.unlock().unwrap();
    }
    world.barrier().unwrap();
    assert_eq!(local_words(&window), [2 * u64::from(world.size()) - 1]);
    window.free().unwrap();
}

/// Every rank increments at every target under that target's lock. S-E1 S-E2
pub fn every_target(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let rounds = times(universe, 100);
    for round in 0..rounds {
        for step in 0..i64::from(world.size()) {
            let lock = window.lock(neighbour(world, step + round as i64), LockKind::Exclusive);
            let lock = lock.unwrap();
            increment(&lock, 0);
            lock.unlock().unwrap();
        }
    }
    world.barrier().unwrap();
    assert_eq!(local_words(&window), [rounds * u64::from(world.size())]);
    window.free().unwrap();
}

/// A forgotten guard leaves its lock held, and harms nothing else.
pub fn forgotten_guard(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    if world.rank() == Rank(0) {
        core::mem::forget(locked(&window, Rank(1), LockKind::Shared));
    }
    world.barrier().unwrap();
    for target in world.ranks() {
        let kind = if target == Rank(1) { LockKind::Shared } else { LockKind::Exclusive };
        if (world.rank(), target) == (Rank(0), Rank(1)) {
            assert!(window.lock(target, kind).is_err());
            continue;
        }
        let lock = window.lock(target, kind).unwrap();
        lock.fetch_and_op(0, Op::Sum, 1u64).unwrap();
        lock.unlock().unwrap();
    }
    world.barrier().unwrap();
    let all = u64::from(world.size());
    let expected = if world.rank() == Rank(1) { all - 1 } else { all };
    assert_eq!(local_words(&window), [expected]);
    world.barrier().unwrap();
}
