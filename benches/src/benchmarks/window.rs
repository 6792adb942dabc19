//! Making windows.
use crate::Result;
use crate::bench::{Bench, row};
use crate::record::Unit;
use std::fs;

const SIZES: [usize; 2] = [4 << 10, 1 << 20];
const ROUNDS: usize = 51;

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    let world = bench.world();
    bench.set_rounds(ROUNDS);
    for bytes in SIZES {
        bench.together(
            row("allocate + free").bytes(bytes),
            &mut |n| {
                for _ in 0..n {
                    world.window(bytes, 1).allocate()?.free()?;
                }
                Ok(())
            },
            &mut [],
        )?;
    }
    Ok(())
}

/// Windows that are open at the same time.
const MANY: usize = 1000;
const MANY_SMOKE: usize = 10;

/// What windows of 4 KiB cost in memory of a rank.
pub(super) fn memory(bench: &mut Bench<'_>) -> Result<()> {
    let world = bench.world();
    let many = if bench.is_smoke() { MANY_SMOKE } else { MANY };
    // What is set up once is not counted.
    world.window(SIZES[0], 1).allocate()?.free()?;
    let before = resident()?;
    let mut windows = Vec::with_capacity(many);
    for _ in 0..many {
        windows.push(world.window(SIZES[0], 1).allocate()?);
    }
    let grown = resident()?.saturating_sub(before) / many as u64;
    for window in windows {
        window.free()?;
    }
    // A window that costs nothing would be a figure that cannot be.
    bench.note(row("resident, an unused window of 4 KiB"), Unit::Bytes, &[grown.max(1) as f64])
}

/// Resident bytes of this process.
fn resident() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kib.ok_or("no VmRSS in /proc/self/status")? * 1024)
}
