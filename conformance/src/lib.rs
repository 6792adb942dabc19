//! The conformance suite: one file per topic, generic over a harness, instantiated by every
//! transport.
//!
//! A *case* is a function of a [`Universe`] that every rank of a job runs. [`suite!`] makes a
//! `#[test]` of every case and number of ranks in its table, for one [`Harness`]:
//!
//! ```text
//! rma_conformance::suite!(MyHarness);
//! ```
//!
//! What a transport cannot do is an [`Exception`]: its reason is shown, and a case that checks the
//! typed error runs instead. The ids in the cases' comments (`S-…`) are those of the semantic
//! checklist.
mod help;
mod table;

pub mod accumulate;
pub mod accumulate_together;
pub mod atomics;
pub mod batches;
pub mod cartesian;
pub mod collectives;
pub mod communicators;
pub mod created;
pub mod detached;
pub mod dynamic;
pub mod engine;
pub mod errors_collective;
pub mod errors_epoch;
pub mod errors_range;
pub mod errors_window;
pub mod failure;
pub mod fence;
pub mod flush;
pub mod forged;
pub mod generated;
pub mod in_place;
pub mod info;
pub mod lanes;
pub mod layouts;
pub mod layouts_accumulate;
pub mod layouts_errors;
pub mod layouts_mixed;
pub mod layouts_requests;
pub mod lock;
pub mod lock_all;
pub mod ops;
pub mod paths;
pub mod peers;
pub mod progress;
pub mod pscw;
pub mod put_get;
pub mod reductions;
pub mod requests;
pub mod seal;
pub mod shared;
pub mod threads;
pub mod timed_barrier;
pub mod transitions;
pub mod tries;
pub mod values;
pub mod waits;
pub mod windows;

use rma_core::Universe;
use std::io::Write;

/// A way to run a case: which transport, and ranks as what.
pub trait Harness {
    /// Runs `body` as `ranks` ranks, and panics if one of them does. `name` is that of the test,
    /// as `cargo test` filters for it.
    fn run(name: &str, ranks: u32, body: &(dyn Fn(Universe) + Sync));

    /// As [`run`](Self::run), of a job in which `victim` panics with a message that contains
    /// [`failure::ON_PURPOSE`]. Panics unless that is what the job reports, and unless every other
    /// rank that was left to itself came to the end of `body`.
    fn run_failing(name: &str, ranks: u32, victim: u32, body: &(dyn Fn(Universe) + Sync));

    /// What this transport cannot do.
    fn exceptions() -> Vec<Exception> {
        Vec::new()
    }
}

/// A case: every rank of a job runs it, and leaves the job in order afterwards.
pub type Case = fn(&Universe);

/// Cases that a transport cannot run.
pub struct Exception {
    /// `topic::test`, or `topic::` for a whole topic.
    pub tests: &'static str,
    /// Why; shown when the test runs.
    pub reason: &'static str,
    /// What runs instead: checks that the operation is refused as it should be.
    pub instead: Option<Case>,
}

impl Exception {
    fn covers(&self, test: &str) -> bool {
        test == self.tests || (self.tests.ends_with("::") && test.starts_with(self.tests))
    }
}

/// Runs one case: what the tests that [`suite!`] makes do.
pub fn run_case<H: Harness>(test: &str, ranks: u32, case: Case) {
    let exception = H::exceptions().into_iter().find(|exception| exception.covers(test));
    let case = match exception {
        None => case,
        Some(Exception { reason, instead, .. }) => {
            // Not through the macros, whose output the test framework hides.
            _ = writeln!(std::io::stderr(), "test {test} does not apply here: {reason}");
            let Some(instead) = instead else { return };
            instead
        }
    };
    H::run(test, ranks, &|universe| play(universe, case));
}

/// Plays one rank of a case.
fn play(universe: Universe, case: Case) {
    case(&universe);
    let dropped = universe.counters().messages_dropped();
    assert_eq!(dropped, 0, "messages that did not parse, or that no request waited for");
    universe.finalize().expect("every rank leaves in order");
}

/// Fails if an exception names no test: it would hide nothing, or was meant for a renamed one.
pub fn check_exceptions<H: Harness>(tests: &[&str]) {
    for exception in H::exceptions() {
        let known = tests.iter().any(|test| exception.covers(test));
        assert!(known, "the exception {} names no test", exception.tests);
    }
}
