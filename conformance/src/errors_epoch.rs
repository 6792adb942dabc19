//! Synchronisation that contradicts itself: refused, and the epoch that is open goes on
//! (FEATURES A7).
use crate::help::{neighbour, says, still_works, words};
use rma_core::{
    Access, Assert, ErrorClass, Layout, LockKind, Op, Rank, RmaError, Universe, Window,
};

const KINDS: [LockKind; 2] = [LockKind::Shared, LockKind::Exclusive];

fn expect_open(
    window: &Window,
    error: Option<RmaError>,
    requested: &'static str,
    open: &'static str,
) {
    let error = error.expect("refused");
    assert_eq!(error, RmaError::EpochOpen { window: window.id(), requested, open });
    assert_eq!(error.class(), ErrorClass::RmaSync);
    says(&error, &[&window.id().to_string(), requested, open, "end that first"]);
}

/// All ranks are out of their epochs; the window works.
fn unharmed(universe: &Universe, window: Window) {
    universe.world().barrier().unwrap();
    still_works(&window);
    window.free().unwrap();
}

/// A rank that this rank has locked already. S-E9 S-B6
pub fn double_lock(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    for target in [world.rank(), neighbour(world, 1)] {
        for first in KINDS {
            let lock = window.lock(target, first).unwrap();
            for second in KINDS {
                let error = window.lock(target, second).err().unwrap();
                assert_eq!(error, RmaError::AlreadyLocked { window: window.id(), target });
                assert_eq!(error.class(), ErrorClass::RmaSync);
                let (id, rank) = (window.id().to_string(), format!("rank {target}"));
                says(&error, &[&id, &rank, "unlock it first"]);
                let no_check = window.lock_with(target, second, Assert::NO_CHECK);
                assert_eq!(no_check.err(), Some(error));
            }
            lock.fetch_and_op(0, Op::Sum, 1u64).unwrap();
            lock.unlock().unwrap();
            window.lock(target, first).unwrap().unlock().unwrap();
        }
    }
    unharmed(universe, window);
}

/// A lock inside an epoch to all targets. S-E10
pub fn lock_in_lock_all(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let epoch = window.lock_all().unwrap();
    for target in world.ranks() {
        for kind in KINDS {
            let error = window.lock(target, kind).err();
            expect_open(&window, error, "a lock", "a lock_all epoch");
        }
    }
    epoch.put(neighbour(world, 1), 0, &[1u64]).unwrap();
    epoch.unlock().unwrap();
    unharmed(universe, window);
}

/// A lock inside a fence epoch. S-E10
pub fn lock_in_fence(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let epoch = window.fence(Assert::NONE).unwrap();
    let error = window.lock(neighbour(world, 1), LockKind::Shared).err();
    expect_open(&window, error, "a lock", "a fence epoch");
    epoch.put(neighbour(world, 1), 0, &[1u64]).unwrap();
    epoch.end().unwrap();
    unharmed(universe, window);
}

/// A second epoch to all targets. S-E9
pub fn lock_all_twice(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let epoch = window.lock_all().unwrap();
    expect_open(&window, window.lock_all().err(), "lock_all", "a lock_all epoch");
    let error = window.lock_all_with(Assert::NO_CHECK).err();
    expect_open(&window, error, "lock_all", "a lock_all epoch");
    epoch.put(neighbour(world, 1), 0, &[1u64]).unwrap();
    epoch.unlock().unwrap();
    window.lock_all().unwrap().unlock().unwrap();
    unharmed(universe, window);
}

/// An epoch to all targets while one is locked. S-E10
pub fn lock_all_in_lock(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let lock = window.lock(neighbour(world, 1), LockKind::Exclusive).unwrap();
    expect_open(&window, window.lock_all().err(), "lock_all", "a lock epoch");
    lock.put(0, &[1u64]).unwrap();
    lock.unlock().unwrap();
    window.lock_all().unwrap().unlock().unwrap();
    unharmed(universe, window);
}

/// An epoch to all targets inside a fence epoch. S-E10
pub fn lock_all_in_fence(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let epoch = window.fence(Assert::NONE).unwrap();
    expect_open(&window, window.lock_all().err(), "lock_all", "a fence epoch");
    epoch.put(neighbour(world, 1), 0, &[1u64]).unwrap();
    epoch.end().unwrap();
    unharmed(universe, window);
}

/// A fence while a target is locked. S-E10
pub fn fence_in_lock(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let lock = window.lock(neighbour(world, 1), LockKind::Shared).unwrap();
    expect_open(&window, window.fence(Assert::NONE).err(), "a fence", "a lock epoch");
    lock.unlock().unwrap();
    unharmed(universe, window);
}

/// A fence inside an epoch to all targets. S-E10
pub fn fence_in_lock_all(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let epoch = window.lock_all().unwrap();
    expect_open(&window, window.fence(Assert::NONE).err(), "a fence", "a lock_all epoch");
    epoch.unlock().unwrap();
    unharmed(universe, window);
}

fn expect_wrong(window: &Window, error: Option<RmaError>, name: &str, hint: &str) {
    let error = error.expect("refused");
    let RmaError::WrongAssert { window: id, .. } = error else { panic!("{error}") };
    assert_eq!((id, error.class()), (window.id(), ErrorClass::Assert));
    says(&error, &[&id.to_string(), name, hint]);
}

/// Asserts that belong elsewhere. S-E11
pub fn wrong_asserts(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let fence = |asserts| window.fence(asserts).err();
    expect_wrong(&window, fence(Assert::NO_SUCCEED), "NO_SUCCEED", "use end()");
    expect_wrong(&window, fence(Assert::NO_PRECEDE | Assert::NO_SUCCEED), "NO_SUCCEED", "end()");
    expect_wrong(&window, fence(Assert::NO_CHECK), "NO_CHECK", "locks");
    let wrong = [Assert::NO_PRECEDE, Assert::NO_SUCCEED, Assert::NO_STORE, Assert::NO_PUT];
    for asserts in wrong.into_iter().chain([Assert::NO_CHECK | Assert::NO_PUT]) {
        let lock = window.lock_with(Rank(0), LockKind::Shared, asserts).err();
        expect_wrong(&window, lock, "assert", "NO_CHECK only");
        let lock_all = window.lock_all_with(asserts).err();
        expect_wrong(&window, lock_all, "assert", "NO_CHECK only");
    }
    let all = Assert::NO_PUT | Assert::NO_STORE;
    assert!(all.contains(Assert::NO_PUT) && !all.contains(Assert::NO_CHECK));
    unharmed(universe, window);
}

/// `end` while another guard is alive: the epoch goes on under that.
pub fn end_with_another_guard(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let first = window.fence(Assert::NONE).unwrap();
    let second = window.fence(Assert::NONE).unwrap();
    expect_wrong(&window, first.end().err(), "NO_SUCCEED", "another fence guard");
    second.put(neighbour(world, 1), 0, &[4u64]).unwrap();
    second.end().unwrap();
    assert_eq!(window.local().load(0), Ok(4u64));
    unharmed(universe, window);
}

/// Every operation on a target is refused, and does nothing.
fn refused(access: &Access<'_>, target: Rank, error: RmaError) {
    let (mut got, layout) = ([3u64], Layout::element::<u64>());
    assert_eq!(access.put(target, 0, &[1u64]), Err(error));
    assert_eq!(access.get(target, 0, &mut got), Err(error));
    assert_eq!(access.accumulate(target, 0, Op::Sum, &[1u64, 2][..1]), Err(error));
    assert_eq!(access.fetch_and_op(target, 0, Op::Sum, 1u64), Err(error));
    assert_eq!(access.fetch_and_op(target, 0, Op::Sum, 1.0f64), Err(error));
    assert_eq!(access.compare_and_swap(target, 0, 0u64, 1), Err(error));
    assert_eq!(access.put(target, layout.at(0), layout.of(&[1u64])), Err(error));
    let errors = access.ops(|ops| Ok((ops.put(target, 0, &[1u64]), ops.get(target, 0, &mut got))));
    assert_eq!(errors, Ok((Err(error), Err(error))));
    assert_eq!(got, [3]);
}

/// Operations in a lock epoch name a target that is not locked, or not any more.
pub fn other_target_of_a_lock(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let (locked, target) = (neighbour(world, 1), neighbour(world, 2));
    let lock = window.lock(locked, LockKind::Shared).unwrap();
    let error = RmaError::NotLocked { window: window.id(), target };
    refused(&lock.access(), target, error);
    assert_eq!(error.class(), ErrorClass::RmaSync);
    says(&error, &[&window.id().to_string(), &format!("lock {target} too")]);
    // The right is the rank's, whichever guard stands for it.
    let second = window.lock(target, LockKind::Shared).unwrap();
    lock.access().get(target, 0, &mut [1u64]).unwrap();
    second.unlock().unwrap();
    refused(&lock.access(), target, error);
    lock.unlock().unwrap();
    world.barrier().unwrap();
    assert_eq!(window.local().load(0), Ok(0u64), "nothing was written");
    unharmed(universe, window);
}
