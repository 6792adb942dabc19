//! Making and freeing windows (FEATURES A1).
use crate::help::{local_words, neighbour, says, still_works, times, words};
use rma_core::{
    Assert, Communicator, Flavor, LockKind, Op, Rank, RmaError, Universe, Window, WindowError,
};

/// Sizes differ, and rank 0 has none. S-A2
pub fn sizes_differ(universe: &Universe) {
    let world = universe.world();
    let (me, ranks) = (world.rank(), u64::from(world.size()));
    let window = words(world, usize::from(me) * 3);
    assert_eq!(window.size(), u64::from(me) * 24);
    let epoch = window.fence(Assert::NONE).unwrap();
    for target in world.ranks() {
        for word in (0..u64::from(target) * 3).filter(|word| word % ranks == u64::from(me)) {
            epoch.put(target, word, &[u64::from(target) * 1000 + word]).unwrap();
        }
        // The end itself can be named, with nothing there.
        epoch.put(target, u64::from(target) * 3, &[0u64; 0]).unwrap();
        let error = epoch.put(target, u64::from(target) * 3, &[1u8]).unwrap_err();
        assert!(matches!(error, RmaError::OutOfRange { size, .. }
            if size == u64::from(target) * 24));
    }
    epoch.end().unwrap();
    let expected: Vec<u64> = (0..u64::from(me) * 3).map(|i| u64::from(me) * 1000 + i).collect();
    assert_eq!(local_words(&window), expected);
    window.free().unwrap();
}

/// No rank has a byte; every epoch opens and closes all the same. S-A2 S-C8 S-A12
pub fn all_empty(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 0);
    let epoch = window.fence(Assert::NONE).unwrap();
    epoch.put(neighbour(world, 1), 0, &[0u8; 0]).unwrap();
    epoch.end().unwrap();
    window.lock(neighbour(world, 1), LockKind::Exclusive).unwrap().unlock().unwrap();
    let epoch = window.lock_all().unwrap();
    epoch.flush_all().unwrap();
    epoch.unlock().unwrap();
    assert_eq!(window.local().read::<u8>(0, &mut []), Ok(()));
    window.free().unwrap();
}

/// A displacement counts in the target's units. S-A3
pub fn units_differ(universe: &Universe) {
    let world = universe.world();
    let unit = |rank: Rank| [1usize, 2, 4, 8, 24][usize::from(rank) % 5];
    let mine = unit(world.rank());
    let window = world.window(240 / mine, mine).allocate().unwrap();
    assert_eq!((window.size(), window.disp_unit() as usize), (240, mine));
    let epoch = window.lock_all().unwrap();
    for target in world.ranks() {
        epoch.put(target, 4 + u64::from(world.rank()), &[world.rank().0 as u8 + 1]).unwrap();
    }
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    let mut bytes = [0u8; 240];
    window.local().read(0, &mut bytes).unwrap();
    let mut expected = [0u8; 240];
    for rank in world.ranks() {
        expected[(4 + usize::from(rank)) * mine] = rank.0 as u8 + 1;
    }
    assert_eq!(bytes, expected);
    assert_eq!(window.local().load::<u8>(4).unwrap(), 1, "the local view counts in units too");
    window.free().unwrap();
}

/// Each process writes its rank of the world to all; ranks are those of the window's group.
fn exchange(universe: &Universe, comm: &Communicator) {
    let window = words(comm, comm.size() as usize);
    assert_eq!((window.rank(), window.ranks()), (comm.rank(), comm.size()));
    assert_eq!(window.group(), comm.group());
    let me = u64::from(universe.world().rank());
    let epoch = window.lock_all().unwrap();
    for target in comm.ranks() {
        epoch.put(target, u64::from(comm.rank()), &[me + 100]).unwrap();
    }
    epoch.unlock().unwrap();
    comm.barrier().unwrap();
    let expected: Vec<u64> = comm.group().members().map(|world| u64::from(world.0) + 100).collect();
    assert_eq!(local_words(&window), expected);
    comm.barrier().unwrap();
    still_works(&window);
    window.free().unwrap();
}

/// Windows of parts of the job. S-A6
pub fn over_split(universe: &Universe) {
    let me = universe.world().rank().0;
    let part = universe.world().split(Some(me % 2), 0).unwrap().unwrap();
    exchange(universe, &part);
    let pair = part.split(Some(u32::from(part.rank() < Rank(2))), 0).unwrap().unwrap();
    exchange(universe, &pair);
    exchange(universe, universe.world());
}

/// Windows of ranks in another order. S-A6
pub fn over_reversed(universe: &Universe) {
    let world = universe.world();
    let reversed = world.split(Some(0), -i64::from(world.rank().0)).unwrap().unwrap();
    exchange(universe, &reversed);
    exchange(universe, &world.dup().unwrap());
}

/// Ranks of one half and of the other in turn, so that neighbours in rank may be apart, and every
/// rank has some on either side. S-A6
pub fn over_interleaved(universe: &Universe) {
    let world = universe.world();
    let (me, half) = (world.rank().0, world.size().div_ceil(2));
    let key = (me % half) * 2 + me / half;
    let mixed = world.split(Some(0), key.into()).unwrap().unwrap();
    exchange(universe, &mixed);
    let window = words(&mixed, 4);
    for distance in 0..i64::from(mixed.size()) {
        let (peer, from) = (neighbour(&mixed, distance), neighbour(&mixed, -distance));
        let exposure = window.post(&[from], Assert::NONE).unwrap();
        let epoch = window.start(&[peer], Assert::NONE).unwrap();
        epoch.put(peer, 0, &[u64::from(mixed.rank()), 7]).unwrap();
        epoch.complete().unwrap();
        exposure.wait().unwrap();
        assert_eq!(local_words(&window)[..2], [u64::from(from), 7]);
        let lock = window.lock(peer, LockKind::Exclusive).unwrap();
        let old = lock.fetch_and_op(2, Op::Sum, 1u64).unwrap();
        lock.put(3, &[old + 1]).unwrap();
        lock.unlock().unwrap();
        mixed.barrier().unwrap();
        assert_eq!(local_words(&window)[2..], [distance as u64 + 1; 2]);
    }
    let sum = mixed.allreduce(&[1u64 << mixed.rank().0], Op::Sum).unwrap();
    assert_eq!(sum, [(1 << mixed.size()) - 1]);
    let window = window.seal().unwrap().unseal().unwrap();
    still_works(&window);
    window.free().unwrap();
}

/// A window of this rank alone. S-A6
pub fn over_one_rank(universe: &Universe) {
    let alone = universe.world().split(Some(universe.world().rank().0), 0).unwrap().unwrap();
    exchange(universe, &alone);
}

/// The communicator goes, the window stays. S-A7
pub fn outlives_its_communicator(universe: &Universe) {
    let world = universe.world();
    let comm = world.split(Some(world.rank().0 % 2), -i64::from(world.rank().0)).unwrap().unwrap();
    let (rank, group) = (comm.rank(), comm.group().clone());
    let window = words(&comm, 4);
    drop(comm);
    for _ in 0..3 {
        still_works(&window);
    }
    assert_eq!((window.rank(), window.group()), (rank, &group));
    window.free().unwrap();
}

/// Windows in different epochs do not know of each other. S-A14
pub fn several_epochs_at_once(universe: &Universe) {
    let world = universe.world();
    let (right, left) = (neighbour(world, 1), u64::from(neighbour(world, -1)));
    let me = u64::from(world.rank());
    let [a, b, c] = [words(world, 2), words(world, 2), words(world, 2)];
    let fence = a.fence(Assert::NONE).unwrap();
    let lock_all = b.lock_all().unwrap();
    let lock = c.lock(right, LockKind::Exclusive).unwrap();
    fence.put(right, 0, &[me]).unwrap();
    lock_all.put(right, 0, &[me + 10]).unwrap();
    lock.put(0, &[me + 20]).unwrap();
    lock_all.fetch_and_op(right, 1, Op::Sum, 3u64).unwrap();
    lock.unlock().unwrap();
    fence.put(right, 1, &[me + 1]).unwrap();
    let lock = c.lock(right, LockKind::Shared).unwrap();
    lock.put(1, &[me + 21]).unwrap();
    lock_all.unlock().unwrap();
    fence.end().unwrap();
    lock.unlock().unwrap();
    world.barrier().unwrap();
    assert_eq!(local_words(&a), [left, left + 1]);
    assert_eq!(local_words(&b), [left + 10, 3]);
    assert_eq!(local_words(&c), [left + 20, left + 21]);
    world.barrier().unwrap();
    // Freed in another order than made.
    for window in [b, c, a] {
        still_works(&window);
        window.free().unwrap();
    }
}

/// Windows come and go; no two have the same name. S-A5
pub fn created_and_freed(universe: &Universe) {
    let world = universe.world();
    let mut names = Vec::new();
    for round in 0..times(universe, 50) as usize {
        let window = words(world, 1 + round % 3 * 600);
        assert!(!names.contains(&window.id()));
        names.push(window.id());
        still_works(&window);
        window.free().unwrap();
    }
}

/// Memory is aligned for every element. S-A12 S-A13
pub fn aligned(universe: &Universe) {
    for size in [1, 7, 64, 100, 4096, 5000] {
        let window = universe.world().window(size, 1).allocate().unwrap();
        let align = if size >= 4096 { 4096 } else { 64 };
        assert!(window.local().as_ptr().addr().is_multiple_of(align), "{size} bytes");
        window.free().unwrap();
    }
}

/// Memory is zeroed, also where another window was.
pub fn zeroed(universe: &Universe) {
    for len in [8, 100, 5000, 8] {
        let window = words(universe.world(), len);
        assert_eq!(local_words(&window), vec![0; len]);
        window.local().write(0, &vec![u64::MAX; len]).unwrap();
        window.free().unwrap();
    }
}

/// `free` waits until no rank accesses the window any more. S-A9
pub fn free_waits(universe: &Universe) {
    let world = universe.world();
    for late in world.ranks() {
        let window = words(world, 100);
        if world.rank() == late {
            for target in world.ranks() {
                let epoch = window.lock(target, LockKind::Exclusive).unwrap();
                epoch.put(0, &[7u64; 100]).unwrap();
                epoch.flush().unwrap();
                let mut got = [0u64; 100];
                epoch.get(0, &mut got).unwrap();
                epoch.unlock().unwrap();
                assert_eq!(got, [7; 100]);
            }
        }
        window.free().unwrap();
    }
}

/// Windows over one communicator, one after the other: what ranks can tell each other at once, and
/// what takes them longer, because a part is large or made of something else. S-A2 S-B7
pub fn small_and_large_by_turns(universe: &Universe) {
    let world = universe.world().dup().unwrap();
    let (me, ranks) = (world.rank(), u64::from(world.size()));
    let large = 2 << 20;
    let mut ids = Vec::new();
    for round in 0..3 * ranks {
        let is_large = |rank: u64| round % 3 == 1 && rank == round / 3;
        let bytes = |rank: u64| if is_large(rank) { large } else { 8 * ranks };
        let count = bytes(u64::from(me)) / 8;
        let is_made = round % 3 == 2 && u64::from(me) == round / 3;
        let window = match is_made {
            true => world.window(count, 8).create(vec![0u64; count as usize]).map_err(drop),
            // Flavors are the same everywhere.
            false if round % 3 == 2 => {
                world.window(count, 8).create(Box::from([0u64; 64])).map_err(drop)
            }
            false => world.window(count, 8).allocate().map_err(drop),
        };
        let window = window.unwrap();
        let epoch = window.fence(Assert::NONE).unwrap();
        for target in world.ranks() {
            epoch.put(target, u64::from(me), &[round * 100 + u64::from(me)]).unwrap();
        }
        epoch.end().unwrap();
        let mut got = vec![0u64; ranks as usize];
        window.local().read(0, &mut got).unwrap();
        assert_eq!(got, (0..ranks).map(|rank| round * 100 + rank).collect::<Vec<_>>());
        ids.push(window.id().to_string());
        window.free().unwrap();
    }
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len() as u64, 3 * ranks, "each has an id of its own");
}

/// What held a window or a communicator together serves the next while some are late to leave.
/// S-A6 S-A9
pub fn left_late(universe: &Universe) {
    let world = universe.world();
    let me = world.rank();
    let pair = |other| {
        let color = (me == Rank(0) || me == Rank(other)).then_some(0);
        world.split(color, 0).unwrap()
    };
    // Rank 0 is in both, and goes from one to the other.
    let pairs = [pair(1), pair(2)];
    for _ in 0..100 {
        let mut kept = Vec::new();
        for (barriers, pair) in [3, 0].into_iter().zip(&pairs) {
            let Some(pair) = pair else { continue };
            let window = words(pair, 4);
            // The next that has its memory comes to fewer.
            for _ in 0..barriers {
                window.fence(Assert::NONE).unwrap().end().unwrap();
            }
            window.free().unwrap();
            let comm = pair.dup().unwrap();
            let units = 2 + usize::from(world.rank());
            kept.push((comm.window(units, 8).allocate().unwrap(), comm.group().clone()));
        }
        for (window, group) in kept {
            for (rank, process) in (0..).map(Rank).zip(group.members()) {
                let part = window.lock(rank, LockKind::Shared).unwrap();
                let last = 1 + u64::from(process.0);
                part.put(last, &[7u64]).unwrap();
                part.put(last + 1, &[7u64]).unwrap_err();
                part.unlock().unwrap();
            }
            window.free().unwrap();
        }
    }
}

/// Ranks that call different functions are refused on all ranks, and can go on. S-A3
pub fn flavors_differ(universe: &Universe) {
    let world = universe.world();
    for dynamic in world.ranks() {
        let made = if world.rank() == dynamic {
            world.window(0, 1).create_dynamic()
        } else {
            world.window(8, 8).allocate()
        };
        let mine = if world.rank() == dynamic { Flavor::Dynamic } else { Flavor::Allocate };
        let error = made.map(drop).unwrap_err();
        assert_eq!(error, WindowError::FlavorDiffers(mine));
        says(&error, &[&format!("{mine:?}"), "call the same function on all ranks"]);
        exchange(universe, world);
    }
}

/// What a window tells of itself.
pub fn attributes(universe: &Universe) {
    let world = universe.world();
    let unit = 4 << (world.rank().0 % 2);
    let window = world.window(usize::from(world.rank()), unit).allocate().unwrap();
    assert_eq!(window.size(), u64::from(world.rank()) * unit as u64);
    assert_eq!(window.disp_unit() as usize, unit);
    assert_eq!((window.rank(), window.ranks()), (world.rank(), world.size()));
    let view = window.local();
    assert_eq!((view.size(), view.rank()), (window.size(), world.rank()));
    assert_eq!(view.disp_unit(), window.disp_unit());
    // The name is the same everywhere.
    let name = window.id().to_string();
    let names = world.allgatherv(name.as_bytes()).unwrap();
    assert!(names.iter().all(|other| other == name.as_bytes()), "{names:?}");
    let text = window.explain();
    assert!(text.contains(&name) && text.contains(universe.transport().name()), "{text}");
    window.free().unwrap();
}

/// A rank drops its window without `free`: the others still reach it, and take locks in turn there;
/// other windows go on.
pub fn dropped_and_not_freed(universe: &Universe) {
    const ROUNDS: u64 = 10;
    let world = universe.world();
    let (window, other) = (words(world, 8), words(world, 2));
    let others = world.split((world.rank() > Rank(0)).then_some(0), 0).unwrap();
    let Some(others) = others else {
        drop(window);
        world.barrier().unwrap();
        return still_works_and_free(other);
    };
    world.barrier().unwrap();
    let epoch = window.lock_all_with(Assert::NO_CHECK).unwrap();
    epoch.put(Rank(0), 1, &[1u64; 7]).and_then(|()| epoch.flush(Rank(0))).unwrap();
    epoch.put(world.rank(), 0, &[2u64]).unwrap();
    epoch.unlock().unwrap();
    let mut sum = [0u64];
    for _ in 0..ROUNDS {
        let lock = window.lock(Rank(0), LockKind::Exclusive).unwrap();
        lock.get(0, &mut sum).unwrap();
        lock.put(0, &[sum[0] + 1]).unwrap();
        lock.unlock().unwrap();
    }
    others.barrier().unwrap();
    let lock = window.lock(Rank(0), LockKind::Shared).unwrap();
    lock.get(0, &mut sum).unwrap();
    lock.unlock().unwrap();
    assert_eq!(sum, [ROUNDS * u64::from(others.size())]);
    still_works_and_free(other);
}

fn still_works_and_free(window: Window) {
    still_works(&window);
    window.free().unwrap();
}

/// An origin that was not told that a window is dropped writes where its part was, and in no other
/// window.
pub fn dropped_memory_is_not_used_again(universe: &Universe) {
    let world = universe.world();
    let alone = world.split(Some(world.rank().0), 0).unwrap().unwrap();
    // Room for several others, where its part was: what each of them begins with may be no data.
    const LEN: usize = 1024;
    let window = words(world, LEN);
    if world.rank() == Rank(0) {
        drop(window);
        let others: Vec<_> = (0..4).map(|_| words(&alone, 64).seal().unwrap()).collect();
        world.barrier().unwrap();
        world.barrier().unwrap();
        for other in others {
            assert_eq!(other.as_slice::<u64>().unwrap(), [0; 64]);
            other.unseal().unwrap().free().unwrap();
        }
    } else {
        world.barrier().unwrap();
        let epoch = window.lock_all_with(Assert::NO_CHECK).unwrap();
        // Load and store reach it, messages do not.
        _ = epoch.put(Rank(0), 0, &[1u64; LEN]);
        _ = epoch.unlock();
        world.barrier().unwrap();
    }
}

/// Two windows between the same fences. S-A14
pub fn two_in_one_fence(universe: &Universe) {
    let world = universe.world();
    let (a, b) = (words(world, 1), words(world, 1));
    let mut in_a = a.fence(Assert::NONE).unwrap();
    for round in 0..times(universe, 30) {
        let in_b = b.fence(Assert::NONE).unwrap();
        in_a.put(neighbour(world, 1), 0, &[round]).unwrap();
        in_b.put(neighbour(world, -1), 0, &[round + 1]).unwrap();
        in_a = in_a.next(Assert::NONE).unwrap();
        in_b.end().unwrap();
        assert_eq!((local_words(&a), local_words(&b)), (vec![round], vec![round + 1]));
        world.barrier().unwrap();
    }
    in_a.end().unwrap();
    a.free().unwrap();
    b.free().unwrap();
}
