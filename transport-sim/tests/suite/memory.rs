//! Window memory of simulated ranks.
#![allow(unsafe_code)] // reads and writes raw window memory

use crate::common::config;
use rma_core::transport::{AllocateError, ImportError, Mapped, Messages, Shared, WorldRank};
use rma_transport_sim::{Net, NetConfig, run};

#[test]
fn regions_are_zeroed_aligned_apart_and_stay_in_place() {
    run(&config(2, 0), |sim| {
        let mut spans = Vec::new();
        let mut regions = Vec::new();
        for (len, align) in [(1, 1), (100, 8), (4096, 4096), (65, 64), (0, 4096), (0, 1)] {
            let region = sim.allocate(len, align).unwrap();
            let base = region.mapping().base;
            assert_eq!(region.mapping().len, len);
            assert_eq!(base.addr() % align.max(64), 0);
            for at in 0..len {
                // SAFETY: `at` is inside the region's span.
                let byte = unsafe { base.add(at) };
                // SAFETY: the span is readable and this rank's alone.
                assert_eq!(unsafe { byte.read() }, 0);
                // SAFETY: the span is writable and this rank's alone.
                unsafe { byte.write(0xff) };
            }
            spans.push((base.addr(), base.addr() + len.max(1)));
            regions.push(region);
        }
        let moved = regions.into_iter().rev().collect::<Vec<_>>();
        let bases: Vec<_> = moved.iter().rev().map(|r| r.mapping().base.addr()).collect();
        assert!(bases.into_iter().eq(spans.iter().map(|span| span.0)));
        spans.sort_unstable();
        assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{spans:?}");
    })
    .unwrap();
}

#[test]
fn shortage_names_what_was_asked_and_what_there_is() {
    let net = Net::new(NetConfig { memory_max: 1000, ..config(2, 0) }).unwrap();
    let (one, other) = (net.rank(WorldRank(0)), net.rank(WorldRank(1)));
    let held = one.allocate(600, 8).unwrap();
    assert_eq!(other.available().0, 400);
    let error = other.allocate(401, 8).unwrap_err();
    assert!(matches!(error, AllocateError::Shortage { asked: 401, available: 400, .. }));
    assert!(error.to_string().contains("memory_max"), "{error}");
    drop(held);
    assert_eq!(other.available().0, 1000);
    assert!(other.allocate(401, 8).is_ok());
}

#[test]
fn sizes_and_alignments_that_make_no_sense_are_errors_and_cost_nothing() {
    let net = Net::new(NetConfig { memory_max: u64::MAX, ..config(1, 0) }).unwrap();
    let sim = net.rank(WorldRank(0));
    for (len, align) in [(usize::MAX, 8), (isize::MAX as usize, 64), (8, 96)] {
        let error = sim.allocate(len, align).unwrap_err();
        assert!(matches!(error, AllocateError::System { errno: 22, .. }), "{error}");
    }
    assert_eq!(sim.available().0, u64::MAX);
}

#[test]
fn nothing_is_near() {
    let net = Net::new(config(2, 0)).unwrap();
    let sim = net.rank(WorldRank(0));
    assert!(!sim.is_near(WorldRank(0)) && !sim.is_near(WorldRank(1)));
    let descriptor = sim.allocate(8, 8).unwrap().descriptor();
    let error = sim.import(WorldRank(1), &[descriptor]).unwrap_err();
    assert_eq!(error, ImportError::Malformed(WorldRank(1)));
}

#[test]
fn explain_says_what_decides() {
    let sim = Net::new(config(3, 77)).unwrap().rank(WorldRank(1));
    assert_eq!((sim.rank(), sim.size()), (WorldRank(1), 3));
    let line = sim.explain();
    assert!(line.contains("3 ranks") && line.contains("seed 77"), "{line}");
    assert_eq!(line.lines().count(), 1);
}
