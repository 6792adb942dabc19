//! Generated programs: which seeds, and jobs for them.
//!
//! `RMA_GENERATED_SEED=<n>` plays one seed's program, `RMA_GENERATED_PROGRAMS=<count>` says how
//! many programs a test plays, and `RMA_GENERATED_FIRST=<n>` the first of their seeds.
use rma::Universe;
use rma_conformance::Harness;
use rma_conformance::generated::oracle::Coverage;
use rma_conformance::generated::{FOUND, check};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A number from the environment; what does not parse is the user's mistake.
fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text:?}: pass a number")))
}

/// Seeds that once failed, and as many others as asked for or `default`.
pub(crate) fn seeds(default: u64) -> Vec<u64> {
    if let Some(seed) = number("RMA_GENERATED_SEED") {
        return vec![seed];
    }
    let first = number("RMA_GENERATED_FIRST").unwrap_or(0);
    let count = number("RMA_GENERATED_PROGRAMS").unwrap_or(default);
    FOUND.iter().copied().chain(first..first + count).collect()
}

/// Plays the programs of so many seeds, each in jobs of its own; the test of that name is in
/// `binary`.
#[allow(dead_code, reason = "the simulator makes its own jobs, processes play all in one")]
pub(crate) fn play<H: Harness>(binary: &str, programs: u64) {
    let test = "generated_programs";
    let command = format!("cargo test -p rma-conformance --test {binary} {test}");
    let seeds = seeds(programs);
    let launch = |seed, ranks, body: &(dyn Fn(Universe) + Sync)| {
        let name = format!("{test} (RMA_GENERATED_SEED={seed})");
        caught(|| H::run(&name, ranks, body))
    };
    judge(seeds.len(), check(seeds.iter().copied(), 5, &command, &launch));
}

/// Plays the programs of so many seeds in one job: every rank makes them from the same ones.
#[allow(dead_code, reason = "threads and the simulator start jobs in no time")]
pub(crate) fn play_in_one_job<H: Harness>(binary: &str, programs: u64) {
    let test = "generated_programs";
    let command = format!("cargo test -p rma-conformance --test {binary} {test}");
    let seeds = seeds(programs);
    let most = 5_100;
    assert!(seeds.len() <= most, "a job ends after five minutes: play {most} programs at a time");
    H::run(test, 4, &|universe| {
        let each = seeds.iter().copied();
        let coverage = rma_conformance::generated::check_in_one_job(&universe, each, &command);
        let all = universe.world().allreduce(&coverage.counts(), rma::Op::Sum).unwrap();
        judge(seeds.len(), Coverage::from_counts(&all));
        assert_eq!(universe.counters().messages_dropped(), 0);
        universe.finalize().unwrap();
    });
}

/// The error is what `job` panicked with.
#[allow(dead_code, reason = "as above")]
fn caught(job: impl FnOnce()) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(job)).map_err(|panic| match panic.downcast_ref::<String>() {
        Some(message) => message.clone(),
        None => panic.downcast_ref::<&str>().map_or("a panic", |message| message).to_owned(),
    })
}

/// Fails if the programs say too little; prints how much they say.
pub(crate) fn judge(programs: usize, coverage: Coverage) {
    println!("{programs} programs: {coverage:?}");
    if programs >= 100 {
        let Coverage { explained, contended, sets, anything, given_up, accepted, issued, left } =
            coverage;
        let all = explained + sets + anything + given_up;
        assert!(explained * 2 > all, "most elements must have an explanation: {coverage:?}");
        assert!(contended > 3 * programs as u64, "several ranks must meet: {coverage:?}");
        assert!(given_up * 50 < all, "the search gives up too often: {coverage:?}");
        assert!(accepted > programs as u64, "tries must be accepted: {coverage:?}");
        assert!(issued > 0 && left > 0, "some tries must be refused: {coverage:?}");
    }
}
