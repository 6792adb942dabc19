//! Two files of rows, side by side.
//!
//! A machine is not as fast today as it was yesterday. Where both rows have the same limit, which
//! ran in turn with them, what the limit moved by is taken out of what the row moved by.
use crate::Result;
use crate::file::{self, Recorded};
use crate::record::{Row, Unit};
use crate::table::{aligned, bytes, figure};
use std::fmt::Write;
use std::path::Path;

/// Fewer figures have no quantiles to speak of.
const FEWEST_BATCHES: u64 = 5;

/// What became of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// Within noise.
    Same,
    Better,
    Worse,
    /// A row is marked noisy: not to be trusted.
    Noisy,
    /// Too few figures to tell a move from noise.
    Few,
}

/// A row of both files.
struct Pair<'a> {
    before: &'a Row,
    after: &'a Row,
    /// How the limit moved: new in times of old.
    machine: Option<f64>,
    /// How much worse, above 1, or better the row became, the machine taken out.
    worse: f64,
    verdict: Verdict,
}

/// Prints how `after` differs from `before`. Fails if a row became worse, beyond noise and by more
/// than so many percent, or is gone.
pub(crate) fn run(before: &Path, after: &Path, fail_beyond: Option<f64>) -> Result<()> {
    if let Some(percent) = fail_beyond.filter(|percent| !percent.is_finite() || *percent < 0.0) {
        return Err(format!("--fail-beyond {percent}: a percentage from 0 on is needed").into());
    }
    let (old, new) = (file::read(before)?, file::read(after)?);
    println!("before: {}: {}\nafter:  {}: {}", before.display(), old.machine, after.display(), {
        &new.machine
    });
    let same_machine = old.machine.is_the_same(&new.machine);
    if !same_machine {
        println!("NOT THE SAME MACHINE: only what stands next to a limit can be compared");
    }
    let found = Comparison::of(&best(&old), &best(&new)).text(fail_beyond)?;
    print!("{}", found.text);
    match fail_beyond {
        Some(_) if !same_machine => Err("figures of two machines cannot be held to a limit".into()),
        Some(_) if !found.failures.is_empty() => Err(found.failures.join("\n").into()),
        _ => Ok(()),
    }
}

fn best(recorded: &Recorded) -> Vec<Row> {
    Row::best(&recorded.rows)
}

struct Comparison<'a> {
    pairs: Vec<Pair<'a>>,
    gone: Vec<&'a Row>,
    new: Vec<&'a Row>,
}

/// What is said, and what is wrong.
struct Found {
    text: String,
    failures: Vec<String>,
}

impl<'a> Comparison<'a> {
    fn of(before: &'a [Row], after: &'a [Row]) -> Self {
        let is_in = |row: &Row, rows: &[Row]| rows.iter().any(|other| other.is_of_the_same(row));
        let partner = |row: &Row| after.iter().find(|other| other.is_of_the_same(row));
        Self {
            pairs: before.iter().filter_map(|row| Some(Pair::of(row, partner(row)?))).collect(),
            gone: before.iter().filter(|row| !is_in(row, after)).collect(),
            new: after.iter().filter(|row| !is_in(row, before)).collect(),
        }
    }

    fn text(&self, fail_beyond: Option<f64>) -> Result<Found> {
        if self.pairs.is_empty() {
            return Err("the two files have no row in common".into());
        }
        let head = ["row", "ranks", "bytes", "before", "after", "limit", "worse by", "verdict"];
        let mut lines = vec![head.map(str::to_owned)];
        lines.extend(self.pairs.iter().map(Pair::line));
        let mut text = aligned(&lines, &[0, 7]);
        let mut failures = Vec::new();
        for (rows, file) in [(&self.gone, "before"), (&self.new, "after")] {
            for row in rows {
                let _ = writeln!(text, "only in `{file}`: {}", title(row));
            }
        }
        let count = |verdict| self.pairs.iter().filter(|pair| pair.verdict == verdict).count();
        let _ = writeln!(
            text,
            "{} rows: {} worse, {} better, {} within noise, {} noisy, {} with too few figures",
            self.pairs.len(),
            count(Verdict::Worse),
            count(Verdict::Better),
            count(Verdict::Same),
            count(Verdict::Noisy),
            count(Verdict::Few),
        );
        if let Some(percent) = fail_beyond {
            let beyond = |pair: &&Pair<'_>| pair.worse > 1.0 + percent / 100.0;
            let worse = self.pairs.iter().filter(|pair| pair.verdict == Verdict::Worse);
            failures.extend(worse.filter(beyond).map(|pair| {
                let by = percent_of(pair.worse);
                format!("{} became worse by {by}, allowed are {percent} %", title(pair.after))
            }));
            let gone = |row: &&Row| format!("{} was not measured again", title(row));
            failures.extend(self.gone.iter().map(gone));
        }
        Ok(Found { text, failures })
    }
}

impl<'a> Pair<'a> {
    fn of(before: &'a Row, after: &'a Row) -> Self {
        let (old, new) = (&before.ours, &after.ours);
        let machine = before.limits.first().zip(after.limits.first());
        let machine = machine.filter(|(old, new)| old.name == new.name);
        let machine = machine.map(|(old, new)| new.summary.median / old.summary.median);
        // Where more is better, a slower machine shows less.
        let scale = machine.unwrap_or(1.0);
        let (is_higher, is_lower) = (new.p10 > old.p90 * scale, new.p90 < old.p10 * scale);
        let (worse, is_apart_above, is_apart_below) = match before.unit {
            Unit::PerSecond => {
                let worse = old.median / new.median / scale;
                (worse, new.p90 < old.p10 / scale, new.p10 > old.p90 / scale)
            }
            // In points: of shares, a ratio says nothing.
            Unit::Share => (1.0 + old.median - new.median, is_lower, is_higher),
            // None is as few as one.
            Unit::Bytes | Unit::Count => {
                (new.median.max(1.0) / old.median.max(1.0), is_higher, is_lower)
            }
            Unit::Nanoseconds | Unit::Times => {
                (new.median / old.median / scale, is_higher, is_lower)
            }
        };
        let verdict = if before.noisy || after.noisy {
            Verdict::Noisy
        } else if old.batches.min(new.batches) < FEWEST_BATCHES {
            Verdict::Few
        } else if is_apart_above {
            Verdict::Worse
        } else if is_apart_below {
            Verdict::Better
        } else {
            Verdict::Same
        };
        Self { before, after, machine, worse, verdict }
    }

    fn line(&self) -> [String; 8] {
        let Self { before, after, .. } = self;
        let verdict = match self.verdict {
            Verdict::Same => "within noise",
            Verdict::Better => "BETTER",
            Verdict::Worse => "WORSE",
            Verdict::Noisy => "noisy: repeat it",
            Verdict::Few => "too few figures",
        };
        [
            format!("{} {}", after.benchmark, after.name),
            after.ranks.to_string(),
            after.bytes.map(bytes).unwrap_or_default(),
            figure(before, before.ours.median),
            figure(after, after.ours.median),
            self.machine.map(|ratio| format!("x {ratio:.2}")).unwrap_or_default(),
            percent_of(self.worse),
            verdict.to_owned(),
        ]
    }
}

fn percent_of(worse: f64) -> String {
    format!("{:+.1} %", (worse - 1.0) * 100.0)
}

fn title(row: &Row) -> String {
    let size = row.bytes.map(|count| format!(" of {}B", bytes(count))).unwrap_or_default();
    format!("{} {}{size} ({} ranks)", row.benchmark, row.name, row.ranks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Limit, Summary};

    /// A row of 11 figures around a median, and its limit.
    fn row(name: &str, median: f64, limit: Option<f64>) -> Row {
        let around = |median: f64| {
            let values: Vec<f64> =
                (-5..=5).map(|i| median * (1.0 + f64::from(i) / 100.0)).collect();
            Summary::of(&values, 1)
        };
        let limit = limit.map(|ns| Limit { name: "l".into(), summary: around(ns), ratio: 1.0 });
        Row {
            ours: around(median),
            limits: limit.into_iter().collect(),
            ..Row::one("b", name, 2, Unit::Nanoseconds, median)
        }
    }

    fn verdict(before: &Row, after: &Row) -> Verdict {
        Pair::of(before, after).verdict
    }

    #[test]
    fn a_move_counts_where_the_quantiles_are_apart() {
        assert_eq!(verdict(&row("n", 10.0, None), &row("n", 10.5, None)), Verdict::Same);
        assert_eq!(verdict(&row("n", 10.0, None), &row("n", 12.0, None)), Verdict::Worse);
        assert_eq!(verdict(&row("n", 10.0, None), &row("n", 8.0, None)), Verdict::Better);
        let rate = |median| Row { unit: Unit::PerSecond, ..row("n", median, None) };
        assert_eq!(verdict(&rate(10.0), &rate(12.0)), Verdict::Better);
        assert_eq!(verdict(&rate(10.0), &rate(8.0)), Verdict::Worse);
        let share = |median| Row { unit: Unit::Share, ..row("n", median, None) };
        assert_eq!(verdict(&share(0.0), &share(0.5)), Verdict::Better);
        assert_eq!(verdict(&share(0.5), &share(0.0)), Verdict::Worse);
    }

    #[test]
    fn what_the_machine_moved_by_is_taken_out() {
        let before = row("n", 10.0, Some(5.0));
        assert_eq!(verdict(&before, &row("n", 20.0, Some(10.0))), Verdict::Same);
        assert_eq!(verdict(&before, &row("n", 10.0, Some(2.5))), Verdict::Worse);
    }

    #[test]
    fn noise_and_single_figures_are_not_judged() {
        let noisy = Row { noisy: true, ..row("n", 20.0, None) };
        assert_eq!(verdict(&row("n", 10.0, None), &noisy), Verdict::Noisy);
        let single = Row::one("b", "n", 2, Unit::Nanoseconds, 20.0);
        assert_eq!(verdict(&row("n", 10.0, None), &single), Verdict::Few);
    }

    #[test]
    fn a_row_that_is_worse_or_gone_fails() {
        let before = [row("same", 10.0, None), row("worse", 10.0, None), row("gone", 1.0, None)];
        let after = [row("same", 10.1, None), row("worse", 13.0, None), row("new", 1.0, None)];
        let compared = Comparison::of(&before, &after);
        let failures = |percent| compared.text(Some(percent)).unwrap().failures;
        assert_eq!(failures(10.0).len(), 2, "{:?}", failures(10.0));
        assert!(failures(10.0)[0].contains("worse by +30.0 %"));
        assert!(failures(50.0)[0].contains("gone (2 ranks) was not measured again"));
        let found = compared.text(None).unwrap();
        assert!(found.failures.is_empty() && found.text.contains("only in `after`: b new"));
        assert!(Comparison::of(&before[..1], &after[1..]).text(None).is_err());
    }
}
