//! Batches of operations, timed in turn.
use crate::Result;
use crate::record::Summary;
use rma::{Communicator, Rank};
use std::time::{Duration, Instant};

/// Does so many operations.
pub(crate) type Work<'a> = &'a mut dyn FnMut(u64) -> Result<()>;

/// How long to measure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effort {
    /// Batches of each kind of work.
    pub(crate) rounds: usize,
    /// Least length of a batch.
    pub(crate) batch: Duration,
    /// What comes before the first batch.
    pub(crate) warm_up: Duration,
    /// What one rank does alone goes on for so long before each batch: whatever a peer still does
    /// for the work before is over then.
    pub(crate) settle: Duration,
}

impl Effort {
    /// For figures.
    pub(crate) const FULL: Self = Self {
        rounds: 401,
        batch: Duration::from_micros(50),
        warm_up: Duration::from_millis(20),
        settle: Duration::ZERO,
    };
    /// To see that a benchmark works at all.
    pub(crate) const SMOKE: Self = Self {
        rounds: 3,
        batch: Duration::from_micros(10),
        warm_up: Duration::from_micros(100),
        settle: Duration::ZERO,
    };
}

/// The ranks that do the work.
#[derive(Clone, Copy)]
pub(crate) enum Pace<'c> {
    /// This rank.
    Alone,
    /// All ranks at the same time; they begin each batch together.
    Together(&'c Communicator),
}

impl Pace<'_> {
    /// What comes right before a batch.
    fn begin(self, settle: Duration, work: Work<'_>) -> Result<()> {
        // Not timed: they meet what the work before left in the caches, which after stores past
        // them takes more than one copy of some MiB to get over.
        let start = Instant::now();
        work(4)?;
        match self {
            Self::Alone => {
                while start.elapsed() < settle {
                    work(4)?;
                }
                Ok(())
            }
            Self::Together(comm) => Ok(comm.barrier()?),
        }
    }

    /// What rank 0 says.
    fn agree(self, value: u64) -> Result<u64> {
        let mut value = [value];
        if let Self::Together(comm) = self {
            comm.bcast(&mut value, Rank(0))?;
        }
        Ok(value[0])
    }

    fn time(self, effort: Effort, work: Work<'_>, operations: u64) -> Result<Duration> {
        self.begin(effort.settle, work)?;
        let start = Instant::now();
        work(operations)?;
        Ok(start.elapsed())
    }
}

/// Nanoseconds per operation, batch by batch.
#[derive(Debug, Clone)]
pub(crate) struct Samples {
    pub(crate) ns: Vec<f64>,
    pub(crate) operations: u64,
}

impl Samples {
    pub(crate) fn summary(&self) -> Summary {
        Summary::of(&self.ns, self.operations)
    }

    /// The median of what this took, in times of what `limit` took right before it.
    pub(crate) fn ratio(&self, limit: &Self) -> f64 {
        let ratios: Vec<f64> =
            self.ns.iter().zip(&limit.ns).map(|(ours, limit)| ours / limit).collect();
        Summary::of(&ratios, 0).median
    }
}

/// Times the works in turn, batch by batch: A B A B. Every rank of a [`Pace::Together`] calls this
/// with the same works.
pub(crate) fn in_turn(
    effort: Effort,
    pace: Pace<'_>,
    works: &mut [Work<'_>],
) -> Result<Vec<Samples>> {
    let mut samples = Vec::new();
    for work in works.iter_mut() {
        let operations = calibrate(effort, pace, work)?;
        samples.push(Samples { ns: Vec::with_capacity(effort.rounds), operations });
    }
    for _ in 0..effort.rounds {
        for (work, samples) in works.iter_mut().zip(&mut samples) {
            let took = pace.time(effort, work, samples.operations)?;
            samples.ns.push(took.as_nanos() as f64 / samples.operations as f64);
        }
    }
    Ok(samples)
}

/// Warms up, and finds how many operations fill a batch.
fn calibrate(effort: Effort, pace: Pace<'_>, work: Work<'_>) -> Result<u64> {
    let start = Instant::now();
    let mut operations = 1u64;
    loop {
        // The fastest of three: a batch that was interrupted says nothing.
        let mut took = Duration::MAX;
        for _ in 0..3 {
            took = took.min(pace.time(effort, work, operations)?);
        }
        let grow = took < effort.batch && operations < 1 << 40;
        let warm = start.elapsed() >= effort.warm_up;
        let next = if grow { operations * 2 } else { operations };
        // Rank 0 decides; 0 says that all is found.
        match pace.agree(if grow || !warm { next } else { 0 })? {
            0 => return Ok(operations),
            next => operations = next,
        }
    }
}
