//! Many ranks that want one lock.
use crate::Result;
use crate::bench::{Bench, row};
use crate::record::Unit;
use rma::{LockKind, Op, Rank, Window};
use std::time::{Duration, Instant};

const HOME: Rank = Rank(0);
const FULL: Duration = Duration::from_secs(1);
const SMOKE: Duration = Duration::from_millis(50);
const ROUNDS: u64 = 3;
/// Words of the window: increments, and ranks that have come so far.
const COUNT: u64 = 0;
const HERE: u64 = 1;

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    let world = bench.world();
    let window = world.window(2, 8).allocate()?;
    let length = if bench.is_smoke() { SMOKE } else { FULL };
    let (mut rates, mut unfairness, mut total) = (Vec::new(), Vec::new(), 0u64);
    for round in 1..=ROUNDS {
        world.barrier()?;
        total += warm_up(&window, round * u64::from(world.size()))?;
        let (start, mut mine) = (Instant::now(), 0u64);
        while start.elapsed() < length || mine == 0 {
            increment(&window, COUNT)?;
            mine += 1;
        }
        let took = start.elapsed();
        let counts = world.allgather(&[mine])?;
        let (most, least) = (counts.iter().max(), counts.iter().min());
        let sum: u64 = counts.iter().sum();
        total += mine;
        rates.push(sum as f64 / took.as_secs_f64());
        let ratio = most.zip(least).map(|(most, least)| *most as f64 / *least as f64);
        unfairness.push(ratio.unwrap_or(f64::NAN));
    }
    let total = world.allreduce(&[total], Op::Sum)?[0];
    if bench.is_first() && window.local().load::<u64>(COUNT)? != total {
        return Err("the lock did not exclude: increments under it were lost".into());
    }
    bench.note(row("lock + get + put + unlock, all ranks together"), Unit::PerSecond, &rates)?;
    bench.note(row("most locks of a rank / fewest"), Unit::Times, &unfairness)?;
    Ok(window.free()?)
}

/// Increments a word under the lock.
fn increment(window: &Window, word: u64) -> Result<()> {
    let epoch = window.lock(HOME, LockKind::Exclusive)?;
    let mut count = [0u64];
    epoch.get(word, &mut count)?;
    epoch.put(word, &[count[0] + 1])?;
    Ok(epoch.unlock()?)
}

/// Keeps the lock busy until all ranks do; returns the increments of [`COUNT`].
fn warm_up(window: &Window, all_here: u64) -> Result<u64> {
    increment(window, HERE)?;
    let mut mine = 0;
    loop {
        increment(window, COUNT)?;
        mine += 1;
        let epoch = window.lock(HOME, LockKind::Shared)?;
        let mut here = [0u64];
        epoch.get(HERE, &mut here)?;
        epoch.unlock()?;
        if here[0] >= all_here {
            return Ok(mine);
        }
    }
}
