//! The suite on shared memory, with ranks as real processes.
use rma::{AnyTransport, Universe};
use rma_conformance::Harness;
use rma_conformance::failure::ON_PURPOSE;
use std::panic::{AssertUnwindSafe, catch_unwind};

struct ShmProcesses;

impl Harness for ShmProcesses {
    type T = AnyTransport;

    fn run(name: &str, ranks: u32, body: &(dyn Fn(Universe) + Sync)) {
        rma::testing::processes_in(name, ranks, body);
    }

    /// The job is ended when its first rank fails, so the other ranks may not come to the end.
    fn run_failing(name: &str, ranks: u32, victim: u32, body: &(dyn Fn(Universe) + Sync)) {
        let run = || rma::testing::processes_in(name, ranks, body);
        if std::env::var_os("RMA_RANK").is_some() {
            return run();
        }
        let panic = catch_unwind(AssertUnwindSafe(run)).expect_err("the job fails");
        let message = panic.downcast_ref::<String>().map_or("", String::as_str);
        assert!(message.contains(&format!("rank {victim} failed")), "{message}");
        assert!(message.contains(ON_PURPOSE), "{message}");
    }
}

rma_conformance::suite!(ShmProcesses);
