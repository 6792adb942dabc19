//! Tables of records, for pages: the worst rows first, whatever machine they are from.
use super::goals::verdict;
use super::record::{Beside, Entry, Record, Source};
use crate::record::Unit;
use crate::table::bytes;
use std::cmp::Ordering;
use std::fmt::Write;

/// Bytes from which on a transfer is told of by its bandwidth.
const LARGE: u64 = 64 << 10;
const MISSED: &str = "missed";
/// Of the README: benchmark, name, bytes, ranks.
const COMPARED: &[(&str, &str, Option<u64>, u32)] = &[
    ("put-latency", "put + flush", Some(8), 2),
    ("fetch-and-op", "fetch_and_op sum", Some(8), 2),
    ("fetch-and-op", "compare_and_swap", Some(8), 2),
    ("accumulate", "accumulate f64 sum", Some(64 << 10), 2),
    ("lock", "lock + put + unlock exclusive", Some(8), 2),
    ("sync", "fence", None, 2),
    ("sync-many", "barrier", None, 64),
    ("bandwidth", "put + flush", Some(4 << 20), 2),
    ("progress", "put + flush, allocated window, target computes", Some(8), 2),
];

/// A table of a page: its name in the markers there, and what makes it.
pub(super) struct Region {
    pub(super) page: &'static str,
    pub(super) name: &'static str,
    pub(super) make: fn(&Records) -> String,
}

/// What the tables are made of, each sorted by machine.
pub(super) struct Records {
    /// Beside MPI libraries, or without peers.
    pub(super) machines: Vec<Record>,
    /// Beside crates of Rust.
    pub(super) crates: Vec<Record>,
    /// Of windows on storage, whose limits are the page cache and the device.
    pub(super) storage: Vec<Record>,
}

/// All that are generated.
pub(super) const REGIONS: &[Region] = &[
    Region { page: "docs/performance.md", name: "machines", make: |all| machines(&all.machines) },
    Region { page: "docs/performance.md", name: "families", make: |all| families(&all.machines) },
    Region {
        page: "docs/performance.md",
        name: "behind",
        make: |all| rows(&all.machines, Part::Behind),
    },
    Region {
        page: "docs/performance.md",
        name: "beside",
        make: |all| rows(&all.machines, Part::Beside),
    },
    Region {
        page: "docs/performance.md",
        name: "alone",
        make: |all| rows(&all.machines, Part::Alone),
    },
    Region {
        page: "docs/performance.md",
        name: "crates",
        make: |all| rows(&all.crates, Part::Any),
    },
    Region {
        page: "docs/performance.md",
        name: "crate-machines",
        make: |all| machines(&all.crates),
    },
    Region { page: "docs/storage.md", name: "storage", make: |all| beside_limits(&all.storage) },
    Region {
        page: "docs/storage.md",
        name: "storage-machines",
        make: |all| machines(&all.storage),
    },
    Region { page: "README.md", name: "compared", make: compared },
];

/// Which rows a table has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Slower than a peer, or than the row's goal.
    Behind,
    /// The others that have a peer.
    Beside,
    Alone,
    /// Each of these.
    Any,
}

/// A row, the record that it is from, and what it is judged by.
struct Line<'a> {
    record: &'a Record,
    row: &'a Entry,
    peer: Option<&'a Beside>,
    limit: Option<&'a Beside>,
    goal: Option<super::goals::Verdict>,
}

impl<'a> Line<'a> {
    fn of(record: &'a Record, row: &'a Entry) -> Self {
        let (peer, limit) = (best(&row.peers), best(&row.limits));
        Self { record, row, peer, limit, goal: verdict(row, &record.rows) }
    }

    fn part(&self) -> Part {
        let is_behind = self.peer.is_some_and(|peer| peer.ratio > 1.0);
        if is_behind || self.goal.as_ref().is_some_and(|goal| !goal.is_met) {
            Part::Behind
        } else if self.peer.is_some() || !self.row.lost.is_empty() {
            Part::Beside
        } else {
            Part::Alone
        }
    }

    /// The worse one first: by its peer, then by its limit.
    fn worse_first(&self, other: &Self) -> Ordering {
        let ratio = |beside: Option<&Beside>| beside.map_or(0.0, |beside| beside.ratio);
        let by_peer = ratio(other.peer).total_cmp(&ratio(self.peer));
        by_peer.then(ratio(other.limit).total_cmp(&ratio(self.limit)))
    }

    fn cells(&self) -> Vec<String> {
        let Self { record, row, peer, limit, goal } = self;
        let shown = |beside: &Beside| format!("{} {}", figure(row, beside.median), beside.name);
        let lost = row.lost.iter().map(|lost| format!("{} {}", lost.name, lost.why));
        let peers: Vec<String> = peer.map(shown).into_iter().chain(lost).collect();
        let goal = goal.as_ref().map(|verdict| match verdict.is_met {
            true => format!("{}: met", verdict.goal),
            false => format!("**{}: {MISSED}**", verdict.goal),
        });
        let noisy = if row.noisy { ", noisy" } else { "" };
        vec![
            peer.map(|peer| ratio(peer.ratio)).unwrap_or_default(),
            record.head.machine.clone(),
            row.benchmark.clone(),
            what(row),
            format!("{}{noisy}", figure(row, row.ours)),
            peers.join("; "),
            limit.map(|limit| ratio(limit.ratio)).unwrap_or_default(),
            limit.map(shown).unwrap_or_default(),
            goal.unwrap_or_default(),
        ]
    }
}

/// The one that leaves ours the furthest behind.
fn best(all: &[Beside]) -> Option<&Beside> {
    all.iter().max_by(|a, b| a.ratio.total_cmp(&b.ratio))
}

fn rows(records: &[Record], part: Part) -> String {
    let all =
        records.iter().flat_map(|record| record.rows.iter().map(move |row| Line::of(record, row)));
    let mut lines: Vec<Line<'_>> =
        all.filter(|line| part == Part::Any || line.part() == part).collect();
    lines.sort_by(Line::worse_first);
    let head = [
        "of peer",
        "machine",
        "benchmark",
        "what",
        "ours",
        "best peer",
        "of limit",
        "limit",
        "goal",
    ];
    let mut cells: Vec<Vec<String>> = lines.iter().map(Line::cells).collect();
    let mut head: Vec<String> = head.map(str::to_owned).to_vec();
    // Of rows that have none, two columns would be empty.
    if part == Part::Alone {
        for row in cells.iter_mut().chain([&mut head]) {
            row.remove(5);
            row.remove(0);
        }
    }
    markdown(head, cells)
}

/// Every row with all its limits and peers, as they were measured: neighbours are of one kind.
fn beside_limits(records: &[Record]) -> String {
    let head = ["machine", "what", "ours", "beside"].map(str::to_owned).to_vec();
    let line = |record: &Record, row: &Entry| {
        let beside = |of: &Beside| {
            format!("**{}** of {} {}", ratio(of.ratio), figure(row, of.median), of.name)
        };
        let noisy = if row.noisy { ", noisy" } else { "" };
        let limits: Vec<String> = row.limits.iter().chain(&row.peers).map(beside).collect();
        let ours = format!("{}{noisy}", figure(row, row.ours));
        vec![record.head.machine.clone(), what(row), ours, limits.join("; ")]
    };
    let all = records.iter().flat_map(|record| record.rows.iter().map(|row| line(record, row)));
    markdown(head, all.collect())
}

/// Geometric means of the ratios to the best peer, by benchmark.
fn families(records: &[Record]) -> String {
    let with_peers: Vec<&Record> =
        records.iter().filter(|record| !record.head.peers.is_empty()).collect();
    let mut benchmarks: Vec<&str> = Vec::new();
    for row in with_peers.iter().flat_map(|record| &record.rows) {
        if !row.peers.is_empty() && !benchmarks.contains(&&*row.benchmark) {
            benchmarks.push(&row.benchmark);
        }
    }
    let mean = |record: &Record, benchmark: &str| {
        let rows = record.rows.iter().filter(|row| row.benchmark == benchmark);
        geometric_mean(rows.filter_map(|row| best(&row.peers)).map(|peer| peer.ratio))
    };
    let mut lines: Vec<(&str, Vec<Option<f64>>)> = Vec::new();
    for benchmark in benchmarks {
        let means = with_peers.iter().map(|record| mean(record, benchmark)).collect();
        lines.push((benchmark, means));
    }
    let worst = |means: &[Option<f64>]| means.iter().flatten().copied().fold(0.0, f64::max);
    lines.sort_by(|(_, a), (_, b)| worst(b).total_cmp(&worst(a)));
    let names = with_peers.iter().map(|record| record.head.machine.clone());
    let head = ["benchmark".to_owned()].into_iter().chain(names).collect();
    let line = |(benchmark, means): (&str, Vec<Option<f64>>)| {
        let means = means.into_iter().map(|mean| mean.map(ratio).unwrap_or_default());
        [benchmark.to_owned()].into_iter().chain(means).collect()
    };
    markdown(head, lines.into_iter().map(line).collect())
}

fn geometric_mean(ratios: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) =
        ratios.fold((0.0, 0_u32), |(sum, count), ratio| (sum + ratio.ln(), count + 1));
    (count > 0).then(|| (sum / f64::from(count)).exp())
}

fn machines(records: &[Record]) -> String {
    let line = |record: &Record| {
        let head = &record.head;
        let number = |name: &str, value: Option<u32>| {
            value.map(|value| format!(", {name} {value}")).unwrap_or_default()
        };
        let cache = |kib: Option<u64>| kib.map_or("not noted".to_owned(), kib_or_mib);
        let hop = |[from, to]: [f64; 2]| format!("{} .. {}", time(from), time(to));
        let (family, model) = (number("family", head.family), number("model", head.model));
        vec![
            head.machine.clone(),
            format!("{} ({}{family}{model}), {} CPUs", head.cpu, head.vendor, head.cores),
            format!("{}, {}", cache(head.l2_kib), cache(head.l3_kib)),
            head.kernel.clone(),
            head.hop_ns.map(hop).unwrap_or_default(),
            head.peers.join(", "),
            head.commits.join(", "),
            match head.source {
                Source::Measured => "measured".to_owned(),
                Source::Transcribed => "transcribed".to_owned(),
            },
        ]
    };
    let head =
        ["machine", "CPU", "L2, L3", "Linux", "round trip of a line", "peers", "commit", "rows"];
    let head = head.map(str::to_owned).to_vec();
    markdown(head, records.iter().map(line).collect())
}

/// Of the README: some rows, a column for each machine that has one of them, and one for each
/// record beside a crate.
fn compared(records: &Records) -> String {
    let find = |record: &'_ Record, key: (&str, &str, Option<u64>, u32)| {
        let (benchmark, name, bytes, ranks) = key;
        let row = record.rows.iter().find(|row| row.key() == (benchmark, name, ranks, bytes));
        row.filter(|row| !row.peers.is_empty()).cloned()
    };
    let has_one = |record: &&Record| COMPARED.iter().any(|key| find(record, *key).is_some());
    let machines: Vec<&Record> = records.machines.iter().filter(has_one).collect();
    let crates: Vec<&Record> = records.crates.iter().filter(has_one).collect();
    let cell = |row: &Entry| {
        let peer = best(&row.peers)?;
        let (ours, theirs) = (figure(row, row.ours), figure(row, peer.median));
        Some(format!("**{}** ({ours}; {theirs} {})", ratio(peer.ratio), peer.name))
    };
    // The head of its column names it.
    let cell_of_crate = |row: &Entry| {
        let peer = best(&row.peers)?;
        let (ours, theirs) = (figure(row, row.ours), figure(row, peer.median));
        Some(format!("**{}** ({ours}; {theirs})", ratio(peer.ratio)))
    };
    let mut lines = Vec::new();
    for key in COMPARED {
        let rows: Vec<Option<Entry>> = machines.iter().map(|record| find(record, *key)).collect();
        let Some(first) = rows.iter().flatten().next() else { continue };
        let cells = rows.iter().map(|row| row.as_ref().and_then(cell).unwrap_or_default());
        let beside_crates = crates.iter().map(|record| {
            let row = find(record, *key);
            row.as_ref().and_then(cell_of_crate).unwrap_or_else(|| "–".to_owned())
        });
        lines.push([what(first)].into_iter().chain(cells).chain(beside_crates).collect());
    }
    let names = machines.iter().map(|record| record.head.machine.clone());
    let of_crate =
        |record: &&Record| format!("{}, {}", record.head.peers.join(", "), record.head.machine);
    let names = names.chain(crates.iter().map(of_crate));
    markdown(["what".to_owned()].into_iter().chain(names).collect(), lines)
}

fn markdown(head: Vec<String>, lines: Vec<Vec<String>>) -> String {
    let rule = vec!["---".to_owned(); head.len()];
    let mut text = String::new();
    for line in [head, rule].into_iter().chain(lines) {
        let cells: Vec<String> = line.iter().map(|cell| cell.replace('|', "\\|")).collect();
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    text
}

/// What a row measures, and with how many ranks if these are not two.
fn what(row: &Entry) -> String {
    let size = row.bytes.map(|count| format!(", {}B", spaced(&bytes(count)))).unwrap_or_default();
    let ranks = if row.ranks == 2 { String::new() } else { format!(", {} ranks", row.ranks) };
    format!("{}{size}{ranks}", row.name)
}

/// A unit stands apart from its number.
fn spaced(bytes: &str) -> String {
    if bytes.contains(' ') { bytes.to_owned() } else { format!("{bytes} ") }
}

fn figure(row: &Entry, value: f64) -> String {
    match (row.unit, row.bytes) {
        // The time of a computation is in it.
        (Unit::Nanoseconds, Some(bytes)) if bytes >= LARGE && row.benchmark != "overlap" => {
            format!("{} GB/s", significant(bytes as f64 / value))
        }
        (Unit::Nanoseconds, _) => time(value),
        (Unit::PerSecond, _) if value < 1e6 => format!("{} k/s", significant(value / 1e3)),
        (Unit::PerSecond, _) => format!("{} M/s", significant(value / 1e6)),
        (Unit::Bytes, _) if value < 1024.0 => format!("{} B", significant(value)),
        (Unit::Bytes, _) if value < 1_048_576.0 => format!("{} KiB", significant(value / 1024.0)),
        (Unit::Bytes, _) => format!("{} MiB", significant(value / 1_048_576.0)),
        (Unit::Times, _) => format!("{} x", significant(value)),
        (Unit::Count, _) => significant(value),
        (Unit::Share, _) => format!("{} %", significant(value * 100.0)),
    }
}

pub(super) fn time(ns: f64) -> String {
    match ns {
        0.0..1e3 => format!("{} ns", significant(ns)),
        1e3..1e6 => format!("{} µs", significant(ns / 1e3)),
        1e6..1e9 => format!("{} ms", significant(ns / 1e6)),
        _ => format!("{} s", significant(ns / 1e9)),
    }
}

fn kib_or_mib(kib: u64) -> String {
    if kib.is_multiple_of(1024) { format!("{} MiB", kib / 1024) } else { format!("{kib} KiB") }
}

/// Three digits that count, without zeros behind them.
pub(super) fn significant(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let places = (2 - value.abs().log10().floor() as i32).max(0);
    let text = format!("{value:.*}", places as usize);
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

fn ratio(ratio: f64) -> String {
    match ratio {
        0.0..0.001 => format!("{ratio:.1e}"),
        0.001..0.1 => format!("{ratio:.3}"),
        _ => format!("{ratio:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::{record, row};
    use super::*;

    #[test]
    fn the_worst_rows_stand_first_and_name_their_machine() {
        let one = record("one", &[row("good", 1.0, Some(4.0)), row("bad", 3.0, Some(2.0))]);
        let other = record("other", &[row("worse", 4.0, Some(2.0)), row("alone", 1.0, None)]);
        let records = [one, other];
        let lines = |part| -> Vec<String> {
            rows(&records, part).lines().skip(2).map(str::to_owned).collect()
        };
        assert_eq!(
            lines(Part::Behind),
            [
                "| 2.00 | other | b | worse | 4 ns | 2 ns P 1 |  |  |  |",
                "| 1.50 | one | b | bad | 3 ns | 2 ns P 1 |  |  |  |"
            ]
        );
        assert_eq!(lines(Part::Beside), ["| 0.25 | one | b | good | 1 ns | 4 ns P 1 |  |  |  |"]);
        assert_eq!(lines(Part::Alone), ["| other | b | alone | 1 ns |  |  |  |"]);
    }

    #[test]
    fn a_row_that_misses_its_goal_is_behind() {
        let mut record = record("m", &[row("flush, nothing", 1.5, Some(2.0))]);
        assert_eq!(Line::of(&record, &record.rows[0]).part(), Part::Beside);
        record.rows[0].benchmark = "lock".into();
        let line = Line::of(&record, &record.rows[0]);
        assert_eq!(line.part(), Part::Behind);
        assert_eq!(line.cells()[8], "**peer / 2: missed**");
    }

    #[test]
    fn peers_that_are_lost_and_noise_are_shown() {
        let mut record = record("m", &[row("n", 1.5, None)]);
        let lost = crate::record::Lost { name: "P 1".into(), why: "crashed".into() };
        record.rows[0].lost.push(lost);
        record.rows[0].noisy = true;
        let text = rows(&[record], Part::Beside);
        assert!(text.contains("1.5 ns, noisy | P 1 crashed |"), "{text}");
    }

    #[test]
    fn means_are_of_the_best_peers_and_the_worst_benchmark_stands_first() {
        let mut one = record("one", &[row("n", 1.0, Some(2.0)), row("o", 8.0, Some(1.0))]);
        let mut other = record("other", &[row("n", 3.0, Some(1.0))]);
        other.rows[0].benchmark = "c".into();
        one.rows[0].peers.push(Beside { name: "P 2".into(), median: 1.0, ratio: 0.1 });
        let text = families(&[one, other, record("none", &[row("n", 1.0, None)])]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "| benchmark | one | other |");
        assert_eq!(&lines[2..], ["| c |  | 3.00 |", "| b | 2.00 |  |"]);
    }

    #[test]
    fn the_readme_has_a_column_for_each_machine_with_a_row() {
        let mut fence = row("fence", 1.0, Some(4.0));
        fence.benchmark = "sync".into();
        let machines = vec![
            record("one", std::slice::from_ref(&fence)),
            record("other", &[row("n", 1.0, Some(2.0))]),
        ];
        let mut records = Records { machines, crates: Vec::new(), storage: Vec::new() };
        let text = compared(&records);
        assert_eq!(text, "| what | one |\n| --- | --- |\n| fence | **0.25** (1 ns; 4 ns P 1) |\n");
        let mut put = row("put + flush", 1.0, Some(5.0));
        (put.benchmark, put.bytes) = ("put-latency".into(), Some(8));
        records.machines[0] = record("one", &[fence, put.clone()]);
        records.crates = vec![record("one", &[put])];
        let text = compared(&records);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "| what | one | P 1, one |");
        assert_eq!(
            lines[2],
            "| put + flush, 8 B | **0.20** (1 ns; 5 ns P 1) | **0.20** (1 ns; 5 ns) |"
        );
        assert_eq!(lines[3], "| fence | **0.25** (1 ns; 4 ns P 1) | – |");
    }

    #[test]
    fn rows_of_storage_show_all_their_limits() {
        let mut one = record("one", &[row("n", 3.0, None)]);
        let limit = |name: &str, ratio| Beside { name: name.into(), median: 2.0, ratio };
        one.rows[0].limits = vec![limit("L", 1.5), limit("M", 1.0)];
        let text = beside_limits(&[one]);
        let last = text.lines().last().unwrap();
        assert_eq!(last, "| one | n | 3 ns | **1.50** of 2 ns L; **1.00** of 2 ns M |");
    }

    #[test]
    fn figures_have_three_digits() {
        let show = |value| significant(value);
        assert_eq!([show(0.626), show(34.96), show(7.0), show(120.4)], ["0.626", "35", "7", "120"]);
        assert_eq!([ratio(13.974), ratio(0.0241), ratio(0.00036)], ["13.97", "0.024", "3.6e-4"]);
        let mut row = record("m", &[row("n", 1.0, None)]).rows.remove(0);
        row.bytes = Some(1 << 20);
        assert_eq!(figure(&row, 1e5), "10.5 GB/s");
        assert_eq!(what(&Entry { ranks: 4, bytes: Some(8), ..row.clone() }), "n, 8 B, 4 ranks");
        assert_eq!(what(&row), "n, 1 MiB");
        row.unit = Unit::PerSecond;
        assert_eq!(figure(&row, 5.4e6), "5.4 M/s");
    }
}
