//! Every wait of the core has a name, and the conformance suite a case for each name.

use super::{File, Finding};
use std::collections::BTreeSet;

const RULE: &str = "waits";
/// Where the cases are.
const CASES: &str = "conformance/src/waits.rs";
/// What a wait calls, in the core.
const CALLS: [&str; 2] = [".wait_until(", ".nap("];
const CORE: &str = "rma-core/src/";
/// Where it is defined.
const HOME: &str = "rma-core/src/engine/wait.rs";
const MARK: &str = "// wait: ";

/// The name in the line before the call, or before the statement that it stands in.
fn name<'a>(lines: &[&'a str], at: usize) -> Option<&'a str> {
    lines[at.saturating_sub(2)..at].iter().rev().find_map(|line| line.trim().strip_prefix(MARK))
}

pub(super) fn check(files: &[File<'_>]) -> Vec<Finding> {
    let Some(cases) = files.iter().find(|file| file.path == CASES) else { return Vec::new() };
    let (mut findings, mut names) = (Vec::new(), BTreeSet::new());
    let core = files.iter().filter(|file| file.path.starts_with(CORE) && file.path != HOME);
    for file in core.filter(|file| !file.path.ends_with("_tests.rs")) {
        let lines: Vec<&str> = file.text.lines().collect();
        for at in (0..lines.len()).filter(|at| CALLS.iter().any(|call| lines[*at].contains(call))) {
            let Some(name) = name(&lines, at) else {
                let message = format!("a wait without a name: `{MARK}NAME` in the line before");
                findings.push(file.finding(RULE, at + 1, message));
                continue;
            };
            names.insert(name);
            if !cases.text.contains(&format!("\"{name}\"")) {
                let message = format!("the wait {name:?} has no case in {CASES}");
                findings.push(file.finding(RULE, at + 1, message));
            }
        }
    }
    let quoted = cases.text.lines().zip(1..).flat_map(|(line, number)| {
        let mentions = ["case(\"", "chain(\"", "far(\""].iter().any(|form| line.contains(form));
        let first = line.split('"').nth(1).filter(|_| mentions);
        first.map(|name| (name, number))
    });
    let stale = quoted.filter(|(name, _)| !names.contains(name));
    findings.extend(stale.map(|(name, line)| {
        cases.finding(RULE, line, format!("no wait of the core is called {name:?}"))
    }));
    findings
}
