//! `unsafe` lives in the files that `rooms.rs` names, and nowhere else.

use super::{File, Finding};
use crate::rooms::Room;

const RULE: &str = "unsafe-room";

pub(super) fn check(rooms: &[Room], files: &[File<'_>]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        if rooms.iter().any(|room| room.path == file.path) {
            continue;
        }
        let unsafes = file.facts.unsafes.iter().map(|fact| (fact.line, fact.what));
        let allows = file.facts.allows_unsafe.iter().map(|fact| (fact.line, "allow(unsafe_code)"));
        let mut found: Vec<_> = unsafes.chain(allows).collect();
        found.sort_unstable();
        if let Some((line, what)) = found.first() {
            let more = match found.len() - 1 {
                0 => String::new(),
                more => format!(" (and {more} more here)"),
            };
            let message = format!("{what}{more}, but no room of xtask/src/rooms.rs");
            findings.push(file.finding(RULE, *line, message));
        }
    }
    for room in rooms {
        let complaint = match files.iter().find(|file| file.path == room.path) {
            None => "there is no such file",
            Some(file) if file.facts.allows_unsafe.is_empty() => {
                "it does not carry the attribute allow(unsafe_code)"
            }
            Some(file) if file.facts.unsafes.is_empty() => "it holds no unsafe code",
            Some(_) => continue,
        };
        findings.push(Finding {
            rule: RULE,
            path: room.path.into(),
            line: 1,
            message: format!("named as an unsafe room in xtask/src/rooms.rs, but {complaint}"),
        });
    }
    findings
}
