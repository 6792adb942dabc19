//! Large puts and gets.
use super::TARGET;
use crate::Result;
use crate::bench::{Bench, Draft, row};
use crate::measure::Work;
use crate::raw::{HAS_NON_TEMPORAL, Raw};
use rma::{Communicator, LockAll, Rank};
use std::cell::RefCell;
use std::hint::black_box;

const SIZES: [usize; 5] = [64 << 10, 1 << 20, 2 << 20, 4 << 20, 16 << 20];
/// From here on fewer batches do: each is long.
const LARGE: usize = 2 << 20;
const LARGE_ROUNDS: usize = 101;
/// How many limits there are: `memcpy`, and the non-temporal copy where there is one.
const LIMITS: usize = 1 + HAS_NON_TEMPORAL as usize;

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    let largest = SIZES[SIZES.len() - 1];
    let window = bench.world().window(largest, 1).allocate()?;
    if bench.is_first() {
        let part = Raw::new(&window.shared_query(TARGET)?);
        let mut buffer = vec![7u8; largest];
        let epoch = window.lock_all()?;
        for bytes in SIZES {
            if bytes >= LARGE {
                bench.set_rounds(LARGE_ROUNDS);
            }
            put(bench, &epoch, &part, &buffer[..bytes])?;
            get(bench, &epoch, &part, &mut buffer[..bytes])?;
        }
        epoch.unlock()?;
    }
    bench.world().barrier()?;
    Ok(window.free()?)
}

/// Both ranks put to each other at the same time.
pub(super) fn both(bench: &mut Bench<'_>) -> Result<()> {
    let world = bench.world();
    if world.size() != 2 {
        return Err("this benchmark is for 2 ranks".into());
    }
    let largest = SIZES[SIZES.len() - 1];
    let window = world.window(largest, 1).allocate()?;
    let partner = world.rank().on_ring(1, 2);
    let part = Raw::new(&window.shared_query(partner)?);
    let buffer = vec![7u8; largest];
    let epoch = window.lock_all()?;
    for bytes in SIZES {
        if bytes >= LARGE {
            bench.set_rounds(LARGE_ROUNDS);
        }
        put_both(bench, (&epoch, partner), &part, &buffer[..bytes])?;
    }
    epoch.unlock()?;
    Ok(window.free()?)
}

/// Each batch ends when both are done.
fn put_both(
    bench: &mut Bench<'_>,
    (epoch, partner): (&LockAll<'_>, Rank),
    part: &Raw<'_>,
    buffer: &[u8],
) -> Result<()> {
    let world: &Communicator = bench.world();
    let mut limits: [(&str, Work<'_>); 2] = [
        ("memcpy by both", &mut |n| {
            (0..n).for_each(|_| part.write_memcpy(black_box(buffer)));
            Ok(world.barrier()?)
        }),
        ("non-temporal by both", &mut |n| {
            (0..n).for_each(|_| part.write_non_temporal(black_box(buffer)));
            Ok(world.barrier()?)
        }),
    ];
    bench.together(
        draft("put + flush by both at once, each way", buffer.len()),
        &mut |n| {
            for _ in 0..n {
                epoch.put(partner, 0, black_box(buffer))?;
                epoch.flush(partner)?;
            }
            Ok(world.barrier()?)
        },
        &mut limits[..LIMITS],
    )
}

fn draft(name: &str, bytes: usize) -> Draft {
    row(name).bytes(bytes).goal(1.05)
}

fn put(bench: &mut Bench<'_>, epoch: &LockAll<'_>, part: &Raw<'_>, buffer: &[u8]) -> Result<()> {
    let mut limits: [(&str, Work<'_>); 2] = [
        ("memcpy", &mut |n| {
            (0..n).for_each(|_| part.write_memcpy(black_box(buffer)));
            Ok(())
        }),
        ("non-temporal", &mut |n| {
            (0..n).for_each(|_| part.write_non_temporal(black_box(buffer)));
            Ok(())
        }),
    ];
    bench.alone(
        draft("put + flush", buffer.len()),
        &mut |n| {
            for _ in 0..n {
                epoch.put(TARGET, 0, black_box(buffer))?;
                epoch.flush(TARGET)?;
            }
            Ok(())
        },
        &mut limits[..LIMITS],
    )
}

fn get(
    bench: &mut Bench<'_>,
    epoch: &LockAll<'_>,
    part: &Raw<'_>,
    buffer: &mut [u8],
) -> Result<()> {
    let draft = draft("get", buffer.len());
    // Every work reads into the same buffer, one at a time.
    let buffer = RefCell::new(buffer);
    let mut limits: [(&str, Work<'_>); 2] = [
        ("memcpy", &mut |n| {
            let mut buffer = buffer.borrow_mut();
            (0..n).for_each(|_| part.read_memcpy(black_box(&mut buffer)));
            Ok(())
        }),
        ("non-temporal", &mut |n| {
            let mut buffer = buffer.borrow_mut();
            (0..n).for_each(|_| part.read_non_temporal(black_box(&mut buffer)));
            Ok(())
        }),
    ];
    bench.alone(
        draft,
        &mut |n| {
            for _ in 0..n {
                epoch.get(TARGET, 0, black_box(&mut **buffer.borrow_mut()))?;
            }
            Ok(())
        },
        &mut limits[..LIMITS],
    )
}
