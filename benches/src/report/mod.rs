//! Pages out of records: what was measured, on every machine that has a record.
mod error;
mod figures;
mod goals;
mod page;
mod record;
mod tables;

use crate::Result;
use crate::file;
use crate::machine::Machine;
use crate::record::Row;
use record::Record;
use std::fs;
use std::path::{Path, PathBuf};
use tables::{REGIONS, Records};

/// Where records are, and the root of the pages.
const FOLDER: &str = "benches/records";
/// Where those are that have a crate of Rust beside them: of machines that have one of MPI as well.
const CRATES: &str = "crates";
/// Where those of windows on storage are.
const STORAGE: &str = "storage";

/// Writes a record of what files of `--json` hold, all of one machine and one commit.
pub(crate) fn record(files: &[PathBuf], machine: &str, to: &Path) -> Result<()> {
    let (machine_facts, rows) = merged(files)?;
    let record = Record::of(machine, &machine_facts, &Row::best(&rows))?;
    let text = record.text()?;
    // What is written can be read: figures that cannot be are not.
    Record::parse(&text)?;
    fs::write(to, text).map_err(|error| format!("writing {}: {error}", to.display()))?;
    println!("{}: {} rows of {machine}", to.display(), record.rows.len());
    Ok(())
}

/// The rows of all files. A row that one of them has beside peers stands for that of another
/// without; otherwise it is in one of them only: two would be of two runs.
fn merged(files: &[PathBuf]) -> Result<(Machine, Vec<Row>)> {
    let mut all: Vec<(&PathBuf, Machine, Vec<Row>)> = Vec::new();
    for path in files {
        let file::Recorded { machine, mut rows } = file::read(path)?;
        for (other, of_other, old) in &mut all {
            let both = format!("{} and {}", other.display(), path.display());
            if !of_other.is_the_same(&machine) {
                return Err(format!("{both} are of two machines: a record is of one").into());
            }
            if of_other.commit != machine.commit {
                return Err(format!("{both} are of two commits: measure both at one").into());
            }
            let is_weaker = |row: &Row, others: &[Row]| {
                let has_peers = |row: &Row| !row.peers.is_empty() || !row.lost.is_empty();
                let mut same = others.iter().filter(|other| other.is_of_the_same(row));
                !has_peers(row) && same.any(has_peers)
            };
            old.retain(|row| !is_weaker(row, &rows));
            rows.retain(|row| !is_weaker(row, old));
            let again = rows.iter().find(|row| old.iter().any(|o| o.is_of_the_same(row)));
            if let Some(Row { benchmark, name, .. }) = again {
                let row = format!("{benchmark} {name}");
                return Err(format!("{both} both have the row {row}: leave one of them out").into());
            }
        }
        all.push((path, machine, rows));
    }
    let machine = all.first().map(|(_, machine, _)| machine.clone());
    let machine = machine.ok_or("no file of --json was named")?;
    Ok((machine, all.into_iter().flat_map(|(_, _, rows)| rows).collect()))
}

/// Writes the tables of all pages, and figures, or with `check` only looks whether they are what
/// the records say.
pub(crate) fn run(paths: &[PathBuf], check: bool) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let found = if paths.is_empty() { in_folder(&root.join(FOLDER))? } else { paths.to_vec() };
    let of = |kind| read(&in_folder(&root.join(FOLDER).join(kind))?);
    let (crates, storage) = (of(CRATES)?, of(STORAGE)?);
    let records = Records { machines: read(&found)?, crates, storage };
    for (page, figure) in figures::all(&records.storage)? {
        let path = root.join(&page);
        if !check {
            fs::write(&path, figure).map_err(|error| format!("writing {page}: {error}"))?;
        } else if fs::read_to_string(&path).ok().as_ref() != Some(&figure) {
            let why = "is not what the records say: `rma-bench report` draws it";
            return Err(format!("{page} {why}").into());
        }
    }
    for page in pages() {
        let path = root.join(page);
        let text = fs::read_to_string(&path).map_err(|error| format!("reading {page}: {error}"))?;
        let regions: Vec<_> = REGIONS.iter().filter(|region| region.page == page).collect();
        let new = page::with_tables(&text, &regions, &records)
            .map_err(|error| format!("{page}: {error}"))?;
        if !check {
            fs::write(&path, new).map_err(|error| format!("writing {page}: {error}"))?;
        } else if let Some(difference) = page::difference(&text, &new) {
            return Err(format!(
                "{page} is not what the records say: `rma-bench report` writes it; {difference}"
            )
            .into());
        }
    }
    let count = records.machines.len() + records.crates.len() + records.storage.len();
    println!("report: {count} records");
    Ok(())
}

fn pages() -> Vec<&'static str> {
    let mut pages: Vec<&str> = REGIONS.iter().map(|region| region.page).collect();
    pages.dedup();
    pages
}

/// Every record that is committed, in the order of their names.
fn in_folder(folder: &Path) -> Result<Vec<PathBuf>> {
    let shown = folder.display();
    let entries = fs::read_dir(folder).map_err(|error| format!("reading {shown}: {error}"))?;
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// Records of machines that are all different, in the order of their names in tables.
fn read(paths: &[PathBuf]) -> Result<Vec<Record>> {
    let mut records: Vec<(&PathBuf, Record)> = Vec::new();
    for path in paths {
        let shown = path.display();
        let record = Record::read(path).map_err(|error| format!("{shown}: {error}"))?;
        for (other, before) in &records {
            if before.is_of_the_machine_of(&record) {
                let (other, machine) = (other.display(), &record.head.machine);
                return Err(format!(
                    "{other} and {shown} are both of one machine, {machine}: remove the older, \
                     or make one of their --json files by `rma-bench record`"
                )
                .into());
            }
        }
        records.push((path, record));
    }
    if records.is_empty() {
        return Err("there is no record: write one by `rma-bench record`".into());
    }
    let mut records: Vec<Record> = records.into_iter().map(|(_, record)| record).collect();
    records.sort_by(|a, b| a.head.machine.cmp(&b.head.machine));
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::record::tests::{machine, record as made, row};
    use super::*;

    /// A folder of this test, removed with it.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let name = format!("rma-bench-report-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn file(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }

        fn rows(&self, name: &str, machine: &Machine, rows: &[Row]) -> PathBuf {
            file::write(&self.file(name), machine, rows).unwrap();
            self.file(name)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_pages_say_what_the_records_say() {
        run(&[], true).unwrap();
    }

    #[test]
    fn files_of_one_machine_and_commit_make_a_record() {
        let folder = Folder::new("merge");
        let one = folder.rows("1", &machine(), &[row("n", 1.0, Some(2.0))]);
        let two = folder.rows("2", &machine(), &[row("o", 1.0, None)]);
        let to = folder.file("r.json");
        record(&[one.clone(), two], "m", &to).unwrap();
        assert_eq!(read(&[to]).unwrap()[0].rows.len(), 2);
        let weak = folder.rows("w", &machine(), &[row("n", 9.0, None), row("p", 1.0, None)]);
        for files in [[one.clone(), weak.clone()], [weak, one.clone()]] {
            let rows = merged(&files).unwrap().1;
            let ours = |name| rows.iter().find(|row| row.name == name).unwrap().ours.median;
            assert_eq!((rows.len(), ours("n")), (2, 1.0), "beside a peer goes before alone");
        }
        let refused = |machine: &Machine, name| {
            let other = folder.rows("3", machine, &[row(name, 1.0, Some(3.0))]);
            let to = folder.file("r2.json");
            let said = record(&[one.clone(), other], "m", &to).unwrap_err().to_string();
            assert!(!to.exists());
            said
        };
        let moved = Machine { cpu: "D".into(), ..machine() };
        assert!(refused(&moved, "o").contains("two machines"));
        let later = Machine { commit: Some("def".into()), ..machine() };
        assert!(refused(&later, "o").contains("two commits"));
        assert!(refused(&machine(), "n").contains("both have the row b n"));
        let dirty = Machine { commit: None, ..machine() };
        let dirty = folder.rows("4", &dirty, &[row("n", 1.0, None)]);
        assert!(record(&[dirty], "m", &folder.file("r3.json")).is_err());
    }

    #[test]
    fn two_records_of_one_machine_and_damaged_ones_are_named() {
        let folder = Folder::new("read");
        let text = made("m", &[row("n", 1.0, None)]).text().unwrap();
        let (one, two) = (folder.file("1.json"), folder.file("2.json"));
        fs::write(&one, &text).unwrap();
        fs::write(&two, &text).unwrap();
        let said = |paths: &[PathBuf]| read(paths).unwrap_err().to_string();
        let both = said(&in_folder(&folder.0).unwrap());
        assert!(both.contains("1.json and") && both.contains("2.json are both of one machine, m"));
        fs::write(&two, &text[..text.len() - 9]).unwrap();
        assert!(said(&[one, two]).contains("2.json: cut off or damaged"));
        assert!(said(&[folder.file("3.json")]).contains("3.json: cannot be read"));
        assert!(said(&[]).contains("no record"));
    }
}
