//! Which row of theirs is the same work as which row of ours.
use crate::record::{Row, Summary, Unit};
use serde::Deserialize;
use std::time::Duration;

/// Benchmarks of ours, and the groups of `peerbench` that measure the same.
#[derive(Debug, Clone, Copy)]
pub(super) struct Group {
    /// Each in a job of its own: one that crashes takes no rows of another with it.
    pub(super) names: &'static [&'static str],
    pub(super) benchmarks: &'static [&'static str],
    /// A job for each of these numbers of ranks.
    pub(super) ranks: &'static [u32],
    /// Seconds after which a job of theirs is given up.
    pub(super) timeout_s: u32,
    /// Of their windows.
    pub(super) flavours: &'static str,
    /// What `peerbench` is told besides.
    pub(super) options: &'static [&'static str],
}

pub(super) const fn group(
    names: &'static [&'static str],
    benchmarks: &'static [&'static str],
) -> Group {
    let options = &["--budget-ms", "200"];
    Group { names, benchmarks, ranks: &[2], timeout_s: 600, flavours: "alloc", options }
}

/// Of more ranks than CPUs. They spin: what ends at all takes long.
const fn many(names: &'static [&'static str], benchmarks: &'static [&'static str]) -> Group {
    // A few turns of the scheduler in each batch.
    let options = &["--batch-ms", "20", "--budget-ms", "100"];
    Group { ranks: &[16, 64], timeout_s: 90, options, ..group(names, benchmarks) }
}

pub(super) const GROUPS: &[Group] = &[
    Group {
        flavours: "alloc,create,dynamic,shared",
        ..group(&["lat"], &["put-latency", "bandwidth", "user-memory"])
    },
    Group {
        flavours: "alloc,create",
        options: &["--only", "busy_put"],
        ..group(&["progress"], &["progress"])
    },
    // Compare and swap comes last: a library that it crashes has all other rows.
    group(
        &["rate", "req", "atomic", "cas"],
        &["put-rate", "message-rate", "request", "fetch-and-op", "accumulate", "get-accumulate"],
    ),
    group(&["both"], &["bandwidth-both"]),
    group(&["overlap"], &["overlap"]),
    group(&["out_put", "out_acc", "out_rput", "out_rget"], &["memory-outstanding"]),
    Group { ranks: &[4, 8], ..many(&["pairs"], &["pairs"]) },
    group(&["nc"], &["layout"]),
    group(&["sync"], &["lock", "sync"]),
    group(&["hacc"], &["hacc"]),
    group(&["coll"], &["collectives"]),
    Group { ranks: &[4], ..many(&["coll"], &["collectives"]) },
    // Their threads may run on every CPU, as ours.
    Group { options: &["--no-pin"], ..group(&["mt"], &["threads"]) },
    many(&["many"], &["sync-many", "contention"]),
    Group { ranks: &[8], ..many(&["many"], &["contention"]) },
    Group {
        ranks: &[2, 4, 16, 64],
        timeout_s: 60,
        ..group(&["wincost"], &["window-create", "window-memory"])
    },
    Group { ranks: &[2, 16, 64], timeout_s: 60, ..group(&[WHOLE_JOB], &["empty-job"]) },
];

/// Over TCP. Memory that was there before a window: Open MPI has ranks of a machine share what it
/// allocates, whatever else it is told.
pub(super) const NETWORK: &[Group] = &[Group {
    flavours: "create",
    options: &["--budget-ms", "200", "--max-bytes", "1048576"],
    ..group(&["lat", "rate", "atomic", "sync", "stopped"], &["network"])
}];

/// What is timed from its start to its end, by us: it has no rows of its own.
pub(super) const WHOLE_JOB: &str = "empty";

/// Our benchmark, the beginning of our row's name, and their test: behind `/`, the flavour of its
/// window where it is not an allocated one. `{n}` stands for a number, which is that of their
/// threads or operations.
///
/// The first that fits is it.
///
/// Our gets, atomics and accumulates are complete when they return; theirs are after a flush, which
/// is timed with them.
const SAME: &[(&str, &str, &str)] = &[
    ("put-latency", "put + flush, shared", "put_flush/shared"),
    ("put-latency", "put + flush", "put_flush"),
    ("put-latency", "get", "get_flush"),
    ("bandwidth", "put + flush", "put_flush"),
    ("bandwidth", "get", "get_flush"),
    ("bandwidth-both", "put + flush by both", "put_both"),
    ("bandwidth-both", "get by both", "get_both"),
    ("user-memory", "put + flush, created", "put_flush/create"),
    ("user-memory", "put + flush, dynamic", "put_flush/dynamic"),
    // Their memory stays where it is, too.
    ("user-memory", "put + flush, raw part", "put_flush/create"),
    ("progress", "put + flush, allocated", "busy_put"),
    ("progress", "put + flush, created", "busy_put/create"),
    ("put-rate", "put", "put_rate"),
    ("message-rate", "get_accumulate i64 sum", "get_acc_rate_i64"),
    ("message-rate", "get", "get_rate"),
    ("message-rate", "rput, 64", "rput_window"),
    ("message-rate", "rget, 64", "rget_window"),
    ("message-rate", "accumulate i64 sum", "acc_rate_i64"),
    ("message-rate", "fetch_and_op sum", "fetch_op_rate_i64"),
    ("message-rate", "compare_and_swap", "cas_rate_i64"),
    ("pairs", "put + flush by one rank", "put_in_turn"),
    ("pairs", "put + flush by {n} pairs", "put_pairs"),
    ("overlap", "put of 8 KiB and flush, load_store, with computation", "overlap_put"),
    ("overlap", "rput of 1 MiB, load_store, with computation", "overlap_rput"),
    ("overlap", "rget of 1 MiB, load_store, with computation", "overlap_rget"),
    ("memory-outstanding", "origin, {n} puts, load_store", "out_put_origin"),
    ("memory-outstanding", "target, {n} puts, load_store", "out_put_target"),
    ("memory-outstanding", "origin, {n} accumulates, load_store", "out_acc_origin"),
    ("memory-outstanding", "target, {n} accumulates, load_store", "out_acc_target"),
    (
        "memory-outstanding",
        "origin, {n} rputs, kept with their buffers, load_store",
        "out_rput_origin",
    ),
    (
        "memory-outstanding",
        "target, {n} rputs, kept with their buffers, load_store",
        "out_rput_target",
    ),
    (
        "memory-outstanding",
        "origin, {n} rgets, kept with their buffers, load_store",
        "out_rget_origin",
    ),
    (
        "memory-outstanding",
        "target, {n} rgets, kept with their buffers, load_store",
        "out_rget_target",
    ),
    ("empty-job", "the whole job, by the clock", WHOLE_JOB),
    ("request", "rput", "rput_wait"),
    ("request", "rget", "rget_wait"),
    ("fetch-and-op", "fetch_and_op sum", "fetch_op_sum_i64"),
    ("fetch-and-op", "compare_and_swap", "cas_i64"),
    ("accumulate", "accumulate i64 sum", "acc_sum_i64"),
    ("accumulate", "accumulate f64 sum", "acc_sum_f64"),
    ("accumulate", "fetch_and_op f64 sum", "fetch_op_sum_f64"),
    ("get-accumulate", "get_accumulate i64 sum", "get_acc_sum_i64"),
    ("get-accumulate", "get_accumulate f64 sum", "get_acc_sum_f64"),
    ("layout", "put 1 B blocks", "put_contig_vec1s2"),
    ("layout", "put 8 B blocks", "put_contig_vec8s16"),
    ("layout", "get 1 B blocks", "get_contig_vec1s2"),
    ("layout", "get 8 B blocks", "get_contig_vec8s16"),
    ("lock", "lock + unlock exclusive", "lock_excl"),
    ("lock", "lock + put + unlock exclusive", "lock_excl"),
    ("lock", "lock + unlock shared", "lock_shared"),
    ("lock", "lock + put + unlock shared", "lock_shared"),
    ("lock", "lock_all + unlock_all", "lock_all"),
    ("lock", "flush, nothing", "flush_empty"),
    ("lock", "flush_all, nothing", "flush_all_empty"),
    ("lock", "sync", "win_sync"),
    ("sync", "barrier", "mpi_barrier"),
    ("sync", "fence", "fence_pair"),
    ("sync", "post, start", "pscw"),
    ("hacc", "HACC checkpoint, MPI-IO individual", "hacc_write_at"),
    ("hacc", "HACC checkpoint, MPI-IO collective", "hacc_write_at_all"),
    ("hacc", "HACC checkpoint committed, MPI-IO individual", "hacc_write_at"),
    ("hacc", "HACC restart, MPI-IO individual", "hacc_read_at"),
    ("hacc", "HACC restart, MPI-IO collective", "hacc_read_at_all"),
    ("collectives", "bcast", "bcast"),
    ("collectives", "allreduce f64 sum", "allreduce_sum_f64"),
    ("collectives", "allgather", "allgather"),
    ("collectives", "alltoall", "alltoall"),
    ("threads", "put + flush, {n} threads", "mt_put_flush"),
    ("sync-many", "barrier", "many_barrier"),
    ("sync-many", "fence", "many_fence_pair"),
    ("contention", "lock + get + put + unlock", "many_lock_incr"),
    ("network", "put + flush by libfabric", "put_flush/create"),
    ("network", "get by libfabric", "get_flush/create"),
    ("network", "put by libfabric, 10,000", "put_rate/create"),
    ("network", "fetch_and_op sum by libfabric", "fetch_op_sum_i64/create"),
    ("network", "lock + put + unlock", "lock_excl/create"),
    ("network", "put + flush, target stopped", "put_stopped/create"),
    ("window-create", "allocate + free, a window of 4 KiB", "win_cycle_cost"),
    ("window-memory", "resident in a rank", "rss_per_window"),
    ("window-memory", "kept for a rank", "kept_per_window"),
];

/// Their test that is the same work as `row`, and its number, if it has one.
fn test_of(row: &Row) -> Option<(&'static str, Option<u64>)> {
    let of_benchmark = SAME.iter().filter(|(benchmark, ..)| row.benchmark == *benchmark);
    let mut fitting =
        of_benchmark.filter_map(|(_, pattern, test)| Some((*test, fits(pattern, &row.name)?)));
    fitting.next()
}

/// Whether a name begins so, and the number that stands for `{n}`.
fn fits(pattern: &str, name: &str) -> Option<Option<u64>> {
    let Some((before, after)) = pattern.split_once("{n}") else {
        return name.starts_with(pattern).then_some(None);
    };
    let rest = name.strip_prefix(before)?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (number, rest) = rest.split_at(end);
    rest.starts_with(after).then(|| number.parse().ok()).flatten().map(Some)
}

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
    #[serde(default)]
    ops: u64,
    #[serde(default)]
    ranks: u32,
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

    /// A job that was timed from its start to its end.
    pub(super) fn whole_job(ranks: u32, took: Duration) -> Self {
        let value = took.as_secs_f64() * 1e6;
        let (test, unit) = (WHOLE_JOB.to_owned(), "us".to_owned());
        let (min, max, value, fault) = (value, value, Some(value), None);
        let (bytes, batches, iters, ops) = (0, 1, 1, 0);
        Self { test, bytes, value, min, max, unit, batches, iters, ops, ranks, fault }
    }

    /// The largest share of its time that a rank was ready and had no CPU.
    pub(super) fn waited(all: &[Self]) -> f64 {
        let waited = all.iter().filter(|row| row.test == "launch_waited");
        waited.filter_map(|row| row.value).fold(0.0, f64::max)
    }

    /// Bytes that it has moved at least, all batches together.
    pub(super) fn moved(&self) -> u64 {
        let times = self.batches.saturating_mul(self.iters).saturating_mul(self.ops.max(1));
        times.saturating_mul(self.bytes)
    }

    /// Whether this is the same work as `row`.
    pub(super) fn is(&self, row: &Row) -> bool {
        self.is_test_of(row) && self.bytes == row.bytes.unwrap_or(0)
    }

    /// The same, of whatever size.
    pub(super) fn is_test_of(&self, row: &Row) -> bool {
        test_of(row).is_some_and(|(test, number)| {
            let is_test = self.test == test || self.test.strip_suffix("/alloc") == Some(test);
            // Of pairs, the ranks say it.
            let is_number = self.ops == 0 || number.is_none_or(|number| number == self.ops);
            is_test && self.ranks == row.ranks && is_number
        })
    }

    /// In the unit of a row of ours that is the same work, of what it does once; the ends of the
    /// range are all that they tell.
    pub(super) fn summary(&self, unit: Unit) -> Option<Summary> {
        // A pair of fences: our row has one.
        let per = if self.test.contains("fence_pair") { 2.0 } else { 1.0 };
        let convert = |value: f64| match (self.unit.as_str(), unit) {
            ("us", Unit::Nanoseconds) => Some(value * 1e3 / per),
            ("op/s", Unit::Nanoseconds) => Some(1e9 / value / per),
            ("op/s", Unit::PerSecond) | ("B", Unit::Bytes) => Some(value),
            _ => None,
        };
        let (one, other) = (convert(self.min)?, convert(self.max)?);
        let (min, max) = (one.min(other), one.max(other));
        let median = convert(self.value?)?;
        let (batches, operations) = (self.batches, self.iters);
        let summary = Summary { median, p10: min, p90: max, min, max, batches, operations };
        summary.is_sane(unit).then_some(summary)
    }
}

/// Whether a peer measures the same work as `row`.
pub(super) fn is_theirs_too(row: &Row) -> bool {
    test_of(row).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmarks::find;

    fn theirs(test: &str, bytes: u64, unit: &str, value: f64) -> Theirs {
        let line = format!(
            r#"{{"test":"{test}","bytes":{bytes},"value":{value},"unit":"{unit}","min":{value},
               "max":{value},"batches":5,"iters":9,"impl":"x","ranks":2,"ops":2}}"#
        );
        Theirs::all(&line.replace('\n', "")).0.remove(0)
    }

    #[test]
    fn benchmarks_of_the_tables_exist() {
        for group in GROUPS.iter().chain(NETWORK) {
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
        assert_eq!(row.summary(Unit::Nanoseconds).unwrap().median, 500.0);
        assert!(!theirs("put_flush/alloc", 64, "us", 0.5).is(&put));
        assert!(!theirs("put_flush/shared", 8, "us", 0.5).is(&put));
        assert_eq!(
            theirs("put_rate/alloc", 8, "op/s", 1e8).summary(Unit::Nanoseconds).unwrap().median,
            10.0
        );
        assert_eq!(
            theirs("fence_pair/alloc", 0, "us", 1.0).summary(Unit::Nanoseconds).unwrap().median,
            500.0
        );
        assert!(theirs("put_flush/alloc", 8, "us", -1.0).summary(Unit::Nanoseconds).is_none());
    }

    #[test]
    fn what_a_row_has_moved_is_counted() {
        assert_eq!(theirs("put_flush/create", 8, "us", 1.0).moved(), 5 * 9 * 2 * 8);
        assert_eq!(theirs("mpi_barrier/create", 0, "us", 1.0).moved(), 0);
    }

    #[test]
    fn rows_are_told_apart_by_ranks_and_threads() {
        let ours =
            |benchmark: &str, name: &str, ranks, unit| Row::one(benchmark, name, ranks, unit, 1.0);
        let threads = |n: u32| {
            let name = format!("put + flush, {n} threads at once");
            Row { bytes: Some(8), ..ours("threads", &name, 2, Unit::Nanoseconds) }
        };
        let put = theirs("mt_put_flush/alloc", 8, "us", 1.0);
        assert!(put.is(&threads(2)) && !put.is(&threads(1)));
        let lock = theirs("many_lock_incr/alloc", 0, "op/s", 5.0);
        let name = "lock + get + put + unlock, all ranks together";
        assert!(lock.is(&ours("contention", name, 2, Unit::PerSecond)));
        assert!(!lock.is(&ours("contention", name, 16, Unit::PerSecond)));
        assert_eq!(lock.summary(Unit::PerSecond).unwrap().median, 5.0);
    }

    #[test]
    fn a_number_in_a_name_is_theirs_too() {
        assert_eq!(fits("origin, {n} puts", "origin, 1000 puts, load_store"), Some(Some(1000)));
        assert_eq!(fits("origin, {n} puts", "origin, 1000 rputs"), None);
        assert_eq!(fits("origin, {n} puts", "origin,  puts"), None);
        assert_eq!(fits("put", "put, 8"), Some(None));
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
