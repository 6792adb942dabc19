//! Deadlines of start and exposure epochs.
use super::{impatient, run, words};
use rma_core::{Assert, Op, Rank, RmaError, Window};

/// Tells the other of two ranks.
fn tell(flags: &Window) {
    let epoch = flags.lock_all().unwrap();
    epoch.fetch_and_op(flags.rank().on_ring(1, 2), 0, Op::Replace, 1u64).unwrap();
    epoch.unlock().unwrap();
}

/// Waits until the other has told, without a deadline, and serves it.
fn until_told(flags: &Window) {
    let epoch = flags.lock_all().unwrap();
    while epoch.fetch_and_op(flags.rank(), 0, Op::NoOp, 0u64).unwrap() == 0 {}
    epoch.unlock().unwrap();
}

#[test]
fn a_post_that_comes_too_late_serves_the_next_start() {
    run("timeouts::pscw::a_post_that", 2, impatient(), &|universe| {
        let world = universe.world();
        let (window, flags) = (words(&universe, 1), words(&universe, 1));
        if world.rank() == Rank(0) {
            let epoch = window.start(&[Rank(1)], Assert::NONE).unwrap();
            let put = epoch.put(Rank(1), 0, &[9u64]).unwrap_err();
            for error in [put, epoch.complete().unwrap_err()] {
                let RmaError::Timeout { window: id, .. } = error else { panic!("{error}") };
                assert_eq!(id, window.id());
                assert!(error.to_string().contains("a target's post"), "{error}");
            }
            tell(&flags);
        } else {
            until_told(&flags);
        }
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
        flags.free().unwrap();
        universe.finalize().unwrap();
    });
}

#[test]
fn an_exposure_whose_wait_timed_out_stays_open() {
    run("timeouts::pscw::an_exposure", 2, impatient(), &|universe| {
        let world = universe.world();
        let (window, flags) = (words(&universe, 1), words(&universe, 1));
        if world.rank() == Rank(0) {
            let exposure = window.post(&[Rank(1)], Assert::NONE).unwrap();
            let error = exposure.wait().unwrap_err();
            assert!(matches!(error, RmaError::Timeout { .. }), "{error}");
            assert!(error.to_string().contains("an origin's complete"), "{error}");
            let error = window.post(&[], Assert::NONE).err().unwrap();
            assert!(matches!(error, RmaError::EpochOpen { .. }), "{error}");
            tell(&flags);
            until_told(&flags);
            assert_eq!(window.local().load(0), Ok(6u64));
        } else {
            until_told(&flags);
            // The origin does not know: for it, the epoch is as any other.
            let epoch = window.start(&[Rank(0)], Assert::NONE).unwrap();
            epoch.put(Rank(0), 0, &[6u64]).unwrap();
            epoch.complete().unwrap();
            tell(&flags);
        }
        flags.free().unwrap();
        universe.finalize().unwrap();
    });
}
