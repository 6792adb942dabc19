//! `cargo xtask tidy`: the house rules that neither rustc nor clippy knows.

mod arrows;
mod calls;
mod casts;
mod facts;
mod floors;
mod glossary;
mod pages;
mod rooms_check;
mod size;
mod topics;
mod waits;
mod words;

use crate::rooms::{EXCEPTIONS, Exception, ROOMS};
use crate::workspace::{Result, Source, Workspace};
use facts::Facts;
use std::collections::HashSet;
use std::{fmt, fs};

/// One violation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    rule: &'static str,
    path: String,
    line: usize,
    message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: [{}] {}", self.path, self.line, self.rule, self.message)
    }
}

/// A file as the checks see it.
struct File<'a> {
    path: &'a str,
    text: &'a str,
    facts: Facts,
}

impl File<'_> {
    fn finding(&self, rule: &'static str, line: usize, message: impl Into<String>) -> Finding {
        Finding { rule, path: self.path.into(), line, message: message.into() }
    }
}

/// Runs every check and prints what it finds.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let sources = workspace.sources()?;
    if sources.is_empty() {
        return Err(format!("no Rust file below {}", workspace.root.display()).into());
    }
    let (files, mut findings) = read(&sources);
    for file in &files {
        findings.extend(check(file));
    }
    findings.extend(rooms_check::check(ROOMS, &files));
    findings.extend(waits::check(&files));
    let page = fs::read_to_string(workspace.root.join("docs/architecture.md"))?;
    findings.extend(floors::check(&page, &files));
    findings.extend(topics::check(&page, &files));
    let pages = workspace.pages()?;
    findings.extend(pages::check(&pages, &sources));
    findings.extend(casts::check(&pages, &sources));
    let glossary = fs::read_to_string(workspace.root.join("docs/glossary.md"))?;
    findings.extend(glossary::check(&glossary, &sources));
    let api = fs::read_to_string(workspace.root.join(crate::api::PAGE))?;
    findings.extend(glossary::check_types(&glossary, &api));
    findings.extend(arrows::check(&workspace.metadata));
    findings.extend(arrows::check_tree(workspace)?);
    let mut findings = excuse(EXCEPTIONS, findings);
    findings.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    for file in &files {
        if let Some(warning) = size::warning(file) {
            println!("warning: {warning}");
        }
    }
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => {
            println!("tidy: {} files, nothing to report", files.len());
            Ok(())
        }
        count => Err(format!("tidy: {count} violations in {} files", files.len()).into()),
    }
}

/// The checks that look at one file.
fn check(file: &File<'_>) -> Vec<Finding> {
    let checks = [size::check, calls::check, words::check];
    checks.iter().flat_map(|check| check(file)).collect()
}

/// Parses every file, telling apart which are test code.
fn read(sources: &[Source]) -> (Vec<File<'_>>, Vec<Finding>) {
    let mut test_roots = HashSet::new();
    for Source { path, text } in sources {
        if let Ok(facts) = Facts::parse(text, false) {
            test_roots.extend(facts.test_modules.iter().map(|name| module_stem(path, name)));
        }
    }
    let mut files = Vec::new();
    let mut findings = Vec::new();
    for Source { path, text } in sources {
        let test = is_test_path(path, &test_roots);
        match Facts::parse(text, test) {
            Ok(facts) => files.push(File { path, text, facts }),
            Err(error) => findings.push(Finding {
                rule: "syntax",
                path: path.clone(),
                line: error.span().start().line,
                message: error.to_string(),
            }),
        }
    }
    (files, findings)
}

/// Where `mod name;` in the file `path` looks: `folder/name`, without its ending.
fn module_stem(path: &str, name: &str) -> String {
    let stem = path.strip_suffix(".rs").unwrap_or(path);
    let (folder, file) = stem.rsplit_once('/').unwrap_or(("", stem));
    match file {
        "mod" | "lib" | "main" => format!("{folder}/{name}"),
        _ => format!("{stem}/{name}"),
    }
}

/// Nothing but test code: under `tests/`, in the suite, or a module behind `cfg(test)`.
fn is_test_path(path: &str, test_roots: &HashSet<String>) -> bool {
    let below = |root: &String| {
        path.strip_prefix(root.as_str()).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
    };
    path.starts_with("tests/")
        || path.contains("/tests/")
        || path.starts_with("conformance/")
        || test_roots.iter().any(below)
}

/// Drops what an exception covers; an exception that covers nothing becomes a finding.
fn excuse(exceptions: &[Exception], findings: Vec<Finding>) -> Vec<Finding> {
    let covers = |exception: &Exception, finding: &Finding| {
        exception.rule == finding.rule && exception.path == finding.path
    };
    let stale =
        exceptions.iter().filter(|exception| !findings.iter().any(|f| covers(exception, f)));
    let stale = stale.map(|exception| Finding {
        rule: "exception",
        path: "xtask/src/rooms.rs".into(),
        line: 1,
        message: format!(
            "the exception of {} from [{}] excuses nothing: remove it",
            exception.path, exception.rule
        ),
    });
    let stale: Vec<_> = stale.collect();
    let excused = |finding: &Finding| exceptions.iter().any(|e| covers(e, finding));
    findings.into_iter().filter(|finding| !excused(finding)).chain(stale).collect()
}

#[cfg(test)]
mod tests;
