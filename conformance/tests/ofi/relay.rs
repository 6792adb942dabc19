//! The suite with ranks as processes on two pretended hosts, between which packets are delayed,
//! lost and overtaken; and what ranks are told when the way between them is cut for good. In each
//! test, the process that `cargo test` started starts `rma-run`, whose ranks run the test once
//! more. Where no libfabric is, or namespaces are not permitted, each says so and passes, unless
//! `RMA_TESTS_NEED_LIBFABRIC` is set: then it fails.
//!
//! `cargo test --workspace` builds `rma-run` and the examples; otherwise build them before.
use cut::{built, cut_when_ready, hear, remote_shell};
use relay::{HOSTS, Relay};
use rma::{Config, Universe};
use rma_conformance::failure::ON_PURPOSE;
use rma_conformance::shared::refused;
use rma_conformance::{Exception, Harness};
use std::io::{Write, stderr};
use std::process::{Command, Output};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

#[path = "../../../tests/cut/mod.rs"]
mod cut;
#[path = "../../../tests/libfabric/mod.rs"]
mod libfabric;
#[path = "../relay/mod.rs"]
mod relay;

/// So long processes of a job that is over may take to be gone.
const PATIENCE: Duration = Duration::from_secs(20);

fn is_rank() -> bool {
    std::env::var_os("RMA_RANK").is_some()
}

/// The hosts, if they can be made.
fn lay(test: &str, seed: u64) -> Option<Relay> {
    if !libfabric::is_here() {
        return None;
    }
    let why = match Relay::lay(seed) {
        Ok(relay) => return Some(relay),
        Err(why) => why,
    };
    // Where CI has installed what the tests need, hosts can be made.
    assert!(!libfabric::is_needed(), "test {test}: no pretended hosts: {}", why.trim());
    // Not through the macros, whose output the test framework hides.
    _ = writeln!(stderr(), "test {test} is skipped: no pretended hosts: {}", why.trim());
    None
}

/// A job of so many ranks on both hosts; the folder is its own as long as it runs.
fn job(relay: &Relay, ranks: u32, options: &[&str]) -> (Command, tempfile::TempDir) {
    let (folder, shell) = remote_shell(&relay.shell());
    let first = ranks.div_ceil(2);
    let mut hosts = format!("{}:{first}", HOSTS[0]);
    if ranks > first {
        hosts += &format!(",{}:{}", HOSTS[1], ranks - first);
    }
    let mut command = Command::new(built("rma-run", "cargo build -p rma-launcher"));
    command.args(["--hosts", &hosts, "-q", "--transport", "ofi", "--provider", "tcp"]);
    command
        .args(["--oversubscribe", "--timeout", "120", "--host-timeout", "60"])
        .args(options)
        .arg("--ssh-command")
        .arg(shell);
    (command, folder)
}

fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text)).concat()
}

/// Ranks that run the test of that name once more.
fn again(test: &str, ranks: u32) -> Option<String> {
    // Each test has its own lot of losses, the same in each run.
    let seed = test.bytes().fold(1, |seed: u64, byte| seed.wrapping_mul(31) + u64::from(byte));
    let relay = lay(test, seed)?;
    let (mut job, _folder) = job(&relay, ranks, &[]);
    job.arg(std::env::current_exe().unwrap());
    let output = job.args(["--exact", test, "--nocapture", "--test-threads=1"]).output().unwrap();
    let passed = relay.packets().passed.load(Relaxed);
    assert!(ranks == 1 || passed > 0, "nothing went from host to host: {}", text(&output));
    Some(format!("{:?}\n{}", output.status.code(), text(&output)))
}

struct Relayed;

/// What each rank prints behind the test, so that one that did not run it shows.
const MARK: &str = "rma-test: this rank has run the test";

impl Harness for Relayed {
    fn run(name: &str, ranks: u32, body: &(dyn Fn(Universe) + Sync)) {
        if is_rank() {
            let mut config = Config::default();
            config.naps = false;
            body(rma::initialize_with(config).unwrap());
            return println!("\n{MARK}");
        }
        let Some(said) = again(name, ranks) else { return };
        assert!(said.starts_with("Some(0)\n"), "{said}");
        assert_eq!(said.matches(MARK).count(), ranks as usize, "{said}");
    }

    /// The job is ended when its first rank fails, so the other ranks may not come to the end.
    fn run_failing(name: &str, ranks: u32, victim: u32, body: &(dyn Fn(Universe) + Sync)) {
        if is_rank() {
            return Self::run(name, ranks, body);
        }
        let Some(said) = again(name, ranks) else { return };
        assert!(!said.starts_with("Some(0)\n") && said.contains(ON_PURPOSE), "{said}");
        assert!(said.contains(&format!("rank {victim} ")), "{said}");
    }

    fn exceptions() -> Vec<Exception> {
        let reason = "a shared window needs ranks that all share memory";
        vec![Exception { tests: "shared::", reason, instead: Some(refused) }]
    }
}

rma_conformance::suite!(Relayed);

/// The three examples compute what they do without losses, and packets were lost and overtaken.
#[test]
fn examples_over_a_network_that_loses() {
    let examples: [(&str, &[&str], &str); 3] = [
        ("heat", &["--size", "32"], "checked against a sequential run: equal"),
        ("wordcount", &["docs/adr"], "checked against a sequential count: equal"),
        ("ticket_queue", &["--jobs", "100"], "executed exactly once, and the sum is right"),
    ];
    let Some(relay) = lay("examples_over_a_network_that_loses", 1) else { return };
    for (name, args, line) in examples {
        let (mut job, _folder) = job(&relay, 4, &[]);
        job.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        let program = built(&format!("examples/{name}"), "cargo build --examples");
        let output = job.arg(program).args(args).output().unwrap();
        let said = text(&output);
        assert!(output.status.success() && said.contains(line), "{name}: {said}");
    }
    let packets = relay.packets();
    for (what, count) in [("lost", &packets.lost), ("overtaken", &packets.overtaken)] {
        assert!(count.load(Relaxed) > 0, "no packet was {what}");
    }
}

/// Each rank's wait ends in a typed error, and nothing is left on either host.
#[test]
fn a_way_that_is_cut_for_good() {
    let test = "a_way_that_is_cut_for_good";
    if is_rank() {
        return hear();
    }
    let Some(relay) = lay(test, 2) else { return };
    let options = ["--wait-timeout", "2", "--on-failure", "continue"];
    let (mut job, _folder) = job(&relay, 4, &options);
    job.arg(std::env::current_exe().unwrap()).args(["--exact", test, "--nocapture"]);
    cut_when_ready(&mut job, 4, || relay.cut());
    let end = Instant::now() + PATIENCE;
    while !relay.processes().is_empty() {
        assert!(Instant::now() < end, "left behind: {}", relay.processes());
        std::thread::yield_now();
    }
}
