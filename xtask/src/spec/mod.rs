//! `cargo xtask spec`: the ledger of rules, `docs/conformance.md`, from marks in code and tests.

mod ledger;
mod marks;
mod rules;
mod suite;

use crate::workspace::{Result, Workspace};
use ledger::{Ledger, State};
use rules::{Id, Section};
use std::collections::HashSet;
use std::fs;

const RULES: &str = "docs/semantics.md";
const NOTES: &str = "docs/conformance-notes.md";
const PAGE: &str = "docs/conformance.md";

/// Writes the page, or with `check` only looks whether it is what would be written. Fails if a rule
/// is not shown, or a mark is wrong.
pub(crate) fn run(workspace: &Workspace, check: bool) -> Result<()> {
    let read = |path: &str| {
        let text = fs::read_to_string(workspace.root.join(path));
        text.map_err(|error| format!("cannot read {path}: {error}"))
    };
    let sections = rules::sections(&read(RULES)?)?;
    let notes = rules::notes(&read(NOTES)?)?;
    let sources = workspace.sources()?;
    let harnesses = suite::harnesses(&sources)?;
    let mut cases = suite::cases(&sources)?;
    cases.extend(harnesses.iter().flat_map(suite::Harness::instead));
    cases.extend(suite::whole_topics(&sources, &harnesses));
    let ledger = Ledger::read(&sources, &cases)?;
    let page = ledger::render(&sections, &ledger, &notes, &harnesses);

    let mut problems = ledger.lost.clone();
    let known: HashSet<Id> = sections.iter().flat_map(ids_of).collect();
    let marked = ledger.rows.keys().map(|id| (id, "a mark"));
    for (id, what) in marked.chain(notes.keys().map(|id| (id, "a note"))) {
        if !known.contains(id) {
            problems.push(format!("{what} names {id}, which {RULES} does not have"));
        }
    }
    let (mut open, empty) = (0, ledger::Row::default());
    for id in sections.iter().flat_map(ids_of) {
        let row = ledger.rows.get(&id).unwrap_or(&empty);
        match ledger::state(row, notes.get(&id), &harnesses) {
            State::Shown => {}
            State::Open => open += 1,
            State::Missing(why) => {
                problems.push(format!("{id}: {why}; mark one, or say why in {NOTES}"))
            }
        }
    }
    if !check {
        fs::write(workspace.root.join(PAGE), &page)?;
    } else if read(PAGE).is_ok_and(|written| written != page) || read(PAGE).is_err() {
        problems.push(format!("{PAGE} is not up to date: run `cargo xtask spec`"));
    }
    for problem in &problems {
        println!("{problem}");
    }
    match problems.len() {
        0 => {
            println!("spec: {} rules, {open} of them open", known.len());
            Ok(())
        }
        count => Err(format!("spec: {count} problems").into()),
    }
}

fn ids_of(section: &Section) -> impl Iterator<Item = Id> + '_ {
    section.rules.iter().map(|(id, _)| *id)
}

#[cfg(test)]
mod tests;
