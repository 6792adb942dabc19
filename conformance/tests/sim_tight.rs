//! The suite on a simulated network with hardly any room: short messages, two of them per
//! receiver, one message of credit, every put by rendezvous, and a CTS for each message.
use rma_conformance::{Exception, Harness};
use rma_core::{Config, Universe};
use rma_transport_sim::NetConfig;
use sims::Jobs;

mod backings;
mod budgets;
mod generated;
mod sims;

struct OnTightSim;

/// Bytes of a message.
const MESSAGE: usize = 2048;

fn net(ranks: u32, seed: u64) -> NetConfig {
    NetConfig {
        step_max: 50_000_000,
        queue_max: 2,
        // Of the seeds, every other one.
        in_order: seed % 2 == 1,
        message_max: MESSAGE,
        ..NetConfig::new(ranks, seed)
    }
}

fn tight() -> Config {
    let mut config = Config::default();
    config.outstanding_messages = 2;
    config.credit_messages = 1;
    config.eager_bytes = 0;
    config.rendezvous_bytes = MESSAGE as u64;
    config
}

fn jobs(config: Config) -> Jobs {
    Jobs { binary: "sim_tight", seeds: 3, config, net }
}

impl Harness for OnTightSim {
    fn run(name: &str, ranks: u32, body: &(dyn Fn(Universe) + Sync)) {
        jobs(tight()).run(name, ranks, body);
    }

    fn run_failing(name: &str, ranks: u32, victim: u32, body: &(dyn Fn(Universe) + Sync)) {
        jobs(tight()).run_failing(name, ranks, victim, body);
    }

    fn exceptions() -> Vec<Exception> {
        sims::exceptions()
    }
}

rma_conformance::suite!(OnTightSim);

backings::all!(OnTightSim);

/// Generated programs, each with an order and delays of its own.
#[test]
fn generated_programs() {
    let command = "cargo test -p rma-conformance --test sim_tight generated_programs";
    let seeds = generated::seeds(if cfg!(miri) { 1 } else { 200 });
    let launch = |seed, ranks, body: &(dyn Fn(Universe) + Sync)| {
        let run = jobs(tight()).simulate(ranks, seed, body);
        run.map(drop).map_err(|failure| failure.to_string())
    };
    let coverage = rma_conformance::generated::check(seeds.iter().copied(), 1, command, &launch);
    generated::judge(seeds.len(), coverage);
}
