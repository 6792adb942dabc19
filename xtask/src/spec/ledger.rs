//! What implements and what shows each rule, and the page that says so.

use super::marks::Marks;
use super::rules::{Id, Note, Section};
use super::suite::{Case, Harness};
use crate::workspace::{Result, Source};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::Write;

/// What is known of one rule.
#[derive(Debug, Default)]
pub(super) struct Row {
    /// Files.
    pub(super) code: BTreeSet<String>,
    /// Tests of the suite.
    pub(super) suite: BTreeSet<Case>,
    /// Tests of a crate by itself.
    pub(super) own: BTreeSet<String>,
    /// Programs that the compiler refuses.
    pub(super) refused: BTreeSet<String>,
}

/// The whole ledger.
pub(super) struct Ledger {
    pub(super) rows: BTreeMap<Id, Row>,
    /// Marks that show nothing: where they stand, and which.
    pub(super) lost: Vec<String>,
}

impl Ledger {
    /// Reads every mark.
    pub(super) fn read(sources: &[Source], cases: &[Case]) -> Result<Self> {
        let mut ledger = Self { rows: BTreeMap::new(), lost: Vec::new() };
        for source in sources {
            let path = source.path.as_str();
            // The tool's own examples are no marks.
            if path.starts_with("xtask/") || path.ends_with("/table.rs") {
                continue;
            }
            let tests = is_tests(path);
            let marks = Marks::read(&source.text, tests);
            let marks = marks.map_err(|error| format!("{path}: {error}"))?;
            if let Some(program) = path.strip_prefix("tests/ui/") {
                for id in &marks.file {
                    ledger.row(*id).refused.insert(program.trim_end_matches(".rs").to_owned());
                }
            } else if let Some(topic) = path.strip_prefix("conformance/src/") {
                ledger.read_topic(path, topic.trim_end_matches(".rs"), &marks, cases);
            } else {
                ledger.read_code(path, &marks, tests);
            }
        }
        Ok(ledger)
    }

    fn row(&mut self, id: Id) -> &mut Row {
        self.rows.entry(id).or_default()
    }

    fn read_topic(&mut self, path: &str, topic: &str, marks: &Marks, cases: &[Case]) {
        let topic = topic.split('/').next().unwrap_or(topic);
        let cases: Vec<&Case> = cases.iter().filter(|case| case.topic == topic).collect();
        let functions: HashSet<&str> = cases.iter().map(|case| case.function.as_str()).collect();
        let stop = |name: &str| functions.contains(name);
        let mut shown = BTreeSet::new();
        for case in &cases {
            let defined = marks.functions.iter().any(|found| found.name == case.function);
            // What is not written out is made by the file's macro.
            let from_macro = marks.functions.iter().filter(|found| found.name.starts_with('$'));
            let names: Vec<&str> = if case.function.is_empty() {
                marks.functions.iter().map(|found| found.name.as_str()).collect()
            } else if defined {
                vec![case.function.as_str()]
            } else {
                from_macro.map(|found| found.name.as_str()).collect()
            };
            // Items belong to no function in particular.
            let items = marks.items.iter().filter(|_| case.function.is_empty()).copied();
            let reached = names.iter().flat_map(|name| marks.reached(name, &stop));
            for id in reached.chain(items).chain(marks.file.iter().copied()) {
                shown.insert(id);
                self.row(id).suite.insert((*case).clone());
            }
        }
        for function in marks.functions.iter().filter(|function| function.is_test) {
            for id in &function.marks {
                shown.insert(*id);
                self.row(*id).own.insert(format!("conformance {}", function.name));
            }
        }
        let all = marks.functions.iter().flat_map(|function| &function.marks);
        self.lose(path, all.chain(&marks.items).chain(&marks.file), &shown);
    }

    fn read_code(&mut self, path: &str, marks: &Marks, tests: bool) {
        let mut shown = BTreeSet::new();
        let is_test = |name: &str| marks.functions.iter().any(|f| f.is_test && f.name == name);
        for function in marks.functions.iter().filter(|function| function.is_test) {
            let name = format!("{} {}", crate_of(path), function.name);
            let reached = marks.reached(&function.name, &is_test);
            let file = marks.file.iter().copied().filter(|_| tests);
            for id in reached.into_iter().chain(file) {
                shown.insert(id);
                self.row(id).own.insert(name.clone());
            }
        }
        let in_tests = marks.functions.iter().filter(|function| function.in_tests);
        self.lose(path, in_tests.flat_map(|function| &function.marks), &shown);
        if tests {
            self.lose(path, marks.items.iter().chain(&marks.file), &shown);
            return;
        }
        let functions = marks.functions.iter().filter(|function| !function.in_tests);
        let functions = functions.flat_map(|function| &function.marks);
        for id in functions.chain(&marks.items).chain(&marks.file) {
            self.row(*id).code.insert(path.to_owned());
        }
    }

    fn lose<'a>(&mut self, path: &str, marks: impl Iterator<Item = &'a Id>, shown: &BTreeSet<Id>) {
        let lost: BTreeSet<&Id> = marks.filter(|id| !shown.contains(id)).collect();
        let lost = lost.into_iter().map(|id| format!("{path}: no test reaches the mark {id}"));
        self.lost.extend(lost);
    }
}

fn is_tests(path: &str) -> bool {
    let stem = path.trim_end_matches(".rs");
    path.starts_with("tests/") || path.contains("/tests/") || stem.ends_with("tests")
}

fn crate_of(path: &str) -> &str {
    match path.split_once('/') {
        Some(("src" | "tests", _)) | None => "rma",
        Some((folder, _)) => folder,
    }
}

/// How a rule stands.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Tests show it wherever it can be shown, or a note says why they need not.
    Shown,
    /// A note says that it is still to be done.
    Open,
    /// Nothing shows it here.
    Missing(String),
}

pub(super) fn state(row: &Row, note: Option<&Note>, harnesses: &[Harness]) -> State {
    let said = |what: fn(&Note) -> bool| note.is_some_and(what);
    if said(|note| note.pending.is_some() || note.later.is_some()) {
        // The change that builds it takes the note away.
        return match judge(row, note, harnesses) {
            State::Shown => State::Missing("is shown now, so it is not open any more".to_owned()),
            _ => State::Open,
        };
    }
    if said(|note| note.absent.is_some()) {
        return State::Shown;
    }
    judge(row, note, harnesses)
}

/// What the marks say.
fn judge(row: &Row, note: Option<&Note>, harnesses: &[Harness]) -> State {
    if row.code.is_empty() {
        return State::Missing("no mark in code".to_owned());
    }
    let alone = !(row.own.is_empty() && row.refused.is_empty());
    let shown = alone || !row.suite.is_empty();
    let explains = |note: &Note| note.form.is_some() || note.deviation.is_some();
    let explained = note.is_some_and(explains);
    if shown && explained {
        return State::Shown;
    }
    if row.suite.is_empty() {
        let why = if alone { "no test of the suite, and no note" } else { "no test" };
        return State::Missing(why.to_owned());
    }
    // A path that leaves out all of them, each for its reason, is excused.
    let none = |harness: &&Harness| !row.suite.iter().any(|case| harness.runs(case));
    let common = row.suite.iter().any(|case| case.only_on.is_none());
    match harnesses.iter().filter(none).map(|harness| harness.path.as_str()).next() {
        Some(path) if !common => State::Missing(format!("no test on the path {path}")),
        _ => State::Shown,
    }
}

/// The page.
pub(super) fn render(
    sections: &[Section],
    ledger: &Ledger,
    notes: &BTreeMap<Id, Note>,
    harnesses: &[Harness],
) -> String {
    let mut page = HEAD.to_owned();
    let empty = Row::default();
    for harness in harnesses {
        let exceptions = harness.exceptions.iter();
        let left_out = exceptions.map(|found| format!("`{}`: {}", found.tests, found.reason));
        let left_out = left_out.collect::<Vec<_>>().join("; ");
        let left_out = if left_out.is_empty() { "nothing" } else { left_out.as_str() };
        _ = writeln!(page, "| {} | {left_out} |", harness.path);
    }
    for section in sections {
        _ = writeln!(page, "\n## {}", section.title);
        for (id, text) in &section.rules {
            let (row, note) = (ledger.rows.get(id).unwrap_or(&empty), notes.get(id));
            _ = writeln!(page, "\n**{id}** {text}\n");
            entry(&mut page, row, note, harnesses);
        }
    }
    page
}

const HEAD: &str = "\
# Conformance

Each rule of [semantics.md](semantics.md): where it is implemented, which tests show it, on which
paths, and what is different here and why. Made by `cargo xtask spec` from the marks (`S-H7`) in
code and tests and from [conformance-notes.md](conformance-notes.md); do not edit it.

Tests of the suite are `TOPIC::CASE` of `conformance/src/TOPIC.rs`. They run on every path but where
it says so:

| path | left out |
| --- | --- |
";

fn entry(page: &mut String, row: &Row, note: Option<&Note>, harnesses: &[Harness]) {
    let code = |names: &BTreeSet<String>| {
        names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
    };
    let mut line = |what: &str, text: &str| {
        if !text.is_empty() {
            _ = writeln!(page, "- {what}: {text}");
        }
    };
    line("implemented in", &code(&row.code));
    line("shown by", &code(&row.suite.iter().map(Case::name).collect()));
    let runs = |harness: &Harness| row.suite.iter().filter(|case| harness.runs(case)).count();
    let paths = harnesses.iter().map(|harness| format!("{} {}", harness.path, runs(harness)));
    if !row.suite.is_empty() {
        line("tests on each path", &paths.collect::<Vec<_>>().join(", "));
    }
    line("tests of a crate by itself", &code(&row.own));
    line("refused by the compiler", &code(&row.refused));
    let Some(note) = note else { return };
    line("not in Rust", note.absent.as_deref().unwrap_or_default());
    line("in Rust", note.form.as_deref().unwrap_or_default());
    line("deviation", note.deviation.as_deref().unwrap_or_default());
    line("**open**", note.pending.as_deref().unwrap_or_default());
    line("comes with", note.later.as_deref().unwrap_or_default());
}
