//! The suite on the simulated network: messages only, order and delay from a seed.
//!
//! `RMA_SIM_SEED=<n>` replays one seed, `RMA_SIM_SEEDS=<count>` says how many each case tries.
use rma_conformance::failure::ON_PURPOSE;
use rma_conformance::shared::refused;
use rma_conformance::{Exception, Harness};
use rma_core::{Config, Universe};
use rma_transport_sim::{Cause, NetConfig, Sim, SimFailure};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

mod timeouts;

struct OnSim;

/// A number from the environment; what does not parse is the user's mistake.
fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text:?}: pass a number")))
}

fn seeds() -> Range<u64> {
    let default = if cfg!(miri) { 1 } else { 20 };
    match number("RMA_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("RMA_SIM_SEEDS").unwrap_or(default),
    }
}

/// Runs `body` once.
fn simulate(
    ranks: u32,
    seed: u64,
    config: Config,
    body: &(dyn Fn(Universe<Sim>) + Sync),
) -> Result<Vec<()>, SimFailure> {
    let net = NetConfig { step_max: 20_000_000, ..NetConfig::new(ranks, seed) };
    rma_transport_sim::run(&net, |sim| {
        let universe = Universe::new(sim, config).expect("the world can be made");
        body(universe);
    })
}

fn replay(test: &str, seed: u64, problem: &str) -> ! {
    panic!(
        "{problem}\nreplay with\n  RMA_SIM_SEED={seed} cargo test -p rma-conformance --test sim \
         {test}"
    );
}

impl Harness for OnSim {
    type T = Sim;

    fn run(name: &str, ranks: u32, body: &(dyn Fn(Universe<Sim>) + Sync)) {
        for seed in seeds() {
            if let Err(failure) = simulate(ranks, seed, Config::default(), body) {
                replay(name, seed, &failure.to_string());
            }
        }
    }

    fn run_failing(name: &str, ranks: u32, victim: u32, body: &(dyn Fn(Universe<Sim>) + Sync)) {
        for seed in seeds() {
            let survivors = AtomicU32::new(0);
            let run = simulate(ranks, seed, Config::default(), &|universe| {
                body(universe);
                survivors.fetch_add(1, Relaxed);
            });
            let failure = run.expect_err("the victim panics");
            let on_purpose = matches!(&failure.cause, Cause::Panic(panic)
                if panic.rank.0 == victim && panic.message.contains(ON_PURPOSE));
            let all = survivors.into_inner() == ranks - 1 && failure.panics.len() == 1;
            if !(on_purpose && all) {
                replay(name, seed, &failure.to_string());
            }
        }
    }

    fn exceptions() -> Vec<Exception<Sim>> {
        let messages_only = "messages only: no memory is mapped";
        let one_thread = "a simulated rank is one thread: the seed decides who runs";
        vec![
            Exception { tests: "shared::", reason: messages_only, instead: Some(refused) },
            Exception { tests: "threads::", reason: one_thread, instead: None },
        ]
    }
}

rma_conformance::suite!(OnSim);
