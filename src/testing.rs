//! For tests of one's own program: a test function as real processes (feature `processes`).
use crate::start::initialize_with;
use crate::{Config, Universe};
use rma_launcher::run::{Output, Report, Spec, run};
use std::any::type_name;
use std::time::Duration;

/// What each rank prints when it has run the test, so that a filter that matched nothing shows.
const MARK: &str = "rma-test: this rank has run the test";
/// Long enough for any sensible test, short enough to find out in CI.
const WATCHDOG: Duration = Duration::from_secs(300);

/// Runs `body` as `ranks` real processes; to be called from a `#[test]` function.
///
/// The test binary is started once more for each rank, by the library behind `rma-run`, with a
/// filter that selects this very test; there `body` runs as one of the ranks. The test fails with
/// the output of the first rank that failed. What the test function does before and after the call
/// happens in every rank, too.
///
/// ```no_run
/// #[test]
/// fn neighbours_know_each_other() {
///     rma::testing::processes(4, |universe| {
///         universe.world().barrier().unwrap();
///     });
/// }
/// ```
///
/// # Panics
///
/// If a rank fails, or the job cannot be started.
pub fn processes<F: FnOnce(Universe)>(ranks: u32, body: F) {
    processes_in(&test_name::<F>(), ranks, body);
}

/// As [`processes`], for a test whose path in its crate is `test`: for tests that macros make.
///
/// # Panics
///
/// As [`processes`].
pub fn processes_in<F: FnOnce(Universe)>(test: &str, ranks: u32, body: F) {
    processes_with(Config::default(), test, ranks, body);
}

/// As [`processes_in`], with budgets and deadlines of one's own.
///
/// # Panics
///
/// As [`processes`].
pub fn processes_with<F: FnOnce(Universe)>(config: Config, test: &str, ranks: u32, body: F) {
    if rma_launcher::is_launched() {
        let universe = match initialize_with(config) {
            Ok(universe) => universe,
            Err(error) => panic!("joining the job: {error}"),
        };
        body(universe);
        println!("\n{MARK}");
        return;
    }
    if let Err(problem) = launch(ranks, test) {
        panic!("{problem}");
    }
}

fn launch(ranks: u32, name: &str) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let mut spec = Spec::new(program, ranks);
    spec.args = ["--exact", name, "--nocapture", "--include-ignored"].map(Into::into).to_vec();
    spec.output = Output::Capture;
    spec.oversubscribe = true;
    spec.timeout = Some(WATCHDOG);
    let report = run(&spec).map_err(|error| format!("starting {ranks} processes: {error}"))?;
    if report.exit_code() != 0 {
        return Err(failed(name, &report));
    }
    let ran = |stdout: &[u8]| String::from_utf8_lossy(stdout).contains(MARK);
    match report.output.iter().position(|output| !ran(&output.stdout)) {
        None => Ok(()),
        Some(rank) => Err(format!(
            "rank {rank} ran no test named {name}: call `processes` directly in the test function"
        )),
    }
}

fn failed(name: &str, report: &Report) -> String {
    let notes = report.notes.join("\n");
    match report.failure() {
        Some(failure) => {
            let output = report.output.get(failure.failed() as usize);
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let (stdout, stderr) = output
                .map(|output| (text(&output.stdout), text(&output.stderr)))
                .unwrap_or_default();
            format!(
                "{name}: rank {} failed\n{notes}\n--- its stdout\n{stdout}\n--- its \
                 stderr\n{stderr}",
                failure.failed()
            )
        }
        None => format!("{name}: {:?}\n{notes}", report.ending),
    }
}

/// The path of the test that holds the closure `F`, as `cargo test` filters for it.
fn test_name<F>() -> String {
    let path = type_name::<F>();
    // "crate::module::test::{{closure}}"
    let path = path.split_once("::").map_or(path, |(_, path)| path);
    path.split("::{{").next().unwrap_or(path).to_owned()
}
