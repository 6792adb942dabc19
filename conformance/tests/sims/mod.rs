//! Jobs on the simulated network.
//!
//! `RMA_SIM_SEED=<n>` replays one seed, `RMA_SIM_SEEDS=<count>` says how many each case tries.
use rma_conformance::Exception;
use rma_conformance::failure::ON_PURPOSE;
use rma_conformance::shared::refused;
use rma_core::{Config, Universe};
use rma_transport_sim::{Cause, NetConfig, SimFailure};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// What the jobs of one test binary have in common.
#[derive(Clone)]
pub(crate) struct Jobs {
    /// Name of the binary.
    pub(crate) binary: &'static str,
    /// How many seeds each case tries.
    pub(crate) seeds: u64,
    pub(crate) config: Config,
    /// The network for so many ranks and a seed.
    pub(crate) net: fn(u32, u64) -> NetConfig,
}

/// Cases of which a run takes seconds, mostly to move megabytes: more than half of the time of the
/// suite. One seed has thousands of messages in them, in as many orders.
const LARGE: [&str; 5] = [
    "layouts_requests::large_scopes_and_requests",
    "layouts_accumulate::large",
    "lanes::from_all",
    "lanes::from_one",
    "lanes::in_other_orders",
];

/// A number from the environment; what does not parse is the user's mistake.
fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text:?}: pass a number")))
}

impl Jobs {
    fn seeds(&self) -> Range<u64> {
        let default = if cfg!(miri) { 1 } else { self.seeds };
        match number("RMA_SIM_SEED") {
            Some(seed) => seed..seed + 1,
            None => 0..number("RMA_SIM_SEEDS").unwrap_or(default),
        }
    }

    /// As [`seeds`](Self::seeds), of that test.
    fn seeds_of(&self, test: &str) -> Range<u64> {
        let Range { start, end } = self.seeds();
        let large = LARGE.iter().any(|large| test.ends_with(large));
        if large && number("RMA_SIM_SEEDS").is_none() { start..start + 1 } else { start..end }
    }

    /// Whether a run is to come upon what few of the seeds show.
    #[allow(dead_code, reason = "not every binary has such a case")]
    pub(crate) fn plays_all(&self) -> bool {
        self.seeds() == (0..self.seeds)
    }

    /// Runs `body` once.
    pub(crate) fn simulate(
        &self,
        ranks: u32,
        seed: u64,
        body: &(dyn Fn(Universe) + Sync),
    ) -> Result<Vec<()>, SimFailure> {
        rma_transport_sim::run(&(self.net)(ranks, seed), |sim| {
            let universe = Universe::new(sim, self.config.clone()).expect("the world can be made");
            body(universe);
        })
    }

    fn replay(&self, test: &str, seed: u64, problem: &str) -> ! {
        panic!(
            "{problem}\nreplay with\n  RMA_SIM_SEED={seed} cargo test -p rma-conformance --test {} \
             {test}",
            self.binary
        );
    }

    /// As `Harness::run`.
    pub(crate) fn run(&self, name: &str, ranks: u32, body: &(dyn Fn(Universe) + Sync)) {
        for seed in self.seeds_of(name) {
            if let Err(failure) = self.simulate(ranks, seed, body) {
                self.replay(name, seed, &failure.to_string());
            }
        }
    }

    /// As [`run`](Self::run), where ranks may give up before their world is made.
    #[allow(dead_code, reason = "not every binary has such a network")]
    pub(crate) fn run_those_that_start(
        &self,
        name: &str,
        ranks: u32,
        body: &(dyn Fn(Universe) + Sync),
    ) {
        for seed in self.seeds() {
            let run = rma_transport_sim::run(&(self.net)(ranks, seed), |sim| {
                if let Ok(universe) = Universe::new(sim, self.config.clone()) {
                    body(universe);
                }
            });
            if let Err(failure) = run {
                self.replay(name, seed, &failure.to_string());
            }
        }
    }

    /// As `Harness::run_failing`.
    pub(crate) fn run_failing(
        &self,
        name: &str,
        ranks: u32,
        victim: u32,
        body: &(dyn Fn(Universe) + Sync),
    ) {
        for seed in self.seeds() {
            let survivors = AtomicU32::new(0);
            let run = self.simulate(ranks, seed, &|universe| {
                body(universe);
                survivors.fetch_add(1, Relaxed);
            });
            let failure = run.expect_err("the victim panics");
            let on_purpose = matches!(&failure.cause, Cause::Panic(panic)
                if panic.rank.0 == victim && panic.message.contains(ON_PURPOSE));
            let all = survivors.into_inner() == ranks - 1 && failure.panics.len() == 1;
            if !(on_purpose && all) {
                self.replay(name, seed, &failure.to_string());
            }
        }
    }
}

/// What the simulator cannot do.
pub(crate) fn exceptions() -> Vec<Exception> {
    let not_shared = "a shared window needs ranks that all share memory";
    let one_thread = "a simulated rank is one thread: the seed decides which runs";
    vec![
        Exception { tests: "shared::", reason: not_shared, instead: Some(refused) },
        Exception { tests: "threads::", reason: one_thread, instead: None },
    ]
}
