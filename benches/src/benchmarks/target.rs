//! What a target of a network costs and does while its rank calls nothing, is stopped, or is in
//! the same node.
use super::TARGET;
use crate::Result;
use crate::bench::{Bench, row};
use crate::counting::Counting;
use crate::machine::cpu_ns;
use crate::memory::{forget_peak, peak, resident};
use crate::record::Unit;
use crate::stopped::stop;
use rma::{LockAll, Op, RmaError, Window};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fs;
use std::hint::{black_box, spin_loop};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

const WORDS: usize = 64;
/// Words of the target: what is put to, and what tells it to go on.
const AT: u64 = 1;
const STOP: u64 = 2;
/// Puts to a target that computes, and the pause before each: threads that look for more of the one
/// before have stopped by then.
const PUTS: usize = 60;
const PAUSE: Duration = Duration::from_millis(15);
/// The most that a put may take then in the median, where a CPU is free and where none is, and the
/// share of a CPU that an idle rank may.
const FREE: Duration = Duration::from_millis(1);
const BUSY: Duration = Duration::from_millis(5);
const IDLE: f64 = 0.001;
/// A rank that looks for a word now and then, and sleeps in between.
const NAP: Duration = Duration::from_millis(1);

/// What the target does.
#[derive(Clone, Copy, PartialEq)]
enum Computes {
    /// All of its threads have the CPU that it is bound to.
    OnItsCpu,
    /// Its other threads may have any.
    BesideFree,
    /// So may another of the rank that computes, too.
    WithAnother,
}

/// What an idle rank costs, and a put to one that computes.
pub(super) fn progress(bench: &mut Bench<'_>) -> Result<()> {
    bench.needs_far(TARGET)?;
    let window = bench.world().window(WORDS, 8).allocate()?;
    idle(bench, &window)?;
    let all = [Computes::OnItsCpu, Computes::BesideFree, Computes::WithAnother];
    for (computes, round) in all.into_iter().zip(1..) {
        bench.world().barrier()?;
        if bench.is_first() {
            puts(bench, &window, computes, round)?;
        } else if bench.world().rank() == TARGET {
            compute(&window, computes, round)?;
        }
    }
    bench.world().barrier()?;
    Ok(window.free()?)
}

/// All of a rank, the threads of the transport and of libfabric, too.
fn idle(bench: &mut Bench<'_>, window: &Window) -> Result<()> {
    let world = bench.world();
    let (long, before) = match bench.is_smoke() {
        true => (Duration::from_millis(50), Duration::from_millis(20)),
        false => (Duration::from_secs(5), Duration::from_millis(500)),
    };
    if bench.is_first() {
        let epoch = window.lock_all()?;
        epoch.put(TARGET, AT, &[7u64])?;
        epoch.unlock()?;
    }
    world.barrier()?;
    thread::sleep(before);
    let (start, spent) = (Instant::now(), cpu_ns());
    thread::sleep(long);
    let share = (cpu_ns() - spent) as f64 / start.elapsed().as_nanos() as f64;
    let worst = world.allgather(&[share])?.into_iter().fold(0.0, f64::max);
    let name = format!("CPU time of an idle rank, of {long:?}");
    // Of a moment it would say nothing.
    let draft = if bench.is_smoke() { row(name) } else { row(name).goal(IDLE) };
    bench.note(draft, Unit::Share, &[worst])
}

fn puts(bench: &mut Bench<'_>, window: &Window, computes: Computes, round: u64) -> Result<()> {
    let epoch = window.lock_all()?;
    let put = || -> std::result::Result<(), RmaError> {
        epoch.put(TARGET, AT, &[7u64])?;
        epoch.flush(TARGET)
    };
    put()?;
    let count = if bench.is_smoke() { 3 } else { PUTS };
    let mut all = Vec::new();
    for _ in 0..count {
        thread::sleep(PAUSE);
        let start = Instant::now();
        put()?;
        all.push(start.elapsed().as_nanos() as f64);
    }
    epoch.put(TARGET, STOP, &[round])?;
    epoch.unlock()?;
    let (name, most) = match computes {
        Computes::OnItsCpu => ("put + flush, target computes on its only CPU", BUSY),
        Computes::BesideFree => ("put + flush, target computes beside a free CPU", FREE),
        Computes::WithAnother => ("put + flush, target computes on each CPU", BUSY),
    };
    let limit = vec![most.as_nanos() as f64; all.len()];
    let draft = row(name).bytes(8).goal(1.0);
    bench.note_beside(draft, Unit::Nanoseconds, &all, &[("median that is allowed", &limit)])
}

/// Until it is told to stop.
fn compute(window: &Window, computes: Computes, round: u64) -> Result<()> {
    let (mine, is_over) = (window.local(), AtomicBool::new(false));
    let bound = sched_getaffinity(None)?;
    if computes != Computes::OnItsCpu {
        unbind_others()?;
    }
    thread::scope(|scope| {
        if computes == Computes::WithAnother {
            scope.spawn(|| {
                unbind(None);
                while !is_over.load(Relaxed) {
                    spin_loop();
                }
            });
        }
        let mut work = 0u64;
        let done = loop {
            match mine.load::<u64>(STOP) {
                Ok(stop) if stop >= round => break Ok(()),
                Ok(_) => (0..1000).for_each(|i| work = black_box(work.wrapping_mul(31) + i)),
                Err(error) => break Err(error),
            }
        };
        is_over.store(true, Relaxed);
        done
    })?;
    Ok(sched_setaffinity(None, &bound)?)
}

/// Lets all threads of this process but the calling one run on every CPU.
fn unbind_others() -> Result<()> {
    let me = rustix::thread::gettid();
    for thread in fs::read_dir("/proc/self/task")?.flatten() {
        let number = thread.file_name().to_string_lossy().parse().ok().and_then(Pid::from_raw);
        if let Some(thread) = number.filter(|thread| *thread != me) {
            unbind(Some(thread));
        }
    }
    Ok(())
}

fn unbind(thread: Option<Pid>) {
    let mut all = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|cpu| all.set(cpu));
    // One that has ended needs none; where it is refused, the row shows it.
    _ = sched_setaffinity(thread, &all);
}

/// Puts to a live target, and to one that is stopped.
const MILLIONS: u64 = 10_000_000;
const FEW: u64 = 10_000;

/// What is resident while many puts are issued without a flush; while as many are tried, without a
/// wait, to a target that is stopped; and while it is stopped until one ends by its deadline.
pub(super) fn memory(bench: &mut Bench<'_>) -> Result<()> {
    bench.needs_far(TARGET)?;
    let world = bench.world();
    let window = world.window(WORDS, 8).allocate()?;
    let there = process_of_target(bench)?;
    let most = if bench.is_smoke() { FEW } else { MILLIONS };
    // An endpoint that puts takes memory of libfabric, once.
    if bench.is_first() {
        let epoch = window.lock_all()?;
        (0..FEW).try_for_each(|i| epoch.put(TARGET, AT, &[i]))?;
        epoch.unlock()?;
    }
    for (round, count) in (1..).zip([most / 100, most]) {
        live(bench, &window, count, round)?;
    }
    match there {
        Some(there) => {
            tried(bench, &window, most, there)?;
            stopped(bench, &window, most, there)?;
        }
        None => eprintln!("no puts to a stopped target (SKIPPED): it is on another host"),
    }
    // What lies in queues of a window whose wait has failed is lost, as it says itself.
    if let Err(error) = window.free() {
        eprintln!("a window that was put to while its target was stopped: {error}");
    }
    Ok(())
}

fn live(bench: &mut Bench<'_>, window: &Window, count: u64, round: u64) -> Result<()> {
    let world = bench.world();
    world.barrier()?;
    let before = resident()?;
    forget_peak();
    if bench.is_first() {
        let epoch = window.lock_all()?;
        (0..count).try_for_each(|i| epoch.put(TARGET, AT, &[i]))?;
        epoch.put(TARGET, STOP, &[round])?;
        epoch.unlock()?;
    } else if world.rank() == TARGET {
        // A barrier would end by the deadline of this job, which is short.
        while window.local().load::<u64>(STOP)? < round {
            thread::sleep(NAP);
        }
    }
    let grown = peak()?.saturating_sub(before) as f64;
    let all = world.allgather(&[grown])?;
    for (side, grown) in ["origin", "target"].into_iter().zip(all) {
        bench.note(row(format!("{side}, {count} puts to a live target")), Unit::Bytes, &[grown])?;
    }
    Ok(())
}

/// The process of the target, if it can be told apart from others by its number here.
/// **Collective.**
pub(super) fn process_of_target(bench: &Bench<'_>) -> Result<Option<Pid>> {
    // The machine since it was booted, and its numbers of processes.
    let machine = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let machine = u128::from_str_radix(&machine.trim().replace('-', ""), 16)?.to_le_bytes();
    let numbers = fs::metadata("/proc/self/ns/pid")?.ino().to_le_bytes();
    let mine = [&machine[..], &numbers, &std::process::id().to_le_bytes()].concat();
    let all = bench.world().allgather(&mine)?;
    let (place, id) = all[mine.len() * usize::from(TARGET)..][..mine.len()].split_at(24);
    let raw = i32::from_le_bytes(id.try_into()?);
    Ok(Pid::from_raw(raw).filter(|_| *place == mine[..24]))
}

/// Does something while a process is stopped, and says how far this rank's memory rose meanwhile.
fn while_stopped<R>(pid: Pid, work: impl FnOnce() -> R) -> Result<(R, f64)> {
    let before = resident()?;
    forget_peak();
    stop(pid);
    let result = work();
    let peak = peak();
    kill_process(pid, Signal::CONT)?;
    Ok((result, peak?.saturating_sub(before) as f64))
}

/// The target is stopped while so many puts are tried, and goes on afterwards: what was issued is
/// there.
fn tried(bench: &mut Bench<'_>, window: &Window, count: u64, pid: Pid) -> Result<()> {
    bench.world().barrier()?;
    if !bench.is_first() {
        return Ok(());
    }
    let epoch = window.lock_all()?;
    let (mut issued, mut short, mut failed) = (0, None, None);
    let (took, grown) = while_stopped(pid, || {
        let start = Instant::now();
        for i in 0..count {
            match epoch.try_put(TARGET, AT, &[i]) {
                Ok(()) => issued += 1,
                Err(error) => match error.shortage() {
                    Some(shortage) => short = Some(shortage),
                    None => failed = failed.take().or(Some(error)),
                },
            }
        }
        start.elapsed().as_nanos() as f64 / count as f64
    })?;
    if let Some(error) = failed {
        return Err(format!("a put that was tried to a stopped target ended with: {error}").into());
    }
    let short = short.ok_or("a stopped target took all that was put to it")?;
    eprintln!("what puts to a stopped target are short of: {short}");
    // The next one that finds room is the last.
    while let Err(error) = epoch.try_put(TARGET, AT, &[count]) {
        error.shortage().ok_or(error)?;
    }
    epoch.unlock()?;
    let count = format!("{count} puts tried without a wait to a stopped target");
    bench.note(row(format!("origin, {count}")), Unit::Bytes, &[grown])?;
    bench.note(row(format!("{count}: issued")), Unit::Count, &[issued as f64])?;
    bench.note(row(format!("{count}: each")), Unit::Nanoseconds, &[took])
}

/// The target is stopped, and goes on after `put` has failed.
fn stopped(bench: &mut Bench<'_>, window: &Window, count: u64, pid: Pid) -> Result<()> {
    bench.world().barrier()?;
    if !bench.is_first() {
        return Ok(());
    }
    let epoch = window.lock_all()?;
    let (tried, grown) = while_stopped(pid, || until_refused(&epoch, count))?;
    let (taken, took, error) = tried.ok_or("puts to a stopped target never ended by a deadline")?;
    if !matches!(error, RmaError::Timeout { .. }) {
        return Err(format!("a put to a stopped target ended with: {error}").into());
    }
    let count = format!("{count} puts tried to a stopped target");
    bench.note(row(format!("origin, {count}")), Unit::Bytes, &[grown])?;
    bench.note(row(format!("{count}: taken before one failed")), Unit::Count, &[taken as f64])?;
    let took = took.as_nanos() as f64;
    bench.note(row("until a put to a stopped target fails"), Unit::Nanoseconds, &[took])?;
    // It may say again that its wait has failed.
    if let Err(error) = epoch.unlock() {
        eprintln!("an epoch whose target was stopped: {error}");
    }
    Ok(())
}

/// How many puts were taken, how long the next took to fail, and how.
fn until_refused(epoch: &LockAll<'_>, count: u64) -> Option<(u64, Duration, RmaError)> {
    (0..count).find_map(|i| {
        let start = Instant::now();
        let error = epoch.put(TARGET, AT, &[i]).err()?;
        Some((i, start.elapsed(), error))
    })
}

/// Instructions of 8 B, with the loop around them: little more than are counted, so that growth
/// shows. A fetch_and_op takes three more than where there is no network.
const PUT: f64 = 22.0;
const GET: f64 = 22.0;
const FETCH: f64 = 30.0;
const TRACED: u64 = 4;

/// Inside a node, of a job of several.
pub(super) fn near(bench: &mut Bench<'_>) -> Result<()> {
    let window = bench.world().window(WORDS, 8).allocate()?;
    let mut counting = bench.is_first().then(Counting::start);
    if let Some(counting) = &mut counting {
        let epoch = window.lock_all()?;
        let mut value = [0u64];
        let mut put = |n: u64| Ok((0..n).try_for_each(|_| epoch.put(TARGET, AT, &[n]))?);
        let mut get = |n: u64| Ok((0..n).try_for_each(|_| epoch.get(TARGET, AT, &mut value))?);
        let mut fetch = |n: u64| -> Result<()> {
            for _ in 0..n {
                black_box(epoch.fetch_and_op(TARGET, AT, Op::Sum, 1u64)?);
            }
            Ok(())
        };
        let works: [(&str, f64, crate::measure::Work<'_>); 3] =
            [("put", PUT, &mut put), ("get", GET, &mut get), ("fetch_and_op", FETCH, &mut fetch)];
        for (name, most, work) in works {
            work(1)?;
            let how = counting.how();
            if let Some(count) = counting.instructions(TRACED, work)? {
                let name = format!("instructions {how}: {name}, near in a job with a network");
                bench.note(row(name).bytes(8).goal(most), Unit::Count, &[count])?;
            }
        }
        epoch.unlock()?;
        // Also where nothing can be counted step by step.
        let by_device = window.operation_counts().device as f64;
        let name = "operations by the device, near in a job with a network";
        bench.note(row(name).goal(0.0), Unit::Count, &[by_device])?;
    }
    bench.world().barrier()?;
    Ok(window.free()?)
}
