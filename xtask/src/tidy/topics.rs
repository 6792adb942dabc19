//! A name of a file has one meaning in `rma-core`: where it stands in several rooms, it is a topic,
//! of which each has its share. docs/architecture.md lists these.

use super::{File, Finding};
use std::collections::{BTreeMap, BTreeSet};

const CORE: &str = "rma-core/src/";
const PAGE: &str = "docs/architecture.md";
/// Below this heading is the table: topics, and the rooms that have a file of that name.
const HEADING: &str = "### Topics of several rooms";

/// Rooms by topic, as a list shows them.
type Topics = BTreeMap<String, BTreeSet<String>>;

/// Words in back-quotes.
fn quoted(cell: &str) -> impl Iterator<Item = String> + '_ {
    cell.split('`').skip(1).step_by(2).map(str::to_owned)
}

fn listed(page: &str) -> Topics {
    let table = page.split_once(HEADING).map_or("", |(_, rest)| rest);
    let rows = table.lines().skip_while(|line| !line.starts_with('|'));
    let rows = rows.take_while(|line| line.starts_with('|')).skip(2);
    let topic = |row: &str| {
        let mut cells = row.split('|').skip(1);
        let topic = quoted(cells.next()?).next()?;
        Some((topic, quoted(cells.next()?).collect()))
    };
    rows.filter_map(topic).collect()
}

/// Those of files that stand in several rooms: neither tests nor the root of a room.
fn there(files: &[File<'_>]) -> Topics {
    let mut topics = Topics::new();
    let inside = files.iter().filter_map(|file| file.path.strip_prefix(CORE));
    for (room, name) in inside.filter_map(|path| path.split_once('/')) {
        let name = name.rsplit('/').next().unwrap_or(name);
        let topic = name.strip_suffix(".rs").filter(|topic| !topic.ends_with("_tests"));
        if let Some(topic) = topic.filter(|topic| *topic != "mod") {
            topics.entry(topic.to_owned()).or_default().insert(format!("{room}/"));
        }
    }
    topics.retain(|_, rooms| rooms.len() > 1);
    topics
}

pub(super) fn check(page: &str, files: &[File<'_>]) -> Vec<Finding> {
    let (listed, there) = (listed(page), there(files));
    let all: BTreeSet<&String> = listed.keys().chain(there.keys()).collect();
    let differ = all.into_iter().filter(|topic| listed.get(*topic) != there.get(*topic));
    let text = |rooms: Option<&BTreeSet<String>>| {
        rooms.map_or("none".into(), |rooms| rooms.iter().cloned().collect::<Vec<_>>().join(", "))
    };
    let finding = |topic: &String| {
        let (has, says) = (text(there.get(topic)), text(listed.get(topic)));
        let message = format!(
            "{topic}.rs stands in several rooms ({has}), the table below {HEADING:?} says {says}: \
             name the file by what it is, or list the topic"
        );
        Finding { rule: "file-name", path: PAGE.into(), line: 1, message }
    };
    differ.map(finding).collect()
}
