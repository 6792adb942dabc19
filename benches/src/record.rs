//! What a benchmark found: rows, and how they are written down.
use serde::{Deserialize, Serialize};

/// A row whose middle 80 % of batches spread wider than this share of the median is noisy.
const NOISY_SPREAD: f64 = 0.25;
/// So is one of a job in which the distance of the CPUs changed by this factor.
const NOISY_HOP: f64 = 1.5;

/// Bytes of a page.
const PAGE: f64 = 4096.0;

/// What the figures of a row count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Unit {
    /// Nanoseconds per operation.
    #[serde(rename = "ns")]
    Nanoseconds,
    /// Operations per second.
    #[serde(rename = "1/s")]
    PerSecond,
    /// Bytes of memory.
    #[serde(rename = "B")]
    Bytes,
    /// How many times as much.
    #[serde(rename = "x")]
    Times,
    /// What was counted, per operation.
    #[serde(rename = "count")]
    Count,
    /// Part of a whole, 0 to 1.
    #[serde(rename = "share")]
    Share,
}

impl Unit {
    /// Whether a larger figure is a better one.
    pub(crate) fn is_better_above(self) -> bool {
        matches!(self, Self::PerSecond | Self::Share)
    }

    /// One figure in times of another: below 1, the first is better.
    pub(crate) fn ratio(self, ours: f64, other: f64) -> f64 {
        match self {
            Self::PerSecond | Self::Share => other / ours,
            // None is as good as one; memory comes in pages.
            Self::Bytes => ours.max(PAGE) / other.max(PAGE),
            Self::Count => ours.max(1.0) / other.max(1.0),
            Self::Nanoseconds | Self::Times => ours / other,
        }
    }

    /// Whether nothing at all is a figure.
    pub(crate) fn may_be_zero(self) -> bool {
        matches!(self, Self::Bytes | Self::Count | Self::Share)
    }
}

/// Quantiles of many batches.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    pub(crate) p10: f64,
    pub(crate) p90: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    /// How many figures these are the quantiles of.
    pub(crate) batches: u64,
    /// Operations behind each figure.
    pub(crate) operations: u64,
}

impl Summary {
    pub(crate) fn of(values: &[f64], operations: u64) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let quantile = |q: f64| {
            let index = (sorted.len().saturating_sub(1) as f64 * q).round() as usize;
            sorted.get(index).copied().unwrap_or(f64::NAN)
        };
        Self {
            median: quantile(0.5),
            p10: quantile(0.1),
            p90: quantile(0.9),
            min: quantile(0.0),
            max: quantile(1.0),
            batches: sorted.len() as u64,
            operations,
        }
    }

    /// Width of the middle 80 %, as a share of the median; of a share, the width itself.
    fn spread(&self, unit: Unit) -> f64 {
        let wide = self.p90 - self.p10;
        if unit == Unit::Share || wide == 0.0 { wide } else { wide / self.median }
    }

    /// Whether these can be quantiles of such figures.
    pub(crate) fn is_sane(&self, unit: Unit) -> bool {
        let values = [self.min, self.p10, self.median, self.p90, self.max];
        let fits = |value: f64| value > 0.0 || value == 0.0 && unit.may_be_zero();
        values.iter().all(|value| value.is_finite() && fits(*value)) && values.is_sorted()
    }
}

/// What the machine needs for the same, measured in turn with it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Limit {
    pub(crate) name: String,
    pub(crate) summary: Summary,
    /// Ours in times of this.
    pub(crate) ratio: f64,
}

/// A peer that has the row, and did not come to its figure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lost {
    pub(crate) name: String,
    /// What happened: it crashed, or took too long.
    pub(crate) why: String,
}

/// One figure.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) benchmark: String,
    pub(crate) name: String,
    pub(crate) ranks: u32,
    /// Which of several jobs measured it, 1 for the first.
    pub(crate) launch: u32,
    /// Bytes of an operation, where that says something.
    pub(crate) bytes: Option<u64>,
    pub(crate) unit: Unit,
    pub(crate) ours: Summary,
    pub(crate) limits: Vec<Limit>,
    /// What other libraries need for the same, in the same run.
    #[serde(default)]
    pub(crate) peers: Vec<Limit>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) lost: Vec<Lost>,
    /// What the ratio to the first limit is meant to be at most, or what is counted.
    pub(crate) goal: Option<f64>,
    /// Round trip of a cache line between the two ranks, before and after, if there are two.
    pub(crate) hop_ns: Option<[f64; 2]>,
    /// Whether every rank is bound to a CPU of its own.
    pub(crate) pinned: bool,
    pub(crate) noisy: bool,
}

impl Row {
    /// A single figure of a whole job.
    pub(crate) fn one(benchmark: &str, name: &str, ranks: u32, unit: Unit, value: f64) -> Self {
        Self {
            benchmark: benchmark.to_owned(),
            name: name.to_owned(),
            ranks,
            launch: 1,
            bytes: None,
            unit,
            ours: Summary::of(&[value], 1),
            limits: Vec::new(),
            peers: Vec::new(),
            lost: Vec::new(),
            goal: None,
            hop_ns: None,
            pinned: false,
            noisy: false,
        }
    }

    /// Notes what is known after all rows of the job.
    pub(crate) fn finish(&mut self, hop_ns: Option<[f64; 2]>) {
        self.hop_ns = hop_ns;
        let summaries = self.limits.iter().map(|limit| &limit.summary).chain([&self.ours]);
        let wide = summaries.into_iter().any(|summary| summary.spread(self.unit) > NOISY_SPREAD);
        let moved = hop_ns.is_some_and(|[a, b]| a.max(b) / a.min(b) > NOISY_HOP);
        self.noisy = wide || moved;
    }

    /// Whether both measure the same thing.
    pub(crate) fn is_of_the_same(&self, other: &Self) -> bool {
        let key = |row: &Self| (row.ranks, row.bytes, row.unit);
        self.benchmark == other.benchmark && self.name == other.name && key(self) == key(other)
    }

    fn is_better(&self, other: &Self) -> bool {
        let (ours, other) = (self.ours.median, other.ours.median);
        if self.unit.is_better_above() { ours > other } else { ours < other }
    }

    /// Of the rows of several launches, the best of each kind.
    pub(crate) fn best(rows: &[Self]) -> Vec<Self> {
        let mut best: Vec<Self> = Vec::new();
        for row in rows {
            match best.iter_mut().find(|found| found.is_of_the_same(row)) {
                Some(found) if row.is_better(found) => *found = row.clone(),
                Some(_) => {}
                None => best.push(row.clone()),
            }
        }
        best
    }

    /// What is wrong with what was counted, or with a share that is bounded, whatever the machine.
    pub(crate) fn above_budget(&self) -> Option<String> {
        let is_judged = matches!(self.unit, Unit::Count | Unit::Share);
        let budget = self.goal.filter(|goal| is_judged && self.ours.max > *goal)?;
        let (benchmark, name, most) = (&self.benchmark, &self.name, self.ours.max);
        Some(format!("{benchmark} {name}: {most} for each, at most {budget} are allowed"))
    }

    /// What is wrong with the row, whatever the machine.
    pub(crate) fn complaint(&self) -> Option<String> {
        let is_sane = |summary: &Summary| summary.is_sane(self.unit);
        let is_ratio = |ratio: f64| ratio.is_finite() && ratio > 0.0;
        let limits =
            self.limits.iter().all(|limit| is_sane(&limit.summary) && is_ratio(limit.ratio));
        if limits && is_sane(&self.ours) {
            return None;
        }
        Some(format!("{} {}: a figure is not finite and positive", self.benchmark, self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(values: &[f64]) -> Row {
        let row = Row::one("b", "n", 2, Unit::Nanoseconds, 1.0);
        Row { ours: Summary::of(values, 1), ..row }
    }

    #[test]
    fn quantiles_are_of_the_sorted_values() {
        let values: Vec<f64> = (0..=10).rev().map(f64::from).collect();
        let Summary { median, p10, p90, min, max, batches, .. } = Summary::of(&values, 1);
        assert_eq!((median, p10, p90, min, max, batches), (5.0, 1.0, 9.0, 0.0, 10.0, 11));
    }

    #[test]
    fn figures_that_cannot_be_are_found() {
        assert_eq!(row(&[1.0, 2.0]).complaint(), None);
        for wrong in [&[][..], &[0.0], &[-1.0], &[f64::NAN], &[f64::INFINITY]] {
            assert!(row(wrong).complaint().is_some(), "{wrong:?}");
        }
        let mut without_ratio = row(&[1.0]);
        let summary = without_ratio.ours;
        without_ratio.limits.push(Limit { name: "l".into(), summary, ratio: f64::NAN });
        assert!(without_ratio.complaint().is_some());
    }

    #[test]
    fn nothing_is_a_share_and_a_size_but_no_time() {
        let of = |unit| Row { unit, ..row(&[0.0, 0.0]) };
        assert!(of(Unit::Share).complaint().is_none() && of(Unit::Bytes).complaint().is_none());
        assert!(of(Unit::PerSecond).complaint().is_some());
        let mut share = of(Unit::Share);
        share.ours = Summary::of(&[0.0, 0.01, 0.02], 1);
        share.finish(None);
        assert!(!share.noisy, "it is as steady near nothing as elsewhere");
    }

    #[test]
    fn a_count_has_a_budget_that_one_figure_can_break() {
        let counted = |values: &[f64], goal| Row { unit: Unit::Count, goal, ..row(values) };
        assert!(counted(&[0.0, 0.0, 0.1], Some(0.0)).above_budget().is_some());
        assert_eq!(counted(&[0.0, 1.0], Some(1.0)).above_budget(), None);
        assert_eq!(counted(&[5.0], None).above_budget(), None);
        let share = Row { unit: Unit::Share, ..counted(&[0.002], Some(0.001)) };
        assert!(share.above_budget().is_some_and(|told| told.contains("0.002")));
        assert_eq!(Row { goal: Some(1.0), ..row(&[5.0]) }.above_budget(), None, "a time");
    }

    #[test]
    fn a_ratio_below_one_is_better() {
        assert_eq!(Unit::Nanoseconds.ratio(10.0, 5.0), 2.0);
        assert_eq!(Unit::PerSecond.ratio(10.0, 5.0), 0.5);
        assert_eq!(Unit::Bytes.ratio(8192.0, 0.0), 2.0);
        assert_eq!(Unit::Count.ratio(10.0, 0.0), 10.0);
    }

    #[test]
    fn spread_and_a_moved_cpu_are_noise() {
        let noisy = |values: &[f64], hop| {
            let mut row = row(values);
            row.finish(hop);
            row.noisy
        };
        assert!(!noisy(&[10.0, 10.0, 11.0], Some([200.0, 210.0])));
        assert!(noisy(&[10.0, 10.0, 14.0], None));
        assert!(noisy(&[10.0, 10.0, 11.0], Some([200.0, 600.0])));
    }

    #[test]
    fn the_best_of_several_launches_is_kept() {
        let mut rate = row(&[5.0]);
        rate.unit = Unit::PerSecond;
        let mut higher = rate.clone();
        higher.ours = Summary::of(&[6.0], 1);
        let rows = [row(&[2.0]), rate, row(&[1.0]), higher, row(&[3.0])];
        let best: Vec<f64> = Row::best(&rows).iter().map(|row| row.ours.median).collect();
        assert_eq!(best, [1.0, 6.0]);
    }

    #[test]
    fn rows_survive_the_way_from_a_rank() {
        let text = serde_json::to_string(&row(&[1.5])).unwrap();
        let back: Row = serde_json::from_str(&text).unwrap();
        assert_eq!(back.ours.median, 1.5);
        assert!(text.contains(r#""unit":"ns""#), "{text}");
    }
}
