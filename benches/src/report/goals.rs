//! What rows are meant to reach, on every machine.
use super::record::Entry;
use super::tables::{significant, time};
use crate::record::Unit;

/// At most.
#[derive(Debug, Clone, Copy)]
enum Goal {
    /// So many times the best limit.
    Limit(f64),
    /// So many times the best peer.
    Peer(f64),
    /// Nanoseconds.
    Time(f64),
    /// So many times the row of one thread.
    OneThread(f64),
}

/// Benchmark, beginning of the name, and bytes of an operation, if it is a goal of one size only.
type Of = (&'static str, &'static str, Option<u64>);

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

const fn sized(benchmark: &'static str, name: &'static str, bytes: u64) -> Of {
    (benchmark, name, Some(bytes))
}

const GOALS: &[(Of, Goal)] = &[
    (sized("put-latency", "put + flush", 8), Goal::Limit(2.0)),
    (sized("put-latency", "put + flush", 64), Goal::Limit(2.0)),
    (sized("put-latency", "put + flush", 4 * KIB), Goal::Limit(1.14)),
    (sized("put-latency", "get + flush", 8), Goal::Limit(2.0)),
    (sized("fetch-and-op", "fetch_and_op sum", 8), Goal::Limit(2.0)),
    (sized("fetch-and-op", "compare_and_swap", 8), Goal::Limit(2.0)),
    (sized("accumulate", "accumulate i64 sum", 8), Goal::Limit(2.0)),
    (sized("accumulate", "accumulate f64 sum", 8), Goal::Limit(2.0)),
    (sized("accumulate", "accumulate f64 sum", 8 * KIB), Goal::Peer(1.0)),
    (sized("accumulate", "accumulate f64 sum", MIB), Goal::Peer(1.0)),
    (("layout", "put 1 B blocks", None), Goal::Limit(1.2)),
    (("layout", "put 8 B blocks", None), Goal::Limit(1.2)),
    (("lock", "lock + unlock exclusive", None), Goal::Limit(2.5)),
    (("lock", "lock + put + unlock exclusive", None), Goal::Limit(2.0)),
    (("lock", "lock_all + unlock_all", None), Goal::Limit(2.5)),
    (("lock", "flush, nothing", None), Goal::Peer(1.0 / 2.0)),
    (("sync", "", None), Goal::Peer(1.0)),
    (("sync-many", "", None), Goal::Peer(1.0 / 10.0)),
    (("contention", "lock + get + put + unlock", None), Goal::Peer(1.0 / 10.0)),
    (("window-create", "allocate + free", None), Goal::Peer(1.0 / 5.0)),
    (("window-memory", "kept for a rank", None), Goal::Peer(1.0 / 10.0)),
    (sized("bandwidth", "put + flush", 64 * KIB), Goal::Limit(1.02)),
    (sized("bandwidth", "put + flush", MIB), Goal::Limit(1.02)),
    (sized("bandwidth", "put + flush", 4 * MIB), Goal::Limit(1.02)),
    (sized("bandwidth", "put + flush", 16 * MIB), Goal::Limit(1.05)),
    (sized("user-memory", "put + flush, created", 8), Goal::Time(130.0)),
    (sized("user-memory", "put + flush, created", MIB), Goal::Time(40_000.0)),
    (sized("user-memory", "put + flush, dynamic", 8), Goal::Time(130.0)),
    (sized("user-memory", "put + flush, dynamic", MIB), Goal::Time(40_000.0)),
    (("progress", "put + flush, allocated window, target computes", None), Goal::Time(100_000.0)),
    (("progress", "put + flush, created window, target computes", None), Goal::Time(100_000.0)),
    (sized("progress", "put + flush by messages, target computes", 8), Goal::Time(20_000.0)),
    (sized("put-rate", "put", 8), Goal::Peer(1.0 / 2.3)),
    (("threads", "put + flush, 2 threads", None), Goal::OneThread(2.0)),
    (("threads", "put + flush, 4 threads", None), Goal::OneThread(2.0)),
];

/// A goal, and whether a row reaches it.
pub(super) struct Verdict {
    pub(super) goal: String,
    pub(super) is_met: bool,
}

/// What is to be said of `row`, which is one of `rows`: nothing where it has no goal, or was not
/// measured beside what that is in times of.
pub(super) fn verdict(row: &Entry, rows: &[Entry]) -> Option<Verdict> {
    let fits = |(benchmark, name, bytes): &Of| {
        row.benchmark == *benchmark
            && row.name.starts_with(name)
            && bytes.is_none_or(|bytes| row.bytes == Some(bytes))
    };
    let (_, goal) = GOALS.iter().find(|(of, _)| fits(of))?;
    let best = |ratios: &[super::record::Beside]| {
        ratios.iter().map(|beside| beside.ratio).max_by(f64::total_cmp)
    };
    let (goal, ratio, most) = match *goal {
        Goal::Limit(most) if most < 1.2 + f64::EPSILON => {
            (format!("limit + {:.0} %", (most - 1.0) * 100.0), best(&row.limits)?, most)
        }
        Goal::Limit(most) => (format!("{most} x limit"), best(&row.limits)?, most),
        Goal::Peer(most) => (of_peer(most, row.unit), best(&row.peers)?, most),
        Goal::Time(most) => (time(most), row.ours, most),
        Goal::OneThread(most) => {
            let is_one = |other: &&Entry| {
                other.benchmark == row.benchmark
                    && other.bytes == row.bytes
                    && other.name.starts_with("put + flush, 1 threads")
            };
            let one = rows.iter().find(is_one)?;
            (format!("{most} x one thread"), row.unit.ratio(row.ours, one.ours), most)
        }
    };
    Some(Verdict { goal, is_met: ratio <= most })
}

fn of_peer(most: f64, unit: Unit) -> String {
    match 1.0 / most {
        1.0 => "peer".to_owned(),
        times if unit.is_better_above() => format!("{} x peer", significant(times)),
        times => format!("peer / {}", significant(times)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::Beside;
    use super::*;
    use crate::benchmarks::find;

    fn row(benchmark: &str, name: &str, bytes: Option<u64>, ours: f64) -> Entry {
        Entry {
            benchmark: benchmark.into(),
            name: name.into(),
            ranks: 2,
            bytes,
            unit: Unit::Nanoseconds,
            ours,
            range: None,
            limits: Vec::new(),
            peers: Vec::new(),
            lost: Vec::new(),
            noisy: false,
        }
    }

    fn beside(ratios: &[f64]) -> Vec<Beside> {
        let of = |ratio: &f64| Beside { name: "x".into(), median: 1.0, ratio: *ratio };
        ratios.iter().map(of).collect()
    }

    #[test]
    fn goals_are_of_benchmarks_that_exist() {
        for ((benchmark, ..), _) in GOALS {
            assert!(find(benchmark).is_some(), "{benchmark}");
        }
    }

    #[test]
    fn the_best_limit_and_the_best_peer_decide() {
        let said = |row: &Entry, rows: &[Entry]| {
            verdict(row, rows).map(|verdict| (verdict.goal, verdict.is_met))
        };
        let mut put = row("bandwidth", "put + flush", Some(MIB), 1.0);
        assert_eq!(said(&put, &[]), None, "no limit");
        put.limits = beside(&[0.9, 1.01]);
        assert_eq!(said(&put, &[]), Some(("limit + 2 %".into(), true)));
        put.limits = beside(&[1.03, 0.9]);
        assert_eq!(said(&put, &[]), Some(("limit + 2 %".into(), false)));
        put.bytes = Some(2 * MIB);
        assert_eq!(said(&put, &[]), None, "no goal");
        let mut fence = row("sync-many", "fence", None, 1.0);
        fence.peers = beside(&[0.05, 0.2]);
        assert_eq!(said(&fence, &[]), Some(("peer / 10".into(), false)));
        let mut lock = row("contention", "lock + get + put + unlock", None, 1.0);
        (lock.peers, lock.unit) = (beside(&[0.05]), Unit::PerSecond);
        assert_eq!(said(&lock, &[]), Some(("10 x peer".into(), true)));
        let created = row("user-memory", "put + flush, created", Some(8), 131.0);
        assert_eq!(said(&created, &[]), Some(("130 ns".into(), false)));
        let threads = |n, ours| row("threads", &format!("put + flush, {n} threads"), Some(8), ours);
        assert_eq!(
            said(&threads(4, 19.0), &[threads(1, 10.0)]),
            Some(("2 x one thread".into(), true))
        );
        assert_eq!(said(&threads(4, 19.0), &[]), None);
    }
}
