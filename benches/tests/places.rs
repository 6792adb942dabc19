//! Where `rma-bench` has its ranks, as a user says it.
#![allow(missing_docs)]

use std::process::{Command, Output};

fn bench(line: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rma-bench"));
    // Of a job that this is started in.
    let inherited = std::env::vars_os().map(|(name, _)| name);
    for name in inherited.filter(|name| name.to_string_lossy().starts_with("RMA_")) {
        command.env_remove(name);
    }
    command.args(line.split_whitespace()).output().unwrap()
}

/// What it printed, and what it said beside.
fn said(line: &str) -> [String; 2] {
    let output = bench(line);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let [rows, aside] = [text(&output.stdout), text(&output.stderr)];
    assert!(output.status.success(), "{line}: {rows}{aside}");
    [rows, aside]
}

fn refused(line: &str) -> String {
    let output = bench(line);
    assert!(!output.status.success(), "{line}");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(!printed.contains("median"), "{line}: nothing is measured");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Without libfabric, that is what it says.
fn has_rows(line: &str) -> Option<String> {
    let [rows, aside] = said(line);
    if aside.contains("SKIPPED") {
        assert!(aside.contains("libfabric"), "{aside}");
        return None;
    }
    Some(rows)
}

#[test]
fn a_network_has_the_rows_of_memory_without_its_limits() {
    let near = said("lock --smoke")[0].clone();
    assert!(near.contains("lock + put + unlock") && near.contains("2 atomics"), "{near}");
    let pretended = said("lock --smoke --nodes 2x1")[0].clone();
    assert!(pretended.contains("lock + put + unlock"), "{pretended}");
    assert!(!pretended.contains("2 atomics"), "{pretended}");
    if let Some(rows) = has_rows("lock --smoke --transport ofi") {
        assert!(rows.contains("lock + put + unlock") && !rows.contains("2 atomics"), "{rows}");
    }
}

/// Load and store do not reach it, and there is no device: what needs either is left out.
#[test]
fn nodes_without_a_device_have_the_rows_by_messages() {
    let [rows, aside] = said("put-rate --smoke --nodes 2x1");
    assert!(!rows.contains("put-rate"), "{rows}");
    assert!(aside.contains("put-rate is not measured by a device (SKIPPED)"), "{aside}");
    let [rows, aside] = said("batch --smoke --nodes 2x1");
    assert!(rows.contains("places, messages") && !rows.contains("places, device"), "{rows}");
    assert!(aside.contains("batch is not measured by a device (SKIPPED)"), "{aside}");
}

#[test]
fn threads_of_a_rank_have_no_limit_of_memory_over_a_network() {
    let rows = said("threads --smoke --nodes 2x1")[0].clone();
    assert!(rows.contains("4 threads at once") && !rows.contains("store + fence"), "{rows}");
}

/// Its agent is this program, too.
#[test]
fn hosts_have_the_ranks() {
    if let Some(rows) = has_rows("network-layout --smoke --hosts localhost:2") {
        assert!(rows.contains("fi_write of each run"), "{rows}");
    }
}

#[test]
fn what_cannot_run_there_says_why() {
    for (line, why) in [
        ("counts --smoke --nodes 2x1", "counts is not measured (SKIPPED): its budgets"),
        ("system --smoke --nodes 2x1", "system is not measured (SKIPPED): it measures the system"),
        ("out-of-core --smoke --nodes 2x1", "(SKIPPED): over a network"),
        ("lock --smoke --nodes 2x2", "(SKIPPED): it has 2 ranks, and --nodes 2x2 are 4"),
    ] {
        let [_, aside] = said(line);
        assert!(aside.contains(why), "{line}: {aside}");
    }
}

#[test]
fn what_contradicts_is_refused_before_anything_is_measured() {
    for (line, why) in [
        ("lock --provider tcp", "add --transport ofi"),
        ("lock --hosts a,b --transport shm", "leave --transport out"),
        ("lock --transport udp", "`udp`"),
        ("lock --nodes 2", "NODESxRANKS"),
        ("lock --hosts a --nodes 1x2", "cannot be used with"),
        ("peers --transport udp", "possible values: shm, ofi"),
        ("peers --transport ofi lock", "not measured by `lock`, but by network"),
    ] {
        let said = refused(line);
        assert!(said.contains(why), "{line}: {said}");
    }
}
