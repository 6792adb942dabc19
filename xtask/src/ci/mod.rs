//! `cargo xtask ci`: every check in one table, timed, stopping at the first that fails.

mod steps;

use crate::workspace::{Result, Workspace};
use std::io::{self, BufRead, BufReader, Write};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
pub(crate) use steps::BUILD_BENCH;
use steps::{Need, Run, STEPS, Step};

/// Which steps to run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// All of them, but those on request.
    All,
    /// What "pass all tests" means to a newcomer.
    Test,
    /// These, in the order of the table.
    Only(Vec<&'static str>),
}

impl Choice {
    /// Reads `--only STEP`, once or more often.
    pub(crate) fn parse(arguments: &[&str]) -> Result<Self> {
        let mut names = Vec::new();
        for pair in arguments.chunks(2) {
            let ["--only", name] = pair else {
                let given = pair.join(" ");
                return Err(format!("`{given}` is not understood: ci takes --only STEP").into());
            };
            let step = STEPS.iter().find(|step| step.name == *name);
            let step = step.ok_or_else(|| {
                let known: Vec<_> = STEPS.iter().map(|step| step.name).collect();
                format!("there is no step `{name}`; the steps are {}", known.join(", "))
            })?;
            names.push(step.name);
        }
        Ok(Self::Only(names))
    }

    fn takes(&self, step: &Step) -> bool {
        match self {
            Self::All => !step.on_request,
            Self::Test => step.in_test,
            Self::Only(names) => names.contains(&step.name),
        }
    }
}

/// Names the steps.
pub(crate) fn list() {
    for step in STEPS {
        let when = if step.on_request { "on request; " } else { "" };
        println!("{:<10} {when}fails when {}", step.name, step.about);
        for run in step.runs {
            println!("{:<10} {}", "", show(run));
        }
    }
}

/// Runs the chosen steps and prints a summary.
pub(crate) fn run(workspace: &Workspace, choice: &Choice) -> Result<()> {
    let place = Place::new(workspace.root.clone(), workspace.target_dir()?)?;
    let steps: Vec<&Step> = STEPS.iter().filter(|step| choice.takes(step)).collect();
    let start = Instant::now();
    let mut summary = Vec::new();
    let mut failure = None;
    // Steps whose runs go at the same time do so beside each other as well.
    for group in steps.chunk_by(|one, next| one.together && next.together) {
        let began = summary.len();
        let line = |(index, step): (usize, &&Step)| {
            println!("\n== step {} of {}: {}", began + index + 1, steps.len(), step.name);
        };
        group.iter().enumerate().for_each(line);
        for (step, (outcome, line)) in group.iter().zip(place.beside(group)) {
            summary.push(line);
            if let Err(error) = outcome {
                let text = format!("step {} failed: {}: {error}", step.name, step.about);
                failure.get_or_insert(text);
            }
        }
        if failure.is_some() {
            break;
        }
    }
    println!("\n== summary");
    for line in &summary {
        println!("{line}");
    }
    let not_run = steps.iter().skip(summary.len()).map(|step| step.name);
    let not_run: Vec<_> = not_run.collect();
    if !not_run.is_empty() {
        println!("not run: {}", not_run.join(", "));
    }
    println!("total {:.1} s", start.elapsed().as_secs_f64());
    failure.map_or(Ok(()), |failure| Err(failure.into()))
}

/// Where commands run.
struct Place {
    root: PathBuf,
    target: PathBuf,
    /// When, in ns since 1970: the name of a folder that no run before has had.
    began: String,
    /// How long one command may take, as `timeout` takes it.
    limit: &'static str,
}

/// What hangs ends well before a job of 90 minutes does, below the name of the test it is in.
const LIMIT: &str = "40m";

impl Place {
    fn new(root: PathBuf, target: PathBuf) -> Result<Self> {
        let began = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos().to_string();
        Ok(Self { root, target, began, limit: LIMIT })
    }

    fn step(&self, step: &Step) -> Result<()> {
        if let Some(Need { probe, remedy }) = &step.needs {
            let found = self.command(probe).stdout(Stdio::null()).stderr(Stdio::null()).status();
            if !found.is_ok_and(|status| status.success()) {
                let probe = show(probe);
                return Err(format!("`{probe}` does not run here; install it: {remedy}").into());
            }
        }
        if step.together {
            return self.together(step.runs);
        }
        step.runs.iter().try_for_each(|run| self.run(run))
    }

    /// Does all of these at once, and says how each ended, and in what time.
    fn beside(&self, steps: &[&Step]) -> Vec<(std::result::Result<(), String>, String)> {
        let timed = |step: &Step| {
            let began = Instant::now();
            let outcome = self.step(step).map_err(|error| error.to_string());
            let (name, took) = (step.name, began.elapsed().as_secs_f64());
            let verdict = if outcome.is_ok() { "ok" } else { "FAILED" };
            let line = format!("step {name:<10} {verdict} {took:.1} s");
            println!("{line}");
            (outcome, line)
        };
        thread::scope(|scope| {
            let begun: Vec<_> = steps.iter().map(|step| scope.spawn(move || timed(step))).collect();
            begun.into_iter().map(|it| it.join().expect("a step does not panic")).collect()
        })
    }

    /// Starts all of them, and waits for all; the error of the first that failed.
    fn together(&self, runs: &[Run]) -> Result<()> {
        thread::scope(|scope| {
            let run = |run| self.run(run).map_err(|error| format!("`{}`: {error}", show(run)));
            let begun: Vec<_> = runs.iter().map(|it| scope.spawn(move || run(it))).collect();
            // The scope waits for those behind one that failed.
            begun.into_iter().try_for_each(|it| Ok(it.join().expect("a run does not panic")?))
        })
    }

    /// Runs one command; its output passes through, and its tests are counted.
    fn run(&self, run: &Run) -> Result<()> {
        println!("$ {}", show(run));
        if run.args.iter().any(|argument| argument.starts_with(FRESH)) {
            clear(&self.target.join(FRESH))?;
        }
        let mut command = self.command(run);
        if run.tests_at_least == 0 {
            return judge(command.status()?);
        }
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().ok_or("the output of cargo is not piped")?;
        let passed = pass_through(BufReader::new(stdout), &mut io::stdout());
        let status = child.wait()?;
        let passed = passed?;
        judge(status)?;
        println!("{passed} tests passed in `{}`", show(run));
        if passed < run.tests_at_least {
            let least = run.tests_at_least;
            return Err(format!("only {passed} tests ran, at least {least} must").into());
        }
        Ok(())
    }

    /// Replaces a leading `TARGET/` or `FRESH/`.
    fn expand(&self, text: &str) -> PathBuf {
        if let Some(below) = text.strip_prefix("TARGET/") {
            return self.target.join(below);
        }
        match text.strip_prefix(FRESH) {
            // Of no run before: cargo keeps what it unpacks by the path of the folder.
            Some(below) => self.target.join(FRESH).join(&self.began).join(below),
            None => text.into(),
        }
    }

    fn command(&self, run: &Run) -> Command {
        let mut command = Command::new("timeout");
        command.current_dir(&self.root).args(["--kill-after=10", self.limit]);
        command.args(run.words().map(|word| self.expand(word)));
        command.envs(run.env.iter().map(|(name, value)| (name, self.expand(value))));
        if run.waits {
            let cpus = thread::available_parallelism().map_or(1, NonZero::get);
            command.env("RUST_TEST_THREADS", (2 * cpus).to_string());
        }
        command
    }
}

/// An error unless the command ended well.
fn judge(status: ExitStatus) -> Result<()> {
    match status.code() {
        Some(0) => Ok(()),
        // Statuses of `timeout` itself.
        Some(124 | 137) => Err("it took longer than a step may, and was ended".into()),
        _ => Err(status.to_string().into()),
    }
}

/// Where a command finds nothing of the one before.
const FRESH: &str = "FRESH/";

/// Removes a folder, if it is there.
fn clear(folder: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn show(run: &Run) -> String {
    let mut words: Vec<String> =
        run.env.iter().map(|(name, value)| format!("{name}='{value}'")).collect();
    words.extend(run.words().map(str::to_owned));
    words.join(" ")
}

/// Copies line by line and returns how many tests passed, by the closing lines of libtest.
fn pass_through(from: impl BufRead, to: &mut impl Write) -> io::Result<usize> {
    let mut passed = 0;
    for line in from.split(b'\n') {
        let mut line = line?;
        passed += tests_passed(&String::from_utf8_lossy(&line));
        // In one, as other commands may write, too.
        line.push(b'\n');
        to.write_all(&line)?;
        to.flush()?;
    }
    Ok(passed)
}

fn tests_passed(line: &str) -> usize {
    let count = line
        .strip_prefix("test result: ok. ")
        .and_then(|rest| rest.split_once(" passed"))
        .and_then(|(count, _)| count.parse().ok());
    count.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_takes_steps_that_exist() {
        assert_eq!(Choice::parse(&["--only", "fmt"]).unwrap(), Choice::Only(vec!["fmt"]));
        let two = Choice::parse(&["--only", "tidy", "--only", "fmt"]).unwrap();
        let taken: Vec<_> = STEPS.iter().filter(|step| two.takes(step)).map(|s| s.name).collect();
        assert_eq!(taken, ["fmt", "tidy"]);
        for wrong in [&["--only"][..], &["--only", "nothing"], &["fmt"], &["--all", "fmt"]] {
            assert!(Choice::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn steps_have_one_name_each_and_do_something() {
        for (index, step) in STEPS.iter().enumerate() {
            assert!(!step.runs.is_empty(), "{}", step.name);
            assert!(STEPS[..index].iter().all(|other| other.name != step.name), "{}", step.name);
        }
        let test: Vec<_> = STEPS.iter().filter(|s| Choice::Test.takes(s)).map(|s| s.name).collect();
        assert_eq!(test, ["test"]);
    }

    /// A room that was renamed is looked at under its new name: a filter that matches nothing lets
    /// the others hide that.
    #[test]
    fn miri_is_asked_for_rooms_that_have_tests() {
        let core = Path::new(env!("CARGO_MANIFEST_DIR")).join("../rma-core/src");
        let has_tests = |path: &Path| {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            text.contains("#[test]") || text.contains("proptest! {")
        };
        let of_core = |run: &&Run| run.args.contains(&"miri") && run.args.contains(&"--lib");
        let runs = STEPS.iter().filter(|step| step.name == "miri").flat_map(|step| step.runs);
        let filters = runs.filter(of_core).flat_map(|run| {
            let filters = run.args.split(|arg| *arg == "--").nth(1).unwrap_or_default();
            filters.iter().filter(|filter| !filter.starts_with("--"))
        });
        let mut seen = 0;
        for filter in filters {
            let room = core.join(filter.trim_end_matches("::").replace("::", "/"));
            let beside = |ending: &str| room.with_file_name(format!("{}{ending}", name_of(&room)));
            let inside = std::fs::read_dir(&room).into_iter().flatten();
            let inside = inside.map(|entry| entry.expect("an entry of a folder").path());
            let mut files = inside.chain([beside(".rs"), beside("_tests.rs")]);
            assert!(files.any(|file| has_tests(&file)), "{filter} is no room with tests");
            seen += 1;
        }
        assert!(seen > 3, "{seen} filters were found");
    }

    fn name_of(path: &Path) -> String {
        path.file_name().expect("a name").to_string_lossy().into_owned()
    }

    #[test]
    fn output_passes_through_and_passed_tests_are_counted() {
        let text = "running 3 tests\n\
                    test result: ok. 3 passed; 0 failed; 0 ignored\n\
                    test result: FAILED. 4 passed; 1 failed\n\
                    test result: ok. 20 passed; 0 failed\n";
        let mut copied = Vec::new();
        assert_eq!(pass_through(text.as_bytes(), &mut copied).unwrap(), 23);
        assert_eq!(copied, text.as_bytes());
        assert_eq!(pass_through(&b"no test at all\n"[..], &mut Vec::new()).unwrap(), 0);
    }

    fn here() -> Place {
        Place::new(env!("CARGO_MANIFEST_DIR").into(), "target".into()).unwrap()
    }

    #[test]
    fn a_fresh_folder_is_of_one_run_and_gone_in_the_next() {
        let (one, other) = (here(), here());
        assert_eq!(one.expand("TARGET/a"), Path::new("target/a"));
        assert_eq!(one.expand("--quiet"), Path::new("--quiet"));
        let fresh = one.expand("FRESH/a");
        assert!(fresh.starts_with("target/FRESH") && fresh.ends_with("a"), "{}", fresh.display());
        assert_ne!(fresh, other.expand("FRESH/a"));
        clear(Path::new("no such folder")).unwrap();
    }

    #[test]
    fn a_step_on_request_runs_when_it_is_named_only() {
        let named = Choice::parse(&["--only", "miri-all"]).unwrap();
        let taken = |choice: &Choice| -> Vec<_> {
            STEPS.iter().filter(|step| choice.takes(step)).map(|step| step.name).collect()
        };
        assert_eq!(taken(&named), ["miri-all"]);
        assert!(!taken(&Choice::All).contains(&"miri-all"));
        assert!(taken(&Choice::All).contains(&"miri"));
    }

    #[test]
    fn steps_together_go_beside_each_other() {
        let step = |name, runs| Step { name, runs, needs: None, ..STEPS[0] };
        let (one, other) = (step("one", &[]), step("other", &[]));
        let ended = here().beside(&[&one, &other]);
        assert!(ended.iter().all(|(outcome, _)| outcome.is_ok()), "{ended:?}");
        assert!(ended[1].1.starts_with("step other      ok "), "{ended:?}");
        let groups = STEPS.chunk_by(|one, next| one.together && next.together);
        let beside: Vec<_> = groups.filter(|group| group.len() > 1).collect();
        let names: Vec<_> =
            beside.iter().flat_map(|group| group.iter().map(|it| it.name)).collect();
        assert_eq!(names, ["loom", "miri"], "neither needs what the other builds");
    }

    #[test]
    fn a_command_that_fails_and_a_missing_tool_fail_their_step() {
        let version = Run { args: &["--version"], ..STEPS[0].runs[0] };
        let broken = Run { args: &["no-such-command"], ..version };
        let silent = Run { tests_at_least: 1, ..version };
        assert!(here().run(&version).is_ok());
        assert!(here().run(&broken).is_err());
        assert!(here().run(&silent).is_err(), "no test ran");
        assert!(here().together(&[version, version]).is_ok());
        let error = here().together(&[version, broken]).unwrap_err().to_string();
        assert!(error.starts_with("`cargo no-such-command`: "), "{error}");
        let hasty = Place { limit: "0.001", ..here() };
        let error = hasty.run(&Run { args: &["metadata"], ..version }).unwrap_err().to_string();
        assert!(error.contains("longer"), "{error}");
        let step = |probe| {
            let needs = Some(Need { probe, remedy: "buy it" });
            here().step(&Step { needs, runs: &[], ..STEPS[0] })
        };
        let missing = step(broken).unwrap_err().to_string();
        assert!(missing.contains("no-such-command") && missing.contains("buy it"), "{missing}");
        assert!(step(version).is_ok());
    }
}
