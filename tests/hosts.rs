//! Jobs on several hosts whose ranks use windows. A script is the remote shell: it runs the agents
//! on this machine, each as one elsewhere would run, but at 127.0.0.1. In most tests, the process
//! that `cargo test` started starts `rma-run`, whose ranks run the test once more. Where no
//! libfabric is, each says so and passes.
//!
//! `cargo test --workspace` builds `rma-run` and the examples; otherwise build them before.
use rma::{LockKind, OfiError, Op, Rank, initialize};
use rma_transport_ofi::Libfabric;
use rustix::process::{Signal, getpid, kill_process};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const SHELL: &str = "#!/bin/sh\nexec setsid --wait sh -c \"exec $2\"\n";

fn is_here() -> bool {
    let loaded = Libfabric::load();
    if let Err(error @ OfiError::Missing { .. }) = &loaded {
        println!("skipped: {error}");
        return false;
    }
    loaded.map(drop).unwrap();
    true
}

fn built(name: &str, how: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let profile = test.parent().and_then(Path::parent).expect("target/<profile>/deps");
    let program = profile.join(name);
    assert!(program.exists(), "{} is missing: {how}", program.display());
    program
}

/// A job of two ranks on one host and one on another.
fn job(options: &[&str], program: &Path, args: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let shell = folder.path().join("rsh");
    fs::write(&shell, SHELL).unwrap();
    fs::set_permissions(&shell, PermissionsExt::from_mode(0o755)).unwrap();
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
    if !is_here() {
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
    if !is_here() {
        return;
    }
    let test = "ranks_are_near_on_a_host_and_reach_others_by_the_network";
    if !rma_launcher::is_launched() {
        return said(&ranks(test, &[]), 0, &["rank 0 is done", "rank 1 is done", "rank 2 is done"]);
    }
    let universe = initialize().unwrap();
    let world = universe.world();
    let window = world.window(3, 8).allocate().unwrap();
    let is_near = |rank| window.path(Rank(rank)) != Some(rma::Path::Messages);
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
    if !is_here() {
        return;
    }
    let test = "a_rank_that_is_killed_on_another_host";
    if !rma_launcher::is_launched() {
        let output = ranks(test, &["--on-failure", "continue"]);
        return said(&output, 128 + 9, &["rank 0 heard: ", "rank 1 heard: ", "rank 2 was ended"]);
    }
    let universe = initialize().unwrap();
    let world = universe.world();
    world.barrier().unwrap();
    if world.rank() == Rank(2) {
        kill_process(getpid(), Signal::KILL).unwrap();
    }
    let error = world.barrier().unwrap_err();
    println!("rank {} heard: {error}", world.rank().0);
}

/// A rank that left in order while others wait for it is no failed one, and what it sent is there.
#[test]
fn a_rank_that_leaves_early_on_another_host() {
    if !is_here() {
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
