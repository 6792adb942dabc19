//! The glossary and the code have the same words: each of its terms names something there, and each
//! word of the name of a file or a public type is a term, derived from one, or listed as one that
//! means what it means elsewhere.

use super::Finding;
use super::words::split;
use crate::workspace::Source;

const RULE: &str = "glossary";
const PAGE: &str = "docs/glossary.md";

/// Folders whose files are named by words of the runtime.
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

/// Whether a list of words has this one, or one that it is derived from: `attached` of `attach`.
fn has_root(all: &[String], word: &str) -> bool {
    let roots = ["d", "ed", "er", "ing"].iter().filter_map(|ending| word.strip_suffix(ending));
    roots.chain([word]).any(|root| has(all, root))
}

/// Terms and plain words.
fn known(page: &str) -> Vec<String> {
    let (entries, listed) = page.split_once(PLAIN).unwrap_or((page, ""));
    let mut known: Vec<String> = terms(entries).into_iter().map(|(_, term)| term).collect();
    known.push(plain(listed));
    known
}

/// The public types and traits of a list of items, each once, with the lines of their names.
fn types(api: &str) -> Vec<(usize, &str)> {
    const KINDS: [&str; 6] = ["struct", "enum", "trait", "type", "union", "use"];
    let mut types: Vec<(usize, &str)> = Vec::new();
    for (line, text) in (1..).zip(api.lines()) {
        let item = text.strip_prefix("pub ").map(|item| item.trim_start_matches("unsafe "));
        let path = item.and_then(|item| {
            let (kind, rest) = item.split_once(' ')?;
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
            KINDS.contains(&kind).then(|| rest[..end.unwrap_or(rest.len())].trim_end_matches(':'))
        });
        let name = path.and_then(|path| path.rsplit("::").next()).unwrap_or_default();
        let is_type = name.starts_with(char::is_uppercase);
        if is_type && types.iter().all(|(_, other)| *other != name) {
            types.push((line, name));
        }
    }
    types
}

/// `page`: the glossary; `api`: the list of public items.
pub(super) fn check_types(page: &str, api: &str) -> Vec<Finding> {
    let known = known(page);
    let findings = types(api).into_iter().flat_map(|(line, name)| {
        let strange: Vec<_> = split(name).filter(|word| !has_root(&known, word)).collect();
        strange.into_iter().map(move |word| {
            let message = format!("{PAGE} does not know {word:?} of the type {name}");
            Finding { rule: RULE, path: crate::api::PAGE.into(), line, message }
        })
    });
    findings.collect()
}

/// `page`: the glossary.
pub(super) fn check(page: &str, sources: &[Source]) -> Vec<Finding> {
    let is_code = |source: &&Source| !source.path.starts_with("xtask/");
    let code: Vec<String> =
        sources.iter().filter(is_code).map(|source| plain(&source.text)).collect();
    let (terms, known) = (terms(page), known(page));
    let finding =
        |path: &str, line, message| Finding { rule: RULE, path: path.into(), line, message };
    let unused = |(line, term): &(usize, String)| {
        let is_used = code.iter().any(|text| text.contains(&**term));
        (!is_used).then(|| finding(PAGE, *line, format!("nothing in the code is called {term:?}")))
    };
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
    fn words_of_public_types_are_known() {
        let page = "- **window**: memory.\n- **attach**: to add memory.\n## Plain words\nid, on\n";
        let api = "pub struct a::WindowId(_)\npub use a::Attached\npub fn a::Strange::new()\n\
                   pub unsafe trait a::On: Send\npub mod a::supply\npub struct b::WindowId\n";
        assert!(check_types(page, api).is_empty());
        let found = check_types(page, &format!("{api}pub enum a::WindowSupply<'a>\n"));
        assert_eq!(found.iter().map(|finding| finding.line).collect::<Vec<_>>(), [7]);
        assert!(found[0].message.contains("\"supply\" of the type WindowSupply"));
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
