//! Records: what was measured on one machine, as a file that is committed.
//!
//! A head about machine, code and peers, a line for each row, and a checksum of all before it, so
//! that a figure that was changed by hand, or lost in a merge, is seen.
use super::error::RecordError;
use crate::machine::Machine;
use crate::record::{Limit, Lost, Row, Summary, Unit};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

/// Of the files that are written and read here.
const FORMAT: u32 = 1;
/// What stands before the checksum, at the start of the last line but one.
const CHECKSUM: &str = "\n  \"checksum\": \"";
/// Digits of a figure that are kept.
const DIGITS: i32 = 4;

/// Where the figures come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Source {
    /// From files of `--json`.
    Measured,
    /// From a table of before there were records: of each row only what was shown.
    Transcribed,
}

/// All but the rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Head {
    pub(super) format: u32,
    /// What tables call the machine.
    pub(super) machine: String,
    pub(super) vendor: String,
    /// As the system names it: of virtual machines, often several generations alike.
    pub(super) cpu: String,
    pub(super) family: Option<u32>,
    pub(super) model: Option<u32>,
    pub(super) cores: usize,
    /// Of a core, and of all that share the cache of the third level.
    pub(super) l2_kib: Option<u64>,
    pub(super) l3_kib: Option<u64>,
    pub(super) kernel: String,
    /// Of the source tree, several where rows come from several.
    pub(super) commits: Vec<String>,
    pub(super) source: Source,
    /// With their versions.
    pub(super) peers: Vec<String>,
    /// Round trip of a cache line between two ranks: the shortest and the longest.
    pub(super) hop_ns: Option<[f64; 2]>,
}

/// A limit or a peer, and ours in times of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Beside {
    pub(super) name: String,
    pub(super) median: f64,
    pub(super) ratio: f64,
}

/// A row: medians, in its unit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    pub(super) benchmark: String,
    pub(super) name: String,
    pub(super) ranks: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) bytes: Option<u64>,
    pub(super) unit: Unit,
    pub(super) ours: f64,
    /// Of the middle 80 % of our batches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) range: Option<[f64; 2]>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) limits: Vec<Beside>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) peers: Vec<Beside>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) lost: Vec<Lost>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) noisy: bool,
}

/// What a file holds.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct Record {
    #[serde(flatten)]
    pub(super) head: Head,
    pub(super) rows: Vec<Entry>,
}

/// What is read before anything else is believed.
#[derive(Deserialize)]
struct Version {
    format: u32,
}

impl Entry {
    fn of(row: &Row) -> Self {
        let beside = |limit: &Limit| Beside {
            name: limit.name.clone(),
            median: rounded(limit.summary.median),
            ratio: rounded(limit.ratio),
        };
        let has_range = row.ours.batches > 1;
        Self {
            benchmark: row.benchmark.clone(),
            name: row.name.clone(),
            ranks: row.ranks,
            bytes: row.bytes,
            unit: row.unit,
            ours: rounded(row.ours.median),
            range: has_range.then(|| [rounded(row.ours.p10), rounded(row.ours.p90)]),
            limits: row.limits.iter().map(beside).collect(),
            peers: row.peers.iter().map(beside).collect(),
            lost: row.lost.clone(),
            noisy: row.noisy,
        }
    }

    /// As a row that can be drawn: of limits and peers, the medians are known.
    pub(super) fn row(&self) -> Row {
        let limit = |beside: &Beside| Limit {
            name: beside.name.clone(),
            summary: Summary::of(&[beside.median], 1),
            ratio: beside.ratio,
        };
        let mut row = Row::one(&self.benchmark, &self.name, self.ranks, self.unit, self.ours);
        if let Some([from, to]) = self.range {
            (row.ours.p10, row.ours.p90) = (from, to);
        }
        row.limits = self.limits.iter().map(limit).collect();
        row.peers = self.peers.iter().map(limit).collect();
        Row { bytes: self.bytes, noisy: self.noisy, ..row }
    }

    /// What tells a row from every other.
    pub(super) fn key(&self) -> (&str, &str, u32, Option<u64>) {
        (&self.benchmark, &self.name, self.ranks, self.bytes)
    }

    /// What is wrong with it, if anything is.
    fn complaint(&self, peers: &[String]) -> Option<String> {
        let fits = |value: f64| value > 0.0 || value == 0.0 && self.unit.may_be_zero();
        let is_sane = |value: f64| value.is_finite() && fits(value);
        let beside = || self.limits.iter().chain(&self.peers);
        let ratios = || beside().map(|beside| beside.ratio);
        let figures = beside().map(|beside| beside.median).chain([self.ours]);
        let mut figures = figures.chain(self.range.into_iter().flatten());
        let names = self.peers.iter().map(|peer| &peer.name);
        let mut names = names.chain(self.lost.iter().map(|lost| &lost.name));
        if !figures.all(is_sane) || !ratios().all(|ratio| ratio.is_finite() && ratio > 0.0) {
            Some("a figure is not finite and positive".into())
        } else if self.range.is_some_and(|[from, to]| self.ours < from || self.ours > to) {
            Some("the median is outside of its range".into())
        } else {
            let stranger = names.find(|name| !peers.contains(name))?;
            Some(format!("the head does not name the peer {stranger}"))
        }
    }
}

impl Record {
    /// What was measured on `machine`, which the tables call `name`.
    pub(super) fn of(name: &str, machine: &Machine, rows: &[Row]) -> Result<Self, RecordError> {
        let commit = machine.commit.clone().filter(|commit| !commit.ends_with("-dirty"));
        let commit = commit.ok_or(RecordError::NoCommit)?;
        let mut peers: Vec<String> = Vec::new();
        for row in rows {
            let lost = row.lost.iter().map(|lost| &lost.name);
            for name in row.peers.iter().map(|peer| &peer.name).chain(lost) {
                if !peers.contains(name) {
                    peers.push(name.clone());
                }
            }
        }
        peers.sort();
        let mut hops: Vec<f64> = rows.iter().filter_map(|row| row.hop_ns).flatten().collect();
        hops.sort_by(f64::total_cmp);
        let hop_ns = hops.first().zip(hops.last());
        let head = Head {
            format: FORMAT,
            machine: name.to_owned(),
            vendor: machine.vendor.clone().unwrap_or_else(|| "unknown".into()),
            cpu: machine.cpu.clone(),
            family: machine.family,
            model: machine.model,
            cores: machine.cores,
            l2_kib: machine.l2_kib,
            l3_kib: machine.l3_kib,
            kernel: machine.kernel.clone(),
            commits: vec![commit],
            source: Source::Measured,
            peers,
            hop_ns: hop_ns.map(|(first, last)| [rounded(*first), rounded(*last)]),
        };
        Ok(Self { head, rows: rows.iter().map(Entry::of).collect() })
    }

    /// As it is in its file.
    pub(super) fn text(&self) -> Result<String, RecordError> {
        let not_json = |error: serde_json::Error| RecordError::NotJson(error.to_string());
        let head = serde_json::to_string_pretty(&self.head).map_err(not_json)?;
        let rows: Result<Vec<String>, _> = self.rows.iter().map(serde_json::to_string).collect();
        let rows = rows.map_err(not_json)?.join(",\n    ");
        let head = head.trim_end_matches(['}', '\n']);
        let body = format!("{head},\n  \"rows\": [\n    {rows}\n  ],");
        let sum = checksum(&body);
        Ok(format!("{body}{CHECKSUM}{sum:016x}\"\n}}\n"))
    }

    /// Reads what [`Record::text`] made, and refuses everything else.
    pub(super) fn parse(text: &str) -> Result<Self, RecordError> {
        let not_json = |error: serde_json::Error| RecordError::NotJson(error.to_string());
        let value: serde_json::Value = serde_json::from_str(text).map_err(not_json)?;
        let version = serde_json::from_value::<Version>(value)
            .map_err(|error| RecordError::NoRecord(error.to_string()))?;
        if version.format != FORMAT {
            return Err(RecordError::OtherFormat { found: version.format, known: FORMAT });
        }
        let (body, rest) = text.rsplit_once(CHECKSUM).ok_or(RecordError::Changed)?;
        if rest != format!("{:016x}\"\n}}\n", checksum(body)) {
            return Err(RecordError::Changed);
        }
        let record: Self =
            serde_json::from_str(text).map_err(|error| RecordError::NoRecord(error.to_string()))?;
        record.check()?;
        Ok(record)
    }

    /// [`Record::parse`], of a file.
    pub(super) fn read(path: &Path) -> Result<Self, RecordError> {
        let text = fs::read_to_string(path).map_err(RecordError::NotRead)?;
        Self::parse(&text)
    }

    fn check(&self) -> Result<(), RecordError> {
        if self.rows.is_empty() {
            return Err(RecordError::NoRecord("it holds no row".into()));
        }
        for (index, row) in self.rows.iter().enumerate() {
            let bad = |why| RecordError::Row { row: format!("{:?}", row.key()), why };
            if let Some(why) = row.complaint(&self.head.peers) {
                return Err(bad(why));
            }
            if self.rows[..index].iter().any(|other| other.key() == row.key()) {
                return Err(bad("it is there twice".into()));
            }
        }
        Ok(())
    }

    /// Whether the figures of both are those of one machine, as far as can be told, or would be
    /// taken for such.
    pub(super) fn is_of_the_machine_of(&self, other: &Self) -> bool {
        let key = |head: &Head| {
            let &Head { family, model, cores, .. } = head;
            (head.vendor.clone(), head.cpu.clone(), family, model, cores)
        };
        self.head.machine == other.head.machine || key(&self.head) == key(&other.head)
    }
}

/// FNV-1a, of 64 bits: against mistakes, not against forgers.
fn checksum(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let places = DIGITS - 1 - value.abs().log10().floor() as i32;
    // A factor below 1 is no exact power of ten.
    let factor = 10f64.powi(places.abs());
    if places < 0 { (value / factor).round() * factor } else { (value * factor).round() / factor }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::record::{Limit, Summary};

    pub(in crate::report) fn machine() -> Machine {
        Machine {
            cpu: "C".into(),
            cores: 2,
            kernel: "6.1".into(),
            commit: Some("abc".into()),
            vendor: Some("V".into()),
            family: Some(1),
            ..Machine::default()
        }
    }

    pub(in crate::report) fn row(name: &str, ours: f64, peer: Option<f64>) -> Row {
        let mut row = Row::one("b", name, 2, Unit::Nanoseconds, ours);
        row.peers.extend(peer.map(|theirs| Limit {
            name: "P 1".into(),
            summary: Summary::of(&[theirs], 1),
            ratio: ours / theirs,
        }));
        row
    }

    pub(in crate::report) fn record(name: &str, rows: &[Row]) -> Record {
        Record::of(name, &machine(), rows).unwrap()
    }

    #[test]
    fn what_was_written_is_read() {
        let record = record("m", &[row("n", 1.234_567, Some(3.0)), row("o", 2.0, None)]);
        let text = record.text().unwrap();
        assert_eq!(Record::parse(&text).unwrap(), record);
        assert_eq!((record.rows[0].ours, record.rows[0].peers[0].ratio), (1.235, 0.4115));
        assert_eq!((rounded(123_456.0), rounded(0.0)), (123_500.0, 0.0));
        assert_eq!(record.head.peers, ["P 1"]);
    }

    #[test]
    fn what_is_cut_off_changed_or_of_another_format_is_refused() {
        let text = record("m", &[row("n", 1.5, None), row("o", 2.5, None)]).text().unwrap();
        for end in 0..text.len() {
            assert!(Record::parse(&text[..end]).is_err(), "{end}");
        }
        let cut = Record::parse(&text[..text.len() / 2]).unwrap_err();
        assert!(matches!(cut, RecordError::NotJson(_)), "{cut}");
        let changed = |from, to| Record::parse(&text.replace(from, to)).unwrap_err();
        assert!(matches!(changed("1.5", "1.4"), RecordError::Changed));
        assert!(matches!(changed("\"checksum\"", "\"sum\""), RecordError::Changed));
        let newer = changed("\"format\": 1", "\"format\": 2");
        assert!(matches!(newer, RecordError::OtherFormat { found: 2, known: 1 }), "{newer}");
        assert!(matches!(Record::parse("[]").unwrap_err(), RecordError::NoRecord(_)));
        assert!(matches!(Record::parse("{}").unwrap_err(), RecordError::NoRecord(_)));
    }

    #[test]
    fn figures_that_cannot_be_are_refused() {
        let good = record("m", &[row("n", 1.5, Some(3.0))]);
        let bad = |change: fn(&mut Record)| {
            let mut record = good.clone();
            change(&mut record);
            let error = Record::parse(&record.text().unwrap()).unwrap_err();
            assert!(matches!(error, RecordError::Row { .. }), "{error}");
        };
        bad(|record| record.rows[0].ours = -1.0);
        bad(|record| record.rows[0].peers[0].ratio = 0.0);
        bad(|record| record.rows[0].range = Some([2.0, 3.0]));
        bad(|record| record.head.peers.clear());
        bad(|record| record.rows.push(record.rows[0].clone()));
        let mut empty = good.clone();
        empty.rows.clear();
        assert!(Record::parse(&empty.text().unwrap()).is_err());
    }

    #[test]
    fn a_record_is_of_a_commit() {
        for commit in [None, Some("abc-dirty".to_owned())] {
            let machine = Machine { commit, ..machine() };
            let error = Record::of("m", &machine, &[row("n", 1.0, None)]).unwrap_err();
            assert!(matches!(error, RecordError::NoCommit));
        }
    }

    #[test]
    fn a_machine_is_known_by_its_name_or_by_its_facts() {
        let one = record("m", &[row("n", 1.0, None)]);
        let mut other = record("o", &[row("n", 1.0, None)]);
        assert!(one.is_of_the_machine_of(&other), "the same facts");
        other.head.family = Some(2);
        assert!(!one.is_of_the_machine_of(&other));
        other.head.machine = "m".into();
        assert!(one.is_of_the_machine_of(&other), "the same name");
    }
}
