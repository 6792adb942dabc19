//! The suite on shared memory, with ranks as threads of this process.
use ranks::{Settings, Threads};
use rma::Universe;
use rma_conformance::Harness;

mod generated;
mod ranks;

struct LoadStore;

impl Settings for LoadStore {}

type ShmThreads = Threads<LoadStore>;

rma_conformance::suite!(ShmThreads);

/// Generated programs.
#[test]
fn generated_programs() {
    let test = "generated_programs";
    let command = "cargo test -p rma-conformance --test shm_threads generated_programs";
    let seeds = generated::seeds(800);
    let launch = |seed, ranks, body: &(dyn Fn(Universe) + Sync)| {
        let name = format!("{test} (RMA_GENERATED_SEED={seed})");
        generated::caught(|| ShmThreads::run(&name, ranks, body))
    };
    let coverage = rma_conformance::generated::check(seeds.iter().copied(), 5, command, &launch);
    generated::judge(seeds.len(), coverage);
}
