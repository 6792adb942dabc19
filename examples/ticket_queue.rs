//! A queue of jobs that all ranks fill and empty, in a window of rank 0, by atomics alone.
//!
//! ```text
//! rma-run -n 4 target/release/examples/ticket_queue --jobs 100000
//! ```
//!
//! The queue is a ring of slots. A producer's ticket says which slot to fill next, a consumer's
//! which one to empty; tickets are counted up for ever, and the slot is the ticket modulo the number
//! of slots. Each slot counts how often it was filled or emptied, which says whose turn it is:
//!
//! ```text
//! round = ticket / slots      how often the slot was used before
//! turn == 2 * round           free: the producer with this ticket may fill it
//! turn == 2 * round + 1       filled: the consumer with this ticket may empty it
//! ```
//!
//! A ticket is drawn by a compare-and-swap, and only when its slot is ready, so that a ticket in
//! hand never has to wait. And nobody waits for the queue either: who finds it full executes a job
//! of it instead, who finds it empty makes a job. A rank leaves when there is no job left to
//! make and none in the queue; if another rank adds one later, that rank will empty the queue after it.
//! So nothing spins, and a rank that is stopped for a while holds nobody up.
//!
//! Each execution is also counted at the job's own place, which tells whether every job was executed
//! exactly once.
#![allow(clippy::print_stderr)]

mod common;

use clap::Parser;
use common::{Failure, print};
use rma::{Communicator, LockAll, Op, Rank, RmaError, Universe, Window, WindowError};
use std::fmt::Write;
use std::time::Instant;

/// Who holds the queue.
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
/// The first slot: how often it was filled or emptied, and a job.
const SLOTS: u64 = 4;
/// Words of a slot.
const SLOT: u64 = 2;

/// Makes jobs and executes them, by all ranks together, through one queue
#[derive(Debug, Parser)]
#[command(name = "ticket_queue")]
struct Arguments {
    /// Jobs to make and to execute
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(..=1 << 27))]
    jobs: u32,
    /// Jobs that the queue holds
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    slots: u32,
}

fn main() -> Result<(), Failure> {
    let universe = rma::initialize()?;
    match common::arguments(&universe)? {
        Some(arguments) => run(universe, &arguments),
        None => Ok(()),
    }
}

fn run(universe: Universe, arguments: &Arguments) -> Result<(), Failure> {
    let world = universe.world();
    let window = make_window(world, arguments)?;
    let start = Instant::now();
    let tally = Worker::new(&window, arguments)?.work()?;
    // Afterwards every rank's operations are complete.
    world.barrier()?;
    let time = start.elapsed();
    let tallies = world.gather(&tally, HOME)?;

    let problem = if world.rank() == HOME { verify(&window, arguments)? } else { None };
    window.free()?;
    universe.finalize()?;
    let Some(tallies) = tallies else { return Ok(()) };
    let mut text = String::new();
    for (rank, [made, executed, direct]) in tallies.as_chunks::<3>().0.iter().enumerate() {
        _ = writeln!(
            text,
            "rank {rank} made {made} jobs and executed {executed}, {direct} of \
             them without the queue"
        );
    }
    let (jobs, seconds) = (arguments.jobs, time.as_secs_f64());
    _ = writeln!(text, "{jobs} jobs through {} slots in {seconds:.3} s", arguments.slots);
    print(&text)?;
    match problem {
        Some(problem) => Err(Failure::new(format!("the result is wrong: {problem}"))),
        None => Ok(print("checked: every job was executed exactly once, and the sum is right\n")?),
    }
}

/// The window. It begins as zeros: an empty queue, no job made, none executed. **Collective.**
fn make_window(world: &Communicator, arguments: &Arguments) -> Result<Window, WindowError> {
    let words = executions(arguments) + u64::from(arguments.jobs);
    let count = if world.rank() == HOME { words as usize } else { 0 };
    world.window(count, size_of::<u64>()).allocate()
}

/// Where the executions of job 0 are counted, those of the others behind it.
fn executions(arguments: &Arguments) -> u64 {
    SLOTS + SLOT * u64::from(arguments.slots)
}

/// One rank at work.
struct Worker<'w> {
    epoch: LockAll<'w>,
    jobs: u64,
    slots: u64,
    executions: u64,
    /// Jobs made, executed, and executed without the queue.
    tally: [u64; 3],
}

impl<'w> Worker<'w> {
    fn new(window: &'w Window, arguments: &Arguments) -> Result<Self, RmaError> {
        Ok(Self {
            epoch: window.lock_all()?,
            jobs: arguments.jobs.into(),
            slots: arguments.slots.into(),
            executions: executions(arguments),
            tally: [0; 3],
        })
    }

    /// Makes jobs until all are made, and executes jobs until the queue is empty; returns how many.
    fn work(mut self) -> Result<[u64; 3], RmaError> {
        loop {
            let job = self.epoch.fetch_and_op(HOME, NEXT_JOB, Op::Sum, 1u64)?;
            if job >= self.jobs {
                break;
            }
            self.tally[0] += 1;
            while !self.push(job)? {
                if !self.execute_next()? {
                    // Full, and yet nothing is ready: other ranks are just at it.
                    self.tally[2] += 1;
                    self.execute(job)?;
                    break;
                }
            }
        }
        while self.execute_next()? {}
        self.epoch.unlock()?;
        Ok(self.tally)
    }

    /// Puts a job into the queue; false if it is full.
    fn push(&self, job: u64) -> Result<bool, RmaError> {
        let Some(ticket) = self.draw(FILL, 0)? else { return Ok(false) };
        let slot = self.slot(ticket);
        self.epoch.put(HOME, slot + 1, &[job])?;
        // The job must be there before anybody is told.
        self.epoch.flush(HOME)?;
        self.epoch.fetch_and_op(HOME, slot, Op::Sum, 1u64)?;
        Ok(true)
    }

    /// Takes a job out of the queue; `None` if it is empty.
    fn pop(&self) -> Result<Option<u64>, RmaError> {
        let Some(ticket) = self.draw(EMPTY, 1)? else { return Ok(None) };
        let slot = self.slot(ticket);
        let mut job = [0u64];
        self.epoch.get(HOME, slot + 1, &mut job)?;
        self.epoch.fetch_and_op(HOME, slot, Op::Sum, 1u64)?;
        Ok(Some(job[0]))
    }

    /// Draws the next ticket of `counter` if its slot is free (`filled` 0) or filled (1).
    fn draw(&self, counter: u64, filled: u64) -> Result<Option<u64>, RmaError> {
        let mut ticket = self.load(counter)?;
        loop {
            if self.load(self.slot(ticket))? == ticket / self.slots * 2 + filled {
                let drawn = self.epoch.compare_and_swap(HOME, counter, ticket, ticket + 1)?;
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
    fn load(&self, at: u64) -> Result<u64, RmaError> {
        self.epoch.fetch_and_op(HOME, at, Op::NoOp, 0)
    }

    /// Executes a job of the queue; false if there is none.
    fn execute_next(&mut self) -> Result<bool, RmaError> {
        match self.pop()? {
            Some(job) => self.execute(job).map(|()| true),
            None => Ok(false),
        }
    }

    fn execute(&mut self, job: u64) -> Result<(), RmaError> {
        self.tally[1] += 1;
        self.epoch.fetch_and_op(HOME, SUM, Op::Sum, result(job))?;
        self.epoch.fetch_and_op(HOME, self.executions + job, Op::Sum, 1u64)?;
        Ok(())
    }
}

/// What a job computes: how many steps it takes from `job + 1` to 1 (Collatz).
fn result(job: u64) -> u64 {
    let next = |n: &u64| (*n != 1).then(|| if n % 2 == 0 { n / 2 } else { 3 * n + 1 });
    std::iter::successors(Some(job + 1), next).count() as u64 - 1
}

/// What is wrong, if anything; at rank 0, when everything is complete.
fn verify(window: &Window, arguments: &Arguments) -> Result<Option<String>, RmaError> {
    window.sync();
    let mut counts = vec![0u64; arguments.jobs as usize];
    window.local().read(executions(arguments), &mut counts)?;
    if let Some(job) = counts.iter().position(|count| *count != 1) {
        let problem = format!("job {job} was executed {} times and not once", counts[job]);
        return Ok(Some(problem));
    }
    let sum: u64 = window.local().load(SUM)?;
    let expected: u64 = (0..u64::from(arguments.jobs)).map(result).sum();
    let problem = format!("the results sum up to {sum} and not to {expected}");
    Ok((sum != expected).then_some(problem))
}
