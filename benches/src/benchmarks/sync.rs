//! Two ranks that wait for each other.
use crate::Result;
use crate::bench::{Bench, row};
use crate::hop::{Flags, await_at_least};
use crate::measure::Work;
use crate::raw::Raw;
use rma::{Assert, Rank, Window};
use rustix::thread::sched_yield;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Release};
use std::time::Duration;

/// Fewer batches of many ranks: each takes long.
const MANY_ROUNDS: usize = 51;
/// A few turns of the scheduler.
const MANY_BATCH: Duration = Duration::from_millis(20);

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    let world = bench.world();
    if world.size() != 2 {
        return Err("this benchmark is for 2 ranks".into());
    }
    let window = world.window(Flags::BYTES, 1).allocate()?;
    let flags = Flags::new(&Raw::new(&bench.part(&window, Rank(0))?));
    let is_first = bench.is_first();
    let (mine, other) =
        if is_first { (flags.request, flags.reply) } else { (flags.reply, flags.request) };
    let count = Cell::new(0);
    let mut raw = |n| {
        for _ in 0..n {
            count.set(count.get() + 1);
            // pairs with the other rank's `await_at_least`.
            mine.store(count.get(), Release);
            await_at_least(other, count.get());
        }
        Ok(())
    };
    world.barrier()?;
    bench.together(
        row("barrier"),
        &mut |n| {
            for _ in 0..n {
                world.barrier()?;
            }
            Ok(())
        },
        &mut [("2 flags", &mut raw)],
    )?;
    fences(bench, &window, &mut [("2 flags", &mut raw)])?;
    pscw(bench, &window, mine, other, &count)?;
    Ok(window.free()?)
}

/// Barriers and fences of more ranks than there are CPUs.
pub(super) fn many(bench: &mut Bench<'_>) -> Result<()> {
    bench.set_rounds(MANY_ROUNDS);
    bench.set_batch(MANY_BATCH);
    let world = bench.world();
    let window = world.window(Flags::BYTES, 1).allocate()?;
    // Every rank must run once between two barriers: where all yield, a turn of one is that.
    let mut turns = |n| {
        (0..n).for_each(|_: u64| sched_yield());
        Ok(())
    };
    let mut limit: [(&str, Work<'_>); 1] = [("a turn of all, which yield", &mut turns)];
    bench.together(
        row("barrier"),
        &mut |n| Ok((0..n).try_for_each(|_| world.barrier())?),
        &mut limit,
    )?;
    fences(bench, &window, &mut limit)?;
    Ok(window.free()?)
}

/// Each ends an epoch and begins the next: the first and the last are not timed.
fn fences(bench: &mut Bench<'_>, window: &Window, limits: &mut [(&str, Work<'_>)]) -> Result<()> {
    let mut open = Some(window.fence(Assert::NONE)?);
    bench.together(
        row("fence"),
        &mut |n| {
            for _ in 0..n {
                open = open.take().map(|epoch| epoch.next(Assert::NONE)).transpose()?;
            }
            Ok(())
        },
        limits,
    )?;
    Ok(open.map_or(Ok(()), |epoch| epoch.end())?)
}

/// Post and complete take turns, so each waits for the other.
fn pscw(
    bench: &mut Bench<'_>,
    window: &Window,
    mine: &AtomicU64,
    other: &AtomicU64,
    count: &Cell<u64>,
) -> Result<()> {
    let is_first = bench.is_first();
    let mut turns = |n| {
        for _ in 0..n {
            count.set(count.get() + 1);
            if is_first {
                await_at_least(other, count.get());
            }
            // pairs with the other rank's `await_at_least`.
            mine.store(count.get(), Release);
            if !is_first {
                await_at_least(other, count.get());
            }
        }
        Ok(())
    };
    let partner = [bench.world().rank().on_ring(1, 2)];
    bench.together(
        row("post, start, complete, wait"),
        &mut |n| {
            for _ in 0..n {
                if is_first {
                    window.start(&partner, Assert::NONE)?.complete()?;
                } else {
                    window.post(&partner, Assert::NONE)?.wait()?;
                }
            }
            Ok(())
        },
        &mut [("2 flags in turn", &mut turns)],
    )
}
