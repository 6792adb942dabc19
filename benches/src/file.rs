//! Rows in a file, a line of JSON each, with the machine they come from.
use crate::Result;
use crate::machine::Machine;
use crate::record::Row;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

/// A line.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    #[serde(flatten)]
    row: Row,
    #[serde(flatten)]
    machine: Machine,
}

/// What a file holds: at least one row.
#[derive(Debug)]
pub(crate) struct Recorded {
    pub(crate) machine: Machine,
    pub(crate) rows: Vec<Row>,
}

/// Writes rows down.
pub(crate) fn write(path: &Path, machine: &Machine, rows: &[Row]) -> Result<()> {
    let put = || -> Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        for row in rows {
            let record = Record { row: row.clone(), machine: machine.clone() };
            serde_json::to_writer(&mut file, &record)?;
            writeln!(file)?;
        }
        Ok(file.flush()?)
    };
    put().map_err(|error| format!("writing {}: {error}", path.display()).into())
}

/// Reads what [`write()`] wrote, and refuses everything else.
pub(crate) fn read(path: &Path) -> Result<Recorded> {
    let shown = path.display();
    let text = fs::read_to_string(path).map_err(|error| format!("reading {shown}: {error}"))?;
    parse(&text).map_err(|error| format!("{shown}: {error}").into())
}

fn parse(text: &str) -> std::result::Result<Recorded, String> {
    let (mut rows, mut machine) = (Vec::new(), None);
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let at = |what: &str| format!("line {}: {what}", number + 1);
        let record: Record = serde_json::from_str(line)
            .map_err(|error| at(&format!("not a row that rma-bench --json wrote: {error}")))?;
        if let Some(complaint) = record.row.complaint() {
            return Err(at(&complaint));
        }
        let machine: &Machine = machine.get_or_insert_with(|| record.machine.clone());
        if !machine.is_the_same(&record.machine) {
            return Err(at("it comes from another machine than the lines before"));
        }
        rows.push(record.row);
    }
    match machine {
        Some(machine) => Ok(Recorded { machine, rows }),
        None => Err("it holds no row".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"benchmark":"b","name":"n","ranks":2,"launch":1,"bytes":8,"unit":"ns",
        "ours":{"median":2.0,"p10":1.0,"p90":3.0,"min":1.0,"max":4.0,"batches":9,"operations":1},
        "limits":[],"goal":null,"hop_ns":null,"pinned":true,"noisy":false,
        "cpu":"C","cores":2,"kernel":"6.1","load":0.5,"commit":null}"#;

    fn line() -> String {
        LINE.replace('\n', "")
    }

    #[test]
    fn what_was_written_is_read() {
        let found = parse(&format!("{}\n\n{}\n", line(), line())).unwrap();
        assert_eq!((found.rows.len(), found.machine.cores), (2, 2));
        let record = Record { row: found.rows[0].clone(), machine: found.machine };
        let again = parse(&serde_json::to_string(&record).unwrap()).unwrap();
        assert_eq!(again.rows[0].bytes, Some(8));
    }

    #[test]
    fn everything_else_is_refused_with_its_line() {
        let bad = |text: &str| parse(text).unwrap_err();
        assert!(bad("\n").contains("no row"));
        assert!(bad(&format!("{}\n{{}}", line())).starts_with("line 2: not a row"));
        let other = line().replace(r#""cpu":"C""#, r#""cpu":"D""#);
        assert!(bad(&format!("{}\n{other}", line())).contains("line 2: it comes from another"));
        let negative = line().replace(r#""median":2.0"#, r#""median":-2.0"#);
        assert!(bad(&negative).contains("not finite and positive"));
    }
}
