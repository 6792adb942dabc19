//! The suite with ranks as threads of this process, and every window forced onto messages.
use rma::{AnyTransport, Config, PathChoice, Universe};
use rma_conformance::Harness;

mod ranks;

struct ShmMessages;

fn config() -> Config {
    let mut config = Config::default();
    config.path = PathChoice::Messages;
    config
}

impl Harness for ShmMessages {
    type T = AnyTransport;

    fn run(name: &str, ranks: u32, body: &(dyn Fn(Universe) + Sync)) {
        ranks::run(config(), name, ranks, body);
    }

    fn run_failing(name: &str, ranks: u32, _: u32, body: &(dyn Fn(Universe) + Sync)) {
        ranks::run_failing(config(), name, ranks, body);
    }
}

rma_conformance::suite!(ShmMessages);
