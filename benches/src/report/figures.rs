//! Figures of records of windows on storage, for their page.
use super::record::Record;
use crate::Result;
use crate::plot::{Family, sheet};
use crate::record::Row;

/// Where they are, from the root of the pages.
const FOLDER: &str = "docs/figures";

/// Name of a file, and how the rows that it shows begin.
const FIGURES: [(&str, &[&str]); 5] = [
    ("transfers", &["put + flush on storage", "get on storage"]),
    ("streams", &["mSTREAM SEQ", "mSTREAM RND"]),
    ("dht", &["DHT filled, ", "DHT in 128 MiB, storage", "DHT in 128 MiB, half"]),
    ("hacc", &["HACC"]),
    ("commit", &["commit, ", "commit by marks, "]),
];

/// Path and text of each figure: one for each machine that has such rows over several sizes.
pub(super) fn all(records: &[Record]) -> Result<Vec<(String, String)>> {
    let mut all = Vec::new();
    for record in records {
        for (name, beginnings) in FIGURES {
            let is_shown = |row: &Row| beginnings.iter().any(|begin| row.name.starts_with(begin));
            let rows: Vec<Row> =
                record.rows.iter().map(|row| row.row()).filter(is_shown).map(of_one_kind).collect();
            let families = Family::all(&rows);
            if !families.is_empty() {
                let machine = record.head.machine.to_lowercase().replace(' ', "-");
                all.push((format!("{FOLDER}/{machine}-{name}.svg"), sheet(&families)?));
            }
        }
    }
    Ok(all)
}

/// Commits of different shares are points of one line: their bytes tell them apart.
fn of_one_kind(mut row: Row) -> Row {
    if let Some((begin, rest)) = row.name.split_once(" % of ") {
        let way = begin.rsplit_once(", ").map_or(begin, |(way, _)| way);
        row.name = format!("{way} of bytes that changed, of {}", rest.replace(" changed", ""));
    }
    row
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::{record, row};
    use super::*;

    #[test]
    fn rows_of_several_sizes_are_drawn() {
        let of = |name: &str, bytes| {
            let mut row = row(name, bytes as f64, None);
            row.bytes = Some(bytes);
            row
        };
        let rows = [
            of("commit, 1 % of 9 MiB changed", 100),
            of("commit, 10 % of 9 MiB changed", 1000),
            of("HACC restart", 8),
            of("another", 8),
            of("another", 800),
        ];
        let all = all(&[record("A B", &rows)]).unwrap();
        assert_eq!(all.len(), 1, "{:?}", all[0].0);
        assert_eq!(all[0].0, "docs/figures/a-b-commit.svg");
        assert!(all[0].1.contains("commit of bytes that changed, of 9 MiB"));
    }
}
