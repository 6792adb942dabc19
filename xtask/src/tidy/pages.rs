//! Files that documentation names are there, and its samples are compiled.

use super::Finding;
use crate::workspace::Source;

const RULE: &str = "page";

/// Names of Rust files between backticks, with the line of each; not those that stand for any, with
/// capitals or braces.
fn named(page: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = (1..).zip(page.lines());
    lines.flat_map(|(number, line)| {
        let quoted = line.split('`').skip(1).step_by(2);
        let files = quoted.filter(|name| {
            let plain =
                |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-./".contains(c);
            name.ends_with(".rs") && name.chars().all(plain)
        });
        files.map(move |name| (number, name))
    })
}

/// `pages`: paths and texts.
pub(super) fn check(pages: &[Source], sources: &[Source]) -> Vec<Finding> {
    let is_there = |name: &str| {
        sources.iter().any(|Source { path, .. }| {
            path.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
        })
    };
    let gone = pages.iter().flat_map(|page| {
        let gone = named(&page.text).filter(|(_, name)| !is_there(name));
        gone.map(|(line, name)| Finding {
            rule: RULE,
            path: page.path.clone(),
            line,
            message: format!("there is no {name}"),
        })
    });
    let ignored = pages.iter().flat_map(|page| {
        let lines = (1..).zip(page.text.lines());
        let ignored =
            lines.filter(|(_, text)| text.starts_with("```rust") && text.contains("ignore"));
        ignored.map(|(line, _)| Finding {
            rule: RULE,
            path: page.path.clone(),
            line,
            message: "an ignored sample: let it be compiled (`mod pages` in src/lib.rs)".into(),
        })
    });
    gone.chain(ignored).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_that_are_ignored_are_found() {
        let page = |text: &str| Source { path: "docs/a.md".into(), text: text.into() };
        assert!(check(&[page("```rust,no_run\n```\n")], &[]).is_empty());
        let found = check(&[page("# A\n```rust,ignore\n```\n")], &[]);
        assert_eq!(found.iter().map(|finding| finding.line).collect::<Vec<_>>(), [2]);
    }
}
