//! What code may not touch, by place: system calls, environment, clock, globals, ways to end.

use super::{File, Finding};

/// Not in `rma-core`: it has no system call, no environment and no clock.
const IMPURE: &[&str] = &[
    "std::env",
    "std::fs",
    "std::net",
    "std::os",
    "std::process",
    "std::thread::sleep",
    "std::time::Instant",
    "std::time::SystemTime",
    "libc",
    "rustix",
];
const PRINTING: &[&str] = &["print", "println", "eprint", "eprintln", "dbg"];
const ENVIRONMENT: &[&str] = &[
    "std::env::remove_var",
    "std::env::set_var",
    "std::env::var",
    "std::env::var_os",
    "std::env::vars",
    "std::env::vars_os",
];
const ENDINGS: &[&str] = &["std::process::abort", "std::process::exit"];
/// Where memory that cannot be taken back from a device ends the process, as the contract of
/// `Endpoint::quiesce` says.
const LAST_RESORT: &str = "transport-ofi/src/sys/end.rs";
const SLEEPS: &[&str] = &[
    "std::thread::sleep",
    "tokio::time::sleep",
    "rustix::thread::nanosleep",
    "libc::nanosleep",
    "libc::sleep",
    "libc::usleep",
];
/// In the type of a `static`, these make it a global that changes.
const MUTABLE_TYPES: &[&str] = &[
    "Cell",
    "LazyCell",
    "LazyLock",
    "Mutex",
    "Once",
    "OnceCell",
    "OnceLock",
    "RefCell",
    "RwLock",
    "UnsafeCell",
];

pub(super) fn check(file: &File<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    if is_core(file.path) {
        let reason = "in rma-core, which has no system call, no environment and no clock";
        findings.extend(paths(file, "core-purity", IMPURE, reason));
        for mac in file.facts.macros.iter().filter(|mac| !mac.test) {
            if PRINTING.contains(&mac.what.as_str()) {
                let message = format!("{}! {reason}", mac.what);
                findings.push(file.finding("core-purity", mac.line, message));
            }
        }
    } else if !may_read_environment(file.path) {
        let reason = "outside the launcher, which is the only reader of the environment";
        findings.extend(paths(file, "environment", ENVIRONMENT, reason));
    }
    if is_library(file.path) && file.path != LAST_RESORT {
        let reason = "in a library, which returns an error instead";
        findings.extend(paths(file, "process-end", ENDINGS, reason));
    }
    if is_core(file.path) || file.path.starts_with("transport-") {
        findings.extend(globals(file));
    }
    let sleeps = file.facts.paths.iter().filter(|path| path.test && names(&path.what, SLEEPS));
    findings.extend(sleeps.map(|path| {
        let message = format!("{} in a test: wait for the condition instead", path.what);
        file.finding("sleep", path.line, message)
    }));
    findings
}

fn is_core(path: &str) -> bool {
    path.starts_with("rma-core/src/")
}

fn may_read_environment(path: &str) -> bool {
    let rooms = ["launcher/", "xtask/", "conformance/", "benches/"];
    // What tests need, the user who runs them says.
    rooms.iter().any(|room| path.starts_with(room)) || path == "transport-ofi/src/sys/here.rs"
}

fn is_library(path: &str) -> bool {
    let program = path.ends_with("/main.rs")
        || ["/bin/", "/build.rs"].iter().any(|part| path.contains(part))
        || ["examples", "xtask", "benches"].iter().any(|part| path.split('/').any(|p| p == *part));
    !program
}

/// Whether `path` is, lies below, or by its glob takes in one of `forbidden`.
fn names(path: &str, forbidden: &[&str]) -> bool {
    let path =
        path.strip_prefix("core::").map_or_else(|| path.into(), |rest| format!("std::{rest}"));
    let below = |path: &str, room: &str| {
        path == room || path.strip_prefix(room).is_some_and(|rest| rest.starts_with("::"))
    };
    forbidden.iter().any(|room| {
        below(&path, room) || path.strip_suffix("::*").is_some_and(|glob| below(room, glob))
    })
}

fn paths(
    file: &File<'_>,
    rule: &'static str,
    forbidden: &[&str],
    reason: &str,
) -> impl Iterator<Item = Finding> {
    let hits = file.facts.paths.iter().filter(|path| !path.test && names(&path.what, forbidden));
    hits.map(move |path| file.finding(rule, path.line, format!("{} {reason}", path.what)))
}

fn globals(file: &File<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let reason = "nothing is global: several ranks share a process";
    for item in file.facts.statics.iter().filter(|item| !item.test) {
        let is_mutable_type =
            |word: &String| word.starts_with("Atomic") || MUTABLE_TYPES.contains(&word.as_str());
        if item.what.mutable || item.what.type_words.iter().any(is_mutable_type) {
            let message = format!("static {} can change, but {reason}", item.what.name);
            findings.push(file.finding("global", item.line, message));
        }
    }
    for mac in file.facts.macros.iter().filter(|mac| !mac.test) {
        if mac.what == "thread_local" || mac.what == "lazy_static" {
            let message = format!("{}!, but {reason}", mac.what);
            findings.push(file.finding("global", mac.line, message));
        }
    }
    findings
}
