//! Epochs to all targets (FEATURES A6).
use crate::help::{let_others_in, local_words, neighbour, times, words};
use rma_core::{Assert, LockKind, Op, Rank, Universe, Window};

/// Adds one at a target, without atomics, under its exclusive lock.
fn increment_exclusively(window: &Window, target: Rank, disp: u64) {
    let lock = window.lock(target, LockKind::Exclusive).unwrap();
    let mut value = [0u64];
    lock.get(disp, &mut value).unwrap();
    let_others_in();
    lock.put(disp, &[value[0] + 1]).unwrap();
    lock.unlock().unwrap();
}

/// All ranks at once, atomics to all targets. S-E8
pub fn counter(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let rounds = times(universe, 200);
    let epoch = window.lock_all().unwrap();
    for _ in 0..rounds {
        for target in world.ranks() {
            epoch.fetch_and_op(target, 0, Op::Sum, 1u64).unwrap();
        }
    }
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    assert_eq!(local_words(&window), [rounds * u64::from(world.size())]);
    window.free().unwrap();
}

/// Epochs come and go, with and without operations; dropping ends one too. S-E2
pub fn repeated(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let rounds = times(universe, 100);
    for round in 0..rounds {
        let epoch = window.lock_all().unwrap();
        if round % 2 == 0 {
            epoch.fetch_and_op(neighbour(world, round as i64), 0, Op::Sum, 1u64).unwrap();
            epoch.unlock().unwrap();
        } else {
            drop(epoch);
        }
    }
    world.barrier().unwrap();
    let sum = world.allreduce(&local_words(&window), Op::Sum).unwrap();
    assert_eq!(sum, [rounds.div_ceil(2) * u64::from(world.size())]);
    // No lock was left behind.
    window.lock(neighbour(world, 1), LockKind::Exclusive).unwrap().unlock().unwrap();
    window.free().unwrap();
}

/// After unlock the data is at all targets. S-E6
pub fn unlock_completes(universe: &Universe) {
    let world = universe.world();
    let window = words(world, world.size() as usize * 10);
    for round in 1..=times(universe, 50) {
        let epoch = window.lock_all().unwrap();
        for target in world.ranks() {
            epoch.put(target, u64::from(world.rank()) * 10, &[round; 10]).unwrap();
        }
        epoch.unlock().unwrap();
        world.barrier().unwrap();
        assert_eq!(local_words(&window), vec![round; world.size() as usize * 10]);
        world.barrier().unwrap();
    }
    window.free().unwrap();
}

/// Without the check no lock is taken: the epoch opens under another's exclusive lock. S-E5
pub fn no_check(universe: &Universe) {
    let world = universe.world();
    let window = words(world, world.size() as usize);
    let held = (world.rank() == Rank(0)).then(|| window.lock(Rank(0), LockKind::Exclusive));
    world.barrier().unwrap();
    if world.rank() != Rank(0) {
        let epoch = window.lock_all_with(Assert::NO_CHECK).unwrap();
        epoch.put(Rank(0), u64::from(world.rank()), &[5u64]).unwrap();
        epoch.unlock().unwrap();
    }
    world.barrier().unwrap();
    let holder = held.is_some();
    drop(held);
    if holder {
        let mut expected = vec![5; world.size() as usize];
        expected[0] = 0;
        assert_eq!(local_words(&window), expected);
    }
    window.free().unwrap();
}

/// An exclusive lock excludes epochs to all targets, and they exclude it. S-E1 S-E8
pub fn excludes_writers(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 2);
    let rounds = times(universe, 200);
    for _ in 0..rounds {
        if world.rank().0.is_multiple_of(2) {
            let lock = window.lock(Rank(0), LockKind::Exclusive).unwrap();
            let mut value = [0u64; 2];
            lock.get(0, &mut value).unwrap();
            lock.put(0, &[value[0] + 1]).unwrap();
            lock.flush().unwrap();
            let_others_in();
            lock.put(1, &[value[1] + 1]).unwrap();
            lock.unlock().unwrap();
        } else {
            let epoch = window.lock_all().unwrap();
            let first = epoch.fetch_and_op(Rank(0), 1, Op::NoOp, 0u64).unwrap();
            let_others_in();
            let second = epoch.fetch_and_op(Rank(0), 0, Op::NoOp, 0u64).unwrap();
            assert_eq!(first, second, "what a writer has half done");
            let again = epoch.fetch_and_op(Rank(0), 1, Op::NoOp, 0u64).unwrap();
            assert_eq!(first, again, "a writer came in between");
            epoch.unlock().unwrap();
        }
    }
    world.barrier().unwrap();
    if world.rank() == Rank(0) {
        let writers = u64::from(world.size().div_ceil(2));
        assert_eq!(local_words(&window), [rounds * writers; 2]);
    }
    window.free().unwrap();
}

/// Half of the ranks update everywhere in epochs to all targets, in all orders; the others lock
/// one target at a time. No rank waits for ever. S-E8 S-E13
pub fn first_uses_against_writers(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 2);
    let (rounds, half) = (times(universe, 200), world.size() / 2);
    for round in 0..rounds as i64 {
        if world.rank().0 < half {
            let epoch = window.lock_all().unwrap();
            for step in 0..i64::from(world.size()) {
                let target = neighbour(world, 1 + (step + round) * (1 - round % 2 * 2));
                epoch.fetch_and_op(target, 0, Op::Sum, 1u64).unwrap();
            }
            epoch.unlock().unwrap();
        } else {
            increment_exclusively(&window, neighbour(world, round), 1);
            increment_exclusively(&window, neighbour(world, -round - 1), 1);
        }
    }
    world.barrier().unwrap();
    let sum = world.allreduce(&local_words(&window), Op::Sum).unwrap();
    let (all, writers) = (u64::from(world.size()), u64::from(world.size() - half));
    assert_eq!(sum, [rounds * u64::from(half) * all, rounds * 2 * writers]);
    window.free().unwrap();
}

/// An epoch may last while others come and go.
pub fn lasts_as_long_as_it_likes(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let long = (world.rank() == Rank(0)).then(|| window.lock_all().unwrap());
    let rounds = times(universe, 50);
    for round in 1..=rounds {
        let epoch = match &long {
            Some(_) => None,
            None => Some(window.lock_all().unwrap()),
        };
        let open = epoch.as_ref().or(long.as_ref()).expect("one of the two is open");
        open.fetch_and_op(Rank(1), 0, Op::Sum, 1u64).unwrap();
        drop(epoch);
        world.barrier().unwrap();
        if let Some(long) = &long {
            let sum = long.fetch_and_op(Rank(1), 0, Op::NoOp, 0).unwrap();
            assert_eq!(sum, round * u64::from(world.size()));
        }
        world.barrier().unwrap();
    }
    drop(long);
    window.free().unwrap();
}

/// A shared lock and an epoch to all targets are held at once. S-E1 S-E8
pub fn shared_with_locks(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    for _ in 0..times(universe, 50) {
        if world.rank().0.is_multiple_of(2) {
            let lock = window.lock(Rank(0), LockKind::Shared).unwrap();
            lock.fetch_and_op(0, Op::Sum, 1u64).unwrap();
            world.barrier().unwrap();
            lock.unlock().unwrap();
        } else {
            let epoch = window.lock_all().unwrap();
            epoch.fetch_and_op(Rank(0), 0, Op::Sum, 1u64).unwrap();
            world.barrier().unwrap();
            epoch.unlock().unwrap();
        }
    }
    world.barrier().unwrap();
    if world.rank() == Rank(0) {
        assert_eq!(local_words(&window), [times(universe, 50) * u64::from(world.size())]);
    }
    window.free().unwrap();
}

/// Operations to one target after another, while the others do the same.
pub fn one_target_after_another(universe: &Universe) {
    let world = universe.world();
    let window = words(world, world.size() as usize);
    let epoch = window.lock_all().unwrap();
    for step in 0..i64::from(world.size()) {
        let target = neighbour(world, step);
        epoch.put(target, u64::from(world.rank()), &[u64::from(target) + 1]).unwrap();
        let mut got = [0u64];
        epoch.flush(target).unwrap();
        epoch.get(target, u64::from(world.rank()), &mut got).unwrap();
        assert_eq!(got, [u64::from(target) + 1]);
    }
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    assert_eq!(local_words(&window), vec![u64::from(world.rank()) + 1; world.size() as usize]);
    window.free().unwrap();
}

/// Ranks lock many times, some of them two parts at once, and then look at all parts at once: what
/// locks did to get cheaper meanwhile leaves no writer inside. S-E1 S-E8 S-E13
pub fn after_bursts_of_writers(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 2);
    let (bursts, locks) = (times(universe, 20), times(universe, 40));
    for burst in 0..bursts {
        for round in 0..locks {
            let first = neighbour(world, (burst + round) as i64);
            let second = neighbour(world, (burst + round) as i64 + 1);
            let nested = round % 4 == 0;
            // In the order of ranks, so that no two wait for one another.
            let outer = window.lock(first.min(second), LockKind::Exclusive).unwrap();
            let inner =
                nested.then(|| window.lock(first.max(second), LockKind::Exclusive).unwrap());
            for lock in [Some(&outer), inner.as_ref()].into_iter().flatten() {
                let mut value = [0u64; 2];
                lock.get(0, &mut value).unwrap();
                assert_eq!(value[0], value[1], "another writer is inside");
                lock.put(0, &[value[0] + 1]).unwrap();
                lock.flush().unwrap();
                let_others_in();
                lock.put(1, &[value[1] + 1]).unwrap();
            }
            inner.map_or(Ok(()), |inner| inner.unlock()).and(outer.unlock()).unwrap();
        }
        let epoch = window.lock_all().unwrap();
        for target in world.ranks() {
            let mut value = [0u64; 2];
            epoch.get(target, 0, &mut value).unwrap();
            assert_eq!(value[0], value[1], "a writer is inside");
        }
        epoch.unlock().unwrap();
    }
    world.barrier().unwrap();
    let sum = world.allreduce(&local_words(&window), Op::Sum).unwrap();
    let each = bursts * (locks + locks.div_ceil(4));
    assert_eq!(sum, [each * u64::from(world.size()); 2]);
    window.free().unwrap();
}
