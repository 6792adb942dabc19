//! The suite on the simulated network: messages only, order and delay from a seed.
use rma_conformance::generated::program::Program;
use rma_conformance::generated::record::Record;
use rma_conformance::{Exception, Harness};
use rma_core::{Config, Universe};
use rma_transport_sim::NetConfig;
use sims::Jobs;

mod generated;
mod homes;
mod lines;
mod shortages;
mod sims;
mod tampered;
mod timeouts;

struct OnSim;

fn jobs(config: Config) -> Jobs {
    let net = |ranks, seed| {
        // Of the seeds, every third one.
        let in_order = seed % 3 == 1;
        NetConfig { step_max: 20_000_000, in_order, ..NetConfig::new(ranks, seed) }
    };
    Jobs { binary: "sim", seeds: 20, config, net }
}

impl Harness for OnSim {
    fn run(name: &str, ranks: u32, body: &(dyn Fn(Universe) + Sync)) {
        jobs(Config::default()).run(name, ranks, body);
    }

    fn run_failing(name: &str, ranks: u32, victim: u32, body: &(dyn Fn(Universe) + Sync)) {
        jobs(Config::default()).run_failing(name, ranks, victim, body);
    }

    fn exceptions() -> Vec<Exception> {
        sims::exceptions()
    }
}

rma_conformance::suite!(OnSim);

/// Every wait ends when the one that is waited for dies, leaves or stops.
#[test]
fn waits() {
    use rma_conformance::waits::{Fate, RANKS, VICTIM, cases, play};
    use std::time::Duration;
    let cases = cases().into_iter().filter(|case| !case.threads);
    for case in cases.take(if cfg!(miri) { 3 } else { usize::MAX }) {
        for &fate in case.fates() {
            let mut config = Config::default();
            if fate == Fate::Stops {
                config.wait_timeout = Some(Duration::from_millis(100));
                config.progress_agent = rma_core::ProgressAgent::Never;
            }
            let stay = |universe: &Universe| {
                let transport = universe.transport();
                while transport.now() < Duration::from_secs(1) {
                    transport.park(Duration::from_millis(100));
                }
            };
            let body = |universe: Universe| play(universe, &case, fate, &stay);
            let jobs = Jobs { seeds: 5, ..jobs(config) };
            if fate == Fate::Dies {
                jobs.run_failing("waits", RANKS, VICTIM.0, &body);
            } else {
                jobs.run("waits", RANKS, &body);
            }
        }
    }
}

/// Generated programs, each with an order and delays of its own.
#[test]
fn generated_programs() {
    let command = "cargo test -p rma-conformance --test sim generated_programs";
    let seeds = generated::seeds(if cfg!(miri) { 2 } else { 400 });
    let launch = |seed, ranks, body: &(dyn Fn(Universe) + Sync)| {
        let run = jobs(Config::default()).simulate(ranks, seed, body);
        run.map(drop).map_err(|failure| failure.to_string())
    };
    let coverage = rma_conformance::generated::check(seeds.iter().copied(), 1, command, &launch);
    generated::judge(seeds.len(), coverage);
}

/// Programs, and what their ranks saw.
fn played(seeds: core::ops::Range<u64>, each: &mut dyn FnMut(&Program, &[Record])) {
    for seed in seeds {
        let program = rma_conformance::generated::program(seed);
        let all = std::sync::Mutex::new(None);
        let run = jobs(Config::default()).simulate(program.ranks, seed, &|universe| {
            if let Some(records) = rma_conformance::generated::records(&universe, seed, &program) {
                *all.lock().unwrap() = Some(records);
            }
            universe.finalize().unwrap();
        });
        run.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        let records = all.into_inner().unwrap().expect("one rank has them");
        rma_conformance::generated::oracle::check(&program, &records).expect("nothing is wrong");
        each(&program, &records);
    }
}

/// One changed byte in what the ranks saw is noticed, unless that byte may be anything.
#[test]
fn tampered_programs() {
    let (mut noticed, mut tampered) = (0, 0);
    played(0..if cfg!(miri) { 1 } else { 6 }, &mut |program, records| {
        let (these, of) = tampered::tamper(program, records);
        (noticed, tampered) = (noticed + these, tampered + of);
    });
    println!("{noticed} of {tampered} changes noticed");
    assert!(noticed * 10 > tampered * 9, "{noticed} of {tampered} changes noticed");
}

/// It is noticed if an operation that was refused takes effect, or one that was issued does not,
/// unless others hide that.
#[test]
fn misstated_tries() {
    let mut counts = [(0, 0); 2];
    played(0..if cfg!(miri) { 1 } else { 40 }, &mut |program, records| {
        for (sum, these) in counts.iter_mut().zip(tampered::misstate(program, records)) {
            *sum = (sum.0 + these.0, sum.1 + these.1);
        }
    });
    println!("of refused, of issued, noticed and all: {counts:?}");
    for (noticed, all) in counts {
        let enough = cfg!(miri) || all > 10 && noticed * 4 > all;
        assert!(enough, "{counts:?}: too few are noticed");
    }
}
