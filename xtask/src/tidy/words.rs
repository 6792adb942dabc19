//! What may not be written down: unfinished work, ignored tests, paths of one machine, and words
//! for which the glossary has another.

use super::{File, Finding};

/// Split, so that this file does not hold them.
const UNFINISHED: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
const MACHINE_FOLDERS: &[&str] = &["tmp", "home", "root", "work"];

/// Words that names do not have, and what stands there.
const REPLACED: &[(&[&str], &str)] = &[
    (&["mail", "mails"], "message, inbox"),
    (&["mailbox", "mailboxes"], "message ring, inbox"),
    (&["gate", "gates"], "global lock, turn"),
    (&["board", "boards"], "collective block"),
    (&["fragment", "fragments"], "piece, data"),
    (&["shape", "shapes", "shaped"], "layout, geometry, size"),
    (&["supply", "supplies"], "budget, pool"),
    (&["ask", "asks"], "request, query, RTS"),
    (&["who", "whoever", "nobody", "anybody", "somebody", "everybody"], "the actor: rank, thread"),
];

/// Words that stand for an actor and do not say which: in no comment.
const NO_ACTORS: &[&str] = &["whoever", "nobody", "anybody", "somebody", "everybody"];

pub(super) fn check(file: &File<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        if let Some(word) = no_actor(line) {
            let message = format!("{word}: name the actor (origin, target, holder, rank, thread)");
            findings.push(file.finding("word", index + 1, message));
        }
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
    for name in &file.facts.names {
        for (word, instead) in split(&name.what).filter_map(|word| replaced(&word)) {
            let message = format!("{word:?} in {}: the words are: {instead}", name.what);
            findings.push(file.finding("word", name.line, message));
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

/// The words of `snake_case`, `SCREAMING_CASE` and `CamelCase`, in small letters.
pub(super) fn split(name: &str) -> impl Iterator<Item = String> {
    let mut words = vec![String::new()];
    let mut before = '_';
    for c in name.chars() {
        if c == '_' || (c.is_uppercase() && before.is_lowercase()) {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| c != '_') {
            word.extend(c.to_lowercase());
        }
        before = c;
    }
    words.into_iter()
}

fn replaced(word: &str) -> Option<(&'static str, &'static str)> {
    REPLACED.iter().find_map(|(words, instead)| {
        words.iter().find(|other| **other == word).map(|word| (*word, *instead))
    })
}

/// The first of [`NO_ACTORS`] in a line that is a comment.
fn no_actor(line: &str) -> Option<&'static str> {
    let comment = line.trim_start().strip_prefix("//")?.to_lowercase();
    let mut words = comment.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.find_map(|word| NO_ACTORS.iter().find(|other| **other == word).copied())
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
