//! Flushes and `sync` (FEATURES A6).
use crate::help::{let_others_in, local_words, neighbour, times, words};
use rma_core::{Assert, LockKind, Op, Rank, RmaError, Universe};

/// After a flush the data is at the target: a third rank, told of it, sees it. S-F1
pub fn third_rank_sees(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 201);
    let epoch = window.lock_all().unwrap();
    for round in 1..=times(universe, 100) {
        if world.rank() == Rank(0) {
            epoch.put(Rank(1), 0, &[round; 200]).unwrap();
            epoch.flush(Rank(1)).unwrap();
            epoch.fetch_and_op(Rank(2), 200, Op::Replace, round).unwrap();
        }
        if world.rank() == Rank(2) {
            while epoch.fetch_and_op(Rank(2), 200, Op::NoOp, 0u64).unwrap() != round {
                std::thread::yield_now();
            }
            let mut got = [0; 200];
            epoch.get(Rank(1), 0, &mut got).unwrap();
            assert_eq!(got, [round; 200]);
        }
        world.barrier().unwrap();
    }
    epoch.unlock().unwrap();
    window.free().unwrap();
}

/// `flush_all` completes at every target. S-F4
pub fn all_targets(universe: &Universe) {
    let world = universe.world();
    let window = words(world, world.size() as usize);
    let epoch = window.lock_all().unwrap();
    for round in 1..=times(universe, 50) {
        for target in world.ranks() {
            epoch.put(target, u64::from(world.rank()), &[round]).unwrap();
        }
        epoch.flush_all().unwrap();
        world.barrier().unwrap();
        window.sync().unwrap();
        assert_eq!(local_words(&window), vec![round; world.size() as usize]);
        world.barrier().unwrap();
    }
    epoch.unlock().unwrap();
    window.free().unwrap();
}

/// After a local flush the buffers may be used again. S-F3 S-F4 S-H16
pub fn local(universe: &Universe) {
    let world = universe.world();
    let rounds = times(universe, 50);
    let window = words(world, rounds as usize * 100);
    let right = neighbour(world, 1);
    let epoch = window.lock_all().unwrap();
    let mut buffer = [0u64; 100];
    for round in 0..rounds {
        buffer.fill(round + 1);
        epoch.put(right, round * 100, &buffer).unwrap();
        epoch.flush_local(right).unwrap();
        buffer.fill(u64::MAX);
    }
    epoch.flush_local_all().unwrap();
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    let expected = (0..rounds).flat_map(|round| [round + 1; 100]);
    assert_eq!(local_words(&window), expected.collect::<Vec<_>>());
    window.free().unwrap();
}

/// `sync` may be called at any time, and completes nothing: it asks no other rank. S-F9
pub fn sync_completes_nothing(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 600);
    let (right, left) = (neighbour(world, 1), u64::from(neighbour(world, -1)));
    window.sync().unwrap();
    for round in 1..=times(universe, 30) {
        let epoch = window.lock_all().unwrap();
        let value = round * 10 + u64::from(world.rank());
        epoch.put(right, 0, &[value; 600]).unwrap();
        let before = universe.counters().parked();
        window.sync().unwrap();
        let parked = universe.counters().parked();
        assert_eq!(parked, before, "answers to the put are not waited for");
        epoch.unlock().unwrap();
        world.barrier().unwrap();
        assert_eq!(local_words(&window), [round * 10 + left; 600], "the unlock completes");
        world.barrier().unwrap();
    }
    let fence = window.fence(Assert::NONE).unwrap();
    window.sync().unwrap();
    fence.end().unwrap();
    window.free().unwrap();
}

/// Flushes with nothing to complete. S-F5
pub fn of_nothing(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let epoch = window.lock_all().unwrap();
    for target in world.ranks() {
        epoch.flush(target).unwrap();
        epoch.flush_local(target).unwrap();
    }
    epoch.flush_all().unwrap();
    epoch.flush_all().unwrap();
    epoch.unlock().unwrap();
    window.sync().unwrap();
    window.free().unwrap();
}

/// The null target has nothing to flush; ranks that do not exist are refused. S-G10
pub fn of_null(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let epoch = window.lock_all().unwrap();
    epoch.flush(Rank::NULL).unwrap();
    epoch.flush_local(Rank::NULL).unwrap();
    let none = Rank(world.size());
    let expected =
        RmaError::NoSuchRank { window: window.id(), target: none, last: Rank(world.size() - 1) };
    assert_eq!(epoch.flush(none), Err(expected));
    assert_eq!(epoch.flush_local(none), Err(expected));
    epoch.unlock().unwrap();
    window.free().unwrap();
}

/// Puts and flushes of two ranks to each other: a conversation. S-F1 S-F7
pub fn alternating(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 2);
    let peer = neighbour(world, 1);
    let epoch = window.lock_all().unwrap();
    for round in 1..=times(universe, 100) {
        let mine = round * 2 + u64::from(world.rank());
        if world.rank() == Rank(1) {
            while epoch.fetch_and_op(world.rank(), 1, Op::NoOp, 0u64).unwrap() != mine - 1 {
                std::thread::yield_now();
            }
            assert_eq!(window.local().load(0), Ok(mine - 1));
        }
        epoch.put(peer, 0, &[mine]).unwrap();
        epoch.flush(peer).unwrap();
        epoch.fetch_and_op(peer, 1, Op::Replace, mine).unwrap();
        if world.rank() == Rank(0) {
            while epoch.fetch_and_op(world.rank(), 1, Op::NoOp, 0u64).unwrap() != mine + 1 {
                std::thread::yield_now();
            }
            assert_eq!(window.local().load(0), Ok(mine + 1));
        }
    }
    epoch.unlock().unwrap();
    window.free().unwrap();
}

/// The flushes of a lock on one target. S-F1 S-F3
pub fn in_a_lock(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let right = neighbour(world, 1);
    let lock = window.lock(right, LockKind::Shared).unwrap();
    lock.flush().unwrap();
    lock.put(0, &[u64::from(world.rank()) + 3]).unwrap();
    lock.flush_local().unwrap();
    lock.flush().unwrap();
    world.barrier().unwrap();
    assert_eq!(local_words(&window), [u64::from(neighbour(world, -1)) + 3]);
    world.barrier().unwrap();
    lock.unlock().unwrap();
    window.free().unwrap();
}

/// Both put, flush and look at what the other put: one of them sees it. S-F1 S-F7
pub fn neither_misses_the_other(universe: &Universe) {
    // A cache line for each rank's put.
    const LINE: usize = 8;
    let world = universe.world();
    let slots = times(universe, 2000) as usize;
    let window = words(world, slots * 2 * LINE);
    let (mine, other) = (world.rank().0 as usize, 1 - world.rank().0 as usize);
    let place = |slot: usize, rank: usize| ((slot * 2 + rank) * LINE) as u64;
    let mut seen = vec![0u64; slots];
    world.barrier().unwrap();
    let epoch = window.lock_all().unwrap();
    for (slot, seen) in seen.iter_mut().enumerate() {
        epoch.put(Rank(0), place(slot, mine), &[1u64]).unwrap();
        epoch.flush(Rank(0)).unwrap();
        epoch.get(Rank(0), place(slot, other), core::slice::from_mut(seen)).unwrap();
        // Both go on at the same time, if they can.
        let (mut met, mut looks) = ([*seen], 0u64);
        while met == [0] {
            epoch.get(Rank(0), place(slot, other), &mut met).unwrap();
            looks += 1;
            if looks.is_multiple_of(1000) {
                let_others_in();
            }
        }
    }
    epoch.unlock().unwrap();
    let either = world.allreduce(&seen, Op::Max).unwrap();
    assert_eq!(either.iter().position(|seen| *seen == 0), None, "both missed the other's put");
    window.free().unwrap();
}
