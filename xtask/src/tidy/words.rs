//! What may not be written down: unfinished work, ignored tests, paths of one machine.

use super::{File, Finding};

/// Split, so that this file does not hold them.
const UNFINISHED: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
const MACHINE_FOLDERS: &[&str] = &["tmp", "home", "root", "work"];

pub(super) fn check(file: &File<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
        if let Some(word) = words.find(|word| UNFINISHED.contains(word)) {
            let message = format!("{word}: finish it, or open an issue and say so there");
            findings.push(file.finding("unfinished", index + 1, message));
        }
        if is_ignored_doctest(line) {
            let message = "an ignored doctest: let it run, or mark it `no_run`, or `text`";
            findings.push(file.finding("ignored-test", index + 1, message));
        }
    }
    for ignore in &file.facts.ignores {
        let message = "an ignored test: let it run or remove it";
        findings.push(file.finding("ignored-test", ignore.line, message));
    }
    for text in &file.facts.strings {
        if let Some(folder) = machine_path(&text.what) {
            let message = format!("/{folder} in a string: a path of one machine");
            findings.push(file.finding("absolute-path", text.line, message));
        }
    }
    findings
}

fn is_ignored_doctest(line: &str) -> bool {
    let line = line.trim_start();
    let comment = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
    let fence = comment.and_then(|comment| comment.trim_start().strip_prefix("```"));
    fence.is_some_and(|info| info.split([',', ' ']).any(|word| word.trim().starts_with("ignore")))
}

/// The first of [`MACHINE_FOLDERS`] that `text` names from the root of the file system.
fn machine_path(text: &str) -> Option<&'static str> {
    let names = |folder: &&&str| {
        text.match_indices(&format!("/{folder}")).any(|(start, found)| {
            let before = text[..start].chars().next_back();
            let after = text[start + found.len()..].chars().next();
            let part = |c: char| c.is_alphanumeric() || "_-./}~".contains(c);
            !before.is_some_and(part)
                && !after.is_some_and(|c| c.is_alphanumeric() || "_-".contains(c))
        })
    };
    MACHINE_FOLDERS.iter().find(names).copied()
}
