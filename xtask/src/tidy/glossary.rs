//! The glossary and the code have the same words: each of its terms names something there, and each
//! word of the name of a file is a term, or listed as one that means what it means elsewhere.

use super::Finding;
use crate::workspace::Source;

const RULE: &str = "glossary";
const PAGE: &str = "docs/glossary.md";

/// Whose files are named by words of the runtime.
const ROOMS: [&str; 5] =
    ["rma-core/src/", "transport-shm/src/", "transport-sim/src/", "storage/src/", "src/"];

/// What stands above the list of plain words.
const PLAIN: &str = "## Plain words";

/// The terms, with their lines: small letters and spaces only.
fn terms(page: &str) -> Vec<(usize, String)> {
    let lines = (1..).zip(page.lines());
    let term = |(line, text): (usize, &str)| {
        let (term, _) = text.strip_prefix("- **")?.split_once("**")?;
        Some((line, plain(term.trim_matches('`'))))
    };
    lines.filter_map(term).collect()
}

fn plain(text: &str) -> String {
    text.to_lowercase().replace(['_', '-'], " ")
}

/// The words of a file's path below the folder of its crate.
fn words(path: &str) -> impl Iterator<Item = &str> {
    let below = ROOMS.iter().find_map(|room| path.strip_prefix(room)).unwrap_or_default();
    let words = below.split(['/', '_', '.']);
    words.filter(|word| !matches!(*word, "" | "rs" | "mod" | "lib" | "main" | "tests" | "loom"))
}

/// Whether a list of words has this one, in singular or plural.
fn has(all: &[String], word: &str) -> bool {
    let single = word.strip_suffix('s').unwrap_or(word);
    let is_it = |other: &str| other.strip_suffix('s').unwrap_or(other) == single;
    all.iter().any(|text| text.split(|c: char| !c.is_alphanumeric()).any(is_it))
}

/// `page`: the glossary.
pub(super) fn check(page: &str, sources: &[Source]) -> Vec<Finding> {
    let is_code = |source: &&Source| !source.path.starts_with("xtask/");
    let code: Vec<String> =
        sources.iter().filter(is_code).map(|source| plain(&source.text)).collect();
    let (entries, listed) = page.split_once(PLAIN).unwrap_or((page, ""));
    let terms = terms(entries);
    let finding =
        |path: &str, line, message| Finding { rule: RULE, path: path.into(), line, message };
    let unused = |(line, term): &(usize, String)| {
        let is_used = code.iter().any(|text| text.contains(&**term));
        (!is_used).then(|| finding(PAGE, *line, format!("nothing in the code is called {term:?}")))
    };
    let mut known: Vec<String> = terms.iter().map(|(_, term)| term.clone()).collect();
    known.push(plain(listed));
    let unnamed = sources.iter().flat_map(|source| {
        let strange = words(&source.path).filter(|word| !has(&known, word));
        strange.map(|word| finding(&source.path, 1, format!("{PAGE} does not know {word:?}")))
    });
    terms.iter().filter_map(unused).chain(unnamed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.into(), text: text.into() }
    }

    #[test]
    fn both_directions() {
        let page = "# Glossary\n- **remote key** (rkey): a right.\n- **`disp_unit`**: bytes.\n\
                    ## Plain words\nqueue, wait\n";
        let code = source("rma-core/src/queue/waits.rs", "// remote keys\nlet disp_unit = 1;");
        assert!(check(page, std::slice::from_ref(&code)).is_empty());
        let strange = source("rma-core/src/supply.rs", "");
        let found = check(page, &[code, strange]);
        assert_eq!(found.len(), 1);
        assert!(found[0].message.contains("\"supply\""), "{}", found[0].message);
        let found = check(page, &[source("benches/src/own.rs", "remote-key")]);
        assert_eq!(found.iter().map(|finding| finding.line).collect::<Vec<_>>(), [3]);
    }
}
