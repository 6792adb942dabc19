//! Measures `rma` next to what the machine itself can do.
//!
//! Not under a launcher it starts its own ranks, a job for each benchmark; under `rma-run` it is
//! one of the ranks.
mod aligned;
mod bench;
mod benchmarks;
mod compare;
mod counting;
mod file;
mod group;
mod hop;
mod html;
mod launch;
mod legend;
mod machine;
mod measure;
mod memory;
mod peers;
mod place;
mod plot;
mod progress;
mod raw;
mod record;
mod report;
#[path = "../../tests/stopped/mod.rs"]
mod stopped;
mod table;

use bench::Bench;
use benchmarks::{ALL, Benchmark, find};
use clap::{Args, Parser, Subcommand};
use machine::Machine;
use place::Place;
use progress::Progress;
use record::Row;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::ExitCode;
use table::table;

/// Of a program: whatever went wrong is printed.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The most ranks of a job with `--smoke`.
const SMOKE_RANKS: u32 = 64;

const EXAMPLES: &str = "\
Examples:
  rma-bench list
  rma-bench put-latency bandwidth --launches 3
  rma-bench all --json figures.json --html report.html
  rma-bench all --transport ofi --provider tcp
  rma-bench network put-latency --hosts node1,node2
  rma-run -n 2 --bind core rma-bench sync
  rma-bench compare before.json after.json --fail-beyond 10
  rma-bench peers --json peers.json
  rma-bench peers --transport ofi
  rma-bench record peers.json --machine \"AMD Zen 5\" --to benches/records/amd-zen5.json
  rma-bench report

A row shows the median of many batches, the range of the middle 80 % of them, and the same work
done without the library, measured in turn with it on the same memory. `of limit` is the median
ratio of batches that ran right after one another. A noisy row is not to be trusted: repeat it.";

/// Measures rma next to the limit.
#[derive(Debug, Parser)]
#[command(version, after_help = EXAMPLES, max_term_width = 100)]
#[command(args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,

    /// What to measure: names from `list`, or `all`
    #[arg(value_name = "BENCHMARK")]
    names: Vec<String>,

    /// Only see that every benchmark works, with next to no repetitions; measures all by default
    #[arg(long)]
    smoke: bool,

    /// Start each benchmark so many times; the table shows the best median of each row
    #[arg(long, value_name = "N", default_value = "1")]
    launches: NonZeroU32,

    #[command(flatten)]
    place: Place,

    #[command(flatten)]
    files: Files,

    /// Print rows as JSON, for the process that started this rank
    #[arg(long, hide = true)]
    rows: bool,

    /// Count what that thread does, for the process that it belongs to
    #[arg(long, hide = true, value_name = "THREAD")]
    trace: Option<i32>,
}

/// What is written besides the table.
#[derive(Debug, Args)]
struct Files {
    /// Also write a line of JSON for each row to that file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Also draw the rows that were measured over several sizes
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,

    /// Also write a page with figures and tables
    #[arg(long, value_name = "FILE.html")]
    html: Option<PathBuf>,
}

/// What else it does than measuring.
#[derive(Debug, Subcommand)]
enum Command {
    /// What moved between two files of --json
    ///
    /// A row moved if the ranges of the middle 80 % of its batches are apart, after what its limit
    /// moved by is taken out. Noisy rows are not judged.
    Compare {
        /// The older one
        before: PathBuf,
        /// The newer one
        after: PathBuf,
        /// Fail if a row became worse, beyond noise and by more than PERCENT, or is gone
        #[arg(long, value_name = "PERCENT")]
        fail_beyond: Option<f64>,
    },
    /// The same rows by the MPI libraries that are here, in turn with ours
    ///
    /// Builds a C program of ours with every mpicc found, also those of wheels in a virtual
    /// environment of Python, and measures the newest version of MPICH, Open MPI and Intel MPI. A
    /// ratio is the median over the rounds of ours in times of theirs, both of one round.
    Peers {
        #[command(flatten)]
        wanted: peers::Wanted,
        #[command(flatten)]
        files: Files,
    },
    /// Make a record of this machine out of files of --json, to be committed
    ///
    /// All of them are of one machine and one commit: what takes long can be measured benchmark by
    /// benchmark. A row is in one of them, or beside peers in one and without in others.
    Record {
        /// Files that --json wrote
        #[arg(value_name = "FILE", required = true)]
        from: Vec<PathBuf>,
        /// What the tables shall call the machine, as "AMD Zen 5"
        #[arg(long, value_name = "NAME")]
        machine: String,
        /// The record, in benches/records
        #[arg(long, value_name = "FILE.json")]
        to: PathBuf,
    },
    /// Write the tables of docs/performance.md and README.md from records
    Report {
        /// Records; those of benches/records by default
        #[arg(value_name = "RECORD")]
        records: Vec<PathBuf>,
        /// Only look whether the tables are what the records say
        #[arg(long)]
        check: bool,
    },
}

fn main() -> ExitCode {
    // What a job on hosts starts there.
    if rma_launcher::run::warden() {
        return ExitCode::SUCCESS;
    }
    if std::env::args_os().nth(1).is_some_and(|word| word == "agent") {
        return rma_launcher::run::agent().into();
    }
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rma-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<()> {
    match &cli.command {
        Some(Command::Compare { before, after, fail_beyond }) => {
            compare::run(before, after, *fail_beyond)
        }
        Some(Command::Peers { wanted, files }) => {
            let machine = Machine::look();
            println!("{machine}");
            files.write(&machine, &peers::run(wanted)?)
        }
        Some(Command::Record { from, machine, to }) => report::record(from, machine, to),
        Some(Command::Report { records, check }) => report::run(records, *check),
        None => cli.trace.map_or_else(|| measure(cli), counting::serve),
    }
}

fn measure(cli: &Cli) -> Result<()> {
    let benchmarks = match &cli.names[..] {
        [] if !cli.smoke => return list(),
        [name] if name == "list" => return list(),
        [] => ALL.iter().collect(),
        [name] if name == "all" => ALL.iter().collect(),
        names => names.iter().map(|name| known(name)).collect::<Result<Vec<_>>>()?,
    };
    if rma_launcher::is_launched() {
        as_rank(cli, &benchmarks)
    } else {
        as_parent(cli, &benchmarks)
    }
}

fn known(name: &str) -> Result<&'static Benchmark> {
    find(name).ok_or_else(|| format!("no benchmark `{name}`; see `rma-bench list`").into())
}

fn list() -> Result<()> {
    let width = ALL.iter().map(|benchmark| benchmark.name.len()).max().unwrap_or(0);
    for benchmark in ALL {
        let ranks: Vec<String> = benchmark.ranks.iter().map(u32::to_string).collect();
        let ranks = ranks.join(", ");
        println!("{:<width$} {} ({ranks} ranks)", benchmark.name, benchmark.about);
    }
    Ok(())
}

fn as_parent(cli: &Cli, benchmarks: &[&Benchmark]) -> Result<()> {
    cli.place.check()?;
    let machine = Machine::look();
    let jobs = benchmarks.iter().flat_map(|benchmark| {
        let launches = |ranks| (1..=cli.launches.get()).map(move |launch| (ranks, launch));
        // To see that it works, few ranks are as good.
        let few = |ranks: &&u32| !cli.smoke || **ranks <= SMOKE_RANKS;
        let all = benchmark.ranks.iter().filter(few).flat_map(move |ranks| launches(*ranks));
        all.map(move |(ranks, launch)| (*benchmark, ranks, launch))
    });
    let jobs: Vec<_> = jobs.collect();
    let mut progress = Progress::new(jobs.len());
    let (mut rows, mut failures) = (Vec::new(), Vec::new());
    for (benchmark, ranks, launch) in jobs {
        let job = format!("{}, {ranks} ranks, launch {launch}", benchmark.name);
        progress.next(&job);
        match launch::job(benchmark, ranks, cli.smoke, &cli.place) {
            Ok(mut found) => {
                found.iter_mut().for_each(|row| row.launch = launch);
                rows.extend(found);
            }
            Err(error) => {
                let is_over = error.is::<launch::Interrupted>();
                failures.push(format!("{job}: {error}"));
                if is_over {
                    break;
                }
            }
        }
    }
    progress.end();
    // What the other jobs have measured is not lost.
    if let Err(error) = report(cli, &machine, &rows) {
        failures.push(error.to_string());
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n").into()) }
}

fn as_rank(cli: &Cli, benchmarks: &[&'static Benchmark]) -> Result<()> {
    let universe = rma::initialize()?;
    let size = universe.world().size();
    let mut rows = Vec::new();
    for benchmark in benchmarks {
        if size < 2 {
            return Err(format!("{} needs at least 2 ranks", benchmark.name).into());
        }
        let mut bench = Bench::new(&universe, benchmark.name, cli.smoke)?;
        (benchmark.run)(&mut bench)?;
        rows.extend(bench.finish()?);
    }
    let is_first = universe.world().rank() == rma::Rank(0);
    universe.finalize()?;
    match (is_first, cli.rows) {
        (false, _) => Ok(()),
        (true, false) => report(cli, &Machine::look(), &rows),
        (true, true) => {
            for row in &rows {
                println!("{}", serde_json::to_string(row)?);
            }
            Ok(())
        }
    }
}

/// Prints the rows, writes them down, and fails if one cannot be or is above its budget.
fn report(cli: &Cli, machine: &Machine, rows: &[Row]) -> Result<()> {
    println!("{machine}");
    print!("{}", table(&Row::best(rows)));
    let mut hops: Vec<f64> = rows.iter().filter_map(|row| row.hop_ns).flatten().collect();
    hops.sort_by(f64::total_cmp);
    if let [first, .., last] = hops[..] {
        println!("round trip of a cache line between the two ranks: {first:.0} .. {last:.0} ns");
    }
    let mut counts = rows.iter().filter(|row| row.benchmark == "counts").peekable();
    if counts.peek().is_some() && !counts.any(|row| row.name.starts_with("system calls")) {
        println!("system calls are not counted (SKIPPED): tracing is not permitted here");
    }
    let mut out = rows.iter().filter(|row| row.benchmark == "out-of-core").peekable();
    if out.peek().is_some() && !out.any(|row| row.name.contains("storage")) {
        println!("out of core is not measured (SKIPPED): no group with less memory is permitted");
    }
    cli.files.write(machine, rows)?;
    let above: Vec<String> = rows.iter().filter_map(Row::above_budget).collect();
    let complaint = rows.iter().find_map(Row::complaint);
    match complaint.or((!above.is_empty()).then(|| above.join("\n"))) {
        Some(complaint) => Err(complaint.into()),
        None => Ok(()),
    }
}

impl Files {
    fn write(&self, machine: &Machine, rows: &[Row]) -> Result<()> {
        if let Some(path) = &self.json {
            file::write(path, machine, rows)?;
        }
        let best = Row::best(rows);
        if let Some(path) = &self.plot {
            plot::write(path, &best)?;
        }
        if let Some(path) = &self.html {
            html::write(path, machine, &best)?;
        }
        Ok(())
    }
}
