//! Many more ranks than CPUs, and what they cost when they start and while they wait.
use crate::Result;
use crate::bench::{Bench, row};
use crate::machine::cpu_ns;
use crate::memory::{anonymous, mapped, resident};
use crate::record::Unit;
use rma::Op;
use std::thread;
use std::time::{Duration, Instant};

const BATCHES: usize = 10;
const FULL: usize = 100;
const SMOKE: usize = 2;

/// What a rank keeps that has done nothing yet.
pub(super) fn nothing(bench: &mut Bench<'_>) -> Result<()> {
    let world = bench.world();
    for (name, bytes) in [
        ("private memory of a rank", anonymous()?),
        ("resident in a rank, its program and what is shared included", resident()?),
        ("addresses of a rank", mapped()?),
    ] {
        let most = world.allreduce(&[bytes], Op::Max)?[0];
        bench.note(row(name), Unit::Bytes, &[most as f64])?;
    }
    Ok(())
}

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    let world = bench.world();
    let barriers = if bench.is_smoke() { SMOKE } else { FULL };
    let mut batches = Vec::new();
    for _ in 0..BATCHES {
        let start = Instant::now();
        for _ in 0..barriers {
            world.barrier()?;
        }
        batches.push(start.elapsed().as_nanos() as f64 / barriers as f64);
    }
    bench.note(row("barrier"), Unit::Nanoseconds, &batches)?;

    // Rank 0 comes late: what do the others do meanwhile?
    let late = if bench.is_smoke() { Duration::from_millis(50) } else { Duration::from_secs(1) };
    let before = cpu_ns();
    if bench.is_first() {
        thread::sleep(late);
    }
    world.barrier()?;
    let waited = world.allreduce(&[cpu_ns() - before], Op::Sum)?[0];
    let name = format!("CPU time of all ranks during a barrier held back for {late:?}");
    bench.note(row(name), Unit::Nanoseconds, &[waited as f64])
}
