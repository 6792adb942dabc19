//! Targets that are looked up once: those of every epoch, and locks.
use crate::help::{local_words, neighbour, still_works, words};
use rma_core::{Assert, Layout, LockKind, Op, Peer, Rank, RmaError, Universe, Window};

/// Words that each origin has at each target.
const ROOM: u64 = 16;

/// What each origin leaves in its room.
const LEFT: [u64; 16] = [1, 2, 3, 4, 5, 0, 6, 0, 9, 8, 9, 0, 30, 31, 0, 0];

/// A window with a room for each rank; what is got from it is there.
fn rooms(universe: &Universe) -> Window {
    let world = universe.world();
    let window = words(world, ROOM as usize * world.size() as usize);
    for origin in world.ranks() {
        window.local().write(u64::from(origin) * ROOM + 12, &[30u64, 31]).unwrap();
    }
    window
}

/// Every operation, in this rank's room.
fn operate(peer: &Peer<'_>, me: Rank) {
    let (base, word) = (u64::from(me) * ROOM, Layout::element::<u64>());
    let every = word.vector(2, 1, 2).unwrap();
    let mut got = [0u64; 2];
    peer.put(base, &[1u64, 2, 3, 4]).unwrap();
    peer.put(every.at(base + 4), &[5u64, 6]).unwrap();
    peer.accumulate(base + 8, Op::Sum, word.of(&[7u64])).unwrap();
    peer.get_accumulate(base + 8, Op::Sum, &[2u64], &mut got[..1]).unwrap();
    assert_eq!(got, [7, 0]);
    assert_eq!(peer.fetch_and_op(base + 9, Op::Sum, 8u64), Ok(0));
    assert_eq!(peer.compare_and_swap(base + 10, 0u64, 9), Ok(0));
    peer.get(base + 12, &mut got).unwrap();
    assert_eq!(got, [30, 31]);
    let size = u64::from(peer.target()) + 1_000_000;
    let error = peer.put(size, &[1u64]).unwrap_err();
    assert!(matches!(error, RmaError::OutOfRange { target, disp, .. }
            if (target, disp) == (peer.target(), size)));
}

/// Fails unless the rooms of these origins are as [`operate`] leaves them, others untouched.
fn check(window: &Window, origins: impl Fn(Rank) -> bool) {
    let untouched: [u64; 16] = std::array::from_fn(|i| if i / 2 == 6 { 18 + i as u64 } else { 0 });
    for (origin, room) in (0..).map(Rank).zip(local_words(window).chunks(ROOM as usize)) {
        assert_eq!(room, if origins(origin) { LEFT } else { untouched }, "rank {origin}");
    }
}

/// Each target of an epoch, which need not have posted when it is looked up. S-G1
pub fn in_every_epoch(universe: &Universe) {
    let world = universe.world();
    let (me, right, left) = (world.rank(), neighbour(world, 1), neighbour(world, -1));
    let window = rooms(universe);
    let epoch = window.fence(Assert::NONE).unwrap();
    world.ranks().for_each(|target| operate(&epoch.peer(target).unwrap(), me));
    epoch.end().unwrap();
    check(&window, |_| true);
    window.free().unwrap();

    let window = rooms(universe);
    world.barrier().unwrap();
    let epoch = window.lock_all().unwrap();
    let peers: Vec<Peer<'_>> = world.ranks().map(|rank| epoch.peer(rank).unwrap()).collect();
    peers.iter().for_each(|peer| operate(peer, me));
    drop(peers);
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    check(&window, |_| true);
    window.free().unwrap();

    let window = rooms(universe);
    let epoch = window.start(&[right], Assert::NONE).unwrap();
    let peer = epoch.peer(right).unwrap();
    let exposure = window.post(&[left], Assert::NONE).unwrap();
    operate(&peer, me);
    epoch.complete().unwrap();
    exposure.wait().unwrap();
    check(&window, |origin| origin == left);
    window.free().unwrap();
}

/// A lock is one, and its epoch gives it, too. S-G1
pub fn of_locks(universe: &Universe) {
    let world = universe.world();
    let (me, right, left) = (world.rank(), neighbour(world, 1), neighbour(world, -1));
    for kind in [LockKind::Shared, LockKind::Exclusive] {
        for looked_up in [false, true] {
            let window = rooms(universe);
            world.barrier().unwrap();
            let lock = window.lock(right, kind).unwrap();
            assert_eq!(lock.target(), right);
            if looked_up {
                operate(&lock.access().peer(right).unwrap(), me);
            } else {
                operate(&lock, me);
            }
            lock.unlock().unwrap();
            world.barrier().unwrap();
            check(&window, |origin| origin == left);
            window.free().unwrap();
        }
    }
}

/// The null target, ranks that are not there, and targets that the epoch does not allow. S-G4 S-G7
pub fn others(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let (size, right, left) = (world.size(), neighbour(world, 1), neighbour(world, -1));
    let (id, mut got) = (window.id(), [5u64]);
    let epoch = window.lock_all().unwrap();
    let error = epoch.peer(Rank(size)).err().unwrap();
    assert_eq!(
        error,
        RmaError::NoSuchRank { window: id, target: Rank(size), last: Rank(size - 1) }
    );
    assert_eq!(epoch.put(Rank(size), 0, &[1u64]), Err(error));
    let null = epoch.peer(Rank::NULL).unwrap();
    assert_eq!(null.target(), Rank::NULL);
    null.put(99, &[1u64]).unwrap();
    null.get(-1, &mut got).unwrap();
    null.accumulate(99, Op::Sum, &[1u64]).unwrap();
    assert_eq!(null.fetch_and_op(99, Op::Sum, 4u64), Ok(4));
    assert_eq!(null.compare_and_swap(99, 4u64, 5), Ok(4));
    epoch.unlock().unwrap();
    let lock = window.lock(Rank::NULL, LockKind::Shared).unwrap();
    lock.get(99, &mut got).unwrap();
    assert_eq!((lock.target(), got), (Rank::NULL, [5]));
    lock.unlock().unwrap();

    let lock = window.lock(right, LockKind::Shared).unwrap();
    let access = lock.access();
    let peer = access.peer(left).unwrap();
    let error = RmaError::NotLocked { window: id, target: left };
    assert_eq!(peer.put(0, &[1u64]), Err(error));
    assert_eq!(peer.get(0, &mut got), Err(error));
    lock.unlock().unwrap();

    let exposure = window.post(&[left], Assert::NONE).unwrap();
    let epoch = window.start(&[right], Assert::NONE).unwrap();
    let peer = epoch.peer(left).unwrap();
    let error = RmaError::NotInGroup { window: id, target: left };
    assert_eq!(peer.put(0, &[1u64]), Err(error));
    assert_eq!(peer.fetch_and_op(0, Op::Sum, 1u64), Err(error));
    assert_eq!(got, [5]);
    epoch.complete().unwrap();
    exposure.wait().unwrap();
    world.barrier().unwrap();
    assert_eq!(local_words(&window), [0]);
    world.barrier().unwrap();
    still_works(&window);
    window.free().unwrap();
}
