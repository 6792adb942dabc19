//! Ranks as threads of this process, over shared memory.
use rma::{Config, Universe};
use rma_conformance::failure::ON_PURPOSE;
use rma_conformance::{Exception, Harness};
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc;
use std::time::Duration;
use std::{process, thread};

/// What ranks of one test binary have in common.
pub(crate) trait Settings {
    fn config() -> Config {
        Config::default()
    }

    /// As `Harness::exceptions`.
    fn exceptions() -> Vec<Exception> {
        Vec::new()
    }

    /// Runs `body` as so many ranks; if one panics, so does this.
    fn job(config: Config, ranks: u32, body: &(dyn Fn(Universe) + Sync)) {
        rma::local_with(config, ranks, body).expect("the ranks start");
    }
}

/// Ranks with these settings.
pub(crate) struct Threads<S>(S);

impl<S: Settings> Harness for Threads<S> {
    fn run(name: &str, ranks: u32, body: &(dyn Fn(Universe) + Sync)) {
        watched(name, || S::job(without_naps(S::config()), ranks, body));
    }

    fn run_failing(name: &str, ranks: u32, _: u32, body: &(dyn Fn(Universe) + Sync)) {
        run_failing::<S>(name, ranks, body);
    }

    fn exceptions() -> Vec<Exception> {
        S::exceptions()
    }
}

/// A rank sleeps until it is rung: a ring that is forgotten is found by the watchdog. A thread that
/// panics or leaves rings all, so no waiter has to look around by itself.
fn without_naps(mut config: Config) -> Config {
    config.naps = false;
    config
}

/// Far more than any case takes, also where many tests share few cores.
const WATCHDOG: Duration = Duration::from_secs(240);

/// Runs `body`; ends this process if that never comes to an end, naming the test.
fn watched<R>(test: &str, body: impl FnOnce() -> R) -> R {
    let (running, done) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            if done.recv_timeout(WATCHDOG) == Err(mpsc::RecvTimeoutError::Timeout) {
                _ = writeln!(io::stderr(), "test {test} did not end within {WATCHDOG:?}");
                process::abort();
            }
        });
        // Dropped on every way out, a panic included.
        let _running = running;
        body()
    })
}

#[allow(dead_code, reason = "not every binary has jobs of its own")]
pub(crate) fn run(config: Config, name: &str, ranks: u32, body: &(dyn Fn(Universe) + Sync)) {
    watched(name, || rma::local_with(config, ranks, body).expect("the ranks start"));
}

fn run_failing<S: Settings>(name: &str, ranks: u32, body: &(dyn Fn(Universe) + Sync)) {
    let survivors = AtomicU32::new(0);
    let run = || {
        S::job(without_naps(S::config()), ranks, &|universe| {
            body(universe);
            survivors.fetch_add(1, Relaxed);
        });
    };
    // The first panic goes on: if that is the victim's, and all others came to the end, there was
    // no other.
    let panic =
        catch_unwind(AssertUnwindSafe(|| watched(name, run))).expect_err("the victim panics");
    let message = panic.downcast_ref::<String>().map_or("", String::as_str);
    assert!(message.contains(ON_PURPOSE), "{message}");
    assert_eq!(survivors.into_inner(), ranks - 1, "every other rank comes to the end");
}
