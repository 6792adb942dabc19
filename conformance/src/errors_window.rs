//! Windows that cannot be made: an error everywhere, and nothing of them stays (FEATURES A7).
use crate::help::{says, still_works, words};
use rma_core::transport::AllocateError;
use rma_core::{ErrorClass, Rank, Universe, WindowError};

/// A window that can be made works.
fn unharmed(universe: &Universe) {
    let window = words(universe.world(), 2);
    still_works(&window);
    window.free().unwrap();
}

/// Units that do not add up to a number of bytes. S-B6 S-B7
pub fn size_overflow(universe: &Universe) {
    for (count, unit) in [(usize::MAX, 2), (1 << 61, 8), (1 << 63, 1), (usize::MAX, 1)] {
        let error = universe.world().window(count, unit).allocate().err().unwrap();
        let (count, disp_unit) = (count as u64, unit as u64);
        assert_eq!(error, WindowError::SizeOverflow { count, disp_unit });
        assert_eq!(error.class(), ErrorClass::Size);
        says(&error, &[&count.to_string(), &unit.to_string(), "smaller count"]);
    }
    // Of any type of integer: a negative one is too many.
    let error = universe.world().window(-1i32, 8u8).allocate().err().unwrap();
    assert_eq!(error, WindowError::SizeOverflow { count: u64::MAX, disp_unit: 8 });
    unharmed(universe);
}

/// One rank is wrong: its error says why, the others' say which rank. S-B6 S-B7
pub fn size_overflow_of_one(universe: &Universe) {
    let world = universe.world();
    for culprit in world.ranks() {
        let wrong = world.rank() == culprit;
        let error = world.window(if wrong { usize::MAX } else { 1 }, 8).allocate().err().unwrap();
        if wrong {
            assert!(matches!(error, WindowError::SizeOverflow { disp_unit: 8, .. }), "{error}");
            continue;
        }
        assert_eq!(error, WindowError::Peer(culprit));
        assert_eq!(error.class(), ErrorClass::Other);
        says(&error, &[&format!("rank {culprit}"), "no rank keeps"]);
    }
    unharmed(universe);
}

/// Displacement units of 0, and beyond 32 bits.
pub fn unit(universe: &Universe) {
    for unit in [0, 1 << 32, usize::MAX] {
        let error = universe.world().window(1, unit).allocate().err().unwrap();
        assert_eq!(error, WindowError::DispUnit(unit as u64));
        assert_eq!(error.class(), ErrorClass::Disp);
        says(&error, &[&unit.to_string(), "1 to 4294967295"]);
    }
    unharmed(universe);
}

/// A dynamic window begins with nothing. S-B7
pub fn size_of_a_dynamic_one(universe: &Universe) {
    let error = universe.world().window(3, 1).create_dynamic().err().unwrap();
    assert_eq!(error, WindowError::DynamicSize(3));
    says(&error, &["3 bytes", "dynamic"]);
    unharmed(universe);
}

fn expect_shortage(error: WindowError, me: Rank) {
    assert!([ErrorClass::NoMem, ErrorClass::Other].contains(&error.class()));
    match &error {
        WindowError::Allocate { rank, error: cause } => {
            let AllocateError::Shortage { requested, available, limit } = cause else {
                panic!("{error}")
            };
            assert_eq!(*rank, me);
            assert!(*requested >= 1 << 60 && available < requested);
            let numbers = [requested.to_string(), available.to_string()];
            says(&error, &[&format!("rank {rank}"), &numbers[0], &numbers[1], limit]);
            says(&error, &["ask for less", "fewer ranks", "raise that limit"]);
        }
        WindowError::Peer(rank) => says(&error, &[&format!("rank {rank}"), "its own error"]),
        other => panic!("{other}"),
    }
}

/// More memory than there is, for every rank: an error, and no signal later. S-B6 S-B7
pub fn shortage(universe: &Universe) {
    let world = universe.world();
    for (count, unit) in [(1u64 << 60, 1), (1 << 57, 8), (1 << 40, 1 << 22)] {
        expect_shortage(world.window(count, unit).allocate().err().unwrap(), world.rank());
    }
    unharmed(universe);
}

/// One rank asks for too much: no rank gets a window. S-B6 S-B7
pub fn shortage_of_one(universe: &Universe) {
    let world = universe.world();
    for culprit in world.ranks() {
        let count = if world.rank() == culprit { 1u64 << 60 } else { 100 };
        let error = world.window(count, 1).allocate().err().unwrap();
        let told = matches!(error, WindowError::Allocate { .. });
        assert!(told || world.rank() != culprit, "the culprit is told why: {error}");
        expect_shortage(error, world.rank());
    }
    unharmed(universe);
}

/// What failed leaves no memory behind.
pub fn nothing_stays(universe: &Universe) {
    let world = universe.world();
    let small = if cfg!(miri) { 1 } else { 20 };
    for _ in 0..small {
        let count = if world.rank() == Rank(0) { 1u64 << 60 } else { 8 << 20 };
        assert!(world.window(count, 1).allocate().is_err());
        assert!(world.window(1, 0).allocate().is_err());
    }
    unharmed(universe);
}

/// Ranks that have made a window before tell each other more at a time: what comes of errors is the
/// same. S-B6 S-B7
pub fn after_a_window(universe: &Universe) {
    for case in [
        size_overflow_of_one,
        unit,
        size_of_a_dynamic_one,
        shortage_of_one,
        crate::windows::flavors_differ,
        crate::info::ranks_disagree,
        crate::info::untrue,
    ] {
        unharmed(universe);
        case(universe);
        unharmed(universe);
    }
}
