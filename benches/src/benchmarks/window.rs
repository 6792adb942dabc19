//! Making windows.
use crate::Result;
use crate::bench::{Bench, row};
use crate::memory::{anonymous, resident, shared_of_machine};
use crate::raw::map_and_close;
use crate::record::Unit;
use rma::{Communicator, Op};
use std::time::Duration;

const SMALL: usize = 4 << 10;
const LARGE: usize = 1 << 20;
const ROUNDS: usize = 51;
/// So many windows of many ranks, one after the other, that these come to keep step.
const MANY_BATCH: Duration = Duration::from_millis(20);

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    let world = bench.world();
    bench.set_rounds(ROUNDS);
    // Small parts lie in memory that the rank has already, large ones in pages taken for them.
    let made = "a segment made, mapped and closed by each";
    let reserved = "a segment made, its pages taken, mapped and closed by each";
    for (bytes, what, limit) in [(SMALL, "4 KiB", made), (LARGE, "1 MiB", reserved)] {
        bench.together(
            row(format!("allocate + free, a window of {what}")),
            &mut |n| {
                for _ in 0..n {
                    cycle(world, bytes)?;
                }
                Ok(())
            },
            &mut [(limit, &mut |n| {
                Ok((0..n).try_for_each(|_| map_and_close(bytes, limit == reserved))?)
            })],
        )?;
    }
    if world.size() > 2 {
        // All must come when a window is made, and again when it is freed.
        bench.set_batch(MANY_BATCH);
        bench.together(
            row("allocate + free again and again, a window of 4 KiB"),
            &mut |n| (0..n).try_for_each(|_| cycle(world, SMALL)),
            &mut [("two barriers", &mut |n| Ok((0..2 * n).try_for_each(|_| world.barrier())?))],
        )?;
    }
    Ok(())
}

fn cycle(world: &Communicator, bytes: usize) -> Result<()> {
    Ok(world.window(bytes, 1).allocate()?.free()?)
}

/// What an unused window of 4 KiB costs in memory, from many that are open at the same time.
pub(super) fn memory(bench: &mut Bench<'_>) -> Result<()> {
    let world = bench.world();
    let many = match (bench.is_smoke(), world.size()) {
        (true, _) => 10,
        (false, 0..=4) => 10_000,
        (false, 5..=16) => 500,
        (false, _) => 50,
    };
    // What is set up once is not counted.
    world.window(SMALL, 1).allocate()?.free()?;
    let before = Kept::now(world)?;
    let mut windows = Vec::with_capacity(many);
    for _ in 0..many {
        windows.push(world.window(SMALL, 1).allocate()?);
    }
    let after = Kept::now(world)?;
    for window in windows {
        window.free()?;
    }
    let each = |grown: u64| grown as f64 / many as f64;
    let resident = after.resident.saturating_sub(before.resident);
    let resident = world.allreduce(&[resident], Op::Max)?[0];
    let itself = ("the window itself", &[SMALL as f64][..]);
    let name = "resident in a rank, an unused window of 4 KiB";
    bench.note_beside(row(name), Unit::Bytes, &[each(resident)], &[itself])?;
    let private = after.anonymous.saturating_sub(before.anonymous);
    let private = world.allreduce(&[private], Op::Max)?[0];
    let shared = after.shared.saturating_sub(before.shared) / u64::from(world.size());
    let name = "kept for a rank, private and shared, an unused window of 4 KiB";
    bench.note_beside(row(name), Unit::Bytes, &[each(private + shared)], &[itself])
}

/// What a rank and the machine keep at a moment when no rank makes or frees a window.
struct Kept {
    resident: u64,
    anonymous: u64,
    shared: u64,
}

impl Kept {
    /// **Collective.**
    fn now(world: &Communicator) -> Result<Self> {
        world.barrier()?;
        let kept =
            Self { resident: resident()?, anonymous: anonymous()?, shared: shared_of_machine()? };
        world.barrier()?;
        Ok(kept)
    }
}
