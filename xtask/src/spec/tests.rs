use super::ledger::{Ledger, State, render, state};
use super::marks::Marks;
use super::rules::{Id, Note, ids, notes, sections};
use super::suite::{Case, cases, harnesses};
use crate::workspace::Source;
use std::collections::BTreeMap;

const A: Id = Id { section: 'A', number: 1 };
const B: Id = Id { section: 'B', number: 12 };

fn source(path: &str, text: &str) -> Source {
    Source { path: path.to_owned(), text: text.to_owned() }
}

fn table(entries: &str) -> Source {
    let text =
        format!("macro_rules! suite {{ () => {{ $crate::tests! {{ $harness; {entries} }} }} }}");
    source("conformance/src/table.rs", &text)
}

const SUITE: &str = "rma_conformance::suite!(H);";

fn plain_harness(path: &str) -> Source {
    source(&format!("conformance/tests/{path}.rs"), SUITE)
}

/// The state of a rule for these files, and marks that are lost.
fn judge(id: Id, sources: &[Source], note: Option<&Note>) -> (State, Vec<String>) {
    let harnesses = harnesses(sources).unwrap();
    let mut cases = cases(sources).unwrap();
    cases.extend(harnesses.iter().flat_map(super::suite::Harness::instead));
    let ledger = Ledger::read(sources, &cases).unwrap();
    let empty = super::ledger::Row::default();
    let row = ledger.rows.get(&id).unwrap_or(&empty);
    (state(row, note, &harnesses), ledger.lost)
}

fn missing(why: &str) -> State {
    State::Missing(why.to_owned())
}

#[test]
fn ids_are_found_in_text() {
    assert_eq!(ids("see S-A1, (S-B12) and `S-A1`."), [A, B, A]);
    assert_eq!(ids("S1 S-a1 S-A XS-A1 S-"), []);
}

#[test]
fn rules_are_read_with_their_continuations() {
    let text = "# T\n\n## A. First\n- **S-A1** one\n  and more\n\n## B. Second\n- **S-B12** two\n";
    let read = sections(text).unwrap();
    assert_eq!((read[0].title.as_str(), read[1].title.as_str()), ("A. First", "B. Second"));
    assert_eq!(read[0].rules, [(A, "one and more".to_owned())]);
    assert_eq!(read[1].rules, [(B, "two".to_owned())]);
    assert!(sections("## A\n- **S-A1** a\n- **S-A1** b\n").is_err());
    assert!(sections("## A\n- **S-A** a\n").is_err());
}

#[test]
fn notes_are_read() {
    let read =
        notes("intro\n\n## S-A1\nform: a\n  b\n\ndeviation: c\n## S-B12\nlater: d\n").unwrap();
    assert_eq!(read[&A].form.as_deref(), Some("a b"));
    assert_eq!(read[&A].deviation.as_deref(), Some("c"));
    assert_eq!(read[&B].later.as_deref(), Some("d"));
    for wrong in
        ["## x\n", "## S-A1\n## S-A1\n", "## S-A1\nwhy: a\n", "## S-A1\n  a\n", "## S-A1\na\n"]
    {
        assert!(notes(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn marks_belong_to_the_function_below_them() {
    let text = "//! S-B12\n/// S-A1\n#[inline]\npub fn one() { two() }\n/// none\nfn two() {}\n\
                /// S-B12\nstruct S;";
    let marks = Marks::read(text, false).unwrap();
    assert_eq!((marks.file.as_slice(), marks.items.as_slice()), ([B].as_slice(), [B].as_slice()));
    assert_eq!(marks.functions[0].marks, [A]);
    assert_eq!(marks.functions[1].marks, []);
    assert!(marks.functions[0].names.contains("two"));
}

/// A comment above a line of a function is of that function; strings are no marks.
#[test]
fn marks_stand_above_the_line_that_they_rule() {
    let text = "// S-B12\nfn one() {\n    // S-A1: as this.\n    if two() { \"S-B12\" }\n}\n\
                fn two() { let x = \"// S-A1\"; }";
    let marks = Marks::read(text, false).unwrap();
    assert_eq!(marks.functions[0].marks, [B, A]);
    assert_eq!(marks.functions[1].marks, []);
}

#[test]
fn marks_inside_macros_and_test_modules_are_seen() {
    let text = "macro_rules! m { ($n:ident) => { /// S-A1\n pub fn $n() {} } }\n\
                #[cfg(test)] mod tests { proptest! { /// S-B12\n #[test] fn t(x in 0..1) {} } }";
    let marks = Marks::read(text, false).unwrap();
    let found: Vec<_> = marks.functions.iter().map(|f| (f.name.as_str(), f.is_test)).collect();
    assert_eq!(found, [("$n", false), ("t", true)]);
    assert!(!marks.functions[0].in_tests && marks.functions[1].in_tests);
}

#[test]
fn a_rule_needs_code_and_a_test_on_every_path() {
    let with = |more: &[(&str, &str)]| {
        let suite = [table("t { case(2) as one, other(1) }")];
        let paths = [plain_harness("sim"), plain_harness("shm")];
        let more = more.iter().map(|(path, text)| source(path, text));
        suite.into_iter().chain(paths).chain(more).collect::<Vec<_>>()
    };
    let code = ("rma-core/src/x.rs", "//! S-A1\n");
    let text = "fn help() {}\n/// S-A1\npub fn case() {}\npub fn other() {}";
    let shows = ("conformance/src/t.rs", text);
    assert_eq!(judge(A, &with(&[shows, code]), None), (State::Shown, vec![]));
    assert_eq!(judge(A, &with(&[shows]), None).0, missing("no mark in code"));
    assert_eq!(judge(A, &with(&[code]), None).0, missing("no test"));
}

#[test]
fn a_helper_counts_for_the_cases_that_reach_it_and_no_others() {
    let text = "/// S-A1\nfn deep() {}\nfn help() { deep() }\npub fn case() { help() }\n\
                pub fn other() { case() }";
    let sources = [
        table("t { case(2), other(1) }"),
        plain_harness("sim"),
        source("conformance/src/t.rs", text),
    ];
    let ledger = Ledger::read(&sources, &cases(&sources).unwrap()).unwrap();
    let names: Vec<_> = ledger.rows[&A].suite.iter().map(Case::name).collect();
    assert_eq!(names, ["t::case"]);
    let lost = source("conformance/src/t.rs", "/// S-A1\nfn help() {}\npub fn case() {}");
    let sources = [table("t { case(2) }"), plain_harness("sim"), lost];
    assert_eq!(judge(A, &sources, None).1, ["conformance/src/t.rs: no test reaches the mark S-A1"]);
}

#[test]
fn cases_of_macros_and_written_out_tests_are_found() {
    let text = "macro_rules! m { ($n:ident) => { /// S-A1\npub fn $n() {} } }\nm!(case);\n\
                /// S-B12\npub fn run_special() {}";
    let table = "macro_rules! suite { () => { $crate::tests! { $h; t { case(2) } }\n\
                 mod t { #[test] fn special() { $crate::t::run_special::<$h>(\"x\"); } } } }";
    let sources = [
        source("conformance/src/table.rs", table),
        plain_harness("sim"),
        source("conformance/src/t.rs", text),
    ];
    let ledger = Ledger::read(&sources, &cases(&sources).unwrap()).unwrap();
    assert_eq!(ledger.rows[&A].suite.first().unwrap().name(), "t::case");
    assert_eq!(ledger.rows[&B].suite.first().unwrap().name(), "t::special");
    assert!(ledger.lost.is_empty());
}

#[test]
fn what_a_path_leaves_out_does_not_count_there() {
    let code = source("rma-core/src/x.rs", "//! S-A1 S-B12\n");
    let text = "/// S-A1\npub fn case() {}\n/// S-B12\npub fn refused() {}";
    let sim = "fn exceptions() { let why = \"no memory\"; \
               vec![Exception { tests: \"t::\", reason: why, instead: Some(refused) }] }";
    let sources = [
        code,
        table("t { case(2) }"),
        source("conformance/tests/sim.rs", &format!("{sim}\n{SUITE}")),
        plain_harness("shm"),
        source("conformance/src/t.rs", text),
    ];
    // Excused where it does not apply; what replaces it runs there only.
    assert_eq!(judge(A, &sources, None), (State::Shown, vec![]));
    assert_eq!(judge(B, &sources, None).0, missing("no test on the path shm"));
    let note = Note { form: Some("why".to_owned()), ..Note::default() };
    assert_eq!(judge(B, &sources, Some(&note)).0, State::Shown);
    let found = harnesses(&sources).unwrap();
    assert_eq!(found[0].exceptions[0].reason, "no memory");
}

#[test]
fn own_tests_and_refused_programs_need_a_note() {
    let sources = [
        table("t { case(2) }"),
        plain_harness("sim"),
        source(
            "rma-core/src/x.rs",
            "//! S-A1 S-B12\n#[cfg(test)] mod tests { /// S-A1\n#[test] fn t() {} }",
        ),
        source("tests/ui/wrong.rs", "//! S-B12\nfn main() {}"),
    ];
    let note = Note { form: Some("why".to_owned()), ..Note::default() };
    for id in [A, B] {
        assert_eq!(judge(id, &sources, None).0, missing("no test of the suite, and no note"));
        assert_eq!(judge(id, &sources, Some(&note)).0, State::Shown);
    }
    let open = Note { pending: Some("soon".to_owned()), ..Note::default() };
    assert_eq!(judge(A, &sources, Some(&open)).0, State::Open);
}

#[test]
fn what_is_built_is_not_open_any_more() {
    let built = [
        source("rma-core/src/x.rs", "//! S-A1\n"),
        table("t { case(2) }"),
        plain_harness("sim"),
        source("conformance/src/t.rs", "/// S-A1\npub fn case() {}"),
    ];
    let open = Note { pending: Some("soon".to_owned()), ..Note::default() };
    let expected = missing("is shown now, so it is not open any more");
    assert_eq!(judge(A, &built, Some(&open)).0, expected);
    assert_eq!(judge(A, &built[1..3], Some(&open)).0, State::Open);
}

#[test]
fn the_page_says_all_of_it() {
    let sections = sections("## A. First\n- **S-A1** one\n").unwrap();
    let sources = [
        source("rma-core/src/x.rs", "//! S-A1\n"),
        table("t { case(2) }"),
        plain_harness("sim"),
        source("conformance/src/t.rs", "/// S-A1\npub fn case() {}"),
    ];
    let harnesses = harnesses(&sources).unwrap();
    let ledger = Ledger::read(&sources, &cases(&sources).unwrap()).unwrap();
    let note = Note { deviation: Some("differs".to_owned()), ..Note::default() };
    let page = render(&sections, &ledger, &BTreeMap::from([(A, note)]), &harnesses);
    for part in
        ["## A. First", "**S-A1** one", "`rma-core/src/x.rs`", "`t::case`", "sim 1", "differs"]
    {
        assert!(page.contains(part), "{part} is not in\n{page}");
    }
}
