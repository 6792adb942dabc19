//! Fence epochs (FEATURES A5).
use crate::help::{neighbour, still_works, times, words};
use rma_core::{Assert, LockKind, Op, Rank, Universe};

/// Each fence ends an epoch and starts the next. S-C1 S-C2 S-C8
pub fn cycles(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 2);
    let (right, left) = (neighbour(world, 1), u64::from(neighbour(world, -1)));
    let mut epoch = window.fence(Assert::NONE).unwrap();
    for round in 0..times(universe, 200) {
        epoch.put(right, round % 2, &[round * 100 + u64::from(world.rank())]).unwrap();
        epoch = epoch.next(Assert::NONE).unwrap();
        // The neighbour writes the other word now.
        assert_eq!(window.local().load(round % 2), Ok(round * 100 + left));
    }
    epoch.end().unwrap();
    window.free().unwrap();
}

/// Promises that hold change nothing. S-C3 S-C4 S-C5
pub fn asserts(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let (right, left) = (neighbour(world, 1), u64::from(neighbour(world, -1)));
    for round in 1..=times(universe, 50) {
        window.local().store(0, round).unwrap();
        let epoch = window.fence(Assert::NO_PRECEDE | Assert::NO_PUT).unwrap();
        let mut got = [0u64];
        epoch.get(right, 0, &mut got).unwrap();
        assert_eq!(got, [round], "stores before the fence are visible");
        let epoch = epoch.next(Assert::NO_STORE).unwrap();
        epoch.put(right, 0, &[round + u64::from(world.rank())]).unwrap();
        let epoch = epoch.next(Assert::NO_STORE | Assert::NO_PUT).unwrap();
        epoch.get(world.rank(), 0, &mut got).unwrap();
        assert_eq!(got, [round + left]);
        epoch.end().unwrap();
    }
    window.free().unwrap();
}

/// Between two fences, this rank may load and store where no other rank operates. S-C6 S-M2
pub fn local_stores(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 2);
    let right = neighbour(world, 1);
    let mut epoch = window.fence(Assert::NONE).unwrap();
    for round in 0..times(universe, 50) {
        window.local().store(0, round + u64::from(world.rank())).unwrap();
        assert_eq!(window.local().load(0), Ok(round + u64::from(world.rank())));
        epoch.put(right, 1, &[round]).unwrap();
        epoch = epoch.next(Assert::NONE).unwrap();
        let mut got = [0u64; 2];
        epoch.get(right, 0, &mut got).unwrap();
        assert_eq!(got, [round + u64::from(right), round]);
        epoch = epoch.next(Assert::NONE).unwrap();
    }
    epoch.end().unwrap();
    window.free().unwrap();
}

/// Gets from every rank.
pub fn gets(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 3);
    window.local().write(0, &[u64::from(world.rank()); 3]).unwrap();
    let epoch = window.fence(Assert::NONE).unwrap();
    for target in world.ranks() {
        let mut got = [u64::MAX; 3];
        epoch.get(target, 0, &mut got).unwrap();
        assert_eq!(got, [u64::from(target); 3]);
    }
    epoch.end().unwrap();
    window.free().unwrap();
}

/// What one rank put at a second, a third one gets after the fence. S-C1
pub fn third_rank_sees(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 50);
    let mut epoch = window.fence(Assert::NONE).unwrap();
    for round in 1..=times(universe, 50) {
        if world.rank() == Rank(0) {
            epoch.put(Rank(1), 0, &[round; 50]).unwrap();
        }
        epoch = epoch.next(Assert::NONE).unwrap();
        if world.rank() == Rank(2) {
            let mut got = [0; 50];
            epoch.get(Rank(1), 0, &mut got).unwrap();
            assert_eq!(got, [round; 50]);
        }
        epoch = epoch.next(Assert::NONE).unwrap();
    }
    epoch.end().unwrap();
    window.free().unwrap();
}

/// Fences and locks take turns. S-C7 S-M3
pub fn mode_switches(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let (right, left) = (neighbour(world, 1), u64::from(neighbour(world, -1)));
    for round in 0..times(universe, 20) {
        let epoch = window.fence(Assert::NONE).unwrap();
        epoch.put(right, 0, &[round + u64::from(world.rank())]).unwrap();
        epoch.end().unwrap();
        let epoch = window.lock(world.rank(), LockKind::Exclusive).unwrap();
        assert_eq!(epoch.fetch_and_op(0, Op::Sum, 1), Ok(round + left));
        epoch.unlock().unwrap();
        let epoch = window.fence(Assert::NONE).unwrap();
        assert_eq!(
            epoch.fetch_and_op(right, 0, Op::NoOp, 0),
            Ok(round + u64::from(world.rank()) + 1)
        );
        epoch.end().unwrap();
        let epoch = window.lock_all().unwrap();
        epoch.fetch_and_op(right, 0, Op::Sum, 5u64).unwrap();
        epoch.unlock().unwrap();
        world.barrier().unwrap();
        assert_eq!(window.local().load(0), Ok(round + left + 6));
        world.barrier().unwrap();
    }
    window.free().unwrap();
}

/// A dropped guard issues no more; the next fence completes what it had issued.
pub fn dropped_guard(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    for round in 0..times(universe, 20) {
        let epoch = window.fence(Assert::NONE).unwrap();
        epoch.put(neighbour(world, 1), 0, &[round]).unwrap();
        drop(epoch);
        let epoch = window.fence(Assert::NONE).unwrap();
        assert_eq!(window.local().load(0), Ok(round));
        epoch.end().unwrap();
    }
    still_works(&window);
    window.free().unwrap();
}

/// Fences without operations are barriers of the window. S-C2
pub fn empty_epochs(universe: &Universe) {
    let world = universe.world();
    let (window, other) = (words(world, 1), words(world, 1));
    let mut epoch = window.fence(Assert::NO_PRECEDE).unwrap();
    for round in 1..=times(universe, 200) {
        let lock = other.lock(Rank(0), LockKind::Shared).unwrap();
        lock.fetch_and_op(0, Op::Sum, 1u64).unwrap();
        lock.unlock().unwrap();
        epoch = epoch.next(Assert::NONE).unwrap();
        if world.rank() == Rank(0) {
            assert_eq!(other.local().load(0), Ok(round * u64::from(world.size())));
        }
        epoch = epoch.next(Assert::NONE).unwrap();
    }
    epoch.end().unwrap();
    window.free().unwrap();
    other.free().unwrap();
}

/// Atomics between fences add up.
pub fn atomics(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let mut epoch = window.fence(Assert::NONE).unwrap();
    for round in 1..=times(universe, 50) {
        for target in world.ranks() {
            epoch.fetch_and_op(target, 0, Op::Sum, 1u64).unwrap();
        }
        epoch = epoch.next(Assert::NONE).unwrap();
        assert_eq!(window.local().load(0), Ok(round * u64::from(world.size())));
        epoch = epoch.next(Assert::NONE).unwrap();
    }
    epoch.end().unwrap();
    window.free().unwrap();
}

/// `next`, `end` and `fence` while a guard is alive all complete what was issued. S-C1 S-C2
pub fn next_and_end(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let right = neighbour(world, 1);
    let first = window.fence(Assert::NONE).unwrap();
    first.put(right, 0, &[1u64]).unwrap();
    let second = window.fence(Assert::NONE).unwrap();
    assert_eq!(window.local().load(0), Ok(1u64));
    drop(first);
    let third = second.next(Assert::NONE).unwrap();
    third.put(right, 0, &[2u64]).unwrap();
    third.end().unwrap();
    assert_eq!(window.local().load(0), Ok(2u64));
    world.barrier().unwrap();
    still_works(&window);
    window.free().unwrap();
}
