//! What this machine has for a job, and what is wrong with it, before one is started; and the same
//! of hosts.

mod limits;
mod machine;
mod network;
mod peers;
mod probe;
mod report;
mod system;

use std::ffi::OsString;
use std::fmt::Write;
use std::io;
use std::time::Duration;

use super::hosts::{self, Remote};
use super::query::quoted;
use crate::codec::{wire_enum, wire_struct};

pub(super) use probe::assist;
pub use report::{Visit, Visits};

/// How something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// As it should be.
    Good,
    /// It works, but not as well as it could.
    Poor,
    /// Jobs, or those that were asked for, will not work.
    Bad,
}

/// What was found about one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Which thing; the same word in all versions.
    pub topic: String,
    /// How it is.
    pub health: Health,
    /// In a sentence: what will be used, and what to do, if something is wrong.
    pub text: String,
    /// The same for programs: keys, the same in all versions, and what they are set to here.
    pub values: Vec<(String, String)>,
}

wire_enum!(Health { 0 = Good {}, 1 = Poor {}, 2 = Bad {} });
wire_struct!(Finding { topic, health, text, values });

impl Health {
    fn mark(self) -> &'static str {
        match self {
            Health::Good => "ok",
            Health::Poor => "note",
            Health::Bad => "BAD",
        }
    }

    fn word(self) -> &'static str {
        match self {
            Health::Good => "good",
            Health::Poor => "poor",
            Health::Bad => "bad",
        }
    }
}

impl Finding {
    fn new(topic: &str, health: Health, text: impl Into<String>) -> Finding {
        let (topic, text, values) = (topic.to_owned(), text.into(), Vec::new());
        Finding { topic, health, text, values }
    }

    pub(super) fn with(mut self, key: &str, value: impl ToString) -> Finding {
        self.values.push((key.to_owned(), value.to_string()));
        self
    }

    /// What a key is set to.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.values.iter().find(|(known, _)| known == key).map(|(_, value)| &**value)
    }
}

/// What a job is to be like for which a machine is examined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Asked {
    /// Ranks that it has there.
    pub(super) ranks: u32,
    /// It has ranks on other hosts, too.
    pub(super) across: bool,
    /// Variables of libfabric that its ranks get, as bytes.
    pub(super) fabric: Vec<(Vec<u8>, Vec<u8>)>,
}

wire_struct!(Asked { ranks, across, fabric });

impl Asked {
    /// A rank on this machine, in the environment of this process.
    fn here() -> Asked {
        Asked { ranks: 1, across: false, fabric: Vec::new() }
    }
}

/// Examines this machine, by trying what a job needs, some of it in processes of this program: its
/// `main` begins with [`warden`](super::warden()), and with [`agent`](super::agent()) if its first
/// argument is `agent`.
pub fn examine() -> Vec<Finding> {
    examine_for(&Asked::here())
}

/// Examines hosts, each as a job on all of these would find it, for which its remote shell has so
/// long; what to exit with, if a signal asks for the end.
///
/// # Errors
///
/// When the system does not let this process wait for others.
pub fn visit(remote: &Remote, patience: Duration) -> io::Result<Result<Visits, u8>> {
    hosts::visit(remote, patience)
}

/// The same, for such a job.
pub(super) fn examine_for(asked: &Asked) -> Vec<Finding> {
    let [descriptors, copies] = peers::both();
    vec![
        machine::versions(),
        machine::cpu(),
        limits::cpu_time(),
        limits::room(asked.ranks),
        limits::memory_group(),
        limits::open_files(),
        limits::locked_memory(),
        machine::proc(),
        machine::memory(),
        machine::pages(),
        descriptors,
        copies,
        machine::seccomp(),
        machine::user_namespace(),
        machine::clock(),
        network::loop_back(),
        network::ports(),
        network::libfabric(asked),
        network::verbs(),
        network::ssh(),
    ]
}

/// What counts of the machine that starts jobs on others.
pub(super) fn examine_launcher() -> Vec<Finding> {
    vec![machine::versions(), network::ports(), network::ssh()]
}

/// Variables of libfabric in this environment, which ranks elsewhere get.
pub(super) fn fabric_variables() -> Vec<(Vec<u8>, Vec<u8>)> {
    let bytes = OsString::into_encoded_bytes;
    let all = std::env::vars_os().map(|(name, value)| (bytes(name), bytes(value)));
    all.filter(|(name, _)| name.starts_with(b"FI_")).collect()
}

/// Whether a job cannot run.
pub fn is_bad(findings: &[Finding]) -> bool {
    findings.iter().any(|finding| finding.health == Health::Bad)
}

/// The findings, a line each.
pub fn text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for Finding { topic, health, text: found, .. } in findings {
        _ = writeln!(text, "{:<5}{topic}: {found}", health.mark());
    }
    text
}

/// The findings, as a JSON array of objects.
pub fn json(findings: &[Finding]) -> String {
    format!("{}\n", array(findings, ""))
}

/// The same, in something whose lines begin with `indent`.
fn array(findings: &[Finding], indent: &str) -> String {
    let objects = findings.iter().map(|Finding { topic, health, text, values }| {
        let values =
            values.iter().map(|(key, value)| format!("{}: {}", quoted(key), quoted(value)));
        let values = values.collect::<Vec<_>>().join(", ");
        let (topic, health, text) = (quoted(topic), health.word(), quoted(text));
        format!(
            "{indent}  {{\"topic\": {topic}, \"health\": \"{health}\", \"text\": {text}, \
             \"values\": {{{values}}}}}"
        )
    });
    match objects.collect::<Vec<_>>().join(",\n") {
        none if none.is_empty() => "[]".to_owned(),
        objects => format!("[\n{objects}\n{indent}]"),
    }
}

pub(super) fn good(topic: &str, text: impl Into<String>) -> Finding {
    Finding::new(topic, Health::Good, text)
}

pub(super) fn poor(topic: &str, text: impl Into<String>) -> Finding {
    Finding::new(topic, Health::Poor, text)
}

fn bad(topic: &str, text: impl Into<String>) -> Finding {
    Finding::new(topic, Health::Bad, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_lines_or_json() {
        let findings = [good("a", "x \"y\"\n\\").with("k", 1).with("l", "\""), bad("b", "z")];
        assert_eq!(text(&findings), "ok   a: x \"y\"\n\\\nBAD  b: z\n");
        let expected = "[\n  {\"topic\": \"a\", \"health\": \"good\", \
                        \"text\": \"x \\\"y\\\"\\u000a\\\\\", \
                        \"values\": {\"k\": \"1\", \"l\": \"\\\"\"}},\n  \
                        {\"topic\": \"b\", \"health\": \"bad\", \"text\": \"z\", \
                        \"values\": {}}\n]\n";
        assert_eq!(json(&findings), expected);
        assert_eq!((findings[0].value("k"), findings[1].value("k")), (Some("1"), None));
        assert_eq!([&findings[..1], &findings[..]].map(is_bad), [false, true]);
    }

    #[test]
    fn findings_travel() {
        let findings = vec![good("a", "x").with("k", "v"), poor("b", "y"), bad("c", "z")];
        let frame = crate::wire::encode(&findings).unwrap();
        assert_eq!(crate::wire::decode::<Vec<Finding>>(&frame[4..]).unwrap(), findings);
    }
}
