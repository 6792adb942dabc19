//! Many ranks that want one lock.
use crate::Result;
use crate::bench::{Bench, row};
use crate::raw::Raw;
use crate::record::Unit;
use rma::{LockKind, Op, Rank, Window};
use std::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};

const HOME: Rank = Rank(0);
const FULL: Duration = Duration::from_secs(1);
const SMOKE: Duration = Duration::from_millis(50);
const ROUNDS: u64 = 3;
/// Words of the window: increments, and ranks that have come so far.
const COUNT: u64 = 0;
const HERE: u64 = 1;
/// Bytes of a part, and where the words of the limit are in it.
const PART: usize = 256;
const ALONE_AT: usize = 128;
/// Increments of the limit.
const ALONE: u64 = 100_000;

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    let world = bench.world();
    let window = world.window(PART / 8, 8).allocate()?;
    let length = if bench.is_smoke() { SMOKE } else { FULL };
    let (mut rates, mut limits) = (Vec::new(), Vec::new());
    let (mut unfairness, mut total) = (Vec::new(), 0u64);
    for round in 1..=ROUNDS {
        if bench.is_first() && !bench.is_far() {
            limits.push(alone(&Raw::new(&window.shared_query(HOME)?)));
        }
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
    let limit = ("2 atomics + load + store by one", &limits[..]);
    let draft = row("lock + get + put + unlock, all ranks together");
    bench.note_beside(draft, Unit::PerSecond, &rates, &[limit])?;
    bench.note(row("most locks of a rank / fewest"), Unit::Times, &unfairness)?;
    Ok(window.free()?)
}

/// How many increments a second of a word under a lock word, if no other rank wants it.
fn alone(part: &Raw<'_>) -> f64 {
    let (word, lock) = (part.word64(ALONE_AT), part.word64(ALONE_AT + 64));
    let start = Instant::now();
    for _ in 0..ALONE {
        _ = lock.compare_exchange(0, 1, SeqCst, SeqCst);
        word.store(word.load(Relaxed) + 1, Relaxed);
        _ = lock.compare_exchange(1, 0, SeqCst, SeqCst);
    }
    ALONE as f64 / start.elapsed().as_secs_f64()
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
