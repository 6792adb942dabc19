//! `cargo xtask perf-gate`: what operations cost. Counted costs have a budget; timed ones depend on
//! the machine and the hour, and are only shown.

use crate::asm;
use crate::workspace::{Result, Workspace};
use std::process::Command;

/// Counts instructions, allocations, system calls and messages, and fails where one is above its
/// budget.
const COUNTS: &[&str] = &["run", "--release", "-p", "rma-bench", "--", "counts", "network-near"];
/// Shown next to the limit.
const TIMED: &[&str] =
    &["run", "--release", "-p", "rma-bench", "--", "put-latency", "put-rate", "fetch-and-op"];

/// Checks every counted cost, and says all that is wrong.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let mut failures = Vec::new();
    if cfg!(target_arch = "x86_64") {
        failures.extend(asm::run(workspace, asm::PROBES).err());
    } else {
        println!("instructions are counted on x86-64 only: SKIPPED");
    }
    failures.extend(cargo(workspace, COUNTS).err());
    println!("\nnot part of the verdict: timed figures");
    if let Err(error) = cargo(workspace, TIMED) {
        println!("no timed figures: {error}");
    }
    let failures: Vec<String> = failures.iter().map(ToString::to_string).collect();
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n").into()) }
}

fn cargo(workspace: &Workspace, arguments: &[&str]) -> Result<()> {
    let status = Command::new("cargo").args(arguments).current_dir(&workspace.root).status()?;
    let command = arguments.join(" ");
    if status.success() { Ok(()) } else { Err(format!("cargo {command}: {status}").into()) }
}
