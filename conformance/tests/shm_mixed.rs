//! The suite with ranks as threads of this process, on two pretended nodes: load and store inside
//! each of them, messages between them.
use ranks::{Settings, Threads};
use rma::{Config, Universe};
use rma_conformance::shared::refused;
use rma_conformance::{Exception, Harness};

mod backings;
mod generated;
mod ranks;

struct Mixed;

impl Settings for Mixed {
    fn config() -> Config {
        let mut config = Config::default();
        config.nodes = 2;
        config
    }

    fn exceptions() -> Vec<Exception> {
        let reason = "a shared window needs ranks that all share memory";
        vec![Exception { tests: "shared::", reason, instead: Some(refused) }]
    }
}

type ShmMixed = Threads<Mixed>;

rma_conformance::suite!(ShmMixed);

backings::all!(ShmMixed);

/// Generated programs.
#[test]
fn generated_programs() {
    let test = "generated_programs";
    let command = "cargo test -p rma-conformance --test shm_mixed generated_programs";
    let seeds = generated::seeds(400);
    let launch = |seed, ranks, body: &(dyn Fn(Universe) + Sync)| {
        let name = format!("{test} (RMA_GENERATED_SEED={seed})");
        generated::caught(|| ShmMixed::run(&name, ranks, body))
    };
    let coverage = rma_conformance::generated::check(seeds.iter().copied(), 5, command, &launch);
    generated::judge(seeds.len(), coverage);
}
