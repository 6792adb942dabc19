//! Operations by messages, and what their target does meanwhile (FEATURES A9).
use super::TARGET;
use crate::Result;
use crate::aligned::Aligned;
use crate::bench::{Bench, row};
use crate::machine::cpu_ns;
use crate::record::Unit;
use rma::{LockAll, Op, Window};
use std::hint::black_box;
use std::time::Duration;

/// What the target does.
#[derive(Clone, Copy, PartialEq)]
enum Target {
    /// Calls [`progress`](rma::Universe::progress) all the time.
    Polls,
    /// Waits in a barrier.
    Waits,
    /// Computes, and calls nothing.
    Computes,
}

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    let world = bench.world();
    let window = world.window(512, 8).hint("rma_path", "messages")?.allocate()?;
    // Tells the target when to stop.
    let flags = world.window(1, 8).allocate()?;
    for (stop, target) in (1..).zip([Target::Polls, Target::Waits, Target::Computes]) {
        while_target(bench, target, &window, &flags, stop)?;
    }
    direct(bench, &flags, 4)?;
    idle(bench)?;
    flags.free()?;
    Ok(window.free()?)
}

fn while_target(
    bench: &mut Bench<'_>,
    target: Target,
    window: &Window,
    flags: &Window,
    stop: u64,
) -> Result<()> {
    let world = bench.world();
    world.barrier()?;
    if bench.is_first() {
        let epoch = window.lock_all()?;
        for bytes in [8, 4096] {
            put(bench, name("put + flush by messages", target), &epoch, bytes)?;
        }
        fetch(bench, target, &epoch)?;
        epoch.unlock()?;
        tell(flags, stop)?;
    } else if world.rank() == TARGET {
        until(bench, target, flags, stop)?;
    }
    Ok(world.barrier()?)
}

/// Tells the target to stop: near, without a message.
fn tell(flags: &Window, stop: u64) -> Result<()> {
    let epoch = flags.lock_all()?;
    epoch.put(TARGET, 0, &[stop])?;
    Ok(epoch.unlock()?)
}

/// What the target does until it is told to stop.
fn until(bench: &Bench<'_>, target: Target, flags: &Window, stop: u64) -> Result<()> {
    let mine = flags.local();
    let mut work = 0u64;
    while target != Target::Waits && mine.load::<u64>(0)? < stop {
        match target {
            Target::Polls => _ = bench.progress(),
            _ => (0..1000).for_each(|i| work = black_box(work.wrapping_mul(31) + i)),
        }
    }
    Ok(())
}

/// Windows as programs make them, whose target computes.
fn direct(bench: &mut Bench<'_>, flags: &Window, stop: u64) -> Result<()> {
    let world = bench.world();
    let allocated = world.window(1, 8).allocate()?;
    let created = world.window(1, 8).create(vec![0u64]).map_err(rma::WindowError::from)?;
    world.barrier()?;
    if bench.is_first() {
        for (kind, window) in [("allocated", &allocated), ("created", &created)] {
            let epoch = window.lock_all()?;
            let name = name(&format!("put + flush, {kind} window"), Target::Computes);
            put(bench, name, &epoch, 8)?;
            epoch.unlock()?;
        }
        tell(flags, stop)?;
    } else if world.rank() == TARGET {
        until(bench, Target::Computes, flags, stop)?;
    }
    world.barrier()?;
    created.free()?;
    Ok(allocated.free()?)
}

fn name(what: &str, target: Target) -> String {
    let target = match target {
        Target::Polls => "target polls",
        Target::Waits => "target waits in a barrier",
        Target::Computes => "target computes",
    };
    format!("{what}, {target}")
}

fn put(bench: &mut Bench<'_>, name: String, epoch: &LockAll<'_>, bytes: usize) -> Result<()> {
    let buffer = Aligned::new(7u8, bytes);
    bench.alone(
        row(name).bytes(bytes),
        &mut |n| {
            for _ in 0..n {
                epoch.put(TARGET, 0, black_box(&buffer[..]))?;
                epoch.flush(TARGET)?;
            }
            Ok(())
        },
        &mut [],
    )
}

fn fetch(bench: &mut Bench<'_>, target: Target, epoch: &LockAll<'_>) -> Result<()> {
    bench.alone(
        row(name("fetch_and_op by messages", target)).bytes(8),
        &mut |n| {
            for _ in 0..n {
                black_box(epoch.fetch_and_op(TARGET, 0, Op::Sum, 1u64)?);
            }
            Ok(())
        },
        &mut [],
    )
}

/// What the agent costs while nothing arrives.
fn idle(bench: &mut Bench<'_>) -> Result<()> {
    let world = bench.world();
    let long = if bench.is_smoke() { Duration::from_millis(50) } else { Duration::from_secs(1) };
    world.barrier()?;
    let before = cpu_ns();
    std::thread::sleep(long);
    let worst = world.allreduce(&[cpu_ns() - before], Op::Max)?[0];
    let name = format!("CPU time of an idle rank with an agent in {long:?}");
    bench.note(row(name), Unit::Nanoseconds, &[worst as f64])
}
