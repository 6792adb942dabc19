//! The suite with ranks as threads of this process, and every window forced onto messages.
use ranks::{Settings, Threads};
use rma::{Config, Universe};
use rma_conformance::{Exception, Harness};

mod backings;
mod generated;
mod ranks;

struct Messages;

impl Settings for Messages {
    fn config() -> Config {
        let mut config = Config::default();
        config.hint("rma_path", "messages").expect("a path");
        config
    }

    fn exceptions() -> Vec<Exception> {
        let reason = "a target serves messages inside its own calls";
        vec![Exception { tests: "shared::polled", reason, instead: None }]
    }
}

type ShmMessages = Threads<Messages>;

rma_conformance::suite!(ShmMessages);

backings::all!(ShmMessages);

/// Generated programs.
#[test]
fn generated_programs() {
    let test = "generated_programs";
    let command = "cargo test -p rma-conformance --test shm_messages generated_programs";
    let seeds = generated::seeds(400);
    let launch = |seed, ranks, body: &(dyn Fn(Universe) + Sync)| {
        let name = format!("{test} (RMA_GENERATED_SEED={seed})");
        generated::caught(|| ShmMessages::run(&name, ranks, body))
    };
    let coverage = rma_conformance::generated::check(seeds.iter().copied(), 5, command, &launch);
    generated::judge(seeds.len(), coverage);
}
