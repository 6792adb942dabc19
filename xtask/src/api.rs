//! `cargo xtask api`: the public API of the crates that programs and transports use, as a list in
//! `docs/public-api.txt`, so that a change of it is seen where changes are read.

use crate::workspace::{Result, Workspace};
use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

pub(crate) const PAGE: &str = "docs/public-api.txt";
/// `rma` re-exports most of what it has from the core, and storage; transports use the core itself.
const CRATES: &[&str] = &["rma", "rma-core", "rma-storage"];
/// Of other crates, the types that `rma` re-exports.
const RE_EXPORTED: &[(&str, &[&str])] = &[
    ("rma-launcher", &["Refusal", "StartError"]),
    ("rma-transport-ofi", &["OfiError", "OfiJoinError"]),
    ("rma-transport-shm", &["JoinError"]),
    ("rma-transport-sim", &["SimFailure"]),
];

/// Writes the list, or with `check` only looks whether it is what would be written.
pub(crate) fn run(workspace: &Workspace, check: bool) -> Result<()> {
    let mut list = String::from("Written by `cargo xtask api`: every public item, by crate.\n");
    for name in CRATES {
        list += &format!("\n# {name}\n{}", of_crate(workspace, name)?);
    }
    for (name, types) in RE_EXPORTED {
        let all = of_crate(workspace, name)?;
        let these: Vec<&str> = all.lines().filter(|line| is_about(line, name, types)).collect();
        list += &format!("\n# {name}, what rma re-exports\n{}\n", these.join("\n"));
    }
    let path = workspace.root.join(PAGE);
    if !check {
        return Ok(fs::write(path, list)?);
    }
    let written =
        fs::read_to_string(path).map_err(|error| format!("cannot read {PAGE}: {error}"))?;
    if written == list {
        println!("api: {} lines", list.lines().count());
        return Ok(());
    }
    print!("{}", changes(&written, &list));
    Err(format!("{PAGE} is not up to date: look whether you meant that, then `cargo xtask api`")
        .into())
}

/// The public items of a crate with all its features, one a line, sorted.
fn of_crate(workspace: &Workspace, name: &str) -> Result<String> {
    // Another folder: the variable below would have much built anew, here and there in turn.
    let target = workspace.target_dir()?.join("api");
    let status = Command::new("cargo")
        .args(["rustdoc", "--quiet", "--lib", "--all-features", "--package", name, "--target-dir"])
        .arg(&target)
        .args(["--", "-Zunstable-options", "--output-format=json", "--cap-lints=allow"])
        // The compiler at hand writes JSON if it is told that this is meant.
        .env("RUSTC_BOOTSTRAP", "1")
        .current_dir(&workspace.root)
        .status()?;
    if !status.success() {
        return Err(format!("cargo rustdoc of {name}: {status}").into());
    }
    let json = target.join("doc").join(format!("{}.json", name.replace('-', "_")));
    let api = public_api::Builder::from_rustdoc_json(json)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()
        .map_err(|error| format!("{error}; is this compiler newer than the crate public-api?"))?;
    Ok(format!("{api}"))
}

/// Whether a line is of one of these types of a crate.
fn is_about(line: &str, name: &str, types: &[&str]) -> bool {
    let name = name.replace('-', "_");
    types.iter().any(|of| {
        let path = format!("{name}::{of}");
        let behind = |(at, _): (usize, _)| line[at + path.len()..].chars().next();
        let mut found = line.match_indices(&path).map(behind);
        found.any(|next| next.is_none_or(|next| !next.is_alphanumeric() && next != '_'))
    })
}

/// Lines that went, and lines that came.
fn changes(before: &str, after: &str) -> String {
    let (old, new): (BTreeSet<_>, BTreeSet<_>) =
        (before.lines().collect(), after.lines().collect());
    let gone = old.difference(&new).map(|line| format!("- {line}\n"));
    gone.chain(new.difference(&old).map(|line| format!("+ {line}\n"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_lines_that_went_and_came() {
        assert_eq!(changes("a\nb\nd\n", "a\nc\nd\n"), "- b\n+ c\n");
        assert_eq!(changes("a\n", "a\n"), "");
    }

    #[test]
    fn lines_of_some_types_are_found() {
        let is_about = |line| is_about(line, "rma-a", &["One", "Two"]);
        assert!(is_about("pub enum rma_a::One") && is_about("pub rma_a::Two::Variant"));
        assert!(!is_about("pub enum rma_a::OneMore") && !is_about("pub enum rma_b::One"));
    }
}
