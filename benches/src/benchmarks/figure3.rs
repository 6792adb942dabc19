//! Fig. 3 of "Scalability Challenges in Current MPI One-Sided Implementations" (ISPDC 2016): what
//! the network's own transfers and messages take for contiguous puts, for puts of single bytes with
//! gaps, and for accumulates; and accumulates out of transfers, as its Fig. 1 has them, which rma
//! does not do.
use super::TARGET;
use super::network::{Ends, done, with_ends};
use crate::Result;
use crate::bench::{Bench, row};
use crate::measure::Work;
use crate::record::Unit;
use rma::{Config, Layout, LockAll, Op, RmaError, Universe};

/// Bytes of contiguous puts, and of puts of single bytes two apart.
const SIZES: [usize; 5] = [8, 512, 4 << 10, 64 << 10, 1 << 20];
const BLOCKS: [u64; 3] = [16, 256, 4096];
/// Of many transfers, which take long.
const ROUNDS: usize = 51;
/// Bytes of windows, whose last word is the lock of an emulated accumulate.
const PART: usize = 2 << 20;
const SUM: u64 = 0;
const LOCK: u64 = PART as u64 / 8 - 1;

/// What a rank of a simulation returns.
type Simulated<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// By libfabric.
pub(super) fn by_network(bench: &mut Bench<'_>) -> Result<()> {
    with_ends(bench, |bench, ends| {
        let builder = || bench.world().window(PART / 8, 8);
        let chosen = builder().allocate()?;
        let packed = builder().hint("rma_path", "messages")?.allocate()?;
        if let Some(mut ends) = ends {
            let (epoch, by_messages) = (chosen.lock_all()?, packed.lock_all()?);
            contiguous(bench, [&epoch, &by_messages], &mut ends)?;
            accumulates(bench, &epoch, &mut ends)?;
            bench.set_rounds(ROUNDS);
            blocks(bench, [&epoch, &by_messages], &mut ends)?;
            by_messages.unlock()?;
            epoch.unlock()?;
        }
        packed.free()?;
        Ok(chosen.free()?)
    })
}

fn contiguous(
    bench: &mut Bench<'_>,
    [epoch, by_messages]: [&LockAll<'_>; 2],
    (_, memory, _): &mut Ends<'_>,
) -> Result<()> {
    for bytes in SIZES {
        let values = vec![1u64; bytes / 8];
        let put = |epoch: &LockAll<'_>, n| (0..n).try_for_each(|_| put(epoch, &values));
        let mut packed = |n: u64| Ok(put(by_messages, n)?);
        let mut raw = |n: u64| (0..n).try_for_each(|_| done(memory.write(bytes, 1)));
        let limits: &mut [(&str, Work<'_>)] =
            &mut [("by messages", &mut packed), ("fi_write", &mut raw)];
        let draft = row("put + flush, contiguous").bytes(bytes);
        bench.alone(draft, &mut |n| Ok(put(epoch, n)?), limits)?;
    }
    Ok(())
}

fn put(epoch: &LockAll<'_>, values: &[u64]) -> std::result::Result<(), RmaError> {
    epoch.put(TARGET, 0, values)?;
    epoch.flush(TARGET)
}

/// Single bytes, two apart.
fn put_blocks(
    epoch: &LockAll<'_>,
    apart: &Layout,
    values: &[u8],
) -> std::result::Result<(), RmaError> {
    let byte = Layout::element::<u8>();
    let dense = byte.times(values.len() as u64);
    epoch.put(TARGET, apart.at(0), dense.of(values))?;
    epoch.flush(TARGET)
}

fn blocks(
    bench: &mut Bench<'_>,
    [epoch, by_messages]: [&LockAll<'_>; 2],
    (_, memory, _): &mut Ends<'_>,
) -> Result<()> {
    for count in BLOCKS {
        let values = vec![1u8; count as usize];
        let apart = Layout::element::<u8>().vector(count, 1, 2)?;
        let put =
            |epoch: &LockAll<'_>, n| (0..n).try_for_each(|_| put_blocks(epoch, &apart, &values));
        let mut packed = |n: u64| Ok(put(by_messages, n)?);
        let mut raw = |n: u64| (0..n).try_for_each(|_| done(memory.write(1, count)));
        let limits: &mut [(&str, Work<'_>)] =
            &mut [("by messages", &mut packed), ("fi_write of each byte", &mut raw)];
        let draft = row("put + flush, single bytes two apart").bytes(values.len());
        bench.alone(draft, &mut |n| Ok(put(epoch, n)?), limits)?;
    }
    Ok(())
}

fn accumulates(
    bench: &mut Bench<'_>,
    epoch: &LockAll<'_>,
    (_, memory, _): &mut Ends<'_>,
) -> Result<()> {
    let mut emulations = 0;
    let mut ours = |n: u64| Ok((0..n).try_for_each(|_| accumulate(epoch))?);
    let mut by_hand = |n: u64| {
        emulations += n;
        Ok((0..n).try_for_each(|_| emulate(epoch))?)
    };
    let fetches = memory.fetches();
    let mut raw = |n: u64| {
        (0..n).try_for_each(|_| {
            let locked = memory.fetch(1) && memory.read(8, 1);
            done(locked && memory.write(8, 1) && memory.fetch(1))
        })
    };
    let mut limits: Vec<(&str, Work<'_>)> = vec![("CAS, get, put, CAS", &mut by_hand)];
    if fetches {
        limits.push(("the same, raw atomics", &mut raw));
    }
    bench.alone(row("accumulate + flush_local").bytes(8), &mut ours, &mut limits)?;
    // Each of them counts.
    let mut sum = [0u64];
    epoch.get(TARGET, SUM, &mut sum)?;
    let least = emulations;
    if sum[0] < least {
        return Err(format!("{} were added of {least} emulated", sum[0]).into());
    }
    Ok(())
}

fn accumulate(epoch: &LockAll<'_>) -> std::result::Result<(), RmaError> {
    epoch.accumulate(TARGET, SUM, Op::Sum, &[1u64])?;
    epoch.flush_local(TARGET)
}

/// As networks without atomics of that kind are said to do it: a lock by compare-and-swap, a get,
/// a put, and the lock given back.
fn emulate(epoch: &LockAll<'_>) -> std::result::Result<(), RmaError> {
    while epoch.compare_and_swap(TARGET, LOCK, 0u64, 1)? != 0 {}
    let mut value = [0u64];
    epoch.get(TARGET, SUM, &mut value)?;
    epoch.put(TARGET, SUM, &[value[0] + 1])?;
    epoch.flush(TARGET)?;
    epoch.compare_and_swap(TARGET, LOCK, 1u64, 0)?;
    Ok(())
}

/// What is simulated, so many times in a row.
#[derive(Clone, Copy)]
enum Case {
    Contiguous(usize),
    Blocks(u64),
    Accumulate,
}

const TIMES: u32 = 4;
const CASES: [Case; 6] = [
    Case::Contiguous(8),
    Case::Contiguous(4 << 10),
    Case::Contiguous(64 << 10),
    Case::Blocks(16),
    Case::Blocks(256),
    Case::Accumulate,
];

/// How it is done.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Chosen,
    /// Each run of bytes, and each element that is combined, is the device's.
    Device,
    Messages,
    /// As [`emulate`].
    Emulated,
}

/// On the simulated device: the seed decides how long each step takes, so the figures are the same
/// on every machine.
pub(super) fn simulated(bench: &mut Bench<'_>) -> Result<()> {
    let seeds = if bench.is_smoke() { 1 } else { 201 };
    let ways = [Way::Chosen, Way::Device, Way::Messages, Way::Emulated];
    // By way and case, of each seed.
    let mut found = ways.map(|_| CASES.map(|_| Vec::new()));
    if bench.is_first() {
        for seed in 0..seeds {
            for (way, found) in ways.into_iter().zip(&mut found) {
                for (case, found) in CASES.into_iter().zip(found) {
                    found.push(of_seed(seed, way, case)?);
                }
            }
        }
    }
    let [chosen, device, messages, emulated] = &found;
    for (i, case) in CASES.into_iter().enumerate() {
        let mut limits = vec![("by device", &device[i][..]), ("by messages", &messages[i][..])];
        let draft = match case {
            Case::Contiguous(bytes) => row("put + flush, contiguous, virtual time").bytes(bytes),
            Case::Blocks(count) => {
                row("put + flush, single bytes two apart, virtual time").bytes(count as usize)
            }
            Case::Accumulate => {
                limits.push(("CAS, get, put, CAS", &emulated[i][..]));
                row("accumulate + flush_local + flush, virtual time").bytes(8)
            }
        };
        bench.note_beside(draft, Unit::Nanoseconds, &chosen[i], &limits)?;
    }
    Ok(())
}

/// Virtual nanoseconds of one of that case, in a simulation of its own: no other case moves what
/// the seed draws for it.
fn of_seed(seed: u64, way: Way, case: Case) -> Result<f64> {
    let mut config = Config::default();
    if way == Way::Device {
        config.set("device_run_bytes", "1")?;
    }
    let ranks = rma::simulate_rdma_with(config, 2, seed, |universe| time(&universe, way, case));
    let first = ranks?.into_iter().next().ok_or("a simulation without ranks")?;
    Ok(first.map_err(|error| error.to_string())?)
}

fn time(universe: &Universe, way: Way, case: Case) -> Simulated<f64> {
    let world = universe.world();
    let path = match way {
        Way::Chosen => "auto",
        Way::Messages => "messages",
        Way::Device | Way::Emulated => "device",
    };
    let window = world.window(PART / 8, 8).hint("rma_path", path)?.allocate()?;
    let epoch = window.lock_all()?;
    world.barrier()?;
    if world.rank() != rma::Rank(0) {
        epoch.unlock()?;
        world.barrier()?;
        window.free()?;
        return Ok(0.0);
    }
    let (words, bytes) = match case {
        Case::Contiguous(bytes) => (vec![1u64; bytes / 8], Vec::new()),
        Case::Blocks(count) => (Vec::new(), vec![1u8; count as usize]),
        Case::Accumulate => (Vec::new(), Vec::new()),
    };
    let apart = Layout::element::<u8>().vector(bytes.len() as u64, 1, 2)?;
    let start = world.transport().now();
    for _ in 0..TIMES {
        match case {
            Case::Contiguous(_) => put(&epoch, &words)?,
            Case::Blocks(_) => put_blocks(&epoch, &apart, &bytes)?,
            Case::Accumulate if way == Way::Emulated => emulate(&epoch)?,
            Case::Accumulate => accumulate(&epoch)?,
        }
    }
    epoch.flush(TARGET)?;
    let time = (world.transport().now() - start).as_nanos() as f64 / f64::from(TIMES);
    epoch.unlock()?;
    world.barrier()?;
    window.free()?;
    Ok(time)
}
