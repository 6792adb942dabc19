//! Sizes of files, functions and lines.

use super::{File, Finding};

const FILE_MAX: usize = 800;
const FILE_WARN: usize = 500;
const FUNCTION_MAX: usize = 70;
const LINE_MAX: usize = 100;

pub(super) fn check(file: &File<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let lines = file.text.lines().count();
    if lines > FILE_MAX {
        let message = format!("{lines} lines, at most {FILE_MAX} are allowed: a file is one noun");
        findings.push(file.finding("file-length", lines, message));
    }
    for function in &file.facts.functions {
        if function.what.lines > FUNCTION_MAX {
            let (name, lines) = (&function.what.name, function.what.lines);
            let message =
                format!("fn {name} has {lines} lines, at most {FUNCTION_MAX} are allowed");
            findings.push(file.finding("function-length", function.line, message));
        }
    }
    for (index, line) in file.text.lines().enumerate() {
        let columns = columns_without_urls(line);
        if columns > LINE_MAX {
            let message = format!("{columns} columns, at most {LINE_MAX} are allowed");
            findings.push(file.finding("line-length", index + 1, message));
        }
    }
    findings
}

/// A file that has grown past the point where it wants splitting.
pub(super) fn warning(file: &File<'_>) -> Option<String> {
    let lines = file.text.lines().count();
    (FILE_WARN < lines && lines <= FILE_MAX)
        .then(|| format!("{} has {lines} lines; it fails at {}", file.path, FILE_MAX + 1))
}

fn columns_without_urls(line: &str) -> usize {
    let is_url = |word: &&str| word.contains("http://") || word.contains("https://");
    let urls: usize = line.split_whitespace().filter(is_url).map(|url| url.chars().count()).sum();
    line.chars().count() - urls
}
