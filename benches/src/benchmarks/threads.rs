//! Several threads of one rank in one epoch.
use super::TARGET;
use crate::Result;
use crate::bench::{Bench, row};
use crate::raw::Raw;
use crate::record::Unit;
use rma::RmaError;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::sync::Barrier;
use std::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst, fence};
use std::thread;
use std::time::Instant;

const THREADS: [u64; 3] = [1, 2, 4];
const BATCHES: usize = 21;
const FULL: u64 = 200_000;
const BY_MESSAGES: u64 = 10_000;
const SMOKE: u64 = 100;
/// Words between those of two threads: they share no cache line.
const APART: u64 = 16;

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    let window = bench.world().window((4 * APART) as usize, 8).allocate()?;
    if bench.is_first() {
        let puts = match (bench.is_smoke(), bench.is_far()) {
            (true, _) => SMOKE,
            (false, true) => BY_MESSAGES,
            (false, false) => FULL,
        };
        let part = Raw::new(&bench.part(&window, TARGET)?);
        let words: Vec<_> = (0..4 * APART).map(|i| part.word64(8 * i as usize)).collect();
        let epoch = window.lock_all()?;
        let put = |at, i| {
            epoch.put(TARGET, at, &[i])?;
            epoch.flush(TARGET)
        };
        let store = |at, i| {
            words[at as usize].store(i, Relaxed);
            fence(SeqCst);
            Ok(())
        };
        for threads in THREADS {
            let (mut ours, mut limit) = (Vec::new(), Vec::new());
            for _ in 0..BATCHES {
                // Of memory of this rank: it says nothing of a network.
                if !bench.is_far() {
                    limit.push(batch(threads, puts, store)?);
                }
                ours.push(batch(threads, puts, put)?);
            }
            let name = format!("put + flush, {threads} threads at once");
            let limit = ("store + fence by as many", &limit[..]);
            bench.note_beside(row(name).bytes(8), Unit::Nanoseconds, &ours, &[limit])?;
        }
        epoch.unlock()?;
    }
    bench.world().barrier()?;
    window.free()?;
    by_messages(bench)
}

/// Beside one thread that does it all: by messages, threads share the message ring of their rank.
fn by_messages(bench: &mut Bench<'_>) -> Result<()> {
    let builder = bench.world().window((4 * APART) as usize, 8).hint("rma_path", "messages")?;
    let window = builder.allocate()?;
    if bench.is_first() {
        let puts = if bench.is_smoke() { SMOKE } else { BY_MESSAGES };
        let epoch = window.lock_all()?;
        let put = |at, i| epoch.put(TARGET, at, &[i]);
        for threads in THREADS {
            let (mut ours, mut alone) = (Vec::new(), Vec::new());
            for _ in 0..BATCHES {
                alone.push(batch(1, threads * puts, put)? * threads as f64);
                epoch.flush(TARGET)?;
                ours.push(batch(threads, puts, put)?);
                epoch.flush(TARGET)?;
            }
            let name = format!("put by messages, {threads} threads at once");
            let limit = ("as many by one thread", &alone[..]);
            bench.note_beside(row(name).bytes(8), Unit::Nanoseconds, &ours, &[limit])?;
        }
        epoch.unlock()?;
    }
    bench.world().barrier()?;
    Ok(window.free()?)
}

/// Nanoseconds that a thread needs for a write to a word of its own, while the others do the same.
fn batch(
    threads: u64,
    puts: u64,
    write: impl Fn(u64, u64) -> std::result::Result<(), RmaError> + Sync,
) -> Result<f64> {
    let together = Barrier::new(threads as usize);
    let work = |thread: u64| -> std::result::Result<f64, RmaError> {
        unbind();
        together.wait();
        let start = Instant::now();
        for i in 0..puts {
            write(thread * APART, i)?;
        }
        Ok(start.elapsed().as_nanos() as f64 / puts as f64)
    };
    let all = thread::scope(|scope| {
        let work = &work;
        let started: Vec<_> =
            (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        started.into_iter().map(|thread| thread.join()).collect::<Vec<_>>()
    });
    let mut slowest = 0.0f64;
    for ns in all {
        slowest = slowest.max(ns.map_err(|_| "a thread panicked")??);
    }
    Ok(slowest)
}

/// Lets this thread run on every CPU that the kernel permits: its rank is bound to one.
fn unbind() {
    let mut all = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|cpu| all.set(cpu));
    // Where that is refused, threads take turns on the CPU, and the row shows it.
    let _ = sched_setaffinity(None, &all);
}
