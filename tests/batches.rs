//! Batches whose messages overtake each other: the order at a place, and which place is named.
use rma::{BasicElement, Complex, Config, Op, Rank, RmaError, Universe};
use rma::{simulate_rdma_with, simulate_with};

const PLACES: usize = 50;
const ENTRIES: usize = 1000;

fn job(messages: bool) -> Config {
    let mut config = Config::default();
    if messages {
        config.hint("rma_path", "messages").unwrap();
    }
    config
}

/// The last of several values for one place stays there, and each finds the one before it.
fn in_order<E: BasicElement + PartialEq + core::fmt::Debug>(
    universe: &Universe,
    of: fn(usize) -> E,
) {
    let world = universe.world();
    let (me, right) = (usize::from(world.rank()), world.rank().on_ring(1, world.size()));
    let window = world.window(3 * PLACES, size_of::<E>()).allocate().unwrap();
    let places: Vec<_> = (0..ENTRIES).map(|i| (right, i % PLACES * 3 + me)).collect();
    let values: Vec<E> = (0..ENTRIES).map(of).collect();
    let mut found = values.clone();
    let epoch = window.lock_all().unwrap();
    epoch.batch(&places).accumulate(Op::Replace, &values).unwrap();
    epoch.batch(&places).get_accumulate(Op::Replace, &values, &mut found).unwrap();
    for (i, found) in found.iter().enumerate() {
        let before = i.checked_sub(PLACES).unwrap_or(i + ENTRIES - PLACES);
        assert_eq!(*found, values[before], "entry {i}");
    }
    epoch.unlock().unwrap();
    world.barrier().unwrap();
}

#[test]
fn entries_for_one_place_happen_in_order() {
    for seed in 0..6 {
        simulate_with(job(true), 3, seed, |universe| {
            in_order(&universe, |i| i as u64);
            in_order(&universe, |i| Complex::new(i as f64, 0.5));
        })
        .unwrap();
        simulate_rdma_with(job(false), 3, seed, |universe| {
            in_order(&universe, |i| i as u64);
            in_order(&universe, |i| Complex::new(i as f64, 0.5));
        })
        .unwrap();
    }
}

/// The first place that is none is named, whatever the order of the targets.
#[test]
fn the_first_wrong_place_is_named() {
    for messages in [true, false] {
        rma::local_with(job(messages), 2, |universe| {
            let world = universe.world();
            let window = world.window(64, 1).allocate().unwrap();
            let epoch = window.lock_all().unwrap();
            let (zero, one) = (Rank(0), Rank(1));
            for (first, second) in [(zero, one), (one, zero), (one, one)] {
                let places = [(first, 0), (second, 8), (second, 61), (first, 62)];
                let failed = epoch.batch(&places).put(&[1u64; 4]).unwrap_err();
                assert_eq!(failed.index, 2);
                let places = [(first, 0), (second, 8), (second, 19), (first, 11)];
                let failed = epoch.batch(&places).accumulate(Op::Sum, &[1u64; 4]).unwrap_err();
                assert_eq!(failed.index, 2);
                let named = |error| matches!(error, RmaError::Misaligned { disp: 19, .. });
                assert!(named(failed.error), "{failed}");
            }
            epoch.unlock().unwrap();
            world.barrier().unwrap();
        })
        .unwrap();
    }
}
