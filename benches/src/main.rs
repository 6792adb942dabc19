//! Measures `rma` next to what the machine itself can do.
//!
//! Not under a launcher it starts its own ranks, a job for each benchmark; under `rma-run` it is
//! one of the ranks.
mod bench;
mod benchmarks;
mod hop;
mod launch;
mod machine;
mod measure;
mod raw;
mod record;
mod table;

use bench::Bench;
use benchmarks::{ALL, Benchmark, find};
use clap::Parser;
use machine::Machine;
use record::{Record, Row};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use table::table;

/// Of a program: whatever went wrong is printed.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const EXAMPLES: &str = "\
Examples:
  rma-bench list
  rma-bench put-latency bandwidth --launches 3
  rma-bench all --json figures.json
  rma-run -n 2 --bind core rma-bench sync

A row shows the median of many batches, the range of the middle 80 % of them, and the same work
done without the library, measured in turn with it on the same memory. `of limit` is the median
ratio of batches that ran right after one another. A noisy row is not to be trusted: repeat it.";

/// Measures rma next to the limit.
#[derive(Debug, Parser)]
#[command(version, after_help = EXAMPLES, max_term_width = 100)]
struct Cli {
    /// What to measure: names from `list`, or `all`
    #[arg(value_name = "BENCHMARK")]
    names: Vec<String>,

    /// Only see that every benchmark works, with next to no repetitions; measures all by default
    #[arg(long)]
    smoke: bool,

    /// Start each benchmark so many times; the table shows the best median of each row
    #[arg(long, value_name = "N", default_value = "1")]
    launches: NonZeroU32,

    /// Also write a line of JSON for each row to that file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Print rows as JSON, for the process that started this rank
    #[arg(long, hide = true)]
    rows: bool,
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rma-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<()> {
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
    for benchmark in ALL {
        let ranks: Vec<String> = benchmark.ranks.iter().map(u32::to_string).collect();
        let ranks = ranks.join(", ");
        println!("{:<14} {} ({ranks} ranks)", benchmark.name, benchmark.about);
    }
    Ok(())
}

fn as_parent(cli: &Cli, benchmarks: &[&Benchmark]) -> Result<()> {
    let machine = Machine::look();
    let mut rows = Vec::new();
    for benchmark in benchmarks {
        for ranks in benchmark.ranks {
            for launch in 1..=cli.launches.get() {
                eprintln!(
                    "{} with {ranks} ranks, {launch} of {} ...",
                    benchmark.name, cli.launches
                );
                let mut found = launch::job(benchmark, *ranks, cli.smoke)?;
                found.iter_mut().for_each(|row| row.launch = launch);
                rows.extend(found);
            }
        }
    }
    report(cli, &machine, &rows)
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

/// Prints the rows, writes them down, and fails if one cannot be.
fn report(cli: &Cli, machine: &Machine, rows: &[Row]) -> Result<()> {
    let Machine { cpu, cores, kernel, load, commit } = machine;
    let commit = commit.as_deref().unwrap_or("unknown");
    println!("{cpu}, {cores} CPUs, Linux {kernel}, load {load}, commit {commit}");
    print!("{}", table(&Row::best(rows)));
    let mut hops: Vec<f64> = rows.iter().filter_map(|row| row.hop_ns).flatten().collect();
    hops.sort_by(f64::total_cmp);
    if let [first, .., last] = hops[..] {
        println!("round trip of a cache line between the two ranks: {first:.0} .. {last:.0} ns");
    }
    if let Some(path) = &cli.json {
        let written = write_json(path, machine, rows);
        written.map_err(|error| format!("writing {}: {error}", path.display()))?;
    }
    match rows.iter().find_map(Row::complaint) {
        Some(complaint) => Err(complaint.into()),
        None => Ok(()),
    }
}

fn write_json(path: &Path, machine: &Machine, rows: &[Row]) -> Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    for row in rows {
        serde_json::to_writer(&mut file, &Record { row, machine })?;
        writeln!(file)?;
    }
    Ok(file.flush()?)
}
