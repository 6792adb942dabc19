//! Windows over memory of the user (FEATURES A1; MPI 4.1, section 12.2.1).
#![allow(unsafe_code)] // room: vouches for memory that windows are made of

use crate::help::{neighbour, pattern};
use rma_core::{
    Assert, ErrorClass, Flavor, Layout, LockAll, LockKind, Op, Path, Rank, RawPart, RmaError,
    Universe, Window, WindowError,
};

/// Words of this rank: 100 times the rank, and counting.
fn numbered(rank: Rank, count: usize) -> Vec<u64> {
    (0..count as u64).map(|i| u64::from(rank) * 100 + i).collect()
}

/// Every kind of operation on a window of four words at each rank, whose first is the number of
/// their owner; afterwards they hold [`after`]. **Collective.**
fn operate(window: &Window) {
    let (me, ranks) = (window.rank(), window.ranks());
    let right = me.on_ring(1, ranks);
    window.fence(Assert::NONE).unwrap().end().unwrap();
    let epoch = window.lock_all().unwrap();
    let mut got = [0u64];
    epoch.get(right, 0, &mut got).unwrap();
    assert_eq!(got, [u64::from(right) * 100]);
    epoch.put(right, 1, &[7u64 + u64::from(me)]).unwrap();
    epoch.flush(right).unwrap();
    epoch.get(right, 1, &mut got).unwrap();
    assert_eq!(got, [7 + u64::from(me)]);
    for target in window.group().members().enumerate().map(|(rank, _)| Rank(rank as u32)) {
        epoch.fetch_and_op(target, 2, Op::Sum, 1u64).unwrap();
        epoch.accumulate(target, 2, Op::Sum, &[1u64]).unwrap();
    }
    let third = u64::from(right) * 100 + 3;
    assert_eq!(epoch.compare_and_swap(right, 3, third, 5000u64).unwrap(), third);
    assert_eq!(epoch.compare_and_swap(right, 3, third, 1u64).unwrap(), 5000);
    epoch.unlock().unwrap();
    window.fence(Assert::NONE).unwrap().end().unwrap();
}

/// What [`operate`] makes of four words.
fn after(me: Rank, ranks: u32) -> [u64; 4] {
    let left = u64::from(me.on_ring(-1, ranks));
    let first = u64::from(me) * 100;
    [first, 7 + left, first + 2 + 2 * u64::from(ranks), 5000]
}

/// A vector is given away, used by all ranks, and comes back. S-A1 S-A2
pub fn over_vectors(universe: &Universe) {
    let world = universe.world();
    let window = world.window(4, 8).create(numbered(world.rank(), 4)).unwrap();
    assert_eq!((window.flavor(), window.size()), (Flavor::Create, 32));
    operate(&window);
    let back: Vec<u64> = window.free_into().unwrap();
    assert_eq!(back, after(world.rank(), world.size()));
}

/// A window may be smaller than its buffer, and nothing at some ranks. S-A2
pub fn over_parts_of_boxes(universe: &Universe) {
    let world = universe.world();
    let (me, right) = (world.rank(), neighbour(world, 1));
    let count = usize::from(me) % 3;
    let buffer: Box<[u64]> = numbered(me, 5).into();
    let window = world.window(count, 8).create(buffer).unwrap();
    let theirs = usize::from(right) % 3;
    let epoch = window.lock(right, LockKind::Shared).unwrap();
    let mut got = vec![0u64; theirs];
    epoch.get(0, &mut got).unwrap();
    assert_eq!(got, numbered(right, theirs));
    let beyond = epoch.get(theirs as u64, &mut [0u8]).unwrap_err();
    assert!(matches!(beyond, RmaError::OutOfRange { .. }), "{beyond}");
    epoch.unlock().unwrap();
    let back: Box<[u64]> = window.free_into().unwrap();
    assert_eq!(*back, numbered(me, 5), "the rest of the buffer too");
}

/// Memory that stays where it is. S-A1
pub fn over_raw_parts(universe: &Universe) {
    let world = universe.world();
    let mut memory = numbered(world.rank(), 6);
    // SAFETY: `memory` lives, and is not touched, until the window is freed.
    let part = unsafe { RawPart::new(memory.as_mut_ptr().cast(), 48) };
    assert!(!part.is_empty());
    let window = world.window(4, 8).create(part).unwrap();
    operate(&window);
    let view = window.local();
    assert_eq!(view.load::<u64>(3).unwrap(), 5000);
    assert_eq!(window.free_into::<RawPart>().unwrap(), part);
    let first = u64::from(world.rank()) * 100;
    assert_eq!(memory[..4], after(world.rank(), world.size()));
    assert_eq!(memory[4..], [first + 4, first + 5], "behind the window");
}

/// A part may begin at any address, and perhaps only its rank knows which. S-A1
pub fn over_raw_parts_at_odd_addresses(universe: &Universe) {
    let world = universe.world();
    let mut memory = [0u64; 4];
    // SAFETY: `memory` lives, and is not touched, until the window is freed.
    let part = unsafe { RawPart::new(memory.as_mut_ptr().cast::<u8>().wrapping_add(5), 24) };
    let window = world.window(24, 1).create(part).unwrap();
    let right = neighbour(world, 1);
    let epoch = window.lock_all().unwrap();
    assert_eq!(epoch.fetch_and_op(right, 3, Op::Sum, 7u64), Ok(0));
    let done = epoch.accumulate(right, 0, Op::Sum, &[1u64]).and_then(|()| epoch.flush(right));
    for done in [done, epoch.fetch_and_op(right, 8, Op::Sum, 1u64).map(drop)] {
        let error = done.unwrap_err();
        let target = match error {
            RmaError::Misaligned { target, .. } | RmaError::MisalignedThere { target, .. } => {
                target
            }
            error => panic!("{error}"),
        };
        assert_eq!((target, error.class()), (right, ErrorClass::Disp));
    }
    epoch.unlock().unwrap();
    window.free().unwrap();
    assert_eq!(memory, [0, 7, 0, 0]);
}

/// MPI's idiom for ranks without a part: no address and no bytes. S-A1
pub fn nothing_nowhere(universe: &Universe) {
    let world = universe.world();
    // SAFETY: there is no byte that a peer could use.
    let part = unsafe { RawPart::new(std::ptr::null_mut(), 0) };
    assert!(part.is_empty());
    let window = world.window(0, 8).create(part).unwrap();
    assert_eq!(window.local().read::<u64>(0, &mut []), Ok(()));
    let epoch = window.lock_all().unwrap();
    epoch.put(neighbour(world, 1), 0, &[0u64; 0]).unwrap();
    epoch.unlock().unwrap();
    // Other windows may have the same part: no rank gets it as a slice.
    let refused = window.seal().err().unwrap();
    assert!(matches!(refused.error, RmaError::WrongFlavor { requested: "seal", .. }), "{refused}");
    assert_eq!(refused.value.unwrap().free_into::<RawPart>().unwrap(), part);
}

/// Large transfers with layouts and without, to raw memory. S-G1 S-J1
pub fn much_raw_memory(universe: &Universe) {
    let world = universe.world();
    let right = neighbour(world, 1);
    let len = if cfg!(miri) { 600 } else { 100_000 };
    let mut memory = pattern(world.rank().0, len);
    // SAFETY: `memory` lives, and is not touched, until the window is freed.
    let part = unsafe { RawPart::new(memory.as_mut_ptr(), len) };
    let window = world.window(len, 1).create(part).unwrap();
    let epoch = window.lock_all().unwrap();
    let mut got = vec![0u8; len];
    epoch.get(right, 0, &mut got).unwrap();
    assert_eq!(got, pattern(right.0, len));
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    let new = pattern(world.rank().0 + 50, len / 2);
    let epoch = window.lock_all().unwrap();
    let every = Layout::element::<u8>().vector(len as u64 / 2, 1, 2).unwrap();
    epoch.put(right, every.at(0), Layout::element::<u8>().times(len as u64 / 2).of(&new)).unwrap();
    epoch.ops(|ops| ops.put(right, len as u64 - 1, &[99u8])).unwrap();
    epoch.unlock().unwrap();
    window.free().unwrap();
    let mut expected = pattern(world.rank().0, len);
    let theirs = pattern(neighbour(world, -1).0 + 50, len / 2);
    (0..len / 2).for_each(|i| expected[2 * i] = theirs[i]);
    expected[len - 1] = 99;
    assert_eq!(memory, expected);
}

/// Some ranks bring a vector, some raw memory, some nothing. S-A1
pub fn mixed(universe: &Universe) {
    let world = universe.world();
    let mut memory = numbered(world.rank(), 4);
    // SAFETY: `memory` lives, and is not touched, until the window is freed.
    let part = unsafe { RawPart::new(memory.as_mut_ptr().cast(), 32) };
    let builder = world.window(4, 8);
    let raw = world.rank().0.is_multiple_of(2);
    let window = if raw {
        builder.create(part).unwrap()
    } else {
        builder.create(numbered(world.rank(), 4)).unwrap()
    };
    operate(&window);
    if raw {
        assert_eq!(window.free_into::<RawPart>().unwrap(), part);
        assert_eq!(memory, after(world.rank(), world.size()));
    } else {
        let back: Vec<u64> = window.free_into().unwrap();
        assert_eq!(back, after(world.rank(), world.size()));
    }
}

/// Two windows over the same memory: what is complete in one is there in the other. S-A4
pub fn overlapping_windows(universe: &Universe) {
    let world = universe.world();
    let right = neighbour(world, 1);
    let mut memory = [0u64; 4];
    // SAFETY: `memory` lives, and is not touched, until both windows are freed.
    let part = unsafe { RawPart::new(memory.as_mut_ptr().cast(), 32) };
    let words = world.window(4, 8).create(part).unwrap();
    let bytes = world.window(32, 1).create(part).unwrap();
    let epoch = words.fence(Assert::NONE).unwrap();
    epoch.put(right, 1, &[0x0102_0304_0506_0708u64]).unwrap();
    epoch.end().unwrap();
    let epoch = bytes.fence(Assert::NONE).unwrap();
    let mut got = [0u8; 8];
    epoch.get(right, 8, &mut got).unwrap();
    assert_eq!(u64::from_ne_bytes(got), 0x0102_0304_0506_0708);
    epoch.end().unwrap();
    words.free().unwrap();
    bytes.free().unwrap();
}

/// A window over the memory of another one, which ranks share. S-K7
pub fn over_a_shared_segment(universe: &Universe) {
    let world = universe.world();
    let segment = world.window(4, 8).allocate().unwrap();
    segment.local().write(0, &numbered(world.rank(), 4)).unwrap();
    // SAFETY: `segment` outlives the window and is only accessed through views meanwhile.
    let part = unsafe { RawPart::new(segment.local().as_ptr(), 32) };
    let window = world.window(4, 8).create(part).unwrap();
    operate(&window);
    window.free().unwrap();
    let mut found = [0u64; 4];
    segment.local().read(0, &mut found).unwrap();
    assert_eq!(found, after(world.rank(), world.size()));
    segment.free().unwrap();
}

/// Only memory that others map can be looked at. S-K4
pub fn queries(universe: &Universe) {
    let world = universe.world();
    let right = neighbour(world, 1);
    let window = world.window(4, 8).create(numbered(world.rank(), 4)).unwrap();
    match window.shared_query(right) {
        Ok(view) => assert_eq!(view.load::<u64>(2).unwrap(), u64::from(right) * 100 + 2),
        Err(error) => assert_eq!(error.class(), ErrorClass::RmaShared),
    }
    world.barrier().unwrap();
    window.free().unwrap();
    let mut memory = [0u64; 2];
    // SAFETY: `memory` lives, and is not touched, until the window is freed.
    let part = unsafe { RawPart::new(memory.as_mut_ptr().cast(), 16) };
    let window = world.window(2, 8).create(part).unwrap();
    assert_ne!(window.path(right), Some(Path::LoadStore));
    let error = window.shared_query(right).map(|view| view.size()).unwrap_err();
    assert_eq!(error.class(), ErrorClass::RmaShared, "{error}");
    if crate::help::near(universe) && window.path(right) != Some(Path::Messages) {
        assert_eq!(window.shared_query(window.rank()).map(|view| view.size()), Ok(16));
    }
    window.free().unwrap();
}

/// The owner of raw memory computes and calls nothing; others operate there all the same. S-E7 S-M5
pub fn while_the_owner_computes(universe: &Universe) {
    let world = universe.world();
    let mut memory = [1u64; 8];
    // SAFETY: `memory` lives, and is not touched, until the window is freed.
    let part = unsafe { RawPart::new(memory.as_mut_ptr().cast(), 64) };
    let window = world.window(8, 8).create(part).unwrap();
    world.barrier().unwrap();
    if world.rank() == Rank(0) {
        let view = window.local();
        // Loads of a view serve nothing.
        while view.load::<u64>(7).unwrap() != 99 {
            universe.transport().relax(0);
        }
    } else {
        disturb(&window.lock_all().unwrap(), 0);
    }
    world.barrier().unwrap();
    window.free().unwrap();
    if world.rank() == Rank(0) {
        assert_eq!(memory, [6, 2, 30, 4, 1, 5, 1, 99]);
    }
}

/// Operations of every kind on rank 0, whose eight words from `base` on are 1; the last one tells
/// that all others are done.
pub(crate) fn disturb(epoch: &LockAll<'_>, base: u64) {
    let at = |word: u64| if base == 0 { word } else { base + 8 * word };
    let target = Rank(0);
    epoch.accumulate(target, at(0), Op::Sum, &[5u64]).unwrap();
    assert_eq!(epoch.fetch_and_op(target, at(1), Op::Sum, 1u64).unwrap(), 1);
    assert_eq!(epoch.compare_and_swap(target, at(2), 1u64, 30).unwrap(), 1);
    let mut old = [0u64];
    epoch.get_accumulate(target, at(2), Op::NoOp, &[], &mut old).unwrap();
    assert_eq!(old, [30]);
    let (word, pair) =
        (Layout::element::<u64>(), Layout::element::<u64>().vector(2, 1, 2).unwrap());
    epoch.put(target, pair.at(at(3)), word.times(2).of(&[4u64, 5])).unwrap();
    epoch.flush(target).unwrap();
    let mut got = [0u64; 8];
    epoch.get(target, at(0), &mut got).unwrap();
    assert_eq!(got, [6, 2, 30, 4, 1, 5, 1, 1]);
    epoch.put(target, at(7), &[99u64]).unwrap();
    epoch.flush(target).unwrap();
}

/// What cannot be made comes back, at every rank; what does not fit stays a window. S-B7
pub fn refusals(universe: &Universe) {
    let world = universe.world();
    let me = world.rank();
    let short = if me == Rank(0) { 3 } else { 4 };
    let refused = world.window(4, 8).create(numbered(me, short)).unwrap_err();
    assert_eq!(refused.value, numbered(me, short), "nothing is lost");
    match refused.error {
        WindowError::TooShort { size, len } if me == Rank(0) => assert_eq!((size, len), (32, 24)),
        WindowError::Peer(Rank(0)) if me != Rank(0) => {}
        error => panic!("{error}"),
    }
    let window = world.window(4, 8).create(numbered(me, 4)).unwrap();
    let window = window.free_into::<RawPart>().unwrap_err().value.unwrap();
    let window = window.free_into::<Vec<[u64; 3]>>().unwrap_err().value.unwrap();
    operate(&window);
    window.free().unwrap();
    let mut memory = [0u64; 4];
    // SAFETY: `memory` lives, and is not touched, until the window is freed.
    let part = unsafe { RawPart::new(memory.as_mut_ptr().cast(), 32) };
    let refused = world.window(4, 8).hint("rma_path", "load_store").unwrap().create(part);
    let refused = refused.unwrap_err();
    assert!(matches!(refused.error, WindowError::NoPath { .. }), "{}", refused.error);
    assert_eq!(refused.value, part);
    let window = world.window(4, 8).create(part).unwrap();
    let window = window.free_into::<Vec<u64>>().unwrap_err().value.unwrap();
    window.free().unwrap();
}
