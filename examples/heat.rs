//! Puts between fences, into halos of neighbours: heat spreads over a square plate.
//!
//! ```text
//! rma-run -n 4 target/release/examples/heat --size 200 --steps 5000
//! ```
//!
//! The plate is cut into bands of rows, one for each rank. A point's next temperature is the mean
//! of its four neighbours, so that each rank needs, before each step, the lowest row of the band
//! above and the highest row of the band below. Every rank *puts* its own two outer rows where its
//! neighbours look for them, and a fence says that all of them have arrived.
//!
//! There are two sets of halo rows, for even and odd steps: a fast rank then never overwrites what
//! its neighbour still reads, and one fence a step is enough.
//!
//! The result is compared, bit by bit, with the same computation on one rank.
//!
//! With `--checkpoint DIR`, all bands are committed now and then, with the number of the step, to a
//! persistent window below that folder. A run that finds one goes on from there: also after
//! `kill -9`, with the same result, and on another number of ranks.

mod common;

use clap::Parser;
use clap::builder::RangedU64ValueParser;
use common::{Failure, print};
use rma::{
    Assert, Communicator, Error, Fence, Op, PersistentHints, PersistentMemory, Rank, Root,
    Universe, Window,
};
use std::fmt::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Temperature along the upper edge; the other edges are at 0.
const HOT: f64 = 100.0;
/// Steps between two looks at whether anything still changes.
const LOOK: usize = 50;
/// Largest picture, in characters.
const PICTURE: (usize, usize) = (64, 24);
/// From cold to hot.
const SHADES: &[u8] = b" .:-=+*#%@";

fn count() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new()
}

/// Lets heat spread over a square plate, whose upper edge is hot
#[derive(Debug, Parser)]
#[command(name = "heat")]
pub(crate) struct Arguments {
    /// Points along each side of the plate
    #[arg(long, default_value_t = 64, value_parser = count().range(1..=8192))]
    size: usize,
    /// Steps to compute at most
    #[arg(long, default_value_t = 5000)]
    steps: usize,
    /// Stop when no point changes by this much in a step
    #[arg(long, default_value_t = 1e-3)]
    tolerance: f64,
    /// Folder, for this plate only, where the state is kept: the next run goes on from there
    #[arg(long)]
    checkpoint: Option<PathBuf>,
    /// Steps between two checkpoints
    #[arg(long, default_value_t = 500, value_parser = count().range(1..))]
    every: usize,
}

fn main() -> Result<(), Failure> {
    let universe = rma::initialize()?;
    let Some(arguments) = common::arguments(&universe)? else { return Ok(()) };
    let ranks = universe.world().size();
    // The others have nothing more to do.
    let Some(plate) = solve(universe, &arguments)? else { return Ok(()) };

    let (size, steps, seconds) = (arguments.size, plate.steps, plate.time.as_secs_f64());
    let speed = (plate.points.len() * steps) as f64 / 1e6 / seconds.max(1e-9);
    let mut text = picture(&plate.points, size);
    _ = writeln!(
        text,
        "{size} x {size} points, {steps} steps, {ranks} ranks: {seconds:.3} s, {speed:.0} million \
         points/s"
    );
    print(&text)?;

    eprintln!("heat: computing once more, by rank 0 alone, to compare");
    compare(&plate, &arguments)?;
    Ok(print("checked against a sequential run: equal, bit by bit\n")?)
}

/// What rank 0 has in the end.
pub(crate) struct Plate {
    points: Vec<f64>,
    pub(crate) steps: usize,
    time: Duration,
}

/// Computes all steps on all ranks; rank 0 gets the result.
pub(crate) fn solve(universe: Universe, arguments: &Arguments) -> Result<Option<Plate>, Failure> {
    let world = universe.world();
    let start = Instant::now();
    let (band, steps) = compute(world, arguments)?;
    let time = start.elapsed();
    let bands = world.gatherv(band.inner(), Rank(0))?;
    universe.finalize()?;
    Ok(bands.map(|bands| Plate { points: bands.concat(), steps, time }))
}

/// Some rows of the plate, between two rows of others.
struct Band {
    width: usize,
    /// The row above, own rows, the row below.
    now: Vec<f64>,
    next: Vec<f64>,
}

impl Band {
    /// `rows` of a cold plate with `width` columns.
    fn new(width: usize, rows: &Range<usize>) -> Self {
        let mut now = vec![0.0; (rows.len() + 2) * width];
        if rows.start == 0 {
            now[..width].fill(HOT);
        }
        Self { width, next: now.clone(), now }
    }

    fn rows(&self) -> usize {
        self.now.len() / self.width - 2
    }

    /// Own rows.
    fn inner(&self) -> &[f64] {
        &self.now[self.width..self.now.len() - self.width]
    }

    /// The first and the last own row; of no rows, parts of the plate's edge.
    fn outer_rows(&self) -> (&[f64], &[f64]) {
        let last = self.rows() * self.width;
        (&self.now[self.width..][..self.width], &self.now[last..][..self.width])
    }

    /// The rows above and below, to be filled.
    fn halo(&mut self) -> (&mut [f64], &mut [f64]) {
        let below = self.now.len() - self.width;
        let (above, below) = self.now.split_at_mut(below);
        (&mut above[..self.width], below)
    }

    /// Computes the next temperatures; returns the largest change.
    fn step(&mut self) -> f64 {
        let (width, mut change) = (self.width, 0.0f64);
        for row in 1..=self.rows() {
            let at = |row: usize| &self.now[row * width..][..width];
            let (above, here, below) = (at(row - 1), at(row), at(row + 1));
            let next = &mut self.next[row * width..][..width];
            for column in 0..width {
                // Beyond the left and the right edge it is cold.
                let left = if column > 0 { here[column - 1] } else { 0.0 };
                let right = here.get(column + 1).copied().unwrap_or(0.0);
                next[column] = 0.25 * (above[column] + below[column] + left + right);
                change = change.max((next[column] - here[column]).abs());
            }
        }
        // The edge of the plate stays as it is, also in the other half.
        let end = self.now.len() - width;
        self.next[..width].copy_from_slice(&self.now[..width]);
        self.next[end..].copy_from_slice(&self.now[end..]);
        std::mem::swap(&mut self.now, &mut self.next);
        change
    }
}

/// The rows of `rank`: as equal as possible, none for ranks beyond the last row.
fn rows(size: usize, rank: usize, ranks: usize) -> Range<usize> {
    let cut = |rank: usize| size * rank / ranks;
    cut(rank)..cut(rank + 1)
}

/// The ranks that have the rows next to those of this rank; the null rank, to which puts are
/// no-ops, at the edges of the plate and for ranks without rows.
fn neighbours(size: usize, world: &Communicator) -> (Rank, Rank) {
    let ranks = world.ranks().len();
    let mine = rows(size, world.rank().into(), ranks);
    let owner = |row: Option<usize>| {
        let row = row.filter(|row| !mine.is_empty() && *row < size)?;
        world.ranks().find(|rank| rows(size, (*rank).into(), ranks).contains(&row))
    };
    let above = owner(mine.start.checked_sub(1));
    (above.unwrap_or(Rank::NULL), owner(Some(mine.end)).unwrap_or(Rank::NULL))
}

/// All steps; returns this rank's band and the number of steps.
fn compute(world: &Communicator, arguments: &Arguments) -> Result<(Band, usize), Error> {
    let size = arguments.size;
    let mut band = Band::new(size, &rows(size, world.rank().into(), world.ranks().len()));
    let neighbours = neighbours(size, world);
    // For even and for odd steps: the row above, the row below.
    let window = world.window(4 * size, size_of::<f64>()).allocate()?;
    let folder = arguments.checkpoint.as_deref();
    let checkpoint = folder.map(|folder| Checkpoint::open(world, folder, &band)).transpose()?;
    let mut done =
        checkpoint.iter().try_fold(0, |_, checkpoint| checkpoint.load(world, &mut band))?;
    let mut epoch = window.fence(Assert::NO_PRECEDE)?;
    while done < arguments.steps {
        epoch = exchange(&window, epoch, &mut band, neighbours, done % 2)?;
        let change = band.step();
        done += 1;
        if let Some(checkpoint) = &checkpoint
            && done % arguments.every == 0
        {
            checkpoint.save(world, &band, done)?;
        }
        if done % LOOK == 0 {
            // The largest change of all ranks is the same in every order: no rounding.
            let change = world.allreduce(&[change], Op::Max)?[0];
            if world.rank() == Rank(0) && done % (LOOK * 40) == 0 {
                eprintln!("heat: step {done}, largest change {change:.6}");
            }
            if change < arguments.tolerance {
                break;
            }
        }
    }
    epoch.end()?;
    window.free()?;
    checkpoint.map_or(Ok(()), |checkpoint| checkpoint.window.free().map_err(Error::from))?;
    Ok((band, done))
}

/// How many steps the plate has behind it, and all its rows, as one array in a persistent window:
/// the next run may divide it among other ranks. Each rank has a row at least.
struct Checkpoint {
    memory: Arc<PersistentMemory>,
    window: Window,
}

impl Checkpoint {
    fn open(world: &Communicator, folder: &Path, band: &Band) -> Result<Self, Error> {
        let elements = Self::rows_at(world.rank()) + band.inner().len();
        let root = Root::open(world, folder)?;
        let hints = PersistentHints::name("heat").elements::<f64>().block_distribution(true);
        let memory = PersistentMemory::open(&root, world, &hints, elements * size_of::<f64>())?;
        let memory = Arc::new(memory);
        let window = world.window(elements, size_of::<f64>()).create(memory.clone())?;
        Ok(Self { memory, window })
    }

    /// The steps lie before the first row.
    fn rows_at(rank: Rank) -> usize {
        if rank == Rank(0) { 1 } else { 0 }
    }

    /// The last state that was committed, if any was; returns how many steps it has behind it.
    fn load(&self, world: &Communicator, band: &mut Band) -> Result<usize, Error> {
        let mut steps = [0u64];
        if world.rank() == Rank(0) {
            self.window.local().read(0, &mut steps)?;
        }
        world.bcast(&mut steps, Rank(0))?;
        let steps = usize::try_from(steps[0])?;
        if steps > 0 {
            let (width, end) = (band.width, band.now.len() - band.width);
            let rows = &mut band.now[width..end];
            self.window.local().read(Self::rows_at(world.rank()), rows)?;
            if world.rank() == Rank(0) {
                eprintln!("heat: going on from step {steps}");
            }
        }
        Ok(steps)
    }

    /// All ranks have one state, or the one before, whatever happens meanwhile.
    fn save(&self, world: &Communicator, band: &Band, steps: usize) -> Result<(), Error> {
        if world.rank() == Rank(0) {
            self.window.local().store(0, u64::try_from(steps)?)?;
        }
        self.window.local().write(Self::rows_at(world.rank()), band.inner())?;
        self.memory.commit(world)?;
        Ok(())
    }
}

/// Puts this rank's outer rows into the halos of its neighbours, and takes what they put here.
fn exchange<'w>(
    window: &'w Window,
    epoch: Fence<'w>,
    band: &mut Band,
    (above, below): (Rank, Rank),
    parity: usize,
) -> Result<Fence<'w>, Error> {
    let halo_above = 2 * band.width * parity;
    let halo_below = halo_above + band.width;
    let (first, last) = band.outer_rows();
    epoch.put(above, halo_below, first)?;
    epoch.put(below, halo_above, last)?;
    let epoch = epoch.next(Assert::NONE)?;
    let (row_above, row_below) = band.halo();
    for (from, halo, row) in [(above, halo_above, row_above), (below, halo_below, row_below)] {
        if from != Rank::NULL {
            window.local().read(halo, row)?;
        }
    }
    Ok(epoch)
}

/// The same without any other rank.
fn compute_alone(arguments: &Arguments) -> (Band, usize) {
    let size = arguments.size;
    let mut whole = Band::new(size, &(0..size));
    for done in 1..=arguments.steps {
        let change = whole.step();
        if done % LOOK == 0 && change < arguments.tolerance {
            return (whole, done);
        }
    }
    (whole, arguments.steps)
}

/// Compares every bit with a run on one rank.
pub(crate) fn compare(plate: &Plate, arguments: &Arguments) -> Result<(), Failure> {
    let wrong = |why: String| Err(Failure::new(format!("the result is wrong: {why}")));
    let (alone, steps) = compute_alone(arguments);
    if plate.steps != steps {
        return wrong(format!("{} steps, and {steps} by one rank alone", plate.steps));
    }
    let (points, expected) = (&plate.points, alone.inner());
    if points.len() != expected.len() {
        return wrong(format!("{} points, and not {}", points.len(), expected.len()));
    }
    let mut pairs = points.iter().zip(expected);
    match pairs.position(|(point, expected)| point.to_bits() != expected.to_bits()) {
        None => Ok(()),
        Some(at) => {
            let (row, column) = (at / alone.width, at % alone.width);
            let (point, expected) = (points[at], expected[at]);
            wrong(format!(
                "row {row}, column {column} is {point}, and {expected} by one rank alone"
            ))
        }
    }
}

/// The plate in characters.
fn picture(plate: &[f64], width: usize) -> String {
    let (columns, lines) = (PICTURE.0.min(width), PICTURE.1.min(width));
    let mut text = String::new();
    for line in 0..lines {
        for column in 0..columns {
            let heat = plate[line * width / lines * width + column * width / columns];
            let shade = heat / HOT * SHADES.len() as f64;
            let reached = (0u8..).zip(SHADES).take_while(|(level, _)| f64::from(*level) <= shade);
            text.push(reached.last().map_or(' ', |(_, character)| char::from(*character)));
        }
        text.push('\n');
    }
    text
}
