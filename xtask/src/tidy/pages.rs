//! Files that documentation names are there, and figures that the README shows were measured.

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
    gone.collect()
}

/// Below this heading of the README is a table of what, ours and the peer's, out of [`MEASURED`].
const COMPARED: &str = "## How it compares";
const MEASURED: &str = "docs/performance.md";

/// The cells of a line of a table.
fn cells(line: &str) -> Vec<&str> {
    line.strip_prefix('|').map_or(vec![], |row| row.split('|').map(str::trim).collect())
}

/// Each row of the README's table is in one row of what was measured.
pub(super) fn figures(pages: &[Source]) -> Vec<Finding> {
    let text = |path| pages.iter().find(|page| page.path == path).map_or("", |page| &*page.text);
    let measured: Vec<_> = text(MEASURED).lines().map(cells).collect();
    let readme = (1..).zip(text("README.md").lines());
    let table = readme.skip_while(|(_, line)| *line != COMPARED).skip(1);
    let table = table.take_while(|(_, line)| !line.starts_with('#'));
    let rows = table.map(|(number, line)| (number, cells(line))).filter(|(_, row)| row.len() > 1);
    // The heading and the line below it.
    let rows: Vec<_> = rows.skip(2).collect();
    let finding = |line, message| Finding { rule: RULE, path: "README.md".into(), line, message };
    if rows.is_empty() {
        return vec![finding(1, format!("no table stands below {COMPARED:?}"))];
    }
    let made_up = rows.iter().filter(|(_, row)| {
        !measured.iter().any(|known| row.iter().all(|cell| known.contains(cell)))
    });
    made_up
        .map(|(line, row)| finding(*line, format!("{MEASURED} has no row with {}", row.join(", "))))
        .collect()
}
