//! Post, start, complete and wait (FEATURES A5).
use crate::help::{local_words, neighbour, pattern, says, still_works, times, words};
use rma_core::{
    Assert, Communicator, ErrorClass, Exposure, LockKind, Op, Rank, RmaError, Start, Universe,
    Window,
};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn start<'w>(window: &'w Window, targets: &[Rank]) -> Start<'w> {
    window.start(targets, Assert::NONE).unwrap()
}

fn post<'w>(window: &'w Window, origins: &[Rank]) -> Exposure<'w> {
    window.post(origins, Assert::NONE).unwrap()
}

fn all_ranks(world: &Communicator) -> Vec<Rank> {
    world.ranks().collect()
}

/// Ends an exposure by polling.
fn poll(mut exposure: Exposure<'_>) {
    loop {
        match exposure.test() {
            Ok(result) => return result.unwrap(),
            Err(again) => exposure = again,
        }
        std::thread::yield_now();
    }
}

/// Each rank puts to its right neighbour, in whatever order the epochs are opened and closed.
/// S-D1 S-D2 S-D3 S-D9
pub fn ring(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 2);
    let (right, left) = (neighbour(world, 1), neighbour(world, -1));
    for round in 0..times(universe, 2_000) {
        let posts_first = (round + u64::from(world.rank())).is_multiple_of(2);
        let (exposure, epoch) = if posts_first {
            let exposure = post(&window, &[left]);
            (exposure, start(&window, &[right]))
        } else {
            let epoch = start(&window, &[right]);
            (post(&window, &[left]), epoch)
        };
        epoch.put(right, round % 2, &[round * 100 + u64::from(world.rank())]).unwrap();
        epoch.complete().unwrap();
        if round.is_multiple_of(3) {
            poll(exposure)
        } else {
            exposure.wait().unwrap()
        }
        assert_eq!(window.local().load(round % 2), Ok(round * 100 + u64::from(left)));
    }
    window.free().unwrap();
}

/// Every rank exposes to all and operates on all, itself included. S-D1
pub fn all_to_all(universe: &Universe) {
    let world = universe.world();
    let window = words(world, world.size() as usize);
    let (all_ranks, me) = (all_ranks(world), u64::from(world.rank()));
    for round in 1..=times(universe, 300) {
        let exposure = post(&window, &all_ranks);
        let epoch = start(&window, &all_ranks);
        for target in world.ranks() {
            epoch.put(target, me, &[round * 1_000 + me * 10 + u64::from(target)]).unwrap();
        }
        epoch.complete().unwrap();
        exposure.wait().unwrap();
        let from = |origin: Rank| round * 1_000 + u64::from(origin) * 10 + me;
        assert_eq!(local_words(&window), world.ranks().map(from).collect::<Vec<_>>());
    }
    window.free().unwrap();
}

/// Whether `origin` operates on `target` in this round: the same answer at every rank.
fn paired(round: u64, origin: Rank, target: Rank) -> bool {
    let mut bits = round << 32 | u64::from(origin) << 16 | u64::from(target);
    bits = (bits ^ bits >> 31).wrapping_mul(0x7fb5_d329_728e_a185);
    bits = (bits ^ bits >> 27).wrapping_mul(0x81da_def4_bc2d_d44d);
    (bits ^ bits >> 33).is_multiple_of(3)
}

/// Groups that change from round to round, so that fast ranks meet slow ones in earlier rounds: a
/// wait ends with the data of exactly its origins. S-D1 S-D2 S-D3 S-D9
pub fn changing_groups(universe: &Universe) {
    let world = universe.world();
    let window = words(world, world.size() as usize);
    let me = world.rank();
    let mut expected = vec![0; world.size() as usize];
    for round in 1..=times(universe, 3_000) {
        let origins: Vec<Rank> = world.ranks().filter(|rank| paired(round, *rank, me)).collect();
        let targets: Vec<Rank> = world.ranks().filter(|rank| paired(round, me, *rank)).collect();
        let epoch = start(&window, &targets);
        let exposure = post(&window, &origins);
        // Some targets get no operation until the last moment, some in reverse order.
        for target in targets.iter().rev().filter(|_| !round.is_multiple_of(4)) {
            epoch.put(*target, u64::from(me), &[round]).unwrap();
        }
        for target in &targets {
            epoch.put(*target, u64::from(me), &[round]).unwrap();
        }
        epoch.complete().unwrap();
        if round.is_multiple_of(5) {
            poll(exposure)
        } else {
            exposure.wait().unwrap()
        }
        origins.iter().for_each(|origin| expected[usize::from(*origin)] = round);
        assert_eq!(local_words(&window), expected, "round {round}");
    }
    window.free().unwrap();
}

/// Epochs without partners, and with oneself only. S-D1
pub fn an_empty_group_and_oneself(universe: &Universe) {
    let world = universe.world();
    let (window, me) = (words(world, 1), world.rank());
    for round in 1..=times(universe, 100) {
        let exposure = post(&window, &[]);
        start(&window, &[]).complete().unwrap();
        exposure.wait().unwrap();

        let epoch = start(&window, &[me]);
        let exposure = post(&window, &[me]);
        epoch.put(me, 0, &[round]).unwrap();
        epoch.complete().unwrap();
        poll(exposure);
        assert_eq!(window.local().load(0), Ok(round));
    }
    world.barrier().unwrap();
    still_works(&window);
    window.free().unwrap();
}

/// Many origins of one target, and many targets of one origin. S-D1
pub fn stars(universe: &Universe) {
    let world = universe.world();
    let window = words(world, world.size() as usize);
    let (me, all) = (world.rank(), all_ranks(world));
    for round in 1..=times(universe, 100) {
        let hub = Rank(0).on_ring(round as i64, world.size());
        let others: Vec<Rank> = world.ranks().filter(|rank| *rank != hub).collect();
        if me == hub {
            post(&window, &others).wait().unwrap();
            let mut expected = vec![round; all.len()];
            expected[usize::from(me)] = local_words(&window)[usize::from(me)];
            assert_eq!(local_words(&window), expected);
            let epoch = start(&window, &all);
            let own = post(&window, &[me]);
            for target in &all {
                epoch.put(*target, u64::from(me), &[round + 7]).unwrap();
            }
            epoch.complete().unwrap();
            own.wait().unwrap();
        } else {
            let epoch = start(&window, &[hub]);
            epoch.put(hub, u64::from(me), &[round]).unwrap();
            epoch.complete().unwrap();
            post(&window, &[hub]).wait().unwrap();
        }
        assert_eq!(window.local().load(u64::from(hub)), Ok(round + 7));
    }
    window.free().unwrap();
}

/// A start long before the post, and a post long before the start. S-D2
pub fn orders(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    for (round, start_first) in [(1u64, true), (2, false), (3, true), (4, true), (5, false)] {
        if world.rank() == Rank(0) {
            if !start_first {
                world.barrier().unwrap();
            }
            let epoch = start(&window, &[Rank(1)]);
            if start_first {
                world.barrier().unwrap();
            }
            epoch.put(Rank(1), 0, &[round]).unwrap();
            epoch.complete().unwrap();
        } else {
            let opened =
                (world.rank() == Rank(1) && !start_first).then(|| post(&window, &[Rank(0)]));
            world.barrier().unwrap();
            if world.rank() == Rank(1) {
                opened.unwrap_or_else(|| post(&window, &[Rank(0)])).wait().unwrap();
                assert_eq!(window.local().load(0), Ok(round));
            }
        }
    }
    window.free().unwrap();
}

/// A test is false while an origin is at work, for ever, and true once. S-D4
pub fn tested(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    for round in 1..=times(universe, 20) {
        if world.rank() == Rank(0) {
            let mut exposure = post(&window, &[Rank(1), Rank(2)]);
            for _ in 0..times(universe, 1_000) {
                exposure = exposure.test().expect_err("rank 1 waits in the barrier");
            }
            world.barrier().unwrap();
            poll(exposure);
            assert_eq!(window.local().load(0), Ok(round * 2));
        } else {
            let epoch = start(&window, &[Rank(0)]);
            epoch.fetch_and_op(Rank(0), 0, Op::Sum, 1u64).unwrap();
            if world.rank() == Rank(1) {
                world.barrier().unwrap();
                epoch.complete().unwrap();
            } else {
                epoch.complete().unwrap();
                world.barrier().unwrap();
            }
        }
    }
    world.barrier().unwrap();
    still_works(&window);
    window.free().unwrap();
}

/// Between post and wait a target waits for something else, which comes after the operations.
/// S-D5 S-M7
pub fn target_waits_elsewhere(universe: &Universe) {
    let world = universe.world();
    let count = if cfg!(miri) { 10 } else { 3_000 };
    let window = words(world, count + 1);
    for round in 1..=times(universe, 50) {
        let mut told = [0u64];
        if world.rank() == Rank(0) {
            let targets: Vec<Rank> = world.ranks().skip(1).collect();
            let epoch = start(&window, &targets);
            for target in &targets {
                epoch.put(*target, 0, &vec![round; count]).unwrap();
                let before = epoch.fetch_and_op(*target, count as u64, Op::Sum, 1u64);
                assert_eq!(before, Ok(round - 1));
            }
            epoch.complete().unwrap();
            told = [round];
            world.bcast(&mut told, Rank(0)).unwrap();
        } else {
            let exposure = post(&window, &[Rank(0)]);
            world.bcast(&mut told, Rank(0)).unwrap();
            exposure.wait().unwrap();
            assert_eq!(local_words(&window), vec![round; count + 1]);
        }
        assert_eq!(told, [round]);
    }
    window.free().unwrap();
}

/// Promises that hold change nothing. S-D6
pub fn asserts(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let (right, left) = (neighbour(world, 1), neighbour(world, -1));
    for round in 1..=times(universe, 100) {
        // The part is not stored to by its owner, so NO_STORE holds.
        let exposure = window.post(&[left], Assert::NO_CHECK | Assert::NO_STORE).unwrap();
        world.barrier().unwrap();
        let epoch = window.start(&[right], Assert::NO_CHECK).unwrap();
        epoch.put(right, 0, &[round + u64::from(world.rank())]).unwrap();
        epoch.complete().unwrap();
        exposure.wait().unwrap();
        assert_eq!(window.local().load(0), Ok(round + u64::from(left)));

        let exposure = window.post(&[left], Assert::NO_PUT | Assert::NO_STORE).unwrap();
        let epoch = start(&window, &[right]);
        let mut got = [0u64];
        epoch.get(right, 0, &mut got).unwrap();
        assert_eq!(got, [round + u64::from(world.rank())]);
        epoch.complete().unwrap();
        exposure.wait().unwrap();
    }
    window.free().unwrap();
}

/// A broken promise about posts costs nothing but time: what the epochs say stays true. S-D6
pub fn no_check_too_early(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    for round in 1..=times(universe, 100) {
        if world.rank() == Rank(0) {
            let epoch = window.start(&[Rank(1)], Assert::NO_CHECK).unwrap();
            epoch.fetch_and_op(Rank(1), 0, Op::Replace, round).unwrap();
            epoch.complete().unwrap();
        } else {
            post(&window, &[Rank(0)]).wait().unwrap();
            // The next round's operation may be here already: that is what was promised away.
            let value = window.local().load::<u64>(0).unwrap();
            assert!(value == round || value == round + 1, "{value} in round {round}");
        }
    }
    world.barrier().unwrap();
    still_works(&window);
    window.free().unwrap();
}

/// Every kind of operation, of many sizes, and to the null target. S-D3 S-G4
pub fn operations(universe: &Universe) {
    let world = universe.world();
    let bytes = if cfg!(miri) { 100 } else { 40_000 };
    let window = world.window(bytes + 64, 1).allocate().unwrap();
    let (right, left) = (neighbour(world, 1), neighbour(world, -1));
    for round in 0..times(universe, 30) as u32 {
        let mine = pattern(world.rank().0 + round, bytes);
        let exposure = post(&window, &[left]);
        let epoch = start(&window, &[right]);
        let mut origin = mine.clone();
        epoch.put(right, 64, &origin[..bytes / 2]).unwrap();
        origin[..bytes / 2].fill(0);
        epoch.ops(|ops| ops.put(right, 64 + bytes as u64 / 2, &mine[bytes / 2..])).unwrap();
        epoch.put(right, 0, &[0u8; 0]).unwrap();
        epoch.put(Rank::NULL, u64::MAX, &[1u8]).unwrap();
        let (mut nothing, mut word) = ([7u8], [9u64]);
        epoch.get(Rank::NULL, 0, &mut nothing).unwrap();
        assert_eq!(nothing, [7]);
        assert_eq!(epoch.fetch_and_op(right, 0, Op::Sum, 3u64), Ok(u64::from(round) * 3));
        assert_eq!(epoch.fetch_and_op(Rank::NULL, 0, Op::Sum, 3u64), Ok(3));
        assert_eq!(epoch.compare_and_swap(right, 8, round, round + 1), Ok(round));
        epoch.ops(|ops| ops.get(right, 0, &mut word)).unwrap();
        assert_eq!(word, [u64::from(round + 1) * 3]);
        epoch.accumulate(right, 16, Op::Sum, &[0.5f64, 2.0]).unwrap();
        epoch.complete().unwrap();
        exposure.wait().unwrap();
        let (mut got, times) = (vec![0u8; bytes], f64::from(round + 1));
        assert_eq!(window.local().load(16), Ok(times * 0.5));
        assert_eq!(window.local().load(24), Ok(times * 2.0));
        window.local().read(64, &mut got).unwrap();
        assert_eq!(got, pattern(left.0 + round, bytes));
        assert_eq!(window.local().load::<u32>(8), Ok(round + 1));
    }
    window.free().unwrap();
}

/// Epochs of all kinds take turns, with barriers between. S-C7 S-M3
pub fn mode_switches(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let (right, left) = (neighbour(world, 1), neighbour(world, -1));
    let value = |round: u64, rank: Rank| round * 100 + u64::from(rank);
    for round in 0..times(universe, 30) {
        let epoch = window.fence(Assert::NONE).unwrap();
        epoch.put(right, 0, &[value(round, world.rank())]).unwrap();
        epoch.end().unwrap();

        let exposure = post(&window, &[left]);
        let epoch = start(&window, &[right]);
        let old = epoch.fetch_and_op(right, 0, Op::Sum, 1u64);
        assert_eq!(old, Ok(value(round, world.rank())));
        epoch.complete().unwrap();
        exposure.wait().unwrap();
        assert_eq!(window.local().load(0), Ok(value(round, left) + 1));
        world.barrier().unwrap();

        let lock = window.lock(right, LockKind::Exclusive).unwrap();
        lock.fetch_and_op(0, Op::Sum, 1u64).unwrap();
        lock.unlock().unwrap();
        let epoch = window.lock_all().unwrap();
        epoch.fetch_and_op(right, 0, Op::Sum, 1u64).unwrap();
        epoch.unlock().unwrap();
        world.barrier().unwrap();

        let epoch = start(&window, &[left]);
        let exposure = post(&window, &[right]);
        let mut got = [0u64];
        epoch.get(left, 0, &mut got).unwrap();
        assert_eq!(got, [value(round, left.on_ring(-1, world.size())) + 3]);
        epoch.complete().unwrap();
        exposure.wait().unwrap();
    }
    still_works(&window);
    window.free().unwrap();
}

/// Epochs of two windows at once do not mix. S-A14
pub fn two_windows(universe: &Universe) {
    let world = universe.world();
    let (one, two) = (words(world, 1), words(world, 1));
    let (right, left) = (neighbour(world, 1), neighbour(world, -1));
    for round in 1..=times(universe, 100) {
        let (to_left, to_right) = (start(&one, &[left]), start(&two, &[right]));
        let (from_right, from_left) = (post(&one, &[right]), post(&two, &[left]));
        to_right.put(right, 0, &[round]).unwrap();
        to_left.put(left, 0, &[round + 1]).unwrap();
        to_right.complete().unwrap();
        from_left.wait().unwrap();
        assert_eq!(two.local().load(0), Ok(round));
        to_left.complete().unwrap();
        from_right.wait().unwrap();
        assert_eq!(one.local().load(0), Ok(round + 1));
    }
    one.free().unwrap();
    two.free().unwrap();
}

/// A rank named twice counts once.
pub fn named_twice(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let (right, left) = (neighbour(world, 1), neighbour(world, -1));
    for _ in 0..times(universe, 20) {
        let exposure = post(&window, &[left, left, left]);
        let epoch = start(&window, &[right, right]);
        epoch.fetch_and_op(right, 0, Op::Sum, 1u64).unwrap();
        epoch.complete().unwrap();
        exposure.wait().unwrap();
    }
    assert_eq!(window.local().load(0), Ok(times(universe, 20)));
    window.free().unwrap();
}

/// Dropping the guard of a start completes it.
pub fn dropped_start(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let (right, left) = (neighbour(world, 1), neighbour(world, -1));
    for round in 0..times(universe, 20) {
        let exposure = post(&window, &[left]);
        let epoch = start(&window, &[right]);
        epoch.put(right, 0, &[round]).unwrap();
        drop(epoch);
        exposure.wait().unwrap();
        assert_eq!(window.local().load(0), Ok(round));
    }
    world.barrier().unwrap();
    still_works(&window);
    window.free().unwrap();
}

/// Dropping the guard of an exposure, which is the same as forgetting it, leaves it open: no later
/// epoch is lost in it.
pub fn dropped_exposure(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let (right, left) = (neighbour(world, 1), neighbour(world, -1));
    _ = post(&window, &[left]);
    let epoch = start(&window, &[right]);
    epoch.put(right, 0, &[u64::from(world.rank())]).unwrap();
    epoch.complete().unwrap();
    let error = window.post(&[left], Assert::NONE).err().unwrap();
    let (requested, open) = ("a post", "an exposure epoch");
    assert_eq!(error, RmaError::EpochOpen { window: window.id(), requested, open });
    world.barrier().unwrap();
    assert_eq!(window.local().load(0), Ok(u64::from(left)));
    let refused = window.free().unwrap_err();
    says(&refused, &["free", "an exposure epoch"]);
}

/// A panic inside a start epoch does not wait for targets: the epoch stays open.
pub fn panic_in_start(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let right = neighbour(world, 1);
    let panicking = AssertUnwindSafe(|| {
        let _epoch = start(&window, &[right]);
        // As a panic does, without its message.
        std::panic::resume_unwind(Box::new(5u8));
    });
    assert_eq!(catch_unwind(panicking).unwrap_err().downcast_ref(), Some(&5u8));
    let error = window.start(&[right], Assert::NONE).err().unwrap();
    says(&error, &["a start", "a start epoch"]);
    says(&window.free().unwrap_err(), &["a start epoch"]);
}

/// A target that the group does not name: refused, and nothing is written. S-D8
pub fn not_in_group(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let (right, left) = (neighbour(world, 1), neighbour(world, -1));
    for _ in 0..2 {
        let exposure = post(&window, &[left]);
        let epoch = start(&window, &[right]);
        for target in world.ranks().filter(|rank| *rank != right) {
            let error = RmaError::NotInGroup { window: window.id(), target };
            let mut got = [3u64];
            assert_eq!(epoch.put(target, 0, &[1u64]), Err(error));
            assert_eq!(epoch.get(target, 0, &mut got), Err(error));
            assert_eq!(epoch.fetch_and_op(target, 0, Op::Sum, 1u64), Err(error));
            assert_eq!(epoch.compare_and_swap(target, 0, 0u64, 1), Err(error));
            assert_eq!(epoch.ops(|ops| ops.put(target, 0, &[1u64])), Err(error));
            assert_eq!((got, error.class()), ([3], ErrorClass::RmaSync));
            says(&error, &[&window.id().to_string(), &format!("rank {target}"), "name it"]);
        }
        let last = Rank(world.size() - 1);
        let none = Rank(world.size());
        let error = RmaError::NoSuchRank { window: window.id(), target: none, last };
        assert_eq!(epoch.put(none, 0, &[1u64]), Err(error));
        let error = epoch.put(right, 1, &[1u64]).unwrap_err();
        assert_eq!(error.class(), ErrorClass::RmaRange);
        epoch.complete().unwrap();
        exposure.wait().unwrap();
        assert_eq!(window.local().load(0), Ok(0u64), "nothing was written");
    }
    start(&window, &[]).put(right, 0, &[1u64]).unwrap_err();
    world.barrier().unwrap();
    still_works(&window);
    window.free().unwrap();
}

/// Groups and asserts that cannot be: no peer is told, and the window works. S-D6 S-E11
pub fn refused(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let right = neighbour(world, 1);
    for none in [Rank(world.size()), Rank::NULL] {
        let last = Rank(world.size() - 1);
        let error = RmaError::NoSuchRank { window: window.id(), target: none, last };
        assert_eq!(window.post(&[right, none], Assert::NONE).err(), Some(error));
        assert_eq!(window.start(&[none, right], Assert::NONE).err(), Some(error));
    }
    for wrong in [Assert::NO_PRECEDE, Assert::NO_SUCCEED | Assert::NO_CHECK] {
        for error in [window.post(&[right], wrong).err(), window.start(&[right], wrong).err()] {
            let error = error.unwrap();
            assert_eq!(error.class(), ErrorClass::Assert);
            says(&error, &["NO_CHECK", &window.id().to_string()]);
        }
    }
    let error = window.start(&[right], Assert::NO_PUT).err().unwrap();
    says(&error, &["a start takes NO_CHECK only"]);
    world.barrier().unwrap();
    still_works(&window);
    window.free().unwrap();
}
