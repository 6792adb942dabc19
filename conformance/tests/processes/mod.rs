//! Ranks as real processes.
use crate::generated;
use rma::{Config, Universe};
use rma_conformance::Harness;
use rma_conformance::failure::ON_PURPOSE;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What ranks of one test binary have in common.
pub(crate) trait Settings {
    fn config() -> Config {
        Config::default()
    }
}

/// Ranks with these settings.
pub(crate) struct Processes<S>(S);

/// A rank sleeps until it is rung. That one is killed is for tests that play a launcher
/// (`tests/processes.rs` of rma): there, ranks take naps.
fn config<S: Settings>() -> Config {
    let mut config = S::config();
    config.naps = false;
    config
}

impl<S: Settings> Harness for Processes<S> {
    fn run(name: &str, ranks: u32, body: &(dyn Fn(Universe) + Sync)) {
        rma::testing::processes_with(config::<S>(), name, ranks, body);
    }

    /// The job is ended when its first rank fails, so the other ranks may not come to the end.
    fn run_failing(name: &str, ranks: u32, victim: u32, body: &(dyn Fn(Universe) + Sync)) {
        let run = || Self::run(name, ranks, body);
        if std::env::var_os("RMA_RANK").is_some() {
            return run();
        }
        let panic = catch_unwind(AssertUnwindSafe(run)).expect_err("the job fails");
        let message = panic.downcast_ref::<String>().map_or("", String::as_str);
        assert!(message.contains(&format!("rank {victim} failed")), "{message}");
        assert!(message.contains(ON_PURPOSE), "{message}");
    }
}

/// Plays the programs of so many seeds in one job.
pub(crate) fn play<S: Settings>(binary: &str, programs: u64) {
    generated::play_in_one_job::<Processes<S>>(binary, programs);
}
