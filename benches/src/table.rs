//! Rows for people.
use crate::record::{Row, Summary, Unit};
use std::fmt::Write;

/// What stands above the columns, behind the name of a benchmark.
const HEAD: [&str; 8] = ["ranks", "bytes", "median", "p10 .. p90", "limit", "of limit", "goal", ""];

/// A table for each benchmark, whose name stands above its rows.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut text = String::new();
    for (benchmark, rows) in by_benchmark(rows) {
        let [a, b, c, d, e, f, g, h] = HEAD;
        let mut lines = vec![[benchmark, a, b, c, d, e, f, g, h].map(str::to_owned)];
        lines.extend(rows.into_iter().flat_map(lines_of));
        text.push_str(&aligned(&lines, &[0, 5, 8]));
        text.push('\n');
    }
    text
}

/// Rows of each benchmark, in the order in which they first come.
pub(crate) fn by_benchmark(rows: &[Row]) -> Vec<(&str, Vec<&Row>)> {
    let mut all: Vec<(&str, Vec<&Row>)> = Vec::new();
    for row in rows {
        match all.iter_mut().find(|(benchmark, _)| *benchmark == row.benchmark) {
            Some((_, of)) => of.push(row),
            None => all.push((&row.benchmark, vec![row])),
        }
    }
    all
}

/// Lines of cells, each column as wide as it must be; columns of words stand to the left.
pub(crate) fn aligned<const COLUMNS: usize>(
    lines: &[[String; COLUMNS]],
    words: &[usize],
) -> String {
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    let widths: Vec<usize> = (0..COLUMNS).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for line in lines {
        let mut out = String::new();
        for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
            let _ = if words.contains(&column) {
                write!(out, "{cell:<width$}  ")
            } else {
                write!(out, "{cell:>width$}  ")
            };
        }
        text.push_str(out.trim_end());
        text.push('\n');
    }
    text
}

fn lines_of(row: &Row) -> Vec<[String; 9]> {
    let Summary { median, p10, p90, .. } = row.ours;
    let show = |value| figure(row, value);
    let mut first = [
        row.name.clone(),
        row.ranks.to_string(),
        row.bytes.map(bytes).unwrap_or_default(),
        show(median),
        format!("{} .. {}", show(p10), show(p90)),
        String::new(),
        String::new(),
        String::new(),
        if row.noisy { "noisy".to_owned() } else { String::new() },
    ];
    if let (Unit::Count | Unit::Share, Some(budget)) = (row.unit, row.goal) {
        first[7] = format!("<= {}", show(budget));
    }
    let mut more = Vec::new();
    for (index, limit) in row.limits.iter().chain(&row.peers).enumerate() {
        let name = format!("{} {}", limit.name, show(limit.summary.median));
        let ratio = format!("{:.2}", limit.ratio);
        if index == 0 && !row.limits.is_empty() {
            (first[5], first[6]) = (name, ratio);
            first[7] = row.goal.map(|goal| format!("<= {goal}")).unwrap_or_default();
        } else {
            let mut line = [const { String::new() }; 9];
            (line[5], line[6]) = (name, ratio);
            more.push(line);
        }
    }
    more.insert(0, first);
    more
}

/// A value with its unit; large transfers as bandwidth.
pub(crate) fn figure(row: &Row, value: f64) -> String {
    match row.unit {
        Unit::Nanoseconds => match row.bytes {
            Some(bytes)
                if bytes >= 64 << 10 && bytes as f64 / value >= 0.01 && !row.limits.is_empty() =>
            {
                format!("{:.2} GB/s", bytes as f64 / value)
            }
            _ => time(value),
        },
        Unit::PerSecond => format!("{value:.3e} /s"),
        Unit::Bytes => size(value),
        Unit::Times => format!("{value:.2} x"),
        Unit::Count if value.fract() == 0.0 => format!("{value:.0}"),
        Unit::Count if value < 0.01 => format!("{value:.4}"),
        Unit::Count => format!("{value:.2}"),
        Unit::Share if value > 0.0 && value < 0.01 => format!("{:.3} %", value * 100.0),
        Unit::Share => format!("{:.0} %", value * 100.0),
    }
}

pub(crate) fn time(ns: f64) -> String {
    match ns {
        0.0..1e3 => format!("{ns:.2} ns"),
        1e3..1e6 => format!("{:.2} us", ns / 1e3),
        1e6..1e9 => format!("{:.2} ms", ns / 1e6),
        _ => format!("{:.2} s", ns / 1e9),
    }
}

/// One figure in times of another.
pub(crate) fn ratio(ratio: f64) -> String {
    if ratio < 0.001 { format!("{ratio:.1e}") } else { format!("{ratio:.3}") }
}

fn size(bytes: f64) -> String {
    match bytes {
        0.0..1024.0 => format!("{bytes:.0} B"),
        1024.0..1048576.0 => format!("{:.1} KiB", bytes / 1024.0),
        _ => format!("{:.1} MiB", bytes / 1048576.0),
    }
}

pub(crate) fn bytes(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes}"),
        1024..0x10_0000 => format!("{} Ki", bytes >> 10),
        _ => format!("{} Mi", bytes >> 20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_benchmark_has_a_table_of_its_own() {
        let row = |benchmark: &str, name: &str| Row::one(benchmark, name, 2, Unit::Count, 1.0);
        let rows = [row("a", "one"), row("b", "a longer name"), row("a", "two")];
        let text = table(&rows);
        let first: Vec<&str> =
            text.lines().map(|line| line.split_whitespace().next().unwrap_or_default()).collect();
        assert_eq!(first, ["a", "one", "two", "", "b", "a", ""]);
    }

    #[test]
    fn values_are_short() {
        assert_eq!(time(2.341), "2.34 ns");
        assert_eq!(time(1_500.0), "1.50 us");
        assert_eq!(time(2.5e9), "2.50 s");
        assert_eq!((ratio(0.25), ratio(4.2e-8)), ("0.250".into(), "4.2e-8".into()));
        assert_eq!((size(17.0), size(1536.0)), ("17 B".into(), "1.5 KiB".into()));
        assert_eq!(
            (bytes(8), bytes(4096), bytes(1 << 20)),
            ("8".into(), "4 Ki".into(), "1 Mi".into())
        );
    }
}
