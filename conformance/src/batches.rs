//! Many small operations at once, and guards that hold their window.
use crate::help::{local_words, neighbour, still_works, words};
use rma_core::{
    BasicElement, BatchError, LockKind, Op, OwnedLock, OwnedLockAll, Rank, Refused, RmaError,
    Universe, Window,
};
use std::sync::Arc;

/// Words of each origin at each target.
const ROOM: usize = 40;

/// A place in the room of `origin` for each number: spread over all targets, some of them twice.
fn places(origin: Rank, ranks: u32) -> Vec<(Rank, usize)> {
    let place = |i: usize| (Rank((i * 7 % ranks as usize) as u32), i * i % ROOM);
    let base = usize::from(origin) * ROOM;
    (0..3 * ROOM).map(place).map(|(target, at)| (target, base + at)).collect()
}

/// What one origin's batches leave in its room at `target`, by single additions.
fn sums<E: BasicElement>(
    origin: Rank,
    target: Rank,
    ranks: u32,
    value: impl Fn(usize) -> E,
) -> Vec<E> {
    let mut room = vec![E::zeroed(); ROOM];
    for (i, (to, at)) in places(origin, ranks).into_iter().enumerate() {
        if to == target {
            let place = &mut room[at - usize::from(origin) * ROOM];
            *place = E::combine(Op::Sum, *place, value(i));
        }
    }
    room
}

fn add<E: BasicElement + PartialEq + core::fmt::Debug>(
    universe: &Universe,
    value: impl Fn(usize) -> E + Copy,
) {
    let world = universe.world();
    let (me, ranks) = (world.rank(), world.size());
    let window = world.window(ROOM * ranks as usize, size_of::<E>()).allocate().unwrap();
    let places = places(me, ranks);
    let values: Vec<E> = (0..places.len()).map(value).collect();
    let epoch = window.lock_all().unwrap();
    epoch.batch(&places).accumulate(Op::Sum, &values).unwrap();
    epoch.flush_all().unwrap();
    let (mut got, mut before) = (values.clone(), values.clone());
    epoch.batch(&places).get(&mut got).unwrap();
    epoch.batch(&places).get_accumulate(Op::NoOp, &values, &mut before).unwrap();
    let there: Vec<Vec<E>> = world.ranks().map(|target| sums(me, target, ranks, value)).collect();
    let base = usize::from(me) * ROOM;
    for (i, (target, at)) in places.iter().enumerate() {
        let expected = there[usize::from(*target)][at - base];
        assert_eq!((got[i], before[i]), (expected, expected), "entry {i}");
    }
    // Each entry finds what those before it left.
    epoch.batch(&places).get_accumulate(Op::Sum, &values, &mut before).unwrap();
    let mut now = there;
    for (i, (target, at)) in places.iter().enumerate() {
        let place = &mut now[usize::from(*target)][at - base];
        assert_eq!(before[i], *place, "entry {i}");
        *place = E::combine(Op::Sum, *place, values[i]);
    }
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    let mut mine = vec![E::zeroed(); ROOM * ranks as usize];
    window.local().read(0, &mut mine).unwrap();
    for (origin, room) in world.ranks().zip(mine.chunks(ROOM)) {
        let once = sums(origin, me, ranks, value);
        let twice: Vec<E> = once.iter().map(|sum| E::combine(Op::Sum, *sum, *sum)).collect();
        assert_eq!(room, twice, "of rank {origin}");
    }
    window.free().unwrap();
}

/// Elements that the machine combines. S-H2 S-H7
pub fn additions(universe: &Universe) {
    add(universe, |i| i as u64 + 1);
}

/// Elements that are combined under locks. S-H2 S-H7
pub fn additions_of_f64(universe: &Universe) {
    add(universe, |i| i as f64 + 1.0);
}

/// Puts reach their places, and what is next to them stays. S-G3
pub fn puts(universe: &Universe) {
    let world = universe.world();
    let (me, ranks) = (world.rank(), world.size());
    let window = words(world, ROOM * ranks as usize);
    let base = u64::from(me) * ROOM as u64;
    // Every other word, from the last one on.
    let places: Vec<(Rank, u64)> = (0..ROOM as u64 / 2)
        .rev()
        .flat_map(|i| world.ranks().map(move |target| (target, base + 2 * i)))
        .collect();
    let values: Vec<u64> = (0..places.len() as u64).map(|i| base + i + 1).collect();
    let epoch = window.lock_all().unwrap();
    epoch.batch(&places).put(&values).unwrap();
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    for (origin, room) in world.ranks().zip(local_words(&window).chunks(ROOM)) {
        let base = u64::from(origin) * ROOM as u64;
        for (i, word) in room.iter().enumerate() {
            let turn = (ROOM / 2 - 1 - i / 2) as u64 * u64::from(ranks) + u64::from(me);
            let expected = if i % 2 == 0 { base + turn + 1 } else { 0 };
            assert_eq!(*word, expected, "word {i} of rank {origin}");
        }
    }
    window.free().unwrap();
}

/// Of no places nothing is done; what is wrong is named by its number. S-G4 S-G7 S-G8
pub fn refused(universe: &Universe) {
    let world = universe.world();
    let (me, right, ranks) = (world.rank(), neighbour(world, 1), world.size());
    let window = words(world, 4);
    let (id, base) = (window.id(), u64::MAX);
    let epoch = window.lock_all().unwrap();
    let mut got = [5u64; 3];
    let null = [(Rank::NULL, 0), (Rank::NULL, base), (Rank::NULL, 1)];
    epoch.batch(&null).put(&[1u64; 3]).unwrap();
    epoch.batch(&null).get(&mut got).unwrap();
    epoch.batch(&null).get_accumulate(Op::Sum, &[1; 3], &mut got).unwrap();
    assert_eq!(got, [5; 3]);
    let none: [(Rank, u64); 0] = [];
    epoch.batch(&none).accumulate(Op::Sum, &[0u64; 0]).unwrap();
    for (place, index) in [((right, 4), 1), ((me, base), 1), ((right, base / 8), 1)] {
        let failed = epoch.batch(&[(me, 0), place, (me, 0)]).get(&mut got).unwrap_err();
        assert_eq!(failed.index, index);
        assert!(
            matches!(failed.error, RmaError::OutOfRange { target, disp, .. }
            if (target, disp) == place),
            "{failed}"
        );
    }
    let absent = [(right, 0u64), (Rank(ranks), 0)];
    let failed = epoch.batch(&absent).accumulate(Op::Sum, &[0u64; 2]).unwrap_err();
    let error = RmaError::NoSuchRank { window: id, target: Rank(ranks), last: Rank(ranks - 1) };
    assert_eq!(failed, BatchError { index: 1, error });
    assert_eq!(failed.to_string(), format!("entry 1 of the batch: {error}"));
    // More of them than are looked up at once.
    let mut many = [(me, 0u64); 40];
    many[37] = (right, 4);
    let failed = epoch.batch(&many).accumulate(Op::Sum, &[0u64; 40]).unwrap_err();
    assert_eq!(failed.index, 37, "{failed}");
    let failed = epoch.batch(&[(right, 0), (me, 0)]).put(&[1u64; 3]).unwrap_err();
    assert!(matches!(failed.error, RmaError::WrongCount { origin: 3, result: 2, .. }), "{failed}");
    let failed = epoch.batch(&[(right, 0)]).accumulate(Op::NoOp, &[1u64]).unwrap_err();
    assert!(matches!(failed.error, RmaError::WrongOp { .. }), "{failed}");
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    assert_eq!(local_words(&window), [0; 4]);
    still_works(&window);
    window.free().unwrap();
}

/// Places in attached memory, which lies in regions of their own. S-A8
pub fn in_regions(universe: &Universe) {
    let world = universe.world();
    let window = world.window(0, 1).create_dynamic().unwrap();
    let (first, second) =
        (window.attach(vec![1u64; 4]).unwrap(), window.attach(vec![2u64; 4]).unwrap());
    let all = world.allgather(&[first.address(), second.address()]).unwrap();
    let right = neighbour(world, 1);
    let there = &all[2 * usize::from(right)..][..2];
    let places = [(right, there[1] + 8), (right, there[0] + 24), (right, there[1] + 8)];
    let epoch = window.lock_all().unwrap();
    epoch.batch(&places).accumulate(Op::Sum, &[10u64, 20, 30]).unwrap();
    epoch.flush_all().unwrap();
    let mut got = [0u64; 3];
    epoch.batch(&places).get(&mut got).unwrap();
    assert_eq!(got, [42, 21, 42]);
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    assert_eq!(window.detach(first).unwrap(), [1, 1, 1, 21]);
    assert_eq!(window.detach(second).unwrap(), [2, 42, 2, 2]);
    window.free().unwrap();
}

/// A window with its open epoch, as a field.
struct Counters {
    epoch: OwnedLockAll,
}

impl Counters {
    fn new(window: Window) -> Result<Self, RmaError> {
        Ok(Self { epoch: Arc::new(window).lock_all_owned()? })
    }

    fn next(&self, of: Rank) -> Result<u64, RmaError> {
        self.epoch.epoch().fetch_and_op(of, 0, Op::Sum, 1u64)
    }
}

/// Guards that are kept with their window, and given back. S-E5
pub fn kept_guards(universe: &Universe) {
    let world = universe.world();
    let counters = Counters::new(words(world, 1)).unwrap();
    let mine: Vec<u64> = (0..10).map(|_| counters.next(Rank(0)).unwrap()).collect();
    assert!(mine.is_sorted());
    let refused = counters.epoch.window().lock_all().err();
    assert!(matches!(refused, Some(RmaError::EpochOpen { .. })), "{refused:?}");
    let window = counters.epoch.unlock().map_err(|refused| refused.error).unwrap();
    world.barrier().unwrap();
    let lock: OwnedLock = window.lock_owned(Rank(0), LockKind::Exclusive).unwrap();
    let mut count = [0u64];
    lock.epoch().get(0, &mut count).unwrap();
    assert_eq!(count, [10 * u64::from(world.size())]);
    assert_eq!((lock.epoch().target(), lock.window().size()), (Rank(0), 8));
    drop(lock);
    let window = Arc::into_inner(window).expect("the guards are gone");
    still_works(&window);
    window.free().unwrap();
}

/// A guard that is dropped ends its epoch; until then, there is no other. S-E5
pub fn dropped_guards(universe: &Universe) {
    let world = universe.world();
    let window = Arc::new(words(world, 1));
    drop(window.lock_all_owned().unwrap());
    drop(window.lock_owned(world.rank(), LockKind::Shared).unwrap());
    let kept = window.lock_owned(world.rank(), LockKind::Exclusive).unwrap();
    let again = window.lock_owned(world.rank(), LockKind::Shared).err();
    assert!(matches!(again, Some(RmaError::AlreadyLocked { .. })), "{again:?}");
    drop(kept);
    let window = Arc::into_inner(window).expect("the guards are gone");
    still_works(&window);
    match window.free() {
        Ok(()) => {}
        Err(Refused { error, .. }) => panic!("{error}"),
    }
}

/// A guard may be the last owner of its window, which goes in the call that it is handed to.
pub fn last_owners(universe: &Universe) {
    let world = universe.world();
    let right = neighbour(world, 1);
    let all = Arc::new(words(world, 1)).lock_all_owned().unwrap();
    all.epoch().put(right, 0, &[1u64]).unwrap();
    drop(all);
    let one = Arc::new(words(world, 1)).lock_owned(right, LockKind::Shared).unwrap();
    one.epoch().put(0, &[1u64]).unwrap();
    drop(Some(one));
    world.barrier().unwrap();
}
