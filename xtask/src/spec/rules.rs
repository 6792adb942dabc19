//! The rules: `docs/semantics.md`, and what `docs/conformance-notes.md` says about some of them.

use crate::workspace::Result;
use std::collections::BTreeMap;

/// `S-H7`: a section and a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Id {
    pub(super) section: char,
    pub(super) number: u32,
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "S-{}{}", self.section, self.number)
    }
}

/// Every id in a text, in its order.
pub(super) fn ids(text: &str) -> Vec<Id> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("S-") {
        let before = text[..at].chars().next_back();
        let mut rest = text[at + 2..].chars();
        let Some(section) = rest.next().filter(char::is_ascii_uppercase) else { continue };
        let digits: String = rest.take_while(char::is_ascii_digit).collect();
        if before.is_some_and(char::is_alphanumeric) {
            continue;
        }
        found.extend(digits.parse().ok().map(|number| Id { section, number }));
    }
    found
}

/// A section: `A. Windows: creation and lifetime`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Section {
    pub(super) title: String,
    pub(super) rules: Vec<(Id, String)>,
}

/// Reads `## A. Title` and `- **S-A1** text`, with the lines that continue it.
pub(super) fn sections(text: &str) -> Result<Vec<Section>> {
    let mut sections: Vec<Section> = Vec::new();
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            sections.push(Section { title: title.trim().to_owned(), rules: Vec::new() });
            continue;
        }
        let Some(section) = sections.last_mut() else { continue };
        if let Some(rule) = line.strip_prefix("- **") {
            let rule = rule.split_once("** ");
            let rule = rule.and_then(|(id, text)| Some((*ids(id).first()?, text.trim())));
            let (id, text) = rule.ok_or_else(|| format!("no rule in `{line}`"))?;
            section.rules.push((id, text.to_owned()));
        } else if let Some((_, rule)) = section.rules.last_mut() {
            let more = line.trim();
            if !more.is_empty() {
                *rule = format!("{rule} {more}");
            }
        }
    }
    let mut all: Vec<Id> = sections.iter().flat_map(|s| &s.rules).map(|(id, _)| *id).collect();
    all.sort_unstable();
    if let Some(twice) = all.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(format!("{} stands there twice", twice[0]).into());
    }
    Ok(sections)
}

/// What the notes say about a rule.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Note {
    /// Why nothing of it exists in Rust, so that there is nothing to show.
    pub(super) absent: Option<String>,
    /// What becomes of it in Rust, or why some path does not show it.
    pub(super) form: Option<String>,
    /// What is not as MPI says, and why.
    pub(super) deviation: Option<String>,
    /// What is still to be done.
    pub(super) pending: Option<String>,
    /// Which row of the features it will come with.
    pub(super) later: Option<String>,
}

/// Reads `## S-A1` and, below it, `form: text` with the indented lines that continue it.
pub(super) fn notes(text: &str) -> Result<BTreeMap<Id, Note>> {
    let mut notes: BTreeMap<Id, Note> = BTreeMap::new();
    let mut open: Option<(Id, String)> = None;
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            let id = ids(title).first().copied().ok_or_else(|| format!("no id in `{line}`"))?;
            if notes.insert(id, Note::default()).is_some() {
                return Err(format!("two notes about {id}").into());
            }
            open = Some((id, String::new()));
            continue;
        }
        let Some((id, key)) = &mut open else { continue };
        if line.trim().is_empty() {
            continue;
        }
        let (text, begins) = match line.strip_prefix("  ") {
            Some(more) => (more, false),
            None => {
                let (new, text) = line.split_once(": ").ok_or_else(|| format!("no key: {line}"))?;
                new.clone_into(key);
                (text, true)
            }
        };
        let note = notes.entry(*id).or_default();
        let place = match key.as_str() {
            "absent" => &mut note.absent,
            "form" => &mut note.form,
            "deviation" => &mut note.deviation,
            "pending" => &mut note.pending,
            "later" => &mut note.later,
            _ => return Err(format!("{id}: no such key as `{key}`").into()),
        };
        match place {
            Some(old) if !begins => *old = format!("{old} {}", text.trim()),
            None if begins => *place = Some(text.trim().to_owned()),
            _ => {
                return Err(format!("{id}: `{key}` twice, or a line that continues nothing").into());
            }
        }
    }
    Ok(notes)
}
