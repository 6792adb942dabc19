//! Benchmarks as jobs of processes that this one starts.
use crate::Result;
use crate::bench::SKIPPED;
use crate::benchmarks::{Benchmark, Home};
use crate::machine::cores;
use crate::place::Place;
use crate::record::{Limit, Row, Summary, Unit};
use rma_launcher::run::{Bind, Ending, Output, Report, RunError, Spec, run};
use rma_transport_ofi::Libfabric;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{fmt, fs};

/// Far more than any benchmark takes.
const WATCHDOG: Duration = Duration::from_secs(600);
/// The same over a network, which is slower.
const FAR_WATCHDOG: Duration = Duration::from_secs(3600);
/// Tells a rank to print its rows for this process, one a line.
pub(crate) const ROWS_OPTION: &str = "--rows";

/// Where a benchmark runs, or why it does not.
fn placed(benchmark: &Benchmark, ranks: u32, wanted: &Place) -> std::result::Result<Place, String> {
    let mut place = wanted.clone();
    let is_said = wanted.hosts.is_some() || wanted.nodes.is_some();
    match benchmark.home {
        Home::Near(why) if wanted.is_far() => return Err(why.to_owned()),
        Home::OneFolder if wanted.hosts.is_some() => {
            return Err("its ranks use files of one folder, which hosts need not share".to_owned());
        }
        Home::Network if wanted.nodes.is_some_and(|(_, each)| each > 1) => {
            return Err("it is of ranks on nodes of their own: --nodes 2x1".to_owned());
        }
        Home::Network | Home::Nodes(_) => {
            // What it measures is libfabric, also beside others that are to share memory.
            place.transport = Some("ofi".to_owned());
            if let (Home::Nodes(nodes), false) = (benchmark.home, is_said) {
                place.nodes = Some((nodes, ranks / nodes));
            }
        }
        Home::Anywhere | Home::Near(_) | Home::OneFolder => {}
    }
    if let Some(why) = place.refuses(ranks) {
        return Err(why);
    }
    match place.is_by_network().then(Libfabric::load) {
        Some(Err(error)) => Err(error.to_string()),
        Some(Ok(_)) | None => Ok(place),
    }
}

/// Runs a benchmark with so many ranks, and returns its rows.
pub(crate) fn job(
    benchmark: &Benchmark,
    ranks: u32,
    is_smoke: bool,
    wanted: &Place,
) -> Result<Vec<Row>> {
    let place = match placed(benchmark, ranks, wanted) {
        Ok(place) => place,
        Err(why) => {
            skipped(benchmark, &why);
            return Ok(Vec::new());
        }
    };
    let pinned = ranks as usize <= cores();
    let mut spec = Spec::new(std::env::current_exe()?, ranks);
    spec.args = vec![ROWS_OPTION.into(), benchmark.name.into()];
    if is_smoke {
        spec.args.push("--smoke".into());
    }
    spec.args.extend(place.told().into_iter().map(Into::into));
    place.apply(&mut spec)?;
    spec.bind = if pinned { Bind::Core } else { Bind::None };
    spec.oversubscribe = true;
    spec.output = Output::Capture;
    spec.timeout = Some(if place.is_far() { FAR_WATCHDOG } else { WATCHDOG });
    spec.wait_timeout = benchmark.wait_timeout;
    let spawned = if benchmark.is_whole_job { Some(spawned_ns(ranks)?) } else { None };
    let (start, cpu_before) = (Instant::now(), children_cpu_ns());
    let report = match run(&spec) {
        Ok(report) => report,
        Err(RunError::TooMany(shortage)) => {
            skipped(benchmark, &shortage.to_string());
            return Ok(Vec::new());
        }
        Err(error) => return Err(format!("{}: {error}", benchmark.name).into()),
    };
    let (took, cpu_after) = (start.elapsed(), children_cpu_ns());
    if let Ending::Interrupted(signal) = report.ending {
        return Err(Interrupted(signal).into());
    }
    if report.exit_code() != 0 {
        return Err(failure(benchmark, &report).into());
    }
    let mut rows = Vec::new();
    for line in String::from_utf8_lossy(&report.output[0].stdout).lines() {
        let row = serde_json::from_str::<Row>(line);
        rows.push(
            row.map_err(|error| format!("{}: rank 0 printed {line}: {error}", benchmark.name))?,
        );
    }
    let stderr = String::from_utf8_lossy(&report.output[0].stderr);
    let left_out: Vec<&str> = stderr.lines().filter(|line| line.contains(SKIPPED)).collect();
    left_out.iter().for_each(|line| eprintln!("{line}"));
    if rows.is_empty() && left_out.is_empty() && !benchmark.is_whole_job {
        return Err(format!("{} of {ranks} ranks printed no row", benchmark.name).into());
    }
    if benchmark.is_whole_job {
        let cpu = cpu_before.zip(cpu_after).map(|(before, after)| after - before);
        rows.extend(whole(benchmark, (ranks, pinned), (took, cpu), spawned));
    }
    Ok(rows)
}

/// The rows of a job as a whole: its time, next to that of as many processes, and its CPU time.
fn whole(
    benchmark: &Benchmark,
    (ranks, pinned): (u32, bool),
    (took, cpu): (Duration, Option<f64>),
    spawned: Option<f64>,
) -> Vec<Row> {
    let row = |name: &str, ns| Row {
        pinned,
        ..Row::one(benchmark.name, name, ranks, Unit::Nanoseconds, ns)
    };
    let mut whole = row("the whole job, by the clock", took.as_nanos() as f64);
    whole.limits.extend(spawned.map(|ns| Limit {
        name: "as many processes that end at once".to_owned(),
        summary: Summary::of(&[ns], 1),
        ratio: whole.ours.median / ns,
    }));
    // Less than a tick is not seen at all.
    let cpu = cpu.filter(|cpu| *cpu > 0.0);
    let cpu = cpu.map(|cpu| row("the whole job, CPU time of all ranks", cpu));
    std::iter::once(whole).chain(cpu).collect()
}

fn skipped(benchmark: &Benchmark, why: &str) {
    eprintln!("{} is not measured {SKIPPED}: {why}", benchmark.name);
}

/// A signal has ended a job, and is to end this program, too.
#[derive(Debug)]
pub(crate) struct Interrupted(i32);

impl std::error::Error for Interrupted {}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interrupted by signal {}", self.0)
    }
}

/// What it takes to start so many processes of this program, which end at once, and to await them.
fn spawned_ns(ranks: u32) -> Result<f64> {
    let exe = std::env::current_exe()?;
    let start = Instant::now();
    let spawn = |_| Command::new(&exe).arg("--version").stdout(Stdio::null()).spawn();
    let children = (0..ranks).map(spawn).collect::<std::io::Result<Vec<_>>>()?;
    for mut child in children {
        child.wait()?;
    }
    Ok(start.elapsed().as_nanos() as f64)
}

fn failure(benchmark: &Benchmark, report: &Report) -> String {
    let notes = report.notes.join("\n");
    let stderr = |rank: u32| {
        let output = report.output.get(rank as usize);
        output.map(|output| String::from_utf8_lossy(&output.stderr).into_owned())
    };
    match report.failure() {
        Some(failure) => {
            let said = stderr(failure.rank).unwrap_or_default();
            let (rank, how) = (failure.rank, failure.how);
            format!("{}: rank {rank} {how}\n{notes}\n{said}", benchmark.name)
        }
        None => format!("{}: {:?}\n{notes}", benchmark.name, report.ending),
    }
}

/// CPU time of the children that have ended, in steps of the kernel's clock tick (10 ms).
fn children_cpu_ns() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let ticks = children_ticks(&stat)?;
    Some(ticks as f64 * 1e9 / rustix::param::clock_ticks_per_second() as f64)
}

/// Fields 16 and 17 of /proc/self/stat; the second, a name, may hold anything but ends at `)`.
fn children_ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(13);
    let (user, system) = (fields.next()?, fields.next()?);
    user.parse::<u64>().ok()?.checked_add(system.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmarks::find;

    #[test]
    fn a_benchmark_runs_where_it_is_asked_to_or_says_why_not() {
        let find = |name| find(name).unwrap();
        let far = Place { nodes: Some((2, 1)), ..Place::default() };
        assert_eq!(placed(find("lock"), 2, &far), Ok(far.clone()));
        assert!(placed(find("system"), 2, &far).unwrap_err().contains("one machine"));
        assert!(placed(find("system"), 2, &Place::default()).is_ok());
        assert!(placed(find("lock"), 4, &far).unwrap_err().contains("2x1"));
        let near = Place { nodes: Some((1, 2)), ..Place::default() };
        assert!(placed(find("network"), 2, &near).unwrap_err().contains("nodes of their own"));
        let hosts = Place { hosts: Some("a,b".parse().unwrap()), ..Place::default() };
        for name in ["commit", "hacc", "mapreduce"] {
            assert!(placed(find(name), 2, &hosts).unwrap_err().contains("one folder"), "{name}");
            assert!(placed(find(name), 2, &Place::default()).is_ok(), "{name}");
        }
        // Where there is no libfabric, that is the reason.
        if let Ok(place) = placed(find("network-near"), 4, &Place::default()) {
            assert!(place.is_by_network());
            assert_eq!(place.nodes, Some((2, 2)));
        }
    }

    #[test]
    fn children_are_found_behind_any_name() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 1 2 0 0 11 12 300 40 20 0 1 0 5";
        assert_eq!(children_ticks(stat), Some(340));
        assert_eq!(children_ticks("7 (x) S 1"), None);
    }
}
