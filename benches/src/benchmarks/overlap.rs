//! How much of a transfer is hidden behind what its origin computes meanwhile.
use super::TARGET;
use crate::Result;
use crate::aligned::Aligned;
use crate::bench::{Bench, row};
use rma::{LockAll, Window};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Sent at once by messages; a larger one waits for what its target grants.
const EAGER: usize = 8 << 10;
const LARGE: usize = 1 << 20;
const ROUNDS: usize = 101;
/// Runs of which the fastest says how long a transfer takes, to compute for as long.
const TRIALS: usize = 20;
/// Steps of a computation that is timed.
const STEPS: u64 = 20_000;

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    bench.set_rounds(ROUNDS);
    for path in bench.ways()? {
        let window = bench.world().window(LARGE, 1).hint("rma_path", path)?.allocate()?;
        if bench.is_first() {
            all(bench, &window, path)?;
        }
        bench.world().barrier()?;
        window.free()?;
    }
    Ok(())
}

fn all(bench: &mut Bench<'_>, window: &Window, path: &str) -> Result<()> {
    let epoch = window.lock_all()?;
    let small = Aligned::new(7u8, EAGER);
    hidden(bench, &format!("put of 8 KiB and flush, {path}"), |steps| {
        epoch.put(TARGET, 0, black_box(&small[..]))?;
        compute(steps);
        Ok(epoch.flush(TARGET)?)
    })?;
    let mut large = vec![7u8; LARGE];
    hidden(bench, &format!("rput of 1 MiB, {path}"), |steps| rput(&epoch, &mut large, steps))?;
    hidden(bench, &format!("rget of 1 MiB, {path}"), |steps| {
        let request = epoch.rget(TARGET, 0, black_box(std::mem::take(&mut large)))?;
        compute(steps);
        large = request.wait()?;
        Ok(())
    })?;
    Ok(epoch.unlock()?)
}

/// Complete at the target when it returns.
fn rput(epoch: &LockAll<'_>, large: &mut Vec<u8>, steps: u64) -> Result<()> {
    let request = epoch.rput(TARGET, 0, black_box(std::mem::take(large)))?;
    compute(steps);
    *large = request.wait()?;
    Ok(epoch.flush(TARGET)?)
}

/// A transfer that computes so many steps before it waits, next to the same with none, and to the
/// steps alone. As many steps as take as long as the transfer.
fn hidden(
    bench: &mut Bench<'_>,
    name: &str,
    transfer: impl FnMut(u64) -> Result<()>,
) -> Result<()> {
    let transfer = std::cell::RefCell::new(transfer);
    let with = |n: u64, steps: u64| (0..n).try_for_each(|_| transfer.borrow_mut()(steps));
    let alone = fastest(|| with(1, 0))?;
    let of_steps = fastest(|| {
        compute(STEPS);
        Ok(())
    })?;
    let steps = (STEPS as f64 * alone.as_secs_f64() / of_steps.as_secs_f64()) as u64;
    let steps = steps.max(1);
    bench.hidden(
        row(name),
        &mut |n| with(n, steps),
        [
            ("the transfer alone", &mut |n| with(n, 0)),
            ("the computation alone", &mut |n| {
                (0..n).for_each(|_| compute(steps));
                Ok(())
            }),
        ],
    )
}

fn fastest(mut work: impl FnMut() -> Result<()>) -> Result<Duration> {
    let mut least = Duration::MAX;
    for _ in 0..TRIALS {
        let start = Instant::now();
        work()?;
        least = least.min(start.elapsed());
    }
    Ok(least)
}

/// Each step waits for the one before, and none touches memory.
fn compute(steps: u64) {
    let mut value = black_box(1u64);
    (0..steps).for_each(|step| value = black_box(value.wrapping_mul(31) ^ step));
    black_box(value);
}
