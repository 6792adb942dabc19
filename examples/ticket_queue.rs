//! One lock on one target, and atomics: a queue in a window of rank 0, filled and emptied by all.
//!
//! ```text
//! rma-run -n 4 target/release/examples/ticket_queue --jobs 5000
//! ```
//!
//! The queue is a ring of slots. A producer's ticket says which slot to fill next, a consumer's
//! which one to empty; tickets are counted up for ever, and the slot is the ticket modulo the
//! number of slots. Each slot counts how often it was filled or emptied, which tells the producer
//! or consumer whose turn it is:
//!
//! ```text
//! round = ticket / slots      how often the slot was used before
//! turn == 2 * round           free: the producer with this ticket may fill it
//! turn == 2 * round + 1       filled: the consumer with this ticket may empty it
//! ```
//!
//! A ticket is drawn by a compare-and-swap, and only when its slot is ready, so that a ticket in
//! hand never has to wait. And no rank waits for the queue either: one that finds it full executes
//! a job of it instead, one that finds it empty makes a job. A rank leaves when there is no job
//! left to make and none in the queue; if another rank adds one later, that rank empties the queue
//! after it. So nothing spins, and a rank that is stopped for a while holds no other up.
//!
//! Each execution is also counted at the job's own place, which tells whether every job was
//! executed exactly once.

mod common;

use bytemuck::{Pod, Zeroable};
use clap::Parser;
use common::{Failure, print};
use rma::{Error, Lock, LockKind, Op, Rank, Universe, Window};
use std::fmt::Write;
use std::time::{Duration, Instant};

/// The rank that holds the queue.
const HOME: Rank = Rank(0);

// What is where in the window of rank 0, in words of 64 bits.
/// The next job to be made.
const NEXT_JOB: u64 = 0;
/// The sum of all results.
const SUM: u64 = 1;
/// The next producer's ticket.
const FILL: u64 = 2;
/// The next consumer's ticket.
const EMPTY: u64 = 3;
/// The first slot: how often it was filled or emptied, a job, and the rank that made it.
const SLOTS: u64 = 4;
/// Words of a slot.
const SLOT: u64 = 3;

/// Makes jobs and executes them, by all ranks together, through one queue
#[derive(Debug, Parser)]
#[command(name = "ticket_queue")]
pub(crate) struct Arguments {
    /// Jobs to make and to execute
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(..=200_000))]
    jobs: u32,
    /// How much work a job is, in numbers to look at
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(..=1000))]
    work: u32,
    /// Jobs that the queue holds
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    slots: u32,
}

fn main() -> Result<(), Failure> {
    let universe = rma::initialize()?;
    let Some(arguments) = common::arguments(&universe)? else { return Ok(()) };
    // The others have nothing more to do.
    let Some(outcome) = work_off(universe, &arguments)? else { return Ok(()) };

    let mut text = String::new();
    for (rank, tally) in outcome.tallies.iter().enumerate() {
        let Tally { made, executed, of_others, unqueued } = tally;
        _ = writeln!(
            text,
            "rank {rank} made {made} jobs and executed {executed}: {of_others} that others made, \
             {unqueued} without the queue"
        );
    }
    let (jobs, slots, seconds) = (arguments.jobs, arguments.slots, outcome.time.as_secs_f64());
    _ = writeln!(text, "{jobs} jobs through {slots} slots in {seconds:.3} s");
    print(&text)?;
    match outcome.problem {
        Some(problem) => Err(Failure::new(format!("the result is wrong: {problem}"))),
        None => Ok(print("checked: every job was executed exactly once, and the sum is right\n")?),
    }
}

/// What rank 0 has in the end.
pub(crate) struct Outcome {
    /// What each rank did.
    tallies: Vec<Tally>,
    time: Duration,
    /// What is wrong, if anything.
    pub(crate) problem: Option<String>,
}

/// Makes and executes all jobs on all ranks; rank 0 gets the outcome.
pub(crate) fn work_off(
    universe: Universe,
    arguments: &Arguments,
) -> Result<Option<Outcome>, Failure> {
    let world = universe.world();
    // It begins as zeros: an empty queue, no job made, none executed.
    let words = executions(arguments) + u64::from(arguments.jobs);
    let words = if world.rank() == HOME { words } else { 0 };
    let window = world.window(words, size_of::<u64>()).allocate()?;
    world.barrier()?;
    let start = Instant::now();
    let tally = Worker::new(&window, arguments)?.work()?;
    // Afterwards every rank's operations are complete.
    world.barrier()?;
    let time = start.elapsed();
    let tallies = world.gather(&[tally], HOME)?;
    let problem = if world.rank() == HOME { verify(&window, arguments)? } else { None };
    window.free()?;
    universe.finalize()?;
    Ok(tallies.map(|tallies| Outcome { tallies, time, problem }))
}

/// Where the executions of job 0 are counted, those of the others behind it.
fn executions(arguments: &Arguments) -> u64 {
    SLOTS + SLOT * u64::from(arguments.slots)
}

/// What a rank did, in jobs.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
struct Tally {
    made: u64,
    executed: u64,
    /// Of those executed, made by other ranks.
    of_others: u64,
    /// Of those executed, never in the queue, because it was full.
    unqueued: u64,
}

/// A job, as it is in a slot.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Job {
    number: u64,
    maker: u64,
}

/// One rank at work.
struct Worker<'w> {
    home: Lock<'w>,
    rank: Rank,
    jobs: u64,
    work: u64,
    slots: u64,
    executions: u64,
    tally: Tally,
}

impl<'w> Worker<'w> {
    fn new(window: &'w Window, arguments: &Arguments) -> Result<Self, Error> {
        Ok(Self {
            home: window.lock(HOME, LockKind::Shared)?,
            rank: window.rank(),
            jobs: arguments.jobs.into(),
            work: arguments.work.into(),
            slots: arguments.slots.into(),
            executions: executions(arguments),
            tally: Tally::default(),
        })
    }

    /// Makes jobs until all are made, and executes jobs until the queue is empty; returns how many.
    fn work(mut self) -> Result<Tally, Error> {
        loop {
            let number = self.home.fetch_and_op(NEXT_JOB, Op::Sum, 1u64)?;
            if number >= self.jobs {
                break;
            }
            self.tally.made += 1;
            let job = Job { number, maker: self.rank.into() };
            while !self.push(job)? {
                if !self.execute_next()? {
                    // Full, and yet nothing is ready: other ranks are just at it.
                    self.tally.unqueued += 1;
                    self.execute(job)?;
                    break;
                }
            }
        }
        while self.execute_next()? {}
        self.home.unlock()?;
        Ok(self.tally)
    }

    /// Puts a job into the queue; false if it is full.
    fn push(&self, job: Job) -> Result<bool, Error> {
        let Some(ticket) = self.draw(FILL, 0)? else { return Ok(false) };
        let slot = self.slot(ticket);
        self.home.put(slot + 1, &[job])?;
        // The job must be there before a consumer is told.
        self.home.flush()?;
        self.home.fetch_and_op(slot, Op::Sum, 1u64)?;
        Ok(true)
    }

    /// Takes a job out of the queue; `None` if it is empty.
    fn pop(&self) -> Result<Option<Job>, Error> {
        let Some(ticket) = self.draw(EMPTY, 1)? else { return Ok(None) };
        let slot = self.slot(ticket);
        let [job] = self.home.rget(slot + 1, [Job::zeroed()])?.wait()?;
        self.home.fetch_and_op(slot, Op::Sum, 1u64)?;
        Ok(Some(job))
    }

    /// Draws the next ticket of `counter` if its slot is free (`filled` 0) or filled (1).
    fn draw(&self, counter: u64, filled: u64) -> Result<Option<u64>, Error> {
        let mut ticket = self.load(counter)?;
        loop {
            if self.load(self.slot(ticket))? == ticket / self.slots * 2 + filled {
                let drawn = self.home.compare_and_swap(counter, ticket, ticket + 1)?;
                if drawn == ticket {
                    return Ok(Some(ticket));
                }
                ticket = drawn;
                continue;
            }
            // Not ready; or this ticket was drawn, used and its slot is further meanwhile.
            let now = self.load(counter)?;
            if now == ticket {
                return Ok(None);
            }
            ticket = now;
        }
    }

    fn slot(&self, ticket: u64) -> u64 {
        SLOTS + ticket % self.slots * SLOT
    }

    /// An atomic get.
    fn load(&self, at: u64) -> Result<u64, Error> {
        Ok(self.home.fetch_and_op(at, Op::NoOp, 0)?)
    }

    /// Executes a job of the queue; false if there is none.
    fn execute_next(&mut self) -> Result<bool, Error> {
        match self.pop()? {
            Some(job) => self.execute(job).map(|()| true),
            None => Ok(false),
        }
    }

    fn execute(&mut self, job: Job) -> Result<(), Error> {
        self.tally.executed += 1;
        self.tally.of_others += u64::from(job.maker != u64::from(self.rank));
        self.home.fetch_and_op(SUM, Op::Sum, result(job.number, self.work))?;
        self.home.fetch_and_op(self.executions + job.number, Op::Sum, 1u64)?;
        Ok(())
    }
}

/// What a job computes: how many steps it takes from each of its numbers to 1 (Collatz), together.
fn result(job: u64, work: u64) -> u64 {
    let next = |n: &u64| (*n != 1).then(|| if n.is_multiple_of(2) { n / 2 } else { 3 * n + 1 });
    let steps = |n| std::iter::successors(Some(n), next).skip(1).map(|_| 1).sum::<u64>();
    (job * work + 1..=job * work + work).map(steps).sum()
}

/// What is wrong, if anything; at rank 0, when everything is complete.
fn verify(window: &Window, arguments: &Arguments) -> Result<Option<String>, Error> {
    window.sync()?;
    let mut counts = vec![0u64; usize::try_from(arguments.jobs)?];
    window.local().read(executions(arguments), &mut counts)?;
    if let Some(job) = counts.iter().position(|count| *count != 1) {
        let problem = format!("job {job} was executed {} times and not once", counts[job]);
        return Ok(Some(problem));
    }
    let sum: u64 = window.local().load(SUM)?;
    let expected: u64 =
        (0..arguments.jobs.into()).map(|job| result(job, arguments.work.into())).sum();
    let problem = format!("the results sum up to {sum} and not to {expected}");
    Ok((sum != expected).then_some(problem))
}
