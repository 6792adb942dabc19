//! What cases have in common.
use core::fmt::Display;
use rma_core::transport::WorldRank;
use rma_core::{Assert, Communicator, Lock, LockKind, Op, Path, Rank, RmaError, Universe, Window};

/// Whether load and store reach all peers.
pub(crate) fn near(universe: &Universe) -> bool {
    universe.world().ranks().all(|rank| reaches(universe, rank))
}

/// Whether load and store and copies of the system do not reach a target.
pub(crate) fn far(window: &Window, target: Rank) -> bool {
    matches!(window.path(target), Some(Path::Device | Path::Messages))
}

/// Whether load and store reach a rank of the world.
pub(crate) fn reaches(universe: &Universe, rank: Rank) -> bool {
    universe.transport().is_near(WorldRank(rank.0))
}

/// How often to repeat something: `many` where that is cheap, less where a simulator or an
/// interpreter does it.
pub(crate) fn times(universe: &Universe, many: u64) -> u64 {
    match (cfg!(miri), near(universe)) {
        (true, _) => 2,
        (_, true) => many,
        (_, false) => (many / 10).clamp(3, 20),
    }
}

/// The lock of `target`, granted: by messages, [`Window::lock`] does not wait for that.
pub(crate) fn locked(window: &Window, target: Rank, kind: LockKind) -> Lock<'_> {
    let lock = window.lock(target, kind).unwrap();
    lock.flush().unwrap();
    lock
}

/// At rank 0, the lock of its own part, which every rank that does not reach it has asked for
/// meanwhile, and has told so in `told`; at the others nothing, once that lock is taken.
pub(crate) fn held_till_told<'w>(
    universe: &Universe,
    window: &'w Window,
    told: &Window,
) -> Option<Lock<'w>> {
    let (world, home) = (universe.world(), Rank(0));
    let held = (world.rank() == home).then(|| locked(window, home, LockKind::Exclusive));
    let far = held.is_none() && !reaches(universe, home);
    let far_ranks = world.allreduce(&[u64::from(far)], Op::Sum).unwrap()[0];
    if held.is_some() {
        told.local().wait_until(0, |seen: u64| seen == far_ranks).unwrap();
    }
    held
}

/// Takes the lock of `target` and gives it back.
pub(crate) fn taken(window: &Window, target: Rank, kind: LockKind) -> Result<(), RmaError> {
    window.lock(target, kind)?.unlock()
}

/// Lets others run in the middle of what a lock protects: without it, ranks that outnumber cores
/// do all their rounds one after another and hardly ever meet.
pub(crate) fn let_others_in() {
    std::thread::yield_now();
}

/// Lengths in elements: nothing, few, more than one message holds.
pub(crate) fn lengths() -> &'static [usize] {
    if cfg!(miri) { &[0, 1, 3] } else { &[0, 1, 3, 100, 12_800] }
}

/// A window of `count` words of eight bytes at every rank.
pub(crate) fn words(comm: &Communicator, count: usize) -> Window {
    comm.window(count, 8).allocate().unwrap()
}

/// The neighbour at `distance` on the ring of all ranks.
pub(crate) fn neighbour(comm: &Communicator, distance: i64) -> Rank {
    comm.rank().on_ring(distance, comm.size())
}

/// Bytes that tell where they come from.
pub(crate) fn pattern(seed: u32, len: usize) -> Vec<u8> {
    (0..len).map(|i| (seed as usize * 89 + i * 7 + i / 251 + 1) as u8).collect()
}

/// All words of this rank's part.
pub(crate) fn local_words(window: &Window) -> Vec<u64> {
    let mut words = vec![0; (window.size() / 8) as usize];
    window.local().read(0, &mut words).unwrap();
    words
}

/// Fails unless the display of `error` contains every part.
pub(crate) fn says(error: &impl Display, parts: &[&str]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{text:?} does not say {part:?}");
    }
}

/// Uses a window of at least one word everywhere in every kind of epoch. **Collective.** Changes
/// the first word.
pub(crate) fn still_works(window: &Window) {
    let (rank, ranks) = (window.rank(), window.ranks());
    let (right, left) = (rank.on_ring(1, ranks), rank.on_ring(-1, ranks));
    let epoch = window.fence(Assert::NONE).unwrap();
    epoch.put(right, 0, &[u64::from(rank) + 1]).unwrap();
    epoch.end().unwrap();
    assert_eq!(window.local().load::<u64>(0).unwrap(), u64::from(left) + 1);
    // The local load comes before the neighbour's next operation.
    window.fence(Assert::NONE).unwrap().end().unwrap();

    let epoch = window.lock(right, LockKind::Exclusive).unwrap();
    assert_eq!(epoch.fetch_and_op(0, Op::Sum, 10u64).unwrap(), u64::from(rank) + 1);
    epoch.unlock().unwrap();
    let epoch = window.lock_all().unwrap();
    let mut got = [0u64];
    epoch.get(right, 0, &mut got).unwrap();
    epoch.unlock().unwrap();
    assert_eq!(got, [u64::from(rank) + 11]);
    window.fence(Assert::NONE).unwrap().end().unwrap();
}
