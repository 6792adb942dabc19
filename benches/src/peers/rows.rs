//! Which row of theirs is the same work as which row of ours.
use crate::record::{Row, Summary};
use serde::Deserialize;

/// Benchmarks of ours, and the group of `peerbench` that measures the same.
pub(super) struct Group {
    pub(super) name: &'static str,
    pub(super) benchmarks: &'static [&'static str],
}

const fn group(name: &'static str, benchmarks: &'static [&'static str]) -> Group {
    Group { name, benchmarks }
}

pub(super) const GROUPS: &[Group] = &[
    group("lat", &["put-latency", "bandwidth"]),
    group("bw", &["put-rate"]),
    group("atomic", &["fetch-and-op", "accumulate"]),
    group("nc", &["layout"]),
    group("sync", &["lock", "sync"]),
    group("wincost", &["window-create"]),
];

/// Our benchmark, the beginning of our row's name, and their test.
///
/// Our gets, atomics and accumulates are complete when they return; theirs are after a flush, which
/// is timed with them.
const SAME: &[(&str, &str, &str)] = &[
    ("put-latency", "put + flush", "put_flush"),
    ("put-latency", "get", "get_flush"),
    ("bandwidth", "put + flush", "put_flush"),
    ("bandwidth", "get", "get_flush"),
    ("put-rate", "put", "put_rate"),
    ("fetch-and-op", "fetch_and_op sum", "fetch_op_sum_i64"),
    ("fetch-and-op", "compare_and_swap", "cas_i64"),
    ("accumulate", "accumulate i64 sum", "acc_sum_i64"),
    ("accumulate", "accumulate f64 sum", "acc_sum_f64"),
    ("accumulate", "fetch_and_op f64 sum", "fetch_op_sum_f64"),
    ("layout", "put 1 B blocks", "put_contig_vec1s2"),
    ("layout", "put 8 B blocks", "put_contig_vec8s16"),
    ("lock", "lock + unlock exclusive", "lock_excl"),
    ("lock", "lock + put + unlock exclusive", "lock_excl"),
    ("lock", "lock + unlock shared", "lock_shared"),
    ("lock", "lock + put + unlock shared", "lock_shared"),
    ("lock", "lock_all + unlock_all", "lock_all"),
    ("lock", "flush, nothing", "flush_empty"),
    ("sync", "barrier", "mpi_barrier"),
    ("sync", "fence", "fence_pair"),
    ("sync", "post, start", "pscw"),
    ("window-create", "allocate + free", "win_cycle_cost"),
];

/// A line of `peerbench`.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Theirs {
    test: String,
    bytes: u64,
    /// None of a fault.
    value: Option<f64>,
    #[serde(default)]
    min: f64,
    #[serde(default)]
    max: f64,
    unit: String,
    #[serde(default)]
    batches: u64,
    #[serde(default)]
    iters: u64,
    /// What went wrong.
    fault: Option<String>,
}

impl Theirs {
    /// All sound rows of an output, and what is wrong with the others.
    pub(super) fn all(output: &str) -> (Vec<Self>, Vec<String>) {
        let (mut rows, mut faults): (Vec<Self>, Vec<String>) = (Vec::new(), Vec::new());
        for line in output.lines().filter(|line| line.starts_with('{')) {
            match serde_json::from_str::<Self>(line) {
                Ok(Self { test, bytes, fault: Some(fault), .. }) => {
                    // It comes behind the row that it is about.
                    rows.retain(|row| (&row.test, row.bytes) != (&test, bytes));
                    faults.push(format!("{test} of {bytes} B: {fault}"));
                }
                Ok(row) => rows.push(row),
                Err(error) => faults.push(format!("it printed {line}: {error}")),
            }
        }
        (rows, faults)
    }

    /// The largest share of its time that a rank was ready and had no CPU.
    pub(super) fn waited(all: &[Self]) -> f64 {
        let waited = all.iter().find(|row| row.test == "launch_waited");
        waited.and_then(|row| row.value).unwrap_or(0.0)
    }

    /// Whether this is the same work as `row`, on an allocated window.
    pub(super) fn is(&self, row: &Row) -> bool {
        let same = SAME.iter().any(|(benchmark, name, test)| {
            let test_is = self.test.strip_suffix("/alloc") == Some(test);
            test_is && row.benchmark == *benchmark && row.name.starts_with(name)
        });
        // Their windows have 4 KiB where ours are made in several sizes.
        let bytes = if self.test.starts_with("win_cycle") { 4096 } else { self.bytes };
        same && bytes == row.bytes.unwrap_or(0)
    }

    /// Nanoseconds of what a row of ours does once; the ends of the range are all that they tell.
    pub(super) fn summary(&self) -> Option<Summary> {
        // A pair of fences: our row has one.
        let per = if self.test.starts_with("fence_pair") { 2.0 } else { 1.0 };
        let ns = |value: f64| match self.unit.as_str() {
            "us" => Some(value * 1e3 / per),
            "op/s" => Some(1e9 / value / per),
            _ => None,
        };
        let (one, other) = (ns(self.min)?, ns(self.max)?);
        let (min, max) = (one.min(other), one.max(other));
        let median = ns(self.value?)?;
        let (batches, operations) = (self.batches, self.iters);
        let summary = Summary { median, p10: min, p90: max, min, max, batches, operations };
        summary.is_sane().then_some(summary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmarks::find;
    use crate::record::Unit;

    fn theirs(test: &str, bytes: u64, unit: &str, value: f64) -> Theirs {
        let line = format!(
            r#"{{"test":"{test}","bytes":{bytes},"value":{value},"unit":"{unit}","min":{value},
               "max":{value},"batches":5,"iters":9,"impl":"x"}}"#
        );
        Theirs::all(&line.replace('\n', "")).0.remove(0)
    }

    #[test]
    fn benchmarks_of_the_tables_exist() {
        for group in GROUPS {
            for name in group.benchmarks {
                assert!(find(name).is_some(), "{name}");
                assert!(SAME.iter().any(|(benchmark, ..)| benchmark == name), "{name}");
            }
        }
    }

    #[test]
    fn the_same_work_is_found_and_units_are_made_the_same() {
        let put = Row {
            bytes: Some(8),
            ..Row::one("put-latency", "put + flush", 2, Unit::Nanoseconds, 8.0)
        };
        let row = theirs("put_flush/alloc", 8, "us", 0.5);
        assert!(row.is(&put));
        assert_eq!(row.summary().unwrap().median, 500.0);
        assert!(!theirs("put_flush/alloc", 64, "us", 0.5).is(&put));
        assert!(!theirs("put_flush/shared", 8, "us", 0.5).is(&put));
        assert_eq!(theirs("put_rate/alloc", 8, "op/s", 1e8).summary().unwrap().median, 10.0);
        assert_eq!(theirs("fence_pair/alloc", 0, "us", 1.0).summary().unwrap().median, 500.0);
        assert!(theirs("put_flush/alloc", 8, "us", -1.0).summary().is_none());
    }

    #[test]
    fn faults_are_said_and_take_their_rows_with_them() {
        let good = r#"{"test":"t","bytes":8,"value":1,"unit":"us","min":1,"max":1}"#;
        let other = good.replace(":8", ":64");
        let fault = r#"{"test":"t","bytes":8,"value":null,"unit":"fault","fault":"wrong data"}"#;
        let (rows, faults) = Theirs::all(&format!("{good}\n{other}\n{fault}\n{{cut of"));
        assert_eq!((rows.len(), rows[0].bytes), (1, 64));
        assert_eq!(faults[0], "t of 8 B: wrong data");
        assert!(faults.len() == 2 && faults[1].starts_with("it printed {cut of"));
    }
}
