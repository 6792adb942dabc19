//! `cargo xtask asm PROBE...`: the instruction budget of the near path, read from the assembly.

mod graph;
mod listing;
mod transactions;

use crate::workspace::{Result, Workspace};
use graph::Graph;
use listing::{Function, Line};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Instructions from entry to `ret`, both included, that a probe of an operation may have. Two of a
/// fetch_add's find out that this thread holds the part's bias.
fn budget(probe: &str) -> usize {
    match probe {
        "get" => 22,
        "fetch_add" => 28,
        _ => 26,
    }
}

/// Parts of symbols that the near path may call: the kernel for large copies.
const ALLOWED_CALLS: &[&str] = &["memcpy", "memmove", "copy_large"];
/// All probes; the last two are no operations, but kernels: those that bypass the caches, and those
/// that combine in transactions.
pub(crate) const PROBES: &[&str] = &["put", KEPT_PUT, "get", "fetch_add", STREAM, TRANSACTION];
/// A put through a guard that holds its window: as many instructions as through a borrowed one.
const KEPT_PUT: &str = "kept_put";
const STREAM: &str = "stream";
const TRANSACTION: &str = "transaction";
/// The functions of `memory/copy.rs` that store past the caches.
const STREAM_KERNELS: [&str; 2] = ["stream_lines", "stream_pages"];

/// Builds the probes once and checks each.
pub(crate) fn run(workspace: &Workspace, probes: &[&str]) -> Result<()> {
    if cfg!(not(target_arch = "x86_64")) {
        return Err("asm reads x86-64 assembly, and this machine is another".into());
    }
    if let Some(unknown) = probes.iter().find(|probe| !PROBES.contains(probe)) {
        let known = PROBES.join(", ");
        return Err(format!("there is no probe `{unknown}`; there are {known}").into());
    }
    let (kernels, operations): (Vec<&str>, Vec<&str>) =
        probes.iter().partition(|probe| [STREAM, TRANSACTION].contains(probe));
    let mut failures = Vec::new();
    if !kernels.is_empty() {
        let text = build(workspace, "core.s", &["--package", "rma-core", "--lib"])?;
        if kernels.contains(&STREAM) {
            failures.extend(check_stream(&text)?);
        }
        if kernels.contains(&TRANSACTION) {
            match transactions::check(&text) {
                Ok(count) => println!("asm {TRANSACTION}: nothing in {count} of them ends them"),
                Err(complaints) => failures.extend(complaints),
            }
        }
    }
    if !operations.is_empty() {
        failures.extend(check_operations(workspace, &operations)?);
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n").into()) }
}

fn check_operations(workspace: &Workspace, probes: &[&str]) -> Result<Vec<String>> {
    let text = build(workspace, "probes.s", &["--package", "rma-bench", "--example", "asm_put"])?;
    let report = |probe: &str| {
        judge(&Function::find(&text, &format!("rma_asm_probe_{probe}"))?, budget(probe))
    };
    let mut failures = Vec::new();
    if probes.contains(&KEPT_PUT) {
        failures.extend(costlier(report(KEPT_PUT)?.count, report("put")?.count));
    }
    for probe in probes {
        let report = report(probe)?;
        println!("{}", report.listing);
        match report.complaints.as_slice() {
            [] => println!("asm {probe}: {} of {} instructions", report.count, budget(probe)),
            complaints => {
                failures.extend(complaints.iter().map(|complaint| format!("{probe}: {complaint}")));
            }
        }
    }
    Ok(failures)
}

/// What is wrong if a put through a guard that is kept costs more than through a borrowed one.
fn costlier(kept: usize, borrowed: usize) -> Option<String> {
    (kept > borrowed).then(|| {
        format!("{KEPT_PUT}: {kept} instructions, and {borrowed} through a borrowed guard")
    })
}

fn check_stream(text: &str) -> Result<Vec<String>> {
    let mut failures = Vec::new();
    for kernel in STREAM_KERNELS {
        match unordered_store(&Function::find(text, kernel)?) {
            None => {
                println!("asm {STREAM}: in {kernel}, an sfence follows the non-temporal stores")
            }
            Some(complaint) => failures.push(format!("{kernel}: {complaint}")),
        }
    }
    Ok(failures)
}

/// What one probe's near path costs.
struct Report {
    count: usize,
    listing: String,
    complaints: Vec<String>,
}

fn judge(function: &Function, budget: usize) -> Result<Report> {
    let graph = Graph::build(function);
    let path = graph.near_path()?;
    let count = path.iter().map(|&block| graph.blocks[block].instructions.len()).sum();
    let mut complaints = Vec::new();
    if count > budget {
        complaints.push(format!("the near path has {count} instructions, {budget} are allowed"));
    }
    for call in graph.near_calls() {
        if !ALLOWED_CALLS.iter().any(|allowed| call.contains(allowed)) {
            complaints.push(format!("the near path calls {call}"));
        }
    }
    Ok(Report { count, listing: graph.print(&path, &function.symbol), complaints })
}

/// What is wrong with a function of non-temporal stores: other cores see them late, whatever comes
/// next, unless an `sfence` is between.
fn unordered_store(function: &Function) -> Option<String> {
    let instruction = |line: &Line| match line {
        Line::Instruction(text) => Some(text.clone()),
        Line::Label(_) => None,
    };
    let instructions: Vec<String> = function.lines.iter().filter_map(instruction).collect();
    let is_store = |text: &String| text.starts_with("movnt");
    let Some(last) = instructions.iter().rposition(is_store) else {
        return Some("no non-temporal store in it".into());
    };
    let leaves = |text: &&String| ["ret", "call", "jmp"].iter().any(|way| text.starts_with(way));
    let mut rest = instructions[last..].iter().take_while(|text| !leaves(text));
    let is_ordered = rest.any(|text| text == "sfence");
    (!is_ordered).then(|| format!("no sfence behind `{}`", instructions[last]))
}

/// Assembly of what the options say, one codegen unit, Intel syntax.
fn build(workspace: &Workspace, file: &str, what: &[&str]) -> Result<String> {
    let folder = workspace.target_dir()?.join("asm");
    fs::create_dir_all(&folder)?;
    let assembly = folder.join(file);
    let emit = format!("--emit=asm={}", assembly.display());
    let status = Command::new("cargo")
        .args(["rustc", "--quiet", "--release"])
        .args(what)
        .arg("--target-dir")
        .arg(&folder)
        .args(["--", &emit, "-Ccodegen-units=1", "-Cdebuginfo=0"])
        .arg("-Cllvm-args=-x86-asm-syntax=intel")
        .current_dir(&workspace.root)
        .status()?;
    if !status.success() {
        return Err(format!("building the probes failed ({status})").into());
    }
    read(&assembly)
}

fn read(assembly: &Path) -> Result<String> {
    fs::read_to_string(assembly).map_err(|error| {
        let folder = assembly.parent().unwrap_or(assembly).display();
        format!("no assembly in {}: {error}; remove {folder} and repeat", assembly.display()).into()
    })
}

#[cfg(test)]
mod tests;
