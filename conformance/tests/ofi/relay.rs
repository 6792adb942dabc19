//! The suite with ranks as processes on two pretended hosts, between which packets are delayed,
//! lost and overtaken, or which `RMA_TESTS_WIRE` (`cable`, or `slow` for 100 Mbit/s) joins by a
//! cable; and what ranks are told when the way between them is cut for good, or for a while. In
//! each test, the process that `cargo test` started starts `rma-run`, whose ranks run the test once
//! more. Where no libfabric is, or namespaces are not permitted, each says so and passes, unless
//! `RMA_TESTS_NEED_LIBFABRIC` is set: then it fails.
//!
//! `cargo test --workspace` builds `rma-run` and the examples; otherwise build them before.
use cut::{built, cut_when_ready, hear, remote_shell};
use relay::{HOSTS, Link, Wire};
use rma::{Config, Error, LockKind, Op, Rank, Universe, Window};
use rma_conformance::failure::ON_PURPOSE;
use rma_conformance::shared::refused;
use rma_conformance::{Exception, Harness};
use std::io::{BufRead, BufReader, Read, Write, stderr, stdin};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

#[path = "../../../tests/cut/mod.rs"]
mod cut;
#[path = "../generated/mod.rs"]
mod generated;
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
fn lay(test: &str, wire: Wire, seed: u64) -> Option<Link> {
    if !libfabric::is_here() {
        return None;
    }
    let why = match Link::lay(wire, seed) {
        Ok(link) => return Some(link),
        Err(why) => why,
    };
    // Where CI has installed what the tests need, hosts can be made.
    assert!(!libfabric::is_needed(), "test {test}: no pretended hosts: {}", why.trim());
    // Not through the macros, whose output the test framework hides.
    _ = writeln!(stderr(), "test {test} is skipped: no pretended hosts: {}", why.trim());
    None
}

/// A job of so many ranks on both hosts; the folder is its own as long as it runs.
fn job(link: &Link, ranks: u32, options: &[&str]) -> (Command, tempfile::TempDir) {
    let (folder, shell) = remote_shell(&link.shell());
    let first = ranks.div_ceil(2);
    let mut hosts = format!("{}:{first}", HOSTS[0]);
    if ranks > first {
        hosts += &format!(",{}:{}", HOSTS[1], ranks - first);
    }
    let mut command = Command::new(built("rma-run", "cargo build -p rma-launcher"));
    command.args(["--hosts", &hosts, "--transport", "ofi", "--provider", "tcp"]);
    command
        .args(["--oversubscribe", "--timeout", "300", "--host-timeout", "60"])
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
    let link = lay(test, Wire::told(), seed)?;
    let (mut job, _folder) = job(&link, ranks, &[]);
    job.arg(std::env::current_exe().unwrap());
    let output = job.args(["--exact", test, "--nocapture", "--test-threads=1"]).output().unwrap();
    assert!(ranks == 1 || link.carried() > 0, "nothing went from host to host: {}", text(&output));
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

/// Generated programs.
#[test]
fn generated_programs() {
    generated::play_in_one_job::<Relayed>("ofi_relay", 20);
}

/// The three examples compute what they do without losses, and packets were lost and overtaken.
#[test]
fn examples_over_a_network_that_loses() {
    let examples: [(&str, &[&str], &str); 3] = [
        ("heat", &["--size", "32"], "checked against a sequential run: equal"),
        ("wordcount", &["docs/adr"], "checked against a sequential count: equal"),
        ("ticket_queue", &["--jobs", "100"], "executed exactly once, and the sum is right"),
    ];
    let wire = Wire::told();
    let Some(link) = lay("examples_over_a_network_that_loses", wire, 1) else { return };
    for (name, args, line) in examples {
        let (mut job, _folder) = job(&link, 4, &[]);
        job.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        let program = built(&format!("examples/{name}"), "cargo build --examples");
        let output = job.arg(program).args(args).output().unwrap();
        let said = text(&output);
        assert!(output.status.success() && said.contains(line), "{name}: {said}");
    }
    let packets = link.packets();
    for (what, count) in [("lost", &packets.lost), ("overtaken", &packets.overtaken)] {
        assert!(wire != Wire::Relay || count.load(Relaxed) > 0, "no packet was {what}");
    }
}

/// Waits until no process is left on either host.
fn is_left_clean(link: &Link) {
    let end = Instant::now() + PATIENCE;
    while !link.processes().is_empty() {
        assert!(Instant::now() < end, "left behind: {}", link.processes());
        std::thread::yield_now();
    }
}

/// Each rank's wait ends in a typed error, and nothing is left on either host.
#[test]
fn a_way_that_is_cut_for_good() {
    let test = "a_way_that_is_cut_for_good";
    if is_rank() {
        return hear();
    }
    let Some(link) = lay(test, Wire::Relay, 2) else { return };
    let options = ["--wait-timeout", "2", "--on-failure", "continue"];
    let (mut job, _folder) = job(&link, 4, &options);
    job.arg(std::env::current_exe().unwrap()).args(["--exact", test, "--nocapture"]);
    cut_when_ready(&mut job, 4, || link.cut());
    is_left_clean(&link);
}

/// Bytes of each part of the window that ranks below work on: eight words, and a large row.
const WORDS: usize = 8;
const ROW: usize = 1 << 20;
const PART: usize = 8 * WORDS + ROW;

/// What each rank does again and again, with a rank of the other host: rank 0 puts a row, 1
/// combines, 2 locks, puts and unlocks, 3 gets.
fn act(window: &Window, rank: u32, row: &mut [u8]) -> Result<(), Error> {
    let peer = Rank((rank + 2) % 4);
    let kind = if rank == 2 { LockKind::Exclusive } else { LockKind::Shared };
    let lock = window.lock(peer, kind)?;
    match rank {
        0 => lock.put(8 * WORDS, &*row)?,
        1 => drop(lock.fetch_and_op(0, Op::Sum, 1u64)?),
        2 => lock.put(8, &[7u64])?,
        _ => lock.get(8 * WORDS, row)?,
    }
    Ok(lock.unlock()?)
}

/// The calls of each rank end in a typed error, whichever they are, and nothing is left.
#[test]
fn a_cable_that_is_pulled_under_operations() {
    let test = "a_cable_that_is_pulled_under_operations";
    if is_rank() {
        let universe = rma::initialize().unwrap();
        let world = universe.world();
        let window = world.window(PART, 1).allocate().unwrap();
        let (rank, mut row) = (world.rank().0, vec![1; ROW]);
        act(&window, rank, &mut row).unwrap();
        world.barrier().unwrap();
        println!("ready");
        let mut acts = std::iter::repeat_with(|| act(&window, rank, &mut row));
        let error = acts.find_map(Result::err).unwrap();
        // What comes after it ends as well, also where all take part.
        let after = world.barrier().unwrap_err();
        println!("rank {rank} heard: {:?}, {error}; then {after}", error.class());
        return;
    }
    let Some(link) = lay(test, Wire::Cable, 0) else { return };
    let options = ["--wait-timeout", "8", "--on-failure", "continue"];
    let (mut job, _folder) = job(&link, 4, &options);
    job.arg(std::env::current_exe().unwrap()).args(["--exact", test, "--nocapture"]);
    cut_when_ready(&mut job, 4, || link.pull());
    is_left_clean(&link);
}

/// Within the wait timeout: what was under way arrives, once, and no rank has seen anything of it.
/// All connections are there before; who connects while the cable is out is told that there is no
/// way.
#[test]
fn a_cable_that_is_put_back() {
    let test = "a_cable_that_is_put_back";
    if is_rank() {
        return go_on();
    }
    let Some(link) = lay(test, Wire::Cable, 0) else { return };
    let options = ["--wait-timeout", "20", "--stdin", "0", "--on-failure", "continue"];
    let (mut job, _folder) = job(&link, 4, &options);
    job.arg(std::env::current_exe().unwrap()).args(["--exact", test, "--nocapture"]);
    let job = job.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut job = job.spawn().unwrap();
    let mut out = BufReader::new(job.stdout.take().unwrap());
    let (mut ready, mut said) = (0, String::new());
    while ready < 4 {
        let from = said.len();
        assert!(out.read_line(&mut said).unwrap() > 0, "the job ended early: {said}");
        ready += usize::from(said[from..].trim_end().ends_with("ready"));
    }
    let before = link.sent_again();
    link.pull();
    // It has been missed.
    while link.sent_again() == before && job.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    link.put_back();
    // A rank that has failed reads nothing.
    _ = writeln!(job.stdin.take().unwrap(), "stop");
    out.read_to_string(&mut said).unwrap();
    job.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(job.wait().unwrap().success(), "{said}");
    for rank in 0..4 {
        assert!(said.contains(&format!("rank {rank} is done")), "rank {rank}: {said}");
    }
    is_left_clean(&link);
}

/// Acts until rank 0 is told to stop, and all by that.
fn go_on() {
    let universe = rma::initialize().unwrap();
    let world = universe.world();
    let window = world.window(PART, 1).allocate().unwrap();
    let (rank, mut row) = (world.rank().0, vec![1; ROW]);
    let stop = 16;
    // All are connected.
    act(&window, rank, &mut row).unwrap();
    world.barrier().unwrap();
    println!("ready");
    let mut count = 1u64;
    let told = Arc::new(AtomicBool::new(false));
    let its = told.clone();
    if rank == 0 {
        // As long as the process, where this rank fails before it is told.
        std::thread::spawn(move || {
            stdin().read_line(&mut String::new()).unwrap();
            its.store(true, Relaxed);
        });
    }
    let mut run = || -> Result<(), Error> {
        while window.local().load::<u64>(stop)? == 0 {
            act(&window, rank, &mut row)?;
            count += 1;
            if rank == 0 && told.load(Relaxed) {
                for peer in (0..4).map(Rank) {
                    let lock = window.lock(peer, LockKind::Shared)?;
                    lock.put(stop, &[1u64])?;
                    lock.unlock()?;
                }
            }
        }
        Ok(world.barrier()?)
    };
    if let Err(error) = run() {
        panic!("rank {rank} has failed: {:?}, {error}", error.class());
    }
    let counts = world.allgather(&[count]).unwrap();
    // What rank 1 combined has been combined once.
    assert!(rank != 3 || window.local().load::<u64>(0).unwrap() == counts[1]);
    assert!(rank != 2 || window.local().load::<u8>(PART - 1).unwrap() == 1);
    window.free().unwrap();
    universe.finalize().unwrap();
    println!("rank {rank} is done");
}

/// The first message does not arrive: the user is told where it was to go.
#[test]
fn a_firewall_that_drops_messages() {
    let test = "a_firewall_that_drops_messages";
    if is_rank() {
        // The one that sends ends first: one that only waits knows nothing of a way that is closed.
        let sends = std::env::var_os("RMA_RANK").is_some_and(|rank| rank == "1");
        let mut config = Config::default();
        config.wait_timeout = sends.then_some(Duration::from_secs(2));
        let error = rma::initialize_with(config).err().expect("no rank gets through");
        return println!("rank heard: {error}");
    }
    let Some(link) = lay(test, Wire::Cable, 0) else { return };
    link.shield();
    let (mut job, _folder) = job(&link, 2, &["--on-failure", "continue"]);
    job.arg(std::env::current_exe().unwrap()).args(["--exact", test, "--nocapture"]);
    let said = text(&job.output().unwrap());
    assert_eq!(said.matches("rank heard: ").count(), 2, "{said}");
    let is_named = |line: &str| {
        let (_, rest) = line.split_once("://10.98.0.")?;
        let (_, port) = rest.split_once(':')?;
        let (port, why) = port.split_once(": ")?;
        port.parse::<u16>().ok()?;
        Some(why.contains("nothing gets through") && why.contains("firewall"))
    };
    assert!(said.lines().any(|line| is_named(line) == Some(true)), "{said}");
    is_left_clean(&link);
}

/// A row of 1 MiB is put and got between the hosts, and what a wire carries of it is told.
#[test]
fn a_row_over_the_wire() {
    let test = "a_row_over_the_wire";
    if is_rank() {
        let universe = rma::initialize().unwrap();
        let world = universe.world();
        let window = world.window(ROW, 1).allocate().unwrap();
        if world.rank() == Rank(0) {
            let row: Vec<u8> = (0..ROW).map(|place| place as u8).collect();
            let mut got = vec![0; ROW];
            let lock = window.lock(Rank(1), LockKind::Shared).unwrap();
            for _ in 0..4 {
                let start = Instant::now();
                lock.put(0, &row).unwrap();
                lock.flush().unwrap();
                let put = start.elapsed();
                lock.get(0, &mut got).unwrap();
                let get = start.elapsed() - put;
                assert!(got == row);
                let [put, get] = [put, get].map(|time| 8.0 * ROW as f64 / 1e6 / time.as_secs_f64());
                println!("1 MiB: put + flush {put:.1} Mbit/s, get {get:.1} Mbit/s");
            }
            lock.unlock().unwrap();
        }
        world.barrier().unwrap();
        window.free().unwrap();
        universe.finalize().unwrap();
        return println!("\n{MARK}");
    }
    let Some(said) = again(test, 2) else { return };
    assert!(said.starts_with("Some(0)\n"), "{said}");
    assert_eq!(said.matches(MARK).count(), 2, "{said}");
    println!("{said}");
}
