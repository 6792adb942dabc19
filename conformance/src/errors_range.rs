//! Ranks, displacements and lengths that do not exist: refused, and nothing is written
//! (FEATURES A7).
use crate::help::{local_words, neighbour, says, still_works, words};
use rma_core::{Access, Assert, ErrorClass, LockKind, Op, Rank, RmaError, Universe, Window};

/// Puts and gets of `len` bytes at `disp` of `target`; all must fail alike.
fn all_fail(access: &Access<'_>, target: Rank, disp: u64, len: usize) -> RmaError {
    let (source, mut sink) = (vec![0x5au8; len], vec![0xa5u8; len]);
    let error = access.put(target, disp, &source).unwrap_err();
    assert_eq!(access.get(target, disp, &mut sink), Err(error));
    let scope =
        access.ops(|ops| Ok((ops.put(target, disp, &source), ops.get(target, disp, &mut sink))));
    assert_eq!(scope, Ok((Err(error), Err(error))));
    assert!(sink.iter().all(|byte| *byte == 0xa5), "a refused get leaves the buffer alone");
    error
}

/// Fails unless `error` is about this range, names it, and has the class.
fn expect_range(
    window: &Window,
    error: RmaError,
    (target, disp, len): (Rank, u64, u64),
    (unit, size): (u32, u64),
) {
    let window = window.id();
    let expected = RmaError::OutOfRange { window, target, disp, disp_unit: unit, len, size };
    assert_eq!(error, expected);
    assert_eq!(error.class(), ErrorClass::RmaRange);
    let numbers = [disp, len, size, unit.into()].map(|number| number.to_string());
    let numbers: Vec<&str> = numbers.iter().map(String::as_str).collect();
    says(&error, &numbers);
    says(&error, &[&window.to_string(), &format!("rank {target}"), "shorten the transfer"]);
}

/// The window is unchanged, and works. **Collective.**
fn unharmed(universe: &Universe, window: Window) {
    universe.world().barrier().unwrap();
    assert!(local_words(&window).iter().all(|word| *word == 0), "nothing was written");
    universe.world().barrier().unwrap();
    still_works(&window);
    window.free().unwrap();
}

/// Ranges that begin inside and end outside, or begin outside. S-G8 S-B6
pub fn past_the_end(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 10);
    let fence = window.fence(Assert::NONE).unwrap();
    let ranges = [(0, 81), (9, 9), (9, 16), (10, 1), (11, 0), (11, 1), (1000, 8), (1 << 60, 1)];
    for target in world.ranks() {
        for (disp, len) in ranges {
            let error = all_fail(&fence, target, disp, len);
            expect_range(&window, error, (target, disp, len as u64), (8, 80));
        }
        for disp in [10, 11, u64::MAX] {
            let error = fence.fetch_and_op(target, disp, Op::Sum, 1u64).unwrap_err();
            expect_range(&window, error, (target, disp, 8), (8, 80));
            let error = fence.compare_and_swap(target, disp, 0u32, 1).unwrap_err();
            expect_range(&window, error, (target, disp, 4), (8, 80));
        }
    }
    fence.end().unwrap();
    let epoch = window.lock_all().unwrap();
    let error = all_fail(&epoch, neighbour(world, 1), 9, 9);
    expect_range(&window, error, (neighbour(world, 1), 9, 9), (8, 80));
    epoch.unlock().unwrap();
    let lock = window.lock(neighbour(world, 1), LockKind::Exclusive).unwrap();
    let range = (neighbour(world, 1), 10, 8);
    expect_range(&window, lock.put(10, &[1u64]).unwrap_err(), range, (8, 80));
    expect_range(&window, lock.get(10, &mut [1u64]).unwrap_err(), range, (8, 80));
    expect_range(&window, lock.fetch_and_op(10, Op::Sum, 1u64).unwrap_err(), range, (8, 80));
    expect_range(&window, lock.compare_and_swap(10, 0, 1u64).unwrap_err(), range, (8, 80));
    lock.unlock().unwrap();
    unharmed(universe, window);
}

/// Displacements whose product with the unit, or sum with the length, wraps. S-G8
pub fn overflow(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 4);
    let epoch = window.lock_all().unwrap();
    let wraps = [u64::MAX, u64::MAX / 8 + 1, u64::MAX / 8 + 2, u64::MAX / 8, 1 << 61, 1 << 63];
    for target in world.ranks() {
        for disp in wraps {
            for len in [0, 1, 8, 32] {
                let error = all_fail(&epoch, target, disp, len);
                expect_range(&window, error, (target, disp, len as u64), (8, 32));
            }
        }
    }
    epoch.unlock().unwrap();
    let bytes = world.window(32, 1).allocate().unwrap();
    let epoch = bytes.lock_all().unwrap();
    for disp in [u64::MAX, u64::MAX - 7, 1 << 63] {
        let error = all_fail(&epoch, neighbour(world, 1), disp, 8);
        expect_range(&bytes, error, (neighbour(world, 1), disp, 8), (1, 32));
    }
    epoch.unlock().unwrap();
    bytes.free().unwrap();
    unharmed(universe, window);
}

/// A part without a byte takes nothing. S-A2 S-G8
pub fn empty_part(universe: &Universe) {
    let world = universe.world();
    let window = words(world, usize::from(world.rank() != Rank(0)) * 2);
    let epoch = window.lock_all().unwrap();
    for disp in [0, 1, u64::MAX] {
        let error = all_fail(&epoch, Rank(0), disp, 1);
        expect_range(&window, error, (Rank(0), disp, 1), (8, 0));
    }
    let error = epoch.fetch_and_op(Rank(0), 0, Op::Sum, 1u64).unwrap_err();
    expect_range(&window, error, (Rank(0), 0, 8), (8, 0));
    epoch.put(Rank(1), 1, &[5u64]).unwrap();
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    let expected: &[u64] = if world.rank() == Rank(0) { &[] } else { &[0, 5] };
    assert_eq!(local_words(&window), expected);
    window.free().unwrap();
}

/// The range is that of the target, in its units. S-A3 S-G8
pub fn units(universe: &Universe) {
    let world = universe.world();
    let unit = |rank: Rank| 8 << rank.0;
    let window = world.window(2, unit(world.rank())).allocate().unwrap();
    let epoch = window.lock_all().unwrap();
    for target in world.ranks() {
        let (unit, size) = (unit(target) as u32, 2 * unit(target) as u64);
        let error = all_fail(&epoch, target, 1, unit as usize + 1);
        expect_range(&window, error, (target, 1, u64::from(unit) + 1), (unit, size));
        let error = all_fail(&epoch, target, 2, 1);
        expect_range(&window, error, (target, 2, 1), (unit, size));
    }
    epoch.unlock().unwrap();
    unharmed(universe, window);
}

/// Targets that are not in the group. S-G10 S-E11
pub fn no_such_rank(universe: &Universe) {
    let world = universe.world();
    let part = world.split(Some(u32::from(world.rank() == Rank(0))), 0).unwrap().unwrap();
    for comm in [world, &part] {
        let window = words(comm, 1);
        let last = Rank(comm.size() - 1);
        for target in [comm.size(), comm.size() + 1, 1 << 31, u32::MAX - 1].map(Rank) {
            let expected = RmaError::NoSuchRank { window: window.id(), target, last };
            assert_eq!(expected.class(), ErrorClass::Rank);
            let range = format!("0 to {last}");
            says(&expected, &[&window.id().to_string(), &target.to_string(), &range]);
            let fence = window.fence(Assert::NONE).unwrap();
            assert_eq!(all_fail(&fence, target, 0, 8), expected);
            assert_eq!(fence.fetch_and_op(target, 0, Op::Sum, 1u64), Err(expected));
            assert_eq!(fence.compare_and_swap(target, 0, 0u64, 1), Err(expected));
            fence.end().unwrap();
            let epoch = window.lock_all().unwrap();
            assert_eq!(all_fail(&epoch, target, 0, 0), expected);
            assert_eq!(epoch.fetch_and_op(target, 0, Op::Sum, 1u64), Err(expected));
            epoch.unlock().unwrap();
            assert_eq!(window.lock(target, LockKind::Shared).err(), Some(expected));
            assert_eq!(window.lock(target, LockKind::Exclusive).err(), Some(expected));
        }
        comm.barrier().unwrap();
        assert_eq!(local_words(&window), [0]);
        comm.barrier().unwrap();
        still_works(&window);
        window.free().unwrap();
    }
}

/// Atomics at addresses that their type cannot have.
pub fn misaligned(universe: &Universe) {
    let world = universe.world();
    let window = world.window(32, 1).allocate().unwrap();
    let epoch = window.lock_all().unwrap();
    for target in world.ranks() {
        for disp in [1, 2, 3, 4, 5, 7, 9, 20] {
            let expected = RmaError::Misaligned { window: window.id(), target, disp, width: 8 };
            assert_eq!(epoch.fetch_and_op(target, disp, Op::Sum, 1u64), Err(expected));
            assert_eq!(epoch.compare_and_swap(target, disp, 0i64, 1), Err(expected));
            assert_eq!(expected.class(), ErrorClass::Disp);
            let (id, rank) = (window.id().to_string(), format!("rank {target}"));
            says(&expected, &[&id, &rank, &disp.to_string(), "8 bytes", "natural alignment"]);
            let width = 4;
            let expected = RmaError::Misaligned { window: window.id(), target, disp, width };
            let sum = epoch.fetch_and_op(target, disp, Op::NoOp, 1i32);
            assert_eq!(sum, if disp.is_multiple_of(4) { Ok(0) } else { Err(expected) });
        }
    }
    epoch.unlock().unwrap();
    let view = window.local();
    assert!(matches!(view.fetch_and_op(3, Op::Sum, 1u32), Err(RmaError::Misaligned { .. })));
    assert!(matches!(view.compare_and_swap(4, 0u64, 1), Err(RmaError::Misaligned { .. })));
    world.barrier().unwrap();
    let mut bytes = [1u8; 32];
    view.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 32], "nothing was written");
    world.barrier().unwrap();
    still_works(&window);
    window.free().unwrap();
}

/// Owned buffers and scopes under a lock check like everything else.
pub fn in_scopes_and_requests(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 2);
    let right = neighbour(world, 1);
    let lock = window.lock(right, LockKind::Exclusive).unwrap();
    let error = lock.rput(1, vec![1u64; 2]).err().unwrap().error;
    expect_range(&window, error, (right, 1, 16), (8, 16));
    let error = lock.rget(2, vec![1u64]).err().unwrap().error;
    expect_range(&window, error, (right, 2, 8), (8, 16));
    let error = lock.ops(|ops| ops.put(right, 2, &[1u64])).unwrap_err();
    expect_range(&window, error, (right, 2, 8), (8, 16));
    lock.unlock().unwrap();
    unharmed(universe, window);
}

/// This rank's own view checks too.
pub fn views(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 3);
    let (view, me) = (window.local(), world.rank());
    expect_range(&window, view.load::<u64>(3).unwrap_err(), (me, 3, 8), (8, 24));
    expect_range(&window, view.store(2, [1u64; 2]).unwrap_err(), (me, 2, 16), (8, 24));
    let wraps = u64::MAX / 8 + 1;
    expect_range(&window, view.write(wraps, &[1u8]).unwrap_err(), (me, wraps, 1), (8, 24));
    let error = view.fetch_and_op(3, Op::Sum, 1u64).unwrap_err();
    expect_range(&window, error, (me, 3, 8), (8, 24));
    let error = view.compare_and_swap(u64::MAX, 0, 1u32).unwrap_err();
    expect_range(&window, error, (me, u64::MAX, 4), (8, 24));
    unharmed(universe, window);
}
