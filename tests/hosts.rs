//! Jobs on several hosts whose ranks use windows. A script is the remote shell: it runs the agents
//! on this machine, each as one elsewhere would run, but at 127.0.0.1; or hosts are namespaces of
//! the network, from which agents join. In most tests, the process
//! that `cargo test` started starts `rma-run`, whose ranks run the test once more. Where no
//! libfabric is, each says so and passes.
//!
//! `cargo test --workspace` builds `rma-run` and the examples; otherwise build them before.
use cut::{built, cut_when_ready, hear, remote_shell};
use rma::{LockKind, Op, Rank, initialize};
use rustix::process::{Signal, getpid, kill_process};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use wires::ip;

mod cut;
mod libfabric;
mod wires;

const SHELL: &str = "#!/bin/sh\nexec setsid --wait sh -c \"exec $2\"\n";

/// A job of two ranks on one host and one on another.
fn job(options: &[&str], program: &Path, args: &[&str]) -> Output {
    let (_folder, shell) = remote_shell(SHELL);
    let run = built("rma-run", "cargo build -p rma-launcher");
    let mut command = Command::new(run);
    command.args(["--hosts", "a:2,b:1", "-q", "--provider", "tcp", "--timeout", "120"]);
    command.arg("--ssh-command").arg(shell).args(options).arg(program).args(args);
    command.output().unwrap()
}

/// The ranks run the test of that name.
fn ranks(test: &str, options: &[&str]) -> Output {
    let program = std::env::current_exe().unwrap();
    job(options, &program, &["--exact", test, "--nocapture"])
}

#[track_caller]
fn said(output: &Output, code: i32, lines: &[&str]) {
    let texts = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    let [out, err] = &texts;
    assert_eq!(output.status.code(), Some(code), "{out}{err}");
    for line in lines {
        assert!(out.contains(line) || err.contains(line), "{line:?} in {out}{err}");
    }
}

#[test]
fn the_examples_compute_the_same_on_two_hosts() {
    if !libfabric::is_here() {
        return;
    }
    let example = |name: &str| built(&format!("examples/{name}"), "cargo build --examples");
    let heat = job(&[], &example("heat"), &["--size", "32"]);
    said(&heat, 0, &["checked against a sequential run: equal"]);
    let words = job(&[], &example("wordcount"), &["docs/adr"]);
    said(&words, 0, &["checked against a sequential count: equal"]);
}

#[test]
fn ranks_are_near_on_a_host_and_reach_others_by_the_network() {
    if !libfabric::is_here() {
        return;
    }
    let test = "ranks_are_near_on_a_host_and_reach_others_by_the_network";
    if !rma_launcher::is_launched() {
        return said(&ranks(test, &[]), 0, &["rank 0 is done", "rank 1 is done", "rank 2 is done"]);
    }
    let universe = initialize().unwrap();
    let world = universe.world();
    let window = world.window(3, 8).allocate().unwrap();
    let is_near = |rank| window.path(Rank(rank)) == Some(rma::Path::LoadStore);
    let near = [0, 1, 2].map(is_near);
    assert_eq!(
        near,
        if world.rank() == Rank(2) { [false, false, true] } else { [true, true, false] }
    );
    let epoch = window.lock_all().unwrap();
    for rank in 0..3 {
        epoch.accumulate(Rank(rank), 0, Op::Sum, &[1u64]).unwrap();
    }
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    assert_eq!(window.local().load::<u64>(0).unwrap(), 3);
    println!("rank {} is done", world.rank().0);
    window.free().unwrap();
    universe.finalize().unwrap();
}

/// Ranks of both hosts hear that it is gone, wherever it was.
#[test]
fn a_rank_that_is_killed_on_another_host() {
    if !libfabric::is_here() {
        return;
    }
    let test = "a_rank_that_is_killed_on_another_host";
    if !rma_launcher::is_launched() {
        let output = ranks(test, &["--on-failure", "continue"]);
        return said(&output, 128 + 9, &["rank 0 heard: ", "rank 1 heard: ", "rank 2 was ended"]);
    }
    let universe = initialize().unwrap();
    let world = universe.world();
    let met = world.barrier();
    if world.rank() == Rank(2) {
        met.unwrap();
        kill_process(getpid(), Signal::KILL).unwrap();
    }
    // Rank 2 may be gone before a rank has left the first one.
    let error = met.and_then(|()| world.barrier()).unwrap_err();
    println!("rank {} heard: {error}", world.rank().0);
}

/// A rank that left in order while others wait for it is no failed one, and what it sent is there.
#[test]
fn a_rank_that_leaves_early_on_another_host() {
    if !libfabric::is_here() {
        return;
    }
    let test = "a_rank_that_leaves_early_on_another_host";
    if !rma_launcher::is_launched() {
        let heard = "rank 2 has left";
        return said(&ranks(test, &["--on-failure", "continue"]), 0, &[heard]);
    }
    let universe = initialize().unwrap();
    let world = universe.world();
    let window = world.window(1, 8).allocate().unwrap();
    if world.rank() == Rank(2) {
        let lock = window.lock(Rank(0), LockKind::Shared).unwrap();
        lock.accumulate(0, Op::Sum, &[7u64]).unwrap();
        lock.unlock().unwrap();
        return;
    }
    let error = world.barrier().unwrap_err().to_string();
    assert!(error.contains("rank 2") && error.contains("left"), "{error}");
    if world.rank() == Rank(0) {
        assert_eq!(window.local().load::<u64>(0).unwrap(), 7);
        println!("rank 2 has left");
    }
}

/// Two namespaces of the network that a cable joins.
struct Cable([String; 2]);

impl Cable {
    const HOSTS: [&str; 2] = ["10.99.0.1", "10.99.0.2"];

    /// Where the remote shell finds the namespace of a host: behind that, and a dash.
    fn prefix(of: &str) -> String {
        format!("rma-{}-{of}", std::process::id())
    }

    fn lay(of: &str) -> Result<Cable, String> {
        let cable = Cable(Self::HOSTS.map(|host| format!("{}-{host}", Self::prefix(of))));
        let [a, b] = &cable.0;
        ip(&format!("netns add {a}"))?;
        ip(&format!("netns add {b}"))?;
        ip(&format!("-n {a} link add end0 type veth peer name end0 netns {b}"))?;
        for (namespace, host) in cable.0.iter().zip(Self::HOSTS) {
            ip(&format!("-n {namespace} addr add {host}/24 dev end0"))?;
            ip(&format!("-n {namespace} link set lo up"))?;
            ip(&format!("-n {namespace} link set end0 up"))?;
        }
        Ok(cable)
    }

    fn pull(&self) {
        ip(&format!("-n {} link set end0 down", self.0[1])).unwrap();
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        // One that is not there, or that the test could not make, is none to be removed.
        self.0.iter().for_each(|namespace| _ = ip(&format!("netns delete {namespace}")));
    }
}

/// Each rank's wait ends in an error when its time is up.
#[test]
fn a_cable_that_is_pulled() {
    if rma_launcher::is_launched() {
        return hear();
    }
    if !libfabric::is_here() {
        return;
    }
    let cable = match Cable::lay("pulled") {
        Ok(cable) => cable,
        Err(why) => return println!("skipped: no namespaces of the network: {why}"),
    };
    let prefix = Cable::prefix("pulled");
    let script =
        format!("#!/bin/sh\nexec setsid --wait ip netns exec {prefix}-$1 sh -c \"exec $2\"\n");
    let (_folder, shell) = remote_shell(&script);
    let mut command = Command::new(built("rma-run", "cargo build -p rma-launcher"));
    command.args(["--hosts", &Cable::HOSTS.join(","), "-q", "--provider", "tcp"]);
    command.args(["--timeout", "120", "--wait-timeout", "2", "--on-failure", "continue"]);
    command.arg("--ssh-command").arg(shell).arg(std::env::current_exe().unwrap());
    command.args(["--exact", "a_cable_that_is_pulled", "--nocapture"]);
    cut_when_ready(&mut command, 2, || cable.pull());
}

/// Without a remote shell: `rma-run serve` in one namespace, `rma-run join` in both.
#[test]
fn namespaces_join_a_job() {
    if !libfabric::is_here() {
        return;
    }
    let cable = match Cable::lay("joined") {
        Ok(cable) => cable,
        Err(why) => return println!("skipped: no namespaces of the network: {why}"),
    };
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    fs::write(&secret, "x".repeat(32)).unwrap();
    fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
    let run = built("rma-run", "cargo build -p rma-launcher");
    let inside = |namespace: &str, words: &[&str]| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace]).arg(&run).args(words);
        command.arg("--secret-file").arg(&secret).stdin(Stdio::null());
        command
    };
    let [first, second] = &cable.0;
    let address = format!("{}:7070", Cable::HOSTS[0]);
    let mut serve = inside(first, &["serve", "--joins", "2", "--listen", &address]);
    serve.args(["-n", "4", "-q", "--explain", "--provider", "tcp", "--timeout", "120"]);
    serve.arg(built("examples/heat", "cargo build --examples")).args(["--size", "32"]);
    let job = serve.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let hosts = [(first, "a"), (second, "b")];
    let join = |name| ["join", &address, "--name", name];
    let hosts = hosts.map(|(namespace, name)| inside(namespace, &join(name)).spawn().unwrap());
    let output = job.wait_with_output().unwrap();
    said(&output, 0, &["checked against a sequential run: equal"]);
    let text = String::from_utf8_lossy(&output.stderr);
    for (ranks, address) in
        ["host a: ranks 0-1 on", "host b: ranks 2-3 on"].iter().zip(Cable::HOSTS)
    {
        let is_of = |line: &str| line.contains(ranks) && line.ends_with(address);
        assert!(text.lines().any(is_of), "{ranks}, {address}: {text}");
    }
    for mut host in hosts {
        assert_eq!(host.wait().unwrap().code(), Some(0));
    }
}
