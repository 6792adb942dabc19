//! Messages of operations that were given up, and memory that its owner has to itself.
use crate::ranks;
use rma::{Assert, Config, Op, ProgressAgent, Rank, RmaError, Universe};
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

/// How often ranks that a busy machine keeps from sealing in time are given another chance.
const ATTEMPTS: usize = 10;

/// The target agrees to seal without having served what was given up, and serves it then. S-A10
#[test]
fn what_was_given_up_does_not_change_a_slice() {
    for path in ["cma", "messages"] {
        let mut config = Config::default();
        config.wait_timeout = Some(Duration::from_millis(500));
        config.progress_agent = ProgressAgent::Never;
        config.hint("rma_path", path).unwrap();
        let name = format!("sealed::what_was_given_up by {path}");
        let sealed = AtomicBool::new(false);
        for _ in 0..ATTEMPTS {
            let waits_to_seal = Barrier::new(2);
            ranks::run(config.clone(), &name, 2, &|universe| {
                give_up_and_seal(&universe, &waits_to_seal, &sealed);
            });
            if sealed.load(Relaxed) {
                break;
            }
        }
        assert!(sealed.load(Relaxed), "no window was sealed in time, by {path}");
    }
}

fn give_up_and_seal(universe: &Universe, waits_to_seal: &Barrier, was_sealed: &AtomicBool) {
    let world = universe.world();
    let window = world.window(8, 8).allocate().unwrap();
    let sealed = if world.rank() == Rank(1) {
        let epoch = window.lock_all_with(Assert::NO_CHECK).unwrap();
        // One only: sealing waits for what an unlock has not given up yet.
        epoch.accumulate(Rank(0), 1, Op::Sum, &[41u64]).unwrap();
        let error = epoch.unlock().unwrap_err();
        assert!(matches!(error, RmaError::Timeout { .. }), "{error}");
        let parked = universe.counters().parked();
        thread::scope(|scope| {
            scope.spawn(|| {
                while universe.counters().parked() == parked {
                    thread::yield_now();
                }
                waits_to_seal.wait();
            });
            window.seal()
        })
    } else {
        // Comes last, and so agrees without a wait in which it would serve.
        waits_to_seal.wait();
        window.seal()
    };
    let Ok(mut sealed) = sealed else { return };
    was_sealed.fetch_or(world.rank() == Rank(0), Relaxed);
    let words: &mut [u64] = sealed.as_mut_slice().unwrap();
    let before = black_box(&*words).to_vec();
    for _ in 0..100 {
        universe.progress();
        thread::yield_now();
    }
    assert_eq!(black_box(&*words), before);
    drop(sealed.unseal());
}
