//! The suite on shared memory, with ranks as threads of this process.
use rma::{AnyTransport, Config, Universe};
use rma_conformance::Harness;

mod generated;
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

/// Generated programs.
#[test]
fn generated_programs() {
    let test = "generated_programs";
    let command = "cargo test -p rma-conformance --test shm_threads generated_programs";
    let seeds = generated::seeds(800);
    let launch = |seed, ranks, body: &(dyn Fn(Universe) + Sync)| {
        let name = format!("{test} (RMA_GENERATED_SEED={seed})");
        generated::caught(|| ranks::run(Config::default(), &name, ranks, body))
    };
    let coverage = rma_conformance::generated::check(seeds.iter().copied(), 5, command, &launch);
    generated::judge(seeds.len(), coverage);
}
