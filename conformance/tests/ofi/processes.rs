//! The suite with ranks as real processes, which reach each other by libfabric only.
use rma::Universe;
use rma_conformance::failure::ON_PURPOSE;
use rma_conformance::generated::oracle::Coverage;
use rma_conformance::shared::refused;
use rma_conformance::{Exception, Harness};
use std::panic::{AssertUnwindSafe, catch_unwind};

#[path = "../generated/mod.rs"]
mod generated;
#[path = "mod.rs"]
mod ofi;

struct Processes;

type OfiProcesses = ofi::WhereLibfabricIs<Processes>;

/// A rank sleeps until it is rung.
fn config() -> rma::Config {
    let mut config = ofi::config(1);
    config.naps = false;
    config
}

impl Harness for Processes {
    fn run(name: &str, ranks: u32, body: &(dyn Fn(Universe) + Sync)) {
        rma::testing::processes_with(config(), name, ranks, body);
    }

    /// The job is ended when its first rank fails, so the other ranks may not come to the end.
    fn run_failing(name: &str, ranks: u32, victim: u32, body: &(dyn Fn(Universe) + Sync)) {
        let run = || rma::testing::processes_with(config(), name, ranks, body);
        if std::env::var_os("RMA_RANK").is_some() {
            return run();
        }
        let panic = catch_unwind(AssertUnwindSafe(run)).expect_err("the job fails");
        let message = panic.downcast_ref::<String>().map_or("", String::as_str);
        assert!(message.contains(&format!("rank {victim} failed")), "{message}");
        assert!(message.contains(ON_PURPOSE), "{message}");
    }

    fn exceptions() -> Vec<Exception> {
        let reason = "a shared window needs ranks that all share memory";
        vec![Exception { tests: "shared::", reason, instead: Some(refused) }]
    }
}

rma_conformance::suite!(OfiProcesses);

/// Generated programs, in one job: every rank makes them from the same seeds.
#[test]
fn generated_programs() {
    if !ofi::is_here("generated_programs") {
        return;
    }
    let command = "cargo test -p rma-conformance --test ofi_processes generated_programs";
    let seeds = generated::seeds(100);
    rma::testing::processes_with(config(), "generated_programs", 4, |universe| {
        let each = seeds.iter().copied();
        let coverage = rma_conformance::generated::check_in_one_job(&universe, each, command);
        let all = universe.world().allreduce(&coverage.counts(), rma::Op::Sum).unwrap();
        generated::judge(seeds.len(), Coverage::from_counts(&all));
        assert_eq!(universe.counters().messages_dropped(), 0);
        universe.finalize().unwrap();
    });
}
