//! Conformance by generation: programs of several ranks that proptest makes, played with the
//! library and compared with an oracle.
//!
//! A seed is a program. [`strategy`] draws numbers, [`legal`] makes a legal program of any
//! numbers, [`run`] plays it and [`record`]s what each rank saw, [`oracle`] says whether they could
//! have seen that. Operations that do not wait may be refused ([`program::Otherwise`]): what was
//! issued in the end counts once, what was refused and left has had no effect. A program that fails
//! is made smaller, by proptest, as long as it fails.
mod accesses;
mod calls;
pub mod cell;
pub mod legal;
pub mod linearize;
mod operations;
pub mod oracle;
pub mod program;
pub mod record;
pub mod run;
pub mod strategy;
mod tries;
pub mod values;
mod windows;

use oracle::Coverage;
use program::Program;
use proptest::strategy::ValueTree;
use record::Record;
use rma_core::{Communicator, Universe};
use std::sync::{Mutex, PoisonError};
use strategy::Draft;

/// Seeds whose programs found a mistake once: of 39,013 in a get and what is before and behind it,
/// where accumulates need not stay in order; of 58 in a try after its window was sealed, which had
/// asked before.
pub const FOUND: &[u64] = &[39_013, 58];

/// Those of them that are older than tries: no operation of theirs is tried, so that their programs
/// are as they were.
const WITHOUT_TRIES: &[u64] = &[39_013];

/// Programs that shrinking tries at most.
const TRIES: usize = 3_000;

/// Runs a body as so many ranks, with that seed for what the transport decides; an error is what
/// a rank panicked with, or why the job came to no end.
pub type Launch<'l> = dyn Fn(u64, u32, &(dyn Fn(Universe) + Sync)) -> Result<(), String> + 'l;

fn draw(seed: u64) -> impl ValueTree<Value = Draft> {
    strategy::draw(seed, !WITHOUT_TRIES.contains(&seed))
}

/// The program of a seed.
pub fn program(seed: u64) -> Program {
    legal::legalise(&draw(seed).current())
}

/// The ranks that play a program: the first of the job, in an order that the seed decides.
fn players(universe: &Universe, seed: u64, ranks: u32) -> Option<Communicator> {
    let world = universe.world();
    let color = (world.rank().0 < ranks).then_some(0);
    let key = if seed.is_multiple_of(3) { -1 } else { 1 } * i64::from(world.rank().0);
    world.split(color, key).expect("the ranks are there")
}

/// Plays a program with some ranks of a job; gives what all saw, at one of them. **Collective.**
pub fn records(universe: &Universe, seed: u64, program: &Program) -> Option<Vec<Record>> {
    let comm = players(universe, seed, program.ranks)?;
    run::play(universe, &comm, program).gather(&comm)
}

/// Plays one program in a job of its own, and compares.
fn attempt(seed: u64, program: &Program, launch: &Launch<'_>) -> Result<Coverage, String> {
    let verdict = Mutex::new(None);
    // One rank more in some jobs, which stands by.
    let ranks = program.ranks + u32::from(seed.is_multiple_of(4));
    launch(seed, ranks, &|universe| {
        if let Some(records) = records(&universe, seed, program) {
            let checked = oracle::check(program, &records);
            *verdict.lock().unwrap_or_else(PoisonError::into_inner) = Some(checked);
        }
        let dropped = universe.counters().messages_dropped();
        assert_eq!(dropped, 0, "messages that did not parse, or that no request waited for");
        universe.finalize().expect("every rank leaves in order");
    })?;
    let verdict = verdict.into_inner().unwrap_or_else(PoisonError::into_inner);
    verdict.expect("one rank has all records")
}

/// Plays the programs of these seeds, each in a job of its own; `again` times each where the seed
/// does not decide everything.
///
/// # Panics
///
/// If one fails: with the program, made smaller, and how to play it again with `command`.
pub fn check(
    seeds: impl Iterator<Item = u64>,
    again: u32,
    command: &str,
    launch: &Launch<'_>,
) -> Coverage {
    let mut coverage = Coverage::default();
    for seed in seeds {
        let mut tree = draw(seed);
        let program = legal::legalise(&tree.current());
        match attempt(seed, &program, launch) {
            Ok(one) => coverage.add(one),
            Err(problem) => {
                let fails = |program: &Program| {
                    (0..again).find_map(|_| attempt(seed, program, launch).err())
                };
                let (program, problem) = shrink(&mut tree, (program, problem), fails);
                panic!("{}", report(seed, &program, &problem, command));
            }
        }
    }
    coverage
}

/// Plays the programs of these seeds in one job. **Collective.**
///
/// # Panics
///
/// If one fails, on the rank that compares.
pub fn check_in_one_job(
    universe: &Universe,
    seeds: impl Iterator<Item = u64>,
    command: &str,
) -> Coverage {
    let mut coverage = Coverage::default();
    for seed in seeds {
        let program = program(seed);
        let Some(records) = records(universe, seed, &program) else { continue };
        match oracle::check(&program, &records) {
            Ok(one) => coverage.add(one),
            Err(problem) => panic!("{}", report(seed, &program, &problem, command)),
        }
    }
    coverage
}

/// A smaller program that still fails, and how.
fn shrink(
    tree: &mut impl ValueTree<Value = Draft>,
    mut smallest: (Program, String),
    fails: impl Fn(&Program) -> Option<String>,
) -> (Program, String) {
    let mut more = tree.simplify();
    for _ in 0..TRIES {
        if !more {
            break;
        }
        let program = legal::legalise(&tree.current());
        more = match fails(&program) {
            Some(problem) => {
                smallest = (program, problem);
                tree.simplify()
            }
            None => tree.complicate(),
        };
    }
    smallest
}

fn report(seed: u64, program: &Program, problem: &str, command: &str) -> String {
    format!(
        "the program of seed {seed} fails: {problem}\n\n{program}\nreplay with\n  \
         RMA_GENERATED_SEED={seed} {command}"
    )
}
