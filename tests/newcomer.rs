//! What a newcomer reads when something goes wrong: the whole of it, from programs with
//! the `main` of the README, `fn main() -> Result<(), rma::Error>`.
//!
//! `cargo test -p rma` builds the programs; with `--test newcomer` alone, build them before.
use rma_launcher::run::{Output, Report, Spec, run};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// For what hangs. Nothing here takes longer than seconds.
const WATCHDOG: Duration = Duration::from_secs(300);

fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let profile = test.parent().and_then(Path::parent).expect("target/<profile>/deps");
    let program = profile.join("examples").join(name);
    assert!(program.exists(), "{} is missing: cargo build --examples", program.display());
    program
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// Standard error of a process that must fail.
fn alone(name: &str, args: &[&str], vars: &[(&str, &str)]) -> String {
    let mut command = Command::new(program(name));
    command.args(args).envs(vars.iter().copied()).stdin(Stdio::null());
    let output = command.output().expect("starting the program");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    text(&output.stderr)
}

fn job(ranks: u32, program: PathBuf, args: &[&str]) -> Spec {
    let mut spec = Spec::new(program, ranks);
    spec.args = args.iter().map(Into::into).collect();
    spec.output = Output::Capture;
    spec.oversubscribe = true;
    spec.timeout = Some(WATCHDOG);
    spec
}

fn ended(spec: &Spec) -> Report {
    run(spec).expect("starting the job")
}

/// What each rank of a job that must fail says, and then the launcher.
fn says(spec: &Spec) -> Vec<String> {
    let report = ended(spec);
    assert_eq!(report.exit_code(), 1, "{report:?}");
    let ranks = report.output.iter().map(|output| text(&output.stderr));
    ranks.chain([report.notes.join("\n")]).collect()
}

/// The program of the README is the example that is started here, but for comments.
#[test]
fn the_readme_shows_the_example() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = |name| std::fs::read_to_string(root.join(name)).expect("a file of the repository");
    let (readme, example) = (text("README.md"), text("examples/hello.rs"));
    let shown = readme.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next());
    let lines = |text: &str| {
        let is_code = |line: &&str| !line.is_empty() && !line.trim_start().starts_with("//");
        text.lines().filter(is_code).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(lines(shown.expect("a program")), lines(&example));
}

/// As is its picture, but for blanks at the ends.
#[test]
fn the_readme_shows_the_heat() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let readme = std::fs::read_to_string(readme).expect("the README");
    let shown = readme.split("```text\n").nth(1).and_then(|rest| rest.split("```").next());
    let report = ended(&job(4, program("heat"), &["--size", "64"]));
    assert_eq!(report.exit_code(), 0, "{report:?}");
    let picture = text(&report.output[0].stdout);
    let picture = picture.split("64 x 64 points").next().unwrap_or_default().lines();
    let picture: Vec<_> = picture.map(str::trim_end).filter(|line| !line.is_empty()).collect();
    assert_eq!(shown.expect("a picture").lines().collect::<Vec<_>>(), picture);
}

#[test]
fn a_foreign_launcher_is_named() {
    let vars = [("PMI_SIZE", "4"), ("PMI_RANK", "1")];
    assert_eq!(
        alone("hello", &[], &vars),
        "Error: PMI_SIZE=4 says that an MPI launcher (PMI) started this program as one of several \
         processes, which it does not connect for this runtime: each would run alone, as rank 0 \
         of 1; start it with `rma-run -n N PROGRAM`, or with a launcher that sets PMI_FD, \
         PMI_RANK and PMI_SIZE, or PMI_PORT and PMI_ID (`mpiexec` of hydra); `env -u PMI_SIZE -u \
         PMI_RANK PROGRAM` runs a single rank on purpose\n"
    );
}

#[test]
fn a_part_of_the_environment_is_not_enough() {
    assert_eq!(
        alone("hello", &[], &[("RMA_RANK", "1")]),
        "Error: RMA_RANK is set but RMA_BOOTSTRAP is not; rma-run sets both: start this program \
         with `rma-run -n N PROGRAM`, or remove RMA_RANK to run a single rank\n"
    );
}

/// A script that runs a program with a secret that is no job's.
const WRONG: &str = "printf %032d 0 | { RMA_SECRET_FD=9:$(stat -L -c %d:%i /proc/self/fd/0); \
                     export RMA_SECRET_FD; exec \"$0\" 9<&0; }";

#[test]
fn a_launcher_that_is_gone_is_named() {
    // The launcher does not listen there any more.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address").to_string();
    drop(listener);
    let script =
        format!("RMA_BOOTSTRAP={address} RMA_RANK=1; export RMA_BOOTSTRAP RMA_RANK; {WRONG}");
    let hello = program("hello");
    let output = Command::new("sh").args(["-c", &script]).arg(hello).output().expect("sh");
    assert_eq!(
        text(&output.stderr),
        format!(
            "Error: rank 1 lost the launcher at {address} while it said hello: Connection refused \
             (os error 111); is rma-run, or under another launcher rank 0, still \
             running?\n"
        )
    );
}

/// Root reaches the memory of another user, and not the other way round.
#[test]
fn a_rank_whose_memory_may_not_be_opened_is_named() {
    let as_other = ["--reuid", "65534", "--clear-groups"];
    let tried = Command::new("setpriv").args(as_other).arg("true").status();
    if !tried.is_ok_and(|status| status.success()) {
        println!("skipped: this is not root, or setpriv is not installed");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mode = PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), mode).expect("permissions");
    let copy = folder.path().join("hello");
    std::fs::copy(program("hello"), &copy).expect("a copy of the program");
    let script =
        format!("[ $RMA_RANK = 1 ] || exec setpriv {} \"$0\"; exec \"$0\"", as_other.join(" "));
    let spec = job(2, "sh".into(), &["-c", &script, copy.to_str().expect("UTF-8")]);
    let said = says(&spec);
    assert!(
        said[0].ends_with(
            "the memory of rank 1 may not be opened: pidfd_getfd failed (os error 1); all ranks of \
             a machine must be of one user, who may read their programs (`chmod u+r`), and these \
             may have no rights of their own (set-user-ID, capabilities)\n"
        ),
        "{said:?}"
    );
}

#[test]
fn a_wrong_secret_is_named() {
    let hello = program("hello");
    let spec = job(1, "sh".into(), &["-c", WRONG, hello.to_str().expect("UTF-8")]);
    assert_eq!(
        says(&spec).iter().map(|said| without_numbers(said)).collect::<Vec<_>>(),
        [
            "Error: the launcher at N.N.N.N:N refused rank N: its secret is that of another job; \
             RMA_BOOTSTRAP and RMA_SECRET_FD belong to a job that has ended, or to another one\n",
            "refused a connection to the bootstrap port: it does not know the secret of this job; \
             the job goes on, and further ones are refused silently\nrank N exited with status N",
        ]
    );
}

#[test]
fn mistakes_of_one_rank_are_sentences() {
    let cases = [
        (
            "no memory",
            "window memory at rank N: N bytes of window memory requested, N available (address \
             space, RLIMIT_AS, ulimit -v); ask for less, run fewer ranks on this node, or raise \
             that limit",
        ),
        ("peer fails", "a barrier: rank N of the job failed"),
        (
            "beyond the end",
            "N bytes at displacement N (unit N) lie outside window #N.N at rank N, which holds N \
             bytes there; shorten the transfer or allocate more",
        ),
        ("no such rank", "rank N is not in the group of window #N.N; ranks are N to N"),
        (
            "not aligned",
            "displacement N of window #N.N at rank N, or an element of a layout there, is not \
             aligned to the N bytes of the element; atomics need natural alignment",
        ),
        (
            "no such operation",
            "window #N.N: a fetch_and_op on rank N: maxloc is not defined there on uN; use a Pair \
             of a value and its index",
        ),
        (
            "an epoch in another",
            "window #N.N: a lock while a fence epoch is open on this rank; end that first",
        ),
        ("no such root", "bcast: root N is not in the communicator; ranks are N to N"),
        (
            "malformed hint",
            "hint no_locks = \"yes\": no_locks takes true or false; correct it or leave the hint \
             out",
        ),
    ];
    for (case, sentence) in cases {
        let said = without_numbers(&alone("newcomer", &[case], &[]));
        assert_eq!(said, format!("Error: {sentence}\n"), "{case}");
    }
}

#[test]
fn a_rank_that_leaves_early_is_blamed_and_the_one_that_waited_says_so() {
    assert_eq!(
        says(&job(2, program("newcomer"), &["a peer leaves"])),
        [
            "Error: a barrier: rank 1 of the job has left without taking part; all ranks of a \
             communicator must call its collective operations in the same order\n",
            "",
            "rank 1 left while rank 0 still waited for it, which failed therefore; let every rank \
             end with `Universe::finalize`, which waits for the others; the job was ended",
        ]
    );
}

/// The first to give up is blamed, and not one that misses it.
#[test]
fn the_rank_that_gives_up_first_is_blamed() {
    let mut spec = job(3, program("newcomer"), &["a peer is stuck"]);
    spec.wait_timeout = Some(Duration::from_secs(3));
    let report = ended(&spec);
    let first = report.failure().expect("a failure").rank;
    assert_ne!(first, 2, "it is stuck");
    assert_eq!(
        text(&report.output[first as usize].stderr),
        "Error: a barrier did not end within the wait timeout; is a peer stuck?\n"
    );
    assert_eq!(report.notes, [format!("rank {first} exited with status 1; the job was ended")]);
}

#[test]
fn a_window_that_another_rank_still_uses_is_not_freed() {
    assert_eq!(
        says(&job(2, program("newcomer"), &["free in an epoch"])),
        [
            "Error: window #0.1: rank 1 refused free: it has an epoch open, or the reason that its \
             own error names; every rank must end its epochs first\n",
            "",
            "rank 0 exited with status 1; the job was ended",
        ]
    );
}

/// Whether it returns or panics, on windows with a progress agent and without.
#[test]
fn a_forked_child_that_ends_tells_no_rank_anything() {
    for path in ["auto", "messages"] {
        for end in ["returns", "panics"] {
            let report = ended(&job(3, program("fork"), &[path, end]));
            assert_eq!(report.exit_code(), 0, "{path}, it {end}: {report:?}");
            assert_eq!(text(&report.output[0].stdout), "counted 9\n");
        }
    }
}

/// Each run of digits as one N.
fn without_numbers(text: &str) -> String {
    let mut out = String::new();
    for char in text.chars() {
        match char.is_ascii_digit() {
            true if out.ends_with('N') => {}
            true => out.push('N'),
            false => out.push(char),
        }
    }
    out
}

/// `main` and `unwrap` show errors by `Debug`: no public one may derive it.
#[test]
fn errors_debug_as_they_display() {
    let mut folders: Vec<PathBuf> = [
        "src",
        "rma-core/src",
        "transport-shm/src",
        "transport-sim/src",
        "storage/src",
        "launcher/src",
    ]
    .map(|folder| Path::new(env!("CARGO_MANIFEST_DIR")).join(folder))
    .into();
    let (mut derived, mut errors) = (Vec::new(), 0);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder of the sources") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let source = std::fs::read_to_string(&path).expect("a source");
            let is_error =
                |line: &&str| line.contains("derive(") && line.contains("thiserror::Error");
            let derives = source.lines().filter(is_error);
            for line in derives {
                errors += 1;
                if line.contains("Debug") {
                    derived.push(format!("{}: {line}", path.display()));
                }
            }
        }
    }
    assert!(errors > 10, "{errors} errors were found");
    assert_eq!(derived, [] as [String; 0], "use debug_as_display! instead");
}
