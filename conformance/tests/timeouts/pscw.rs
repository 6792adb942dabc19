//! Deadlines of start and exposure epochs.
use super::{impatient, run, wait_for, words};
use rma_core::transport::Transport;
use rma_core::{Assert, Rank, RmaError};
use std::time::Duration;

#[test]
fn a_post_that_comes_too_late_serves_the_next_start() {
    run("timeouts::pscw::a_post_that", 2, impatient(), &|universe| {
        let world = universe.world();
        let (window, own) = (words(&universe, 1), words(&universe, 1));
        world.barrier().unwrap();
        let end = universe.transport().now() + Duration::from_millis(40);
        if world.rank() == Rank(0) {
            let epoch = window.start(&[Rank(1)], Assert::NONE).unwrap();
            let put = epoch.put(Rank(1), 0, &[1u64]).unwrap_err();
            for error in [put, epoch.complete().unwrap_err()] {
                let RmaError::Timeout { window: id, .. } = error else { panic!("{error}") };
                assert_eq!(id, window.id());
                assert!(error.to_string().contains("a target's post"), "{error}");
            }
        }
        wait_for(&universe, &own, end);
        for round in 1..5u64 {
            if world.rank() == Rank(0) {
                let epoch = window.start(&[Rank(1)], Assert::NONE).unwrap();
                epoch.put(Rank(1), 0, &[round]).unwrap();
                epoch.complete().unwrap();
            } else {
                window.post(&[Rank(0)], Assert::NONE).unwrap().wait().unwrap();
                assert_eq!(window.local().load(0), Ok(round));
            }
        }
        window.free().unwrap();
        own.free().unwrap();
        universe.finalize().unwrap();
    });
}

#[test]
fn an_exposure_whose_wait_timed_out_stays_open() {
    run("timeouts::pscw::an_exposure", 2, impatient(), &|universe| {
        let world = universe.world();
        let (window, own) = (words(&universe, 1), words(&universe, 1));
        let end = universe.transport().now() + Duration::from_millis(40);
        if world.rank() == Rank(0) {
            let exposure = window.post(&[Rank(1)], Assert::NONE).unwrap();
            let error = exposure.wait().unwrap_err();
            assert!(matches!(error, RmaError::Timeout { .. }), "{error}");
            let error = window.post(&[], Assert::NONE).err().unwrap();
            assert!(matches!(error, RmaError::EpochOpen { .. }), "{error}");
        }
        wait_for(&universe, &own, end);
        // The origin is not told: for it, the epoch is as any other.
        if world.rank() == Rank(1) {
            let epoch = window.start(&[Rank(0)], Assert::NONE).unwrap();
            epoch.put(Rank(0), 0, &[6u64]).unwrap();
            epoch.complete().unwrap();
        }
        let end = universe.transport().now() + Duration::from_millis(40);
        wait_for(&universe, &own, end);
        if world.rank() == Rank(0) {
            assert_eq!(window.local().load(0), Ok(6u64));
        }
        own.free().unwrap();
        universe.finalize().unwrap();
    });
}
