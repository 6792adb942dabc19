//! Marks: ids in the documentation of functions, items and files, macros included, and in comments
//! above the lines of a function.

use super::rules::{Id, ids};
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use std::collections::BTreeSet;

/// A function, and what its documentation names.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Function {
    /// Its name; that of a macro's variable with the `$`.
    pub(super) name: String,
    pub(super) marks: Vec<Id>,
    /// It has the attribute `test`.
    pub(super) is_test: bool,
    /// It lies in a module behind `cfg(test)`.
    pub(super) in_tests: bool,
    /// Every name in its body.
    pub(super) names: BTreeSet<String>,
}

/// What one file says.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// In the documentation of the file.
    pub(super) file: Vec<Id>,
    /// In that of items other than functions.
    pub(super) items: Vec<Id>,
    pub(super) functions: Vec<Function>,
}

impl Marks {
    /// Reads a file; `tests` says that all of it is test code.
    pub(super) fn read(text: &str, tests: bool) -> Result<Self, proc_macro2::LexError> {
        let mut marks = Self::default();
        marks.scan(documented(text).parse()?, tests);
        Ok(marks)
    }

    /// Marks of the function called `name`, and of those that it reaches in this file.
    pub(super) fn reached(&self, name: &str, stop: &dyn Fn(&str) -> bool) -> BTreeSet<Id> {
        let mut seen = BTreeSet::from([name]);
        let mut next = vec![name];
        let mut found = BTreeSet::new();
        while let Some(name) = next.pop() {
            for function in self.functions.iter().filter(|function| function.name == name) {
                found.extend(&function.marks);
                let known = self.functions.iter().map(|other| other.name.as_str());
                let used = known.filter(|other| function.names.contains(*other) && !stop(other));
                next.extend(used.filter(|other| seen.insert(other)));
            }
        }
        found
    }

    fn scan(&mut self, stream: TokenStream, tests: bool) {
        let tokens: Vec<TokenTree> = stream.into_iter().collect();
        let mut pending = Function { in_tests: tests, ..Function::default() };
        let mut behind_cfg = false;
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            at += 1;
            match token {
                TokenTree::Punct(punct) if punct.as_char() == '#' => {
                    let inner = is_punct(tokens.get(at), '!');
                    at += usize::from(inner);
                    let Some(TokenTree::Group(group)) = tokens.get(at) else { continue };
                    at += 1;
                    let text = group.stream().to_string();
                    match (text.split_whitespace().next(), inner) {
                        (Some("doc"), true) => self.file.extend(ids(&text)),
                        (Some("doc"), false) => pending.marks.extend(ids(&text)),
                        (Some("test"), _) => pending.is_test = true,
                        (Some("cfg"), _) => behind_cfg |= text.contains("test"),
                        _ => {}
                    }
                }
                TokenTree::Ident(ident) if ident == "fn" => {
                    let dollar = is_punct(tokens.get(at), '$');
                    let name = tokens.get(at + usize::from(dollar));
                    let Some(TokenTree::Ident(name)) = name else { continue };
                    pending.name = format!("{}{name}", if dollar { "$" } else { "" });
                    let ends =
                        |token: &TokenTree| body(token).is_some() || is_punct(Some(token), ';');
                    at += tokens[at..].iter().position(ends).unwrap_or(0);
                    if let Some(body) = tokens.get(at).and_then(body) {
                        names(body.stream(), &mut pending.names);
                        pending.marks.extend(inside(body.stream()));
                    }
                    at += 1;
                    let next = Function { in_tests: tests, ..Function::default() };
                    self.functions.push(std::mem::replace(&mut pending, next));
                }
                TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                    self.items.append(&mut pending.marks);
                    self.scan(group.stream(), tests || behind_cfg);
                    behind_cfg = false;
                }
                TokenTree::Punct(punct) if [';', ','].contains(&punct.as_char()) => {
                    self.items.append(&mut pending.marks);
                    behind_cfg = false;
                }
                _ => {}
            }
        }
        self.items.append(&mut pending.marks);
    }
}

/// The text, with comments of a line that name ids as documentation: of others, the lexer tells
/// nothing.
fn documented(text: &str) -> String {
    let line = |line: &str| match line.trim_start().strip_prefix("// ") {
        Some(comment) if !ids(comment).is_empty() => format!("/// {comment}\n"),
        _ => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

/// Ids in the documentation of what stands in a function.
fn inside(stream: TokenStream) -> Vec<Id> {
    let (mut found, mut before) = (Vec::new(), false);
    for token in stream {
        if let TokenTree::Group(group) = &token {
            let text = group.stream().to_string();
            match before && text.starts_with("doc") {
                true => found.extend(ids(&text)),
                false => found.extend(inside(group.stream())),
            }
        }
        before = is_punct(Some(&token), '#');
    }
    found
}

fn is_punct(token: Option<&TokenTree>, wanted: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == wanted)
}

fn body(token: &TokenTree) -> Option<&Group> {
    match token {
        TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => Some(group),
        _ => None,
    }
}

/// Every identifier in a stream.
pub(super) fn names(stream: TokenStream, found: &mut BTreeSet<String>) {
    for token in stream {
        match token {
            TokenTree::Ident(ident) => {
                found.insert(ident.to_string());
            }
            TokenTree::Group(group) => names(group.stream(), found),
            _ => {}
        }
    }
}
