//! Shared windows: direct loads and stores of a neighbour's part (FEATURES A1).
use crate::help::{neighbour, reaches, says, times, words};
use rma_core::{
    Assert, Communicator, ErrorClass, Flavor, LockKind, Op, Rank, RmaError, Universe, Window,
    WindowError,
};

fn shared(comm: &Communicator, count: usize) -> Window {
    comm.window(count, 8).allocate_shared().unwrap()
}

/// Copies between processes find a part that lies in another rank's memory.
pub fn crossed(universe: &Universe) {
    let node = universe.world().split_by_node(0).unwrap();
    let builder = node.window(2, 8).hint("rma_path", "cma").unwrap();
    let window = match builder.allocate_shared() {
        Err(WindowError::NoPath { .. }) => return,
        window => window.unwrap(),
    };
    let right = neighbour(&node, 1);
    let epoch = window.fence(Assert::NONE).unwrap();
    epoch.put(right, 1, &[u64::from(right) + 7]).unwrap();
    epoch.end().unwrap();
    assert_eq!(window.free_into::<Vec<u64>>().unwrap(), [0, u64::from(node.rank()) + 7]);
}

/// Parts begin where the one before ends: what is aligned is so in memory, on every way.
pub fn atomics_on_parts_of_odd_sizes(universe: &Universe) {
    let node = universe.world().split_by_node(0).unwrap();
    for path in ["auto", "load_store", "messages", "cma"] {
        let builder = node.window(13, 1).hint("rma_path", path).unwrap();
        let window = match builder.allocate_shared() {
            Err(WindowError::NoPath { .. }) => continue,
            window => window.unwrap(),
        };
        let epoch = window.lock_all().unwrap();
        for (target, disp) in node.ranks().flat_map(|rank| (0..6).map(move |disp| (rank, disp))) {
            let sum = epoch.fetch_and_op(target, disp, Op::NoOp, 1u64);
            let misaligned = RmaError::Misaligned { window: window.id(), target, disp, width: 8 };
            let aligned = (13 * u64::from(target) + disp).is_multiple_of(8);
            assert_eq!(sum, if aligned { Ok(0) } else { Err(misaligned) }, "{path}");
        }
        epoch.unlock().unwrap();
        window.free().unwrap();
    }
}

/// Each rank gets a copy of its own part.
pub fn given_back(universe: &Universe) {
    let node = universe.world().split_by_node(0).unwrap();
    let window = shared(&node, 1 + usize::from(node.rank()) % 2);
    let part = vec![u64::from(node.rank()) + 5; 1 + usize::from(node.rank()) % 2];
    window.local().write(0, &part).unwrap();
    node.barrier().unwrap();
    assert_eq!(window.free_into::<Vec<u64>>().unwrap(), part);
}

/// As [`given_back`], while the rank that had the memory goes on, and has another use for it.
pub fn given_back_while_others_go_on(universe: &Universe) {
    let node = universe.world().split_by_node(0).unwrap();
    let alone = node.split(Some(node.rank().0), 0).unwrap().unwrap();
    for round in 0..times(universe, 300) {
        let part = vec![u64::from(node.rank()) + 5 + round; 64];
        let window = shared(&node, part.len());
        window.local().write(0, &part).unwrap();
        assert_eq!(window.free_into::<Vec<u64>>().unwrap(), part, "round {round}");
        let other = alone.window(64 * node.size() as usize, 8).allocate().unwrap();
        other.local().write(0, &vec![0xdeadu64; 64 * node.size() as usize]).unwrap();
        other.free().unwrap();
    }
}

/// Parts of all ranks lie in one piece, in rank order, whatever their sizes. S-K1 S-K5
pub fn contiguous(universe: &Universe) {
    let node = universe.world().split_by_node(0).unwrap();
    let sizes = [[3, 0, 5, 1], [0, 2, 0, 0], [0, 0, 0, 0], [600, 1, 1, 700]];
    for sizes in sizes {
        let window = shared(&node, sizes[usize::from(node.rank()) % 4]);
        let mut next = window.shared_query(Rank(0)).unwrap().as_ptr().addr();
        for rank in node.ranks() {
            let view = window.shared_query(rank).unwrap();
            assert_eq!(view.rank(), rank);
            assert_eq!(view.size() as usize, sizes[usize::from(rank) % 4] * 8);
            if view.size() > 0 {
                assert_eq!(view.as_ptr().addr(), next);
            }
            next += view.size() as usize;
        }
        let mine = window.shared_query(node.rank()).unwrap();
        assert_eq!(mine.size(), window.size());
        for word in 0..mine.size() / 8 {
            mine.store(word, u64::from(node.rank()) * 10 + word).unwrap();
        }
        window.sync().unwrap();
        node.barrier().unwrap();
        for rank in node.ranks() {
            let view = window.shared_query(rank).unwrap();
            for word in 0..view.size() / 8 {
                assert_eq!(view.load::<u64>(word), Ok(u64::from(rank) * 10 + word));
            }
        }
        window.free().unwrap();
    }
}

/// With `alloc_shared_noncontig`, each part is by itself, on pages of its own; loads, stores and
/// operations reach all of them. S-K2 S-K5
pub fn not_contiguous(universe: &Universe) {
    let node = universe.world().split_by_node(0).unwrap();
    let words = |rank: Rank| [600, 0, 1, 512][usize::from(rank) % 4];
    let builder = node.window(words(node.rank()), 8);
    let window = builder.hint("alloc_shared_noncontig", "true").unwrap().allocate_shared().unwrap();
    assert_eq!(window.flavor(), Flavor::Shared);
    let mut parts = Vec::new();
    for rank in node.ranks() {
        let view = window.shared_query(rank).unwrap();
        assert_eq!((view.rank(), view.size() as usize), (rank, words(rank) * 8));
        let (base, size) = (view.as_ptr().addr(), view.size() as usize);
        assert!(base.is_multiple_of(if size >= 4096 { 4096 } else { 64 }));
        parts.push(base..base + size);
    }
    parts.sort_unstable_by_key(|part| part.start);
    assert!(parts.windows(2).all(|pair| pair[0].end <= pair[1].start), "{parts:?}");
    let right = window.shared_query(neighbour(&node, 1)).unwrap();
    for word in 0..right.size() / 8 {
        right.store(word, u64::from(right.rank()) * 1000 + word).unwrap();
    }
    window.sync().unwrap();
    node.barrier().unwrap();
    let epoch = window.lock_all().unwrap();
    for rank in node.ranks() {
        let mut got = vec![0u64; words(rank)];
        epoch.get(rank, 0, &mut got).unwrap();
        let expected: Vec<u64> =
            (0..).map(|i| u64::from(rank) * 1000 + i).take(got.len()).collect();
        assert_eq!(got, expected);
    }
    epoch.unlock().unwrap();
    window.free().unwrap();
}

/// The null rank asks for the first part that is not empty. S-K3
pub fn null_query(universe: &Universe) {
    let node = universe.world().split_by_node(0).unwrap();
    for first in node.ranks() {
        let window = shared(&node, if node.rank() < first { 0 } else { 4 });
        let view = window.shared_query(Rank::NULL).unwrap();
        assert_eq!((view.rank(), view.size()), (first, 32));
        window.free().unwrap();
    }
    let window = shared(&node, 0);
    assert_eq!(window.shared_query(Rank::NULL).unwrap().size(), 0);
    window.free().unwrap();
}

/// Stores, `sync` and a barrier: the neighbours load what was stored. S-K6 S-F8 S-M4
pub fn direct_access(universe: &Universe) {
    let node = universe.world().split_by_node(0).unwrap();
    let window = shared(&node, 16);
    let (right, left) = (neighbour(&node, 1), neighbour(&node, -1));
    for round in 0..times(universe, 200) {
        let value = |from: Rank| [round * 100 + u64::from(from); 16];
        let theirs = window.shared_query(right).unwrap();
        theirs.write(0, &value(node.rank())).unwrap();
        window.sync().unwrap();
        node.barrier().unwrap();
        window.sync().unwrap();
        let mut mine = [0; 16];
        window.local().read(0, &mut mine).unwrap();
        assert_eq!(mine, value(left));
        node.barrier().unwrap();
    }
    window.free().unwrap();
}

/// Operations see stores, and loads see operations, under every synchronisation. S-K6 S-F2
pub fn mixed_with_operations(universe: &Universe) {
    let node = universe.world().split_by_node(0).unwrap();
    let window = shared(&node, 4);
    let (me, right) = (u64::from(node.rank()), neighbour(&node, 1));
    let left = u64::from(neighbour(&node, -1));
    window.shared_query(right).unwrap().store(0, me + 1).unwrap();
    let epoch = window.fence(Assert::NONE).unwrap();
    let mut got = [0u64];
    epoch.get(node.rank(), 0, &mut got).unwrap();
    assert_eq!(got, [left + 1]);
    epoch.put(right, 1, &[me + 2]).unwrap();
    epoch.end().unwrap();
    assert_eq!(window.local().load(1), Ok(left + 2));

    let epoch = window.lock_all().unwrap();
    epoch.put(right, 2, &[me + 3]).unwrap();
    epoch.flush(right).unwrap();
    window.sync().unwrap();
    node.barrier().unwrap();
    window.sync().unwrap();
    assert_eq!(window.local().load(2), Ok(left + 3));
    epoch.unlock().unwrap();

    let epoch = window.lock(right, LockKind::Exclusive).unwrap();
    window.shared_query(right).unwrap().store(3, me + 4).unwrap();
    let mut got = [0u64];
    epoch.get(3, &mut got).unwrap();
    epoch.unlock().unwrap();
    assert_eq!(got, [me + 4]);
    window.free().unwrap();
}

/// Atomics through a view and through an epoch are atomic towards each other. S-K9
pub fn atomics_agree(universe: &Universe) {
    let node = universe.world().split_by_node(0).unwrap();
    let window = shared(&node, 1);
    let view = window.shared_query(Rank(0)).unwrap();
    let rounds = times(universe, 2_000);
    let epoch = window.lock_all().unwrap();
    for _ in 0..rounds {
        view.fetch_and_op(0, Op::Sum, 1u64).unwrap();
        epoch.fetch_and_op(Rank(0), 0, Op::Sum, 1u64).unwrap();
        let mut seen: u64 = view.load(0).unwrap();
        loop {
            let found = view.compare_and_swap(0, seen, seen + 1).unwrap();
            if found == seen {
                break;
            }
            seen = found;
        }
    }
    epoch.unlock().unwrap();
    node.barrier().unwrap();
    assert_eq!(view.load(0), Ok(3 * rounds * u64::from(node.size())));
    window.free().unwrap();
}

/// A rank that polls its memory, and calls nothing, sees what others put there; both ways in turn.
/// S-M1
/// S-E14
pub fn polled(universe: &Universe) {
    let node = universe.world().split_by_node(0).unwrap();
    let window = shared(&node, 2);
    let (me, other) = (node.rank(), neighbour(&node, 1));
    let poll = |word, value: u64| {
        while window.local().load::<u64>(word) != Ok(value) {
            std::thread::yield_now();
        }
    };
    let epoch = window.lock_all().unwrap();
    for round in 1..=times(universe, 300) {
        if me > Rank(0) {
            poll(0, round);
        }
        // Atomics travel around the ring, and puts back.
        if me.0 + 1 < node.size() {
            epoch.accumulate(other, 0, Op::Sum, &[1u64]).unwrap();
            poll(1, round);
        }
        if me > Rank(0) {
            epoch.put(neighbour(&node, -1), 1, &[round]).unwrap();
        }
    }
    epoch.unlock().unwrap();
    window.free().unwrap();
}

/// Two ranks of a node wait for each other by loads and stores alone, the one that waits in the
/// part of the other. S-K6 S-M1
pub fn waited_for(universe: &Universe) {
    let node = universe.world().split_by_node(0).unwrap();
    let window = shared(&node, 4);
    let (me, first) = (node.rank(), window.shared_query(Rank(0)).unwrap());
    if node.size() > 1 && me < Rank(2) {
        for round in 1..=times(universe, 200) {
            if me == Rank(0) {
                first.store(1, round * 3).unwrap();
                window.sync().unwrap();
                first.store(0, round).unwrap();
            } else {
                // Any part that load and store reach, not its own alone.
                assert_eq!(first.wait_until(0, |value: u64| value == round), Ok(round));
                assert_eq!(first.load(1), Ok(round * 3));
                window.sync().unwrap();
                first.fetch_and_op(2, Op::Sum, 1u64).unwrap();
            }
            if me == Rank(0) {
                assert_eq!(first.wait_until(2, |value: u64| value == round), Ok(round));
            }
        }
    }
    node.barrier().unwrap();
    window.free().unwrap();
}

/// Several ranks wait for one value. S-M1
pub fn waited_for_by_several(universe: &Universe) {
    let node = universe.world().split_by_node(0).unwrap();
    let window = shared(&node, 2);
    let first = window.shared_query(Rank(0)).unwrap();
    let last = Rank(node.size() - 1);
    let waiters = u64::from(node.size()) - 1;
    for round in 1..=times(universe, 50) {
        if node.rank() == last {
            // All others have come, so that most of them sleep.
            first.wait_until(1, |value: u64| value == round * waiters).unwrap();
            first.store(0, round).unwrap();
        } else {
            first.fetch_and_op(1, Op::Sum, 1u64).unwrap();
            assert_eq!(first.wait_until(0, |value: u64| value >= round), Ok(round));
        }
        node.barrier().unwrap();
    }
    window.free().unwrap();
}

/// Any window can be asked for a neighbour's part. S-K4
pub fn other_windows_can_be_asked(universe: &Universe) {
    let node = universe.world().split_by_node(0).unwrap();
    let window = words(&node, 1 + usize::from(node.rank()));
    let right = neighbour(&node, 1);
    let view = window.shared_query(right).unwrap();
    assert_eq!(view.size(), (u64::from(right) + 1) * 8);
    view.store(u64::from(right), u64::from(node.rank()) + 7).unwrap();
    node.barrier().unwrap();
    let left = u64::from(neighbour(&node, -1));
    assert_eq!(window.local().load(u64::from(node.rank())), Ok(left + 7));
    window.free().unwrap();
}

/// Views count in their owner's units. S-A3
pub fn units(universe: &Universe) {
    let node = universe.world().split_by_node(0).unwrap();
    let unit = |rank: Rank| 1 << (rank.0 % 3 + 1);
    let window = node.window(8, unit(node.rank())).allocate_shared().unwrap();
    let right = neighbour(&node, 1);
    let view = window.shared_query(right).unwrap();
    assert_eq!(view.disp_unit() as usize, unit(right));
    view.store(5, 0xabu8).unwrap();
    node.barrier().unwrap();
    let mut mine = vec![0u8; window.size() as usize];
    window.local().read(0, &mut mine).unwrap();
    let expected = |i: usize| if i == 5 * unit(node.rank()) { 0xab } else { 0 };
    assert_eq!(mine, (0..mine.len()).map(expected).collect::<Vec<u8>>());
    window.free().unwrap();
}

/// A view stays inside its part, although its neighbour's comes right behind.
pub fn views_refuse(universe: &Universe) {
    let node = universe.world().split_by_node(0).unwrap();
    let window = shared(&node, 2);
    let first = window.shared_query(Rank(0)).unwrap();
    let error = first.write(1, &[1u64, 2]).unwrap_err();
    let (id, target) = (window.id(), Rank(0));
    let expected =
        RmaError::OutOfRange { window: id, target, disp: 1, disp_unit: 8, len: 16, size: 16 };
    assert_eq!(error, expected);
    assert!(matches!(first.load::<u8>(u64::MAX), Err(RmaError::OutOfRange { .. })));
    let error = window.shared_query(Rank(node.size())).err().unwrap();
    assert_eq!(error.class(), ErrorClass::Rank);
    node.barrier().unwrap();
    assert_eq!(window.local().load(0), Ok(0u64));
    window.free().unwrap();
}

/// For transports without shared memory: the errors. S-K10
pub fn refused(universe: &Universe) {
    let world = universe.world();
    let error = world.window(4, 8).allocate_shared().err().unwrap();
    assert_eq!(error.class(), ErrorClass::RmaShared);
    if let WindowError::NotShared(group) = &error {
        let far = world.ranks().zip(world.group().members());
        let far = far.filter(|(rank, _)| !reaches(universe, *rank)).map(|(_, member)| member);
        assert_eq!(group.members().collect::<Vec<_>>(), far.collect::<Vec<_>>());
        says(&error, &["shared window", "make one with split_by_node"]);
        world.split_by_node(0).unwrap().window(4, 8).allocate_shared().unwrap().free().unwrap();
    } else {
        assert!(!reaches(universe, world.rank()));
        says(&error, &["shared window", "call allocate"]);
        let node = world.split_by_node(0).unwrap();
        assert_eq!(node.window(4, 8).allocate_shared().err(), Some(error));
    }
    let window = words(world, 4);
    for rank in world.ranks() {
        let view = window.shared_query(rank);
        if reaches(universe, rank) {
            assert_eq!(view.map(|view| view.size()), Ok(32));
            continue;
        }
        let error = view.err().unwrap();
        assert_eq!(error, RmaError::NotShared { window: window.id(), target: rank });
        assert_eq!(error.class(), ErrorClass::RmaShared);
        says(&error, &[&window.id().to_string(), &format!("rank {rank}"), "load and store"]);
    }
    crate::help::still_works(&window);
    window.free().unwrap();
}
