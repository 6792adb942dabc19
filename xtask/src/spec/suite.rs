//! Which cases the conformance suite has, and which transports run them.

use super::marks::Marks;
use crate::workspace::{Result, Source};
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use std::collections::BTreeSet;

/// The file that lists the cases.
const TABLE: &str = "conformance/src/table.rs";
/// The folder of the harnesses.
const HARNESSES: &str = "conformance/tests/";

/// A test of the suite.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Case {
    pub(super) topic: String,
    /// The function; empty if the test belongs to the topic as a whole.
    pub(super) function: String,
    /// The test that is made of it.
    pub(super) test: String,
    /// The one path on which it runs, in place of what that leaves out.
    pub(super) only_on: Option<String>,
}

impl Case {
    pub(super) fn name(&self) -> String {
        if self.function.is_empty() {
            self.test.clone()
        } else {
            self.topic.clone() + "::" + &self.test
        }
    }
}

/// A path that runs the suite.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Harness {
    /// Its file's name.
    pub(super) path: String,
    pub(super) exceptions: Vec<Exception>,
    /// Tests of its own.
    tests: Vec<String>,
}

/// What a path leaves out.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Exception {
    /// A test, or a topic with `::`.
    pub(super) tests: String,
    pub(super) reason: String,
    /// The function of the topic that runs instead.
    instead: Option<String>,
}

impl Harness {
    /// Whether it runs a test.
    pub(super) fn runs(&self, case: &Case) -> bool {
        let name = case.name();
        let covers =
            |tests: &str| name == tests || tests.ends_with("::") && name.starts_with(tests);
        match &case.only_on {
            _ if case.function.is_empty() => self.tests.contains(&case.test),
            Some(path) => *path == self.path,
            None => !self.exceptions.iter().any(|exception| covers(&exception.tests)),
        }
    }

    /// The tests that run instead.
    pub(super) fn instead(&self) -> impl Iterator<Item = Case> + '_ {
        self.exceptions.iter().filter_map(|exception| {
            let (topic, _) = exception.tests.split_once("::")?;
            let function = exception.instead.clone()?;
            let only_on = Some(self.path.clone());
            Some(Case { topic: topic.to_owned(), test: function.clone(), function, only_on })
        })
    }
}

/// Tests that harnesses write out for a folder of the suite: `topic_…`.
pub(super) fn whole_topics(sources: &[Source], harnesses: &[Harness]) -> Vec<Case> {
    let paths = sources.iter().filter_map(|source| source.path.strip_prefix("conformance/src/"));
    let topics = paths.filter_map(|path| path.strip_suffix("/mod.rs"));
    let tests = || harnesses.iter().flat_map(|harness| &harness.tests);
    let of_topic = |topic: &str| {
        let case = |test: &String| Case {
            topic: topic.to_owned(),
            function: String::new(),
            test: test.clone(),
            only_on: None,
        };
        let prefix = format!("{topic}_");
        tests().filter(|test| test.starts_with(&prefix)).map(case).collect::<BTreeSet<Case>>()
    };
    topics.flat_map(of_topic).collect()
}

/// Reads the table.
pub(super) fn cases(sources: &[Source]) -> Result<Vec<Case>> {
    let table = sources.iter().find(|source| source.path == TABLE);
    let table = table.ok_or_else(|| format!("there is no {TABLE}"))?;
    let mut cases = Vec::new();
    collect(parse(table)?, &mut cases);
    if cases.is_empty() { Err(format!("no case in {TABLE}").into()) } else { Ok(cases) }
}

/// Finds `tests! { $harness; topic { … } … }` and `failing! { $harness; … }` at any depth.
fn collect(stream: TokenStream, cases: &mut Vec<Case>) {
    let tokens: Vec<TokenTree> = stream.into_iter().collect();
    for (at, token) in tokens.iter().enumerate() {
        let TokenTree::Group(group) = token else { continue };
        if let Some(case) = written_out(&tokens[..at], group) {
            cases.push(case);
            continue;
        }
        let called = at.checked_sub(2).map(|at| tokens[at].to_string());
        let is_call = at > 0 && tokens[at - 1].to_string() == "!";
        match called.as_deref().filter(|_| is_call) {
            Some("tests") => topics(group.stream(), cases),
            Some("failing") => list("failure", group.stream(), cases),
            _ => collect(group.stream(), cases),
        }
    }
}

/// `fn test() { $crate::topic::function… }`
fn written_out(before: &[TokenTree], body: &Group) -> Option<Case> {
    let [.., TokenTree::Ident(keyword), TokenTree::Ident(test), TokenTree::Group(_)] = before
    else {
        return None;
    };
    let text: Vec<String> = body.stream().into_iter().map(|token| token.to_string()).collect();
    let at = text.iter().position(|word| word == "crate").filter(|_| keyword == "fn")?;
    // Two tokens are between the names, as in `a::b`.
    let (topic, function) = (text.get(at + 3)?.clone(), text.get(at + 6)?.clone());
    Some(Case { topic, function, test: test.to_string(), only_on: None })
}

fn topics(stream: TokenStream, cases: &mut Vec<Case>) {
    let tokens: Vec<TokenTree> = stream.into_iter().collect();
    for pair in tokens.windows(2) {
        if let [TokenTree::Ident(topic), TokenTree::Group(group)] = pair
            && group.delimiter() == Delimiter::Brace
        {
            list(&topic.to_string(), group.stream(), cases);
        }
    }
}

/// `case(4), case(5) as name, …`
fn list(topic: &str, stream: TokenStream, cases: &mut Vec<Case>) {
    let tokens: Vec<TokenTree> = stream.into_iter().collect();
    for (at, pair) in tokens.windows(2).enumerate() {
        let [TokenTree::Ident(function), TokenTree::Group(_)] = pair else { continue };
        let renamed = tokens.get(at + 2).is_some_and(|token| token.to_string() == "as");
        let test = if renamed { tokens.get(at + 3) } else { None };
        let function = function.to_string();
        let test = test.map_or_else(|| function.clone(), ToString::to_string);
        cases.push(Case { topic: topic.to_owned(), function, test, only_on: None });
    }
}

/// Every file of the folder that calls `suite!`.
pub(super) fn harnesses(sources: &[Source]) -> Result<Vec<Harness>> {
    let mut found = Vec::new();
    for source in sources {
        let path = source.path.strip_prefix(HARNESSES).and_then(|name| name.strip_suffix(".rs"));
        let Some(path) = path.filter(|_| source.text.contains("rma_conformance::suite!(")) else {
            continue;
        };
        let (mut exceptions, mut tests) = (Vec::new(), Vec::new());
        for part in parts(source, sources) {
            except(parse(part)?, &part.text, &mut exceptions)?;
            let marks = Marks::read(&part.text, true);
            let marks = marks.map_err(|error| format!("{}: {error}", part.path))?;
            let functions = marks.functions.into_iter().filter(|function| function.is_test);
            tests.extend(functions.map(|function| function.name));
        }
        found.push(Harness { path: path.to_owned(), exceptions, tests });
    }
    if found.is_empty() { Err(format!("no harness in {HARNESSES}").into()) } else { Ok(found) }
}

/// A harness and the modules `name/mod.rs` that it names.
fn parts<'a>(source: &'a Source, sources: &'a [Source]) -> Vec<&'a Source> {
    let named = |part: &&Source| {
        let name = part.path.strip_prefix(HARNESSES).and_then(|name| name.strip_suffix("/mod.rs"));
        name.is_some_and(|name| source.text.contains(&format!("mod {name};")))
    };
    std::iter::once(source).chain(sources.iter().filter(named)).collect()
}

/// Finds `Exception { tests: "…", reason: …, … }` at any depth.
fn except(stream: TokenStream, text: &str, exceptions: &mut Vec<Exception>) -> Result<()> {
    let tokens: Vec<TokenTree> = stream.into_iter().collect();
    for (at, token) in tokens.iter().enumerate() {
        let TokenTree::Group(group) = token else { continue };
        let is_exception = at > 0 && tokens[at - 1].to_string() == "Exception";
        if !(is_exception && group.delimiter() == Delimiter::Brace) {
            except(group.stream(), text, exceptions)?;
            continue;
        }
        let fields: Vec<TokenTree> = group.stream().into_iter().collect();
        let field = |name: &str, after: usize| {
            let at = fields.iter().position(|token| token.to_string() == name)?;
            fields.get(at + after).map(ToString::to_string)
        };
        let tests = field("tests", 2).ok_or("an exception without tests")?;
        // `reason: "…"`, or a local called so.
        let reason = field("reason", 2).filter(|_| field("reason", 1).as_deref() == Some(":"));
        let reason = literal(reason.as_deref().unwrap_or("reason"), text)?;
        // `Some(function)`
        let instead = field("instead", 3).map(|group| group.trim_matches(['(', ')']).to_owned());
        let instead = instead.filter(|function| function != ",");
        exceptions.push(Exception { tests: unquote(&tests), reason, instead });
    }
    Ok(())
}

/// A reason is a literal, or the name of a local one.
fn literal(reason: &str, text: &str) -> Result<String> {
    if reason.starts_with('"') {
        return Ok(unquote(reason));
    }
    let assigned = text.split_once(&format!("let {reason} = \"")).map(|(_, rest)| rest);
    let assigned = assigned.and_then(|rest| rest.split_once('"')).map(|(value, _)| value);
    Ok(assigned.ok_or_else(|| format!("what is the reason `{reason}`?"))?.to_owned())
}

fn unquote(literal: &str) -> String {
    literal.trim_matches('"').to_owned()
}

fn parse(source: &Source) -> Result<TokenStream> {
    source.text.parse().map_err(|error| format!("{}: {error}", source.path).into())
}
