//! Every wait ends when the one that is waited for dies, leaves or stops: on each way to wait.
use crate::ranks;
use rma::{Config, ProgressAgent, Universe};
use rma_conformance::failure::ON_PURPOSE;
use rma_conformance::waits::{Case, Fate, RANKS, VICTIM, cases, play};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::time::Duration;

/// Runs a case with ranks as threads.
fn run(name: &str, case: &Case, fate: Fate, mut config: Config) {
    let name = format!("{name}: {}, {fate:?}", case.name);
    if fate == Fate::Stops {
        config.wait_timeout = Some(Duration::from_millis(400));
        // As a stopped process, which has no thread that serves.
        config.progress_agent = ProgressAgent::Never;
    }
    let met = Barrier::new(RANKS as usize - usize::from(fate != Fate::Stops));
    let stay = |_: &Universe| _ = met.wait();
    let job = || ranks::run(config, &name, RANKS, &|universe| play(universe, case, fate, &stay));
    let end = catch_unwind(AssertUnwindSafe(job));
    match (fate, end) {
        (Fate::Dies, Err(panic)) => {
            let message = panic.downcast_ref::<String>().map_or("", String::as_str);
            assert!(message.contains(ON_PURPOSE), "{name}: {message}");
        }
        (Fate::Dies, Ok(())) => panic!("{name}: rank {VICTIM} did not die"),
        (_, Ok(())) => {}
        (_, Err(panic)) => std::panic::resume_unwind(panic),
    }
}

fn all(name: &str, config: Config) {
    for case in cases() {
        for fate in case.fates() {
            run(name, &case, *fate, config.clone());
        }
    }
}

#[test]
fn by_load_and_store_where_ranks_share_cpus() {
    let mut config = Config::default();
    config.cpus = Some(1);
    all("crowded", config);
}

#[test]
fn by_load_and_store_with_a_cpu_for_each() {
    let mut config = Config::default();
    config.cpus = Some(64);
    all("apart", config);
}

/// Some of those that wait for the victim share its node, some do not.
#[test]
fn on_two_nodes() {
    let mut config = Config::default();
    config.nodes = 2;
    all("mixed", config);
}

#[test]
fn by_messages() {
    let mut config = Config::default();
    config.hint("rma_path", "messages").unwrap();
    all("messages", config);
}
