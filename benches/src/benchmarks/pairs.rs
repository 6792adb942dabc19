//! One origin with several targets, and several pairs of ranks at once.
use super::TARGET;
use crate::Result;
use crate::aligned::Aligned;
use crate::bench::{Bench, row};
use crate::measure::Work;
use crate::raw::Raw;
use rma::{LockAll, Rank, Window};
use std::hint::black_box;
use std::sync::atomic::{Ordering::SeqCst, fence};

const SIZES: [usize; 2] = [8, 4 << 10];

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    let world = bench.world();
    let window = world.window(SIZES[1], 1).allocate()?;
    for bytes in SIZES {
        let buffer = Aligned::new(7u8, bytes);
        if bench.is_first() {
            in_turn(bench, &window, &buffer)?;
        }
        at_once(bench, &window, &buffer)?;
    }
    Ok(window.free()?)
}

/// Rank 0 puts to every other rank in turn.
fn in_turn(bench: &mut Bench<'_>, window: &Window, buffer: &[u8]) -> Result<()> {
    let others = u64::from(bench.world().size()) - 1;
    let target = |i: u64| Rank((1 + i % others) as u32);
    let part = |i: u64| -> Result<_> { Ok(Raw::new(&bench.part(window, target(i))?)) };
    let parts = (0..others).map(part).collect::<Result<Vec<_>>>()?;
    let epoch = window.lock_all()?;
    bench.alone(
        row(format!("put + flush by one rank to {others} in turn")).bytes(buffer.len()),
        &mut |n| (0..n).try_for_each(|i| put(&epoch, target(i), buffer)),
        &mut [("memcpy + fence", &mut |n| {
            (0..n).for_each(|i| copy(&parts[(i % others) as usize], buffer));
            Ok(())
        })],
    )?;
    Ok(epoch.unlock()?)
}

/// Each rank of the lower half puts to one of the upper half. **Collective.**
fn at_once(bench: &mut Bench<'_>, window: &Window, buffer: &[u8]) -> Result<()> {
    let world = bench.world();
    let pairs = world.size() / 2;
    let is_origin = world.rank().0 < pairs;
    let target = if is_origin { Rank(world.rank().0 + pairs) } else { TARGET };
    let part = Raw::new(&bench.part(window, target)?);
    let epoch = window.lock_all()?;
    let mut ours = |n| {
        if is_origin {
            (0..n).try_for_each(|_| put(&epoch, target, buffer))?;
        }
        Ok(())
    };
    let mut limit = |n| {
        if is_origin {
            (0..n).for_each(|_: u64| copy(&part, buffer));
        }
        Ok(())
    };
    let mut limits: [(&str, Work<'_>); 1] = [("memcpy + fence by as many", &mut limit)];
    let name = format!("put + flush by {pairs} pairs at once");
    bench.together(row(name).bytes(buffer.len()), &mut ours, &mut limits)?;
    Ok(epoch.unlock()?)
}

fn put(epoch: &LockAll<'_>, target: Rank, buffer: &[u8]) -> Result<()> {
    epoch.put(target, 0, black_box(buffer))?;
    Ok(epoch.flush(target)?)
}

fn copy(part: &Raw<'_>, buffer: &[u8]) {
    part.write_memcpy(black_box(buffer));
    fence(SeqCst);
}
