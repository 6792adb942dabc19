//! The suite on shared memory, with ranks as threads of this process.
use rma::{AnyTransport, Universe};
use rma_conformance::Harness;
use rma_conformance::failure::ON_PURPOSE;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

struct ShmThreads;

impl Harness for ShmThreads {
    type T = AnyTransport;

    fn run(_: &str, ranks: u32, body: &(dyn Fn(Universe) + Sync)) {
        rma::local(ranks, body).expect("the ranks start");
    }

    fn run_failing(_: &str, ranks: u32, _: u32, body: &(dyn Fn(Universe) + Sync)) {
        let survivors = AtomicU32::new(0);
        let run = || {
            rma::local(ranks, |universe| {
                body(universe);
                survivors.fetch_add(1, Relaxed);
            })
        };
        // The first panic goes on: if that is the victim's, and all others came to the end, there
        // was no other.
        let panic = catch_unwind(AssertUnwindSafe(run)).expect_err("the victim panics");
        let message = panic.downcast_ref::<String>().map_or("", String::as_str);
        assert!(message.contains(ON_PURPOSE), "{message}");
        assert_eq!(survivors.into_inner(), ranks - 1, "every other rank comes to the end");
    }
}

rma_conformance::suite!(ShmThreads);
