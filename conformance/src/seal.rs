//! Sealed windows, and what refuses to seal or free one.
use crate::help::{neighbour, says, times, words};
use core::mem::forget;
use rma_core::{Assert, ErrorClass, LockKind, Op, Rank, RmaError, Universe, Window};

/// A sealed part is a plain slice; peers see it after `unseal`. S-M4 S-M2
pub fn slices(universe: &Universe) {
    let world = universe.world();
    let me = u64::from(world.rank());
    let window = words(world, 4);
    let epoch = window.fence(Assert::NONE).unwrap();
    epoch.put(neighbour(world, 1), 1, &[me + 5]).unwrap();
    epoch.end().unwrap();
    let mut sealed = window.seal().unwrap();
    let left = u64::from(neighbour(world, -1));
    assert_eq!(sealed.as_slice::<u64>(), Ok(&[0, left + 5, 0, 0][..]));
    sealed.as_mut_slice::<u64>().unwrap()[3] = me + 9;
    sealed.as_mut_slice::<u32>().unwrap()[0] = 1;
    sealed.bytes_mut()[4] = 1;
    assert_eq!(sealed.bytes()[..8], [1, 0, 0, 0, 1, 0, 0, 0]);
    let window = sealed.unseal().unwrap();
    let epoch = window.lock_all().unwrap();
    for target in world.ranks() {
        let mut got = [0u64; 4];
        epoch.get(target, 0, &mut got).unwrap();
        let put = u64::from(target.on_ring(-1, world.size())) + 5;
        assert_eq!(got, [1 << 32 | 1, put, 0, u64::from(target) + 9]);
    }
    epoch.unlock().unwrap();
    window.free().unwrap();
}

/// What was issued before is there, without a flush or a barrier of the program's own.
pub fn waits_for_operations(universe: &Universe) {
    let world = universe.world();
    let mut window = words(world, world.size() as usize);
    for round in 1..=times(universe, 30) {
        let epoch = window.lock_all().unwrap();
        for target in world.ranks() {
            epoch.put(target, u64::from(world.rank()), &[round]).unwrap();
        }
        epoch.unlock().unwrap();
        let sealed = window.seal().unwrap();
        assert!(sealed.as_slice::<u64>().unwrap().iter().all(|word| *word == round));
        window = sealed.unseal().unwrap();
    }
    window.free().unwrap();
}

/// Parts without a byte.
pub fn empty(universe: &Universe) {
    let window = words(universe.world(), 0);
    let mut sealed = window.seal().unwrap();
    assert!(sealed.bytes_mut().is_empty());
    assert_eq!(sealed.as_slice::<u64>(), Ok(&[][..]));
    sealed.unseal().unwrap().free().unwrap();
}

/// Elements that do not fill the part.
pub fn wrong_element(universe: &Universe) {
    let world = universe.world();
    let window = world.window(12, 1).allocate().unwrap();
    let (id, rank) = (window.id(), world.rank());
    let mut sealed = window.seal().unwrap();
    let error = sealed.as_slice::<u64>().unwrap_err();
    assert_eq!(error, RmaError::NotWhole { window: id, rank, size: 12, width: 8 });
    assert_eq!(sealed.as_mut_slice::<[u8; 5]>().unwrap_err().class(), ErrorClass::Count);
    assert_eq!(sealed.as_slice::<u32>().unwrap().len(), 3);
    sealed.unseal().unwrap().free().unwrap();
}

/// Local work and operations take turns.
pub fn again_and_again(universe: &Universe) {
    let world = universe.world();
    let mut window = words(world, 1);
    let rounds = times(universe, 100);
    for round in 0..rounds {
        let mut sealed = window.seal().unwrap();
        let mine = sealed.as_mut_slice::<u64>().unwrap();
        assert_eq!(mine, [round * (u64::from(world.size()) + 1)]);
        mine[0] += 1;
        window = sealed.unseal().unwrap();
        let epoch = window.lock_all().unwrap();
        for target in world.ranks() {
            epoch.fetch_and_op(target, 0, Op::Sum, 1u64).unwrap();
        }
        epoch.unlock().unwrap();
    }
    window.free().unwrap();
}

const CULPRIT: Rank = Rank(1);

/// Fails unless `error` is what a rank gets while `CULPRIT` has an epoch open.
fn expect_refusal(window: &Window, error: RmaError, requested: &'static str, open: &'static str) {
    let id = window.id();
    let expected = if window.rank() == CULPRIT {
        says(&error, &[&id.to_string(), requested, open, "end that first"]);
        RmaError::EpochOpen { window: id, requested, open }
    } else {
        says(&error, &[&id.to_string(), requested, "rank 1", "end its epochs"]);
        RmaError::RefusedBy { window: id, by: CULPRIT, requested }
    };
    assert_eq!(error, expected);
    assert_eq!(error.class(), ErrorClass::RmaSync);
}

/// Asks for the window to be sealed and freed, which is refused everywhere; gives it back.
fn refused(window: Window, open: &'static str) -> Window {
    let refused = window.seal().err().unwrap();
    says(&refused, &[&refused.error.to_string()]);
    let window = refused.value.expect("all ranks know that it was refused");
    expect_refusal(&window, refused.error, "seal", open);
    let refused = window.free().unwrap_err();
    let window = refused.value.expect("all ranks know that it was refused");
    expect_refusal(&window, refused.error, "free", open);
    *window
}

/// The ranks without a forgotten epoch use the window as before.
fn others_go_on(universe: &Universe, window: &Window) {
    let world = universe.world();
    if world.rank() != CULPRIT {
        let epoch = window.lock_all().unwrap();
        for target in world.ranks() {
            epoch.fetch_and_op(target, 1, Op::Sum, 1u64).unwrap();
        }
        epoch.unlock().unwrap();
    }
    world.barrier().unwrap();
    assert_eq!(window.local().load(1), Ok(u64::from(world.size()) - 1));
    world.barrier().unwrap();
}

/// A forgotten lock. S-A10
pub fn forgotten_lock(universe: &Universe) {
    let window = words(universe.world(), 2);
    if window.rank() == CULPRIT {
        forget(window.lock(CULPRIT, LockKind::Shared).unwrap());
    }
    let window = refused(window, "a lock epoch");
    others_go_on(universe, &window);
    if window.rank() == CULPRIT {
        let other = window.lock(Rank(0), LockKind::Exclusive).unwrap();
        other.put(0, &[6u64]).unwrap();
        other.unlock().unwrap();
    }
    universe.world().barrier().unwrap();
    let expected = if window.rank() == Rank(0) { 6 } else { 0 };
    assert_eq!(window.local().load(0), Ok(expected));
}

/// A forgotten epoch to all targets. S-A10
pub fn forgotten_lock_all(universe: &Universe) {
    let window = words(universe.world(), 2);
    if window.rank() == CULPRIT {
        forget(window.lock_all().unwrap());
    }
    let window = refused(window, "a lock_all epoch");
    others_go_on(universe, &window);
}

/// A forgotten fence: the next fences work all the same, `end` does not. S-A10
pub fn forgotten_fence(universe: &Universe) {
    let window = words(universe.world(), 2);
    let epoch = window.fence(Assert::NONE).unwrap();
    if window.rank() == CULPRIT {
        forget(epoch);
    } else {
        drop(epoch);
    }
    let window = refused(window, "a fence epoch");
    others_go_on(universe, &window);
    let epoch = window.fence(Assert::NONE).unwrap();
    epoch.put(window.rank(), 0, &[8u64]).unwrap();
    drop(epoch.next(Assert::NONE).unwrap());
    assert_eq!(window.local().load(0), Ok(8u64));
}

/// What refuses one window is none of the business of another. S-A10 S-A14
pub fn free_is_refused(universe: &Universe) {
    let window = words(universe.world(), 2);
    let window = window.seal().unwrap().unseal().unwrap();
    let other = words(universe.world(), 2);
    if other.rank() == CULPRIT {
        forget(other.lock(Rank(0), LockKind::Shared).unwrap());
    }
    let other = refused(other, "a lock epoch");
    window.free().unwrap();
    others_go_on(universe, &other);
}
