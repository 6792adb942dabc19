//! Examples and guides convert integers without `as`: what a reader copies from there does not cut
//! numbers silently.

use super::Finding;
use crate::workspace::Source;

const RULE: &str = "cast";
const INTEGERS: [&str; 12] =
    ["u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64", "i128", "isize"];

/// The integer that a line casts to.
fn cast(line: &str) -> Option<&'static str> {
    let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ' ');
    words.find_map(|part| {
        let words: Vec<&str> = part.split(' ').collect();
        let casts = words.windows(2).find_map(|pair| match pair {
            ["as", to] => INTEGERS.iter().find(|integer| *integer == to),
            _ => None,
        });
        casts.copied()
    })
}

/// Whether users copy from that line.
fn is_shown(path: &str, line: &str) -> bool {
    let line = line.trim_start();
    path.starts_with("examples/")
        || path.ends_with(".md")
        || (path.starts_with("src/") && (line.starts_with("///") || line.starts_with("//!")))
}

/// `pages`: of documentation.
pub(super) fn check(pages: &[Source], sources: &[Source]) -> Vec<Finding> {
    let files = pages.iter().chain(sources);
    let casts = files.flat_map(|Source { path, text }| {
        let shown = (1..).zip(text.lines()).filter(|(_, line)| is_shown(path, line));
        shown.filter_map(|(line, text)| {
            let to = cast(text)?;
            let message = format!("`as {to}`: convert by `from`, `into` or `try_from`");
            Some(Finding { rule: RULE, path: path.clone(), line, message })
        })
    });
    casts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn casts_to_integers_are_found_where_users_copy() {
        let source = |path: &str, text: &str| Source { path: path.into(), text: text.into() };
        let code = "let a = b as f64;\nlet c = (b as usize).min(as_u32);\nuse d as u64_of;\n";
        let lines = |pages: &[Source], sources: &[Source]| -> Vec<usize> {
            check(pages, sources).iter().map(|finding| finding.line).collect()
        };
        assert_eq!(lines(&[], &[source("examples/a/b.rs", code)]), [2]);
        assert_eq!(lines(&[source("src/guide/tour.md", code)], &[]), [2]);
        let documented = source("src/lib.rs", "let a = b as u8;\n/// let a = b as u8;\n");
        assert_eq!(lines(&[], &[documented]), [2]);
        assert!(lines(&[], &[source("rma-core/src/a.rs", code)]).is_empty());
    }
}
