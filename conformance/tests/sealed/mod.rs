//! Messages of operations that were given up, and memory that its owner has to itself.
use crate::ranks;
use rma::{Assert, Config, Op, ProgressAgent, Rank, RmaError};
use std::hint::black_box;
use std::sync::Barrier;
use std::time::Duration;

/// The target agrees to seal without having served what was given up, and serves it then. S-A10
#[test]
fn what_was_given_up_does_not_change_a_slice() {
    for path in ["cross", "messages"] {
        let mut config = Config::default();
        config.wait_timeout = Some(Duration::from_millis(500));
        config.progress_agent = ProgressAgent::Never;
        config.hint("rma_path", path).unwrap();
        let given_up = Barrier::new(2);
        let name = format!("sealed::what_was_given_up by {path}");
        ranks::run(config, &name, 2, &|universe| {
            let world = universe.world();
            let window = world.window(8, 8).allocate().unwrap();
            if world.rank() == Rank(1) {
                let epoch = window.lock_all_with(Assert::NO_CHECK).unwrap();
                epoch.accumulate(Rank(0), 1, Op::Sum, &[41.0f64]).unwrap();
                epoch.accumulate(Rank(0), 2, Op::Sum, &[41u64]).unwrap();
                epoch.put(Rank(0), 0, &[41u64]).unwrap();
                let error = epoch.unlock().unwrap_err();
                assert!(matches!(error, RmaError::Timeout { .. }), "{error}");
            }
            given_up.wait();
            // If it fails, another time: a rank was late.
            let Ok(mut sealed) = window.seal() else { return };
            let words: &mut [u64] = sealed.as_mut_slice().unwrap();
            let before = black_box(&*words).to_vec();
            for _ in 0..100 {
                universe.progress();
                std::thread::yield_now();
            }
            assert_eq!(black_box(&*words), before, "by {path}");
            drop(sealed.unseal());
        });
    }
}
