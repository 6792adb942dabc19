//! The benchmarks, each a function that every rank of its job runs.
mod accumulate;
mod atomics;
mod bandwidth;
mod batch;
mod collectives;
mod commit;
mod contention;
mod counts;
mod dht;
mod figure3;
mod forms;
mod hacc;
mod layout;
mod lock;
mod mapreduce;
mod messages;
mod network;
mod outstanding;
mod overlap;
mod pairs;
mod paths;
mod progress;
mod put;
mod rate;
mod request;
mod start;
mod storage;
mod sync;
mod system;
mod target;
mod threads;
mod user_memory;
mod value;
mod window;

use crate::Result;
use crate::bench::Bench;
use rma::Rank;
use std::time::Duration;

/// The rank whose part is accessed, by rank 0.
const TARGET: Rank = Rank(1);

/// How the names of benchmarks begin whose limits are those of libfabric.
pub(crate) const NETWORK: &str = "network";

/// Where a benchmark runs, unless it is told where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Home {
    /// On this machine, whose ranks share memory; elsewhere if that is asked for.
    Anywhere,
    /// Nowhere but there, for that reason.
    Near(&'static str),
    /// Anywhere but on hosts, which may have no folder in common.
    OneFolder,
    /// Each rank is a node of its own, and libfabric between them.
    Network,
    /// The same, on so many nodes.
    Nodes(u32),
}

/// A benchmark.
pub(crate) struct Benchmark {
    /// As on the command line.
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// A job for each of these numbers of ranks.
    pub(crate) ranks: &'static [u32],
    /// Whether the job as a whole is a figure: its time and CPU time.
    pub(crate) is_whole_job: bool,
    pub(crate) home: Home,
    /// After which a wait fails, if one is meant to.
    pub(crate) wait_timeout: Option<Duration>,
    pub(crate) run: fn(&mut Bench<'_>) -> Result<()>,
}

const fn benchmark(
    name: &'static str,
    about: &'static str,
    ranks: &'static [u32],
    run: fn(&mut Bench<'_>) -> Result<()>,
) -> Benchmark {
    let home = Home::Anywhere;
    Benchmark { name, about, ranks, is_whole_job: false, home, wait_timeout: None, run }
}

const fn network(
    name: &'static str,
    about: &'static str,
    run: fn(&mut Bench<'_>) -> Result<()>,
) -> Benchmark {
    Benchmark { home: Home::Network, ..benchmark(name, about, &[2], run) }
}

/// Of ranks that use files of one folder.
const fn in_one_folder(benchmark: Benchmark) -> Benchmark {
    Benchmark { home: Home::OneFolder, ..benchmark }
}

const fn near(why: &'static str, benchmark: Benchmark) -> Benchmark {
    Benchmark { home: Home::Near(why), ..benchmark }
}

/// All of them.
pub(crate) const ALL: &[Benchmark] = &[
    benchmark("put-latency", "put and get, each with flush, of 8 B to 16 KiB", &[2], put::latency),
    benchmark("put-rate", "puts of 8 B to 16 KiB, one flush behind many", &[2], rate::puts),
    benchmark(
        "message-rate",
        "many gets, requests and atomics under way, by load and store and by messages",
        &[2],
        rate::others,
    ),
    benchmark("bandwidth", "put and get of 64 KiB to 64 MiB", &[2], bandwidth::run),
    benchmark("pairs", "put + flush to several targets, and by several pairs", &[4, 8], pairs::run),
    benchmark(
        "bandwidth-both",
        "two ranks put to, and get from, each other at once",
        &[2],
        bandwidth::both,
    ),
    benchmark("fetch-and-op", "fetch_and_op and compare_and_swap", &[2], atomics::run),
    benchmark(
        "accumulate",
        "accumulate of one element and of arrays up to 1 MiB",
        &[2],
        accumulate::run,
    ),
    benchmark(
        "get-accumulate",
        "get_accumulate of one element and of arrays up to 1 MiB",
        &[2],
        accumulate::with_values,
    ),
    benchmark("paths", "8 B by load and store, system copies and messages", &[2], paths::run),
    benchmark(
        "messages",
        "bandwidth by messages, requests under way, accumulates in order",
        &[2],
        messages::run,
    ),
    near(
        "its budgets are those of load and store; network-near counts beside a network",
        benchmark(
            "counts",
            "instructions, system calls, allocations and messages of a call",
            &[2],
            counts::run,
        ),
    ),
    network(
        "network",
        "small operations by libfabric, next to its messages and those of TCP",
        network::run,
    ),
    network(
        "network-layout",
        "layouts by libfabric, as transfers of their runs or packed into messages",
        network::run_layouts,
    ),
    network(
        "network-figure3",
        "contiguous, non-contiguous and accumulate by device, messages and emulation",
        figure3::by_network,
    ),
    benchmark(
        "simulated-figure3",
        "the same on the simulated device, in its virtual time",
        &[2],
        figure3::simulated,
    ),
    network(
        "network-progress",
        "CPU time of an idle rank, put to a target that computes for a second",
        target::progress,
    ),
    Benchmark {
        wait_timeout: Some(Duration::from_secs(3)),
        ..network(
            "network-memory",
            "memory while millions of operations are issued, and to a target that is stopped",
            target::memory,
        )
    },
    Benchmark {
        home: Home::Nodes(2),
        ..benchmark(
            "network-near",
            "instructions of operations inside a node of a job of two",
            &[4],
            target::near,
        )
    },
    benchmark("batch", "many single elements at once", &[2], batch::run),
    benchmark("layout", "put and get of every other element, transposes", &[2], layout::run),
    benchmark("forms", "one element by scopes, layouts and requests", &[2], forms::run),
    benchmark(
        "user-memory",
        "put to created, stored and dynamic windows, 8 B to 1 MiB",
        &[2],
        user_memory::run,
    ),
    benchmark(
        "storage",
        "put and get on storage, 8 B to 16 MiB, and streams with a sync",
        &[2],
        storage::run,
    ),
    in_one_folder(benchmark(
        "commit",
        "commits of a persistent window by the share that changed, and opening it",
        &[2],
        commit::run,
    )),
    benchmark("dht", "a hash table filled in memory, on storage and half on each", &[2], dht::run),
    near(
        "over a network, filling a table that is larger than memory takes longer than a job may",
        benchmark(
            "out-of-core",
            "a hash table of up to 1.66 times the memory that there is, on storage",
            &[2],
            dht::out_of_core,
        ),
    ),
    in_one_folder(benchmark(
        "hacc",
        "checkpoint and restart of particles in one file that the ranks share",
        &[2],
        hacc::run,
    )),
    in_one_folder(benchmark(
        "mapreduce",
        "word count with a checkpoint after each task, on storage",
        &[2],
        mapreduce::run,
    )),
    benchmark("lock", "lock, lock_all and flush without contention", &[2], lock::run),
    benchmark(
        "progress",
        "put and fetch_and_op by messages: the target polls, waits, computes",
        &[2],
        progress::run,
    ),
    benchmark(
        "overlap",
        "share of a put, rput and rget that is hidden behind computation",
        &[2],
        overlap::run,
    ),
    benchmark("sync", "barrier, fence and PSCW", &[2], sync::run),
    benchmark(
        "collectives",
        "bcast, allreduce, allgather and alltoall of 64 KiB to 64 MiB",
        &[2, 4],
        collectives::run,
    ),
    benchmark("wait-until", "a round trip of a value that is waited for", &[2], value::run),
    benchmark("sync-many", "barrier and fence of many ranks", &[16, 64], sync::many),
    benchmark("contention", "ranks that want one exclusive lock", &[8, 16, 64], contention::run),
    benchmark("request", "rput and rget of 8 B to 1 MiB, waited for at once", &[2], request::run),
    benchmark("threads", "put + flush by 1, 2 and 4 threads of a rank", &[2], threads::run),
    benchmark("window-memory", "resident memory of a window", &[2, 4, 16, 64], window::memory),
    benchmark(
        "memory-outstanding",
        "memory of origin and target with up to a million operations outstanding",
        &[2],
        outstanding::run,
    ),
    benchmark("window-create", "allocate and free a window", &[2, 4, 16, 64], window::run),
    near(
        "it measures the system of one machine",
        benchmark(
            "system",
            "futex wake, TCP, pwrite and fdatasync of the system",
            &[2],
            system::run,
        ),
    ),
    Benchmark {
        is_whole_job: true,
        ..benchmark(
            "empty-job",
            "start and end of a job that does nothing, and the memory of a rank",
            &[2, 16, 64, 256, 1_000],
            start::nothing,
        )
    },
    Benchmark {
        is_whole_job: true,
        ..benchmark("start", "start, 1,000 barriers and end of 64 ranks", &[64], start::run)
    },
];

/// The benchmark of that name.
pub(crate) fn find(name: &str) -> Option<&'static Benchmark> {
    ALL.iter().find(|benchmark| benchmark.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart() {
        let mut names: Vec<_> = ALL.iter().map(|benchmark| benchmark.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
        assert!(find("put-latency").is_some());
        assert!(find("list").is_none() && find("all").is_none(), "words of the command line");
    }
}
