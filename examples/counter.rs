//! A window on storage: a counter that goes on where it was, whatever ended the last run.
//!
//! ```text
//! rma-run -n 4 target/release/examples/counter --file /tmp/counter --times 1000
//! ```
//!
//! The counter lies in a file at rank 0, and all ranks count in it by atomics, with the page cache
//! of the system as its memory. From time to time rank 0 makes it durable, and says up to where: a
//! later run finds at least that, also after `kill -9`, or after the machine has lost its power.

mod common;

use clap::Parser;
use common::{Failure, print};
use rma::{Op, Rank, StorageHints, StorageMemory, Universe, Window};
use std::path::PathBuf;
use std::sync::Arc;

/// The rank that has the counter.
const HOME: Rank = Rank(0);

/// Counts on, in a file
#[derive(Debug, Parser)]
#[command(name = "counter")]
struct Arguments {
    /// Where the counter is; made if it is not there
    #[arg(long)]
    file: PathBuf,
    /// How often each rank counts between two syncs
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    times: u32,
    /// Syncs
    #[arg(long, default_value_t = 3)]
    rounds: u64,
}

fn main() -> Result<(), Failure> {
    let universe = rma::initialize()?;
    if let Some(arguments) = common::arguments::<Arguments>(&universe)? {
        count(&universe, &arguments)?;
    }
    Ok(universe.finalize()?)
}

fn count(universe: &Universe, arguments: &Arguments) -> Result<(), Failure> {
    let world = universe.world();
    let window = if world.rank() == HOME {
        let hints = StorageHints::file(&arguments.file);
        let memory = StorageMemory::open(universe, &hints, size_of::<u64>());
        // The others wait in `create`, and hear of it there when this rank leaves.
        world.window(1, size_of::<u64>()).create(Arc::new(memory?))?
    } else {
        world.window(0, 1).create(Vec::<u64>::new())?
    };
    said(&window, "found")?;
    world.barrier()?;
    for _ in 0..arguments.rounds {
        let epoch = window.lock_all()?;
        for _ in 0..arguments.times {
            epoch.fetch_and_op(HOME, 0, Op::Sum, 1u64)?;
        }
        epoch.unlock()?;
        world.barrier()?;
        window.sync()?;
        said(&window, "durable")?;
        world.barrier()?;
    }
    Ok(window.free()?)
}

/// What the counter is at its home.
fn said(window: &Window, what: &str) -> Result<(), Failure> {
    if window.rank() == HOME {
        print(&format!("{what} {}\n", window.local().load::<u64>(0)?))?;
    }
    Ok(())
}
