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

mod generated;
mod tampered;
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

/// Generated programs, each with an order and delays of its own.
#[test]
fn generated_programs() {
    let command = "cargo test -p rma-conformance --test sim generated_programs";
    let seeds = generated::seeds(if cfg!(miri) { 2 } else { 800 });
    let launch = |seed, ranks, body: &(dyn Fn(Universe<Sim>) + Sync)| {
        let run = simulate(ranks, seed, Config::default(), body);
        run.map(drop).map_err(|failure| failure.to_string())
    };
    let coverage = rma_conformance::generated::check(seeds.iter().copied(), 1, command, &launch);
    generated::judge(seeds.len(), coverage);
}

/// One changed byte in what the ranks saw is noticed, unless that byte may be anything.
#[test]
fn tampered_programs() {
    let (mut noticed, mut tampered) = (0, 0);
    for seed in 0..if cfg!(miri) { 1 } else { 12 } {
        let program = rma_conformance::generated::program(seed);
        let all = std::sync::Mutex::new(None);
        let run = simulate(program.ranks, seed, Config::default(), &|universe| {
            if let Some(records) = rma_conformance::generated::records(&universe, seed, &program) {
                *all.lock().unwrap() = Some(records);
            }
            universe.finalize().unwrap();
        });
        run.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        let records = all.into_inner().unwrap().expect("one rank has them");
        rma_conformance::generated::oracle::check(&program, &records).expect("nothing is wrong");
        let (these, of) = tampered::tamper(&program, &records);
        (noticed, tampered) = (noticed + these, tampered + of);
    }
    println!("{noticed} of {tampered} changes noticed");
    assert!(noticed * 10 > tampered * 9, "{noticed} of {tampered} changes noticed");
}
