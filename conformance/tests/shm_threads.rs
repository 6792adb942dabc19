//! The suite on shared memory, with ranks as threads of this process.
use rma::{AnyTransport, Config, Universe};
use rma_conformance::Harness;

mod ranks;

struct ShmThreads;

impl Harness for ShmThreads {
    type T = AnyTransport;

    fn run(name: &str, ranks: u32, body: &(dyn Fn(Universe) + Sync)) {
        ranks::run(Config::default(), name, ranks, body);
    }

    fn run_failing(name: &str, ranks: u32, _: u32, body: &(dyn Fn(Universe) + Sync)) {
        ranks::run_failing(Config::default(), name, ranks, body);
    }
}

rma_conformance::suite!(ShmThreads);
