//! `cargo xtask perf-gate`: what operations cost. Counted costs have a budget; timed ones depend on
//! the machine and the hour, and are only shown.

use crate::asm;
use crate::ci::BUILD_BENCH;
use crate::workspace::{Result, Workspace};
use std::path::Path;
use std::process::Command;

/// Counts instructions, allocations, system calls and messages, and fails where one is above its
/// budget.
const COUNTS: &[&str] = &["counts", "network-near"];
/// Shown next to the limit.
const TIMED: &[&str] = &["put-latency", "put-rate", "fetch-and-op"];

/// Checks every counted cost, and says all that is wrong.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let mut failures = Vec::new();
    if cfg!(target_arch = "x86_64") {
        failures.extend(asm::run(workspace, asm::PROBES).err());
    } else {
        println!("instructions are counted on x86-64 only: SKIPPED");
    }
    let bench = workspace.target_dir()?.join("release/rma-bench");
    match run_in(workspace, Path::new("cargo"), BUILD_BENCH) {
        Ok(()) => failures.extend(run_in(workspace, &bench, COUNTS).err()),
        Err(error) => failures.push(error),
    }
    println!("\nnot part of the verdict: timed figures");
    if let Err(error) = run_in(workspace, &bench, TIMED) {
        println!("no timed figures: {error}");
    }
    let failures: Vec<String> = failures.iter().map(ToString::to_string).collect();
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n").into()) }
}

fn run_in(workspace: &Workspace, program: &Path, arguments: &[&str]) -> Result<()> {
    let status = Command::new(program).args(arguments).current_dir(&workspace.root).status()?;
    let command = format!("{} {}", program.display(), arguments.join(" "));
    if status.success() { Ok(()) } else { Err(format!("{command}: {status}").into()) }
}
