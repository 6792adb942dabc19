//! Collective operations that move much, next to a copy of as many bytes by every rank.
use crate::Result;
use crate::bench::{Bench, row};
use crate::measure::Work;
use rma::{Op, Rank};
use std::hint::black_box;

/// Bytes that each rank has when it is over.
const SIZES: [usize; 3] = [64 << 10, 1 << 20, 64 << 20];
/// From here on fewer batches do: each is long.
const LARGE: usize = 1 << 20;
const LARGE_ROUNDS: usize = 31;
const LARGEST_ROUNDS: usize = 9;
/// In times of `memcpy`.
const GOAL: f64 = 2.0;

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    let world = bench.world();
    let sizes = if bench.is_smoke() { &SIZES[..2] } else { &SIZES };
    for &bytes in sizes {
        match bytes {
            ..LARGE => {}
            LARGE => bench.set_rounds(LARGE_ROUNDS),
            _ => bench.set_rounds(LARGEST_ROUNDS),
        }
        let len = bytes / size_of::<f64>();
        let mut values = vec![1.0f64; len];
        measure(bench, "bcast", bytes, &mut |n| {
            Ok((0..n).try_for_each(|_| world.bcast(black_box(&mut values[..]), Rank(0)))?)
        })?;
        measure(bench, "allreduce f64 sum", bytes, &mut |n| {
            let values = black_box(&mut values[..]);
            Ok((0..n).try_for_each(|_| world.allreduce_in_place(values, Op::Sum))?)
        })?;
        measure(bench, "allgather", bytes, &mut |n| {
            let values = black_box(&mut values[..]);
            Ok((0..n).try_for_each(|_| world.allgather_in_place(values))?)
        })?;
        measure(bench, "alltoall", bytes, &mut |n| {
            let values = black_box(&mut values[..]);
            Ok((0..n).try_for_each(|_| world.alltoall_in_place(values))?)
        })?;
    }
    Ok(())
}

fn measure(bench: &mut Bench<'_>, name: &str, bytes: usize, ours: Work<'_>) -> Result<()> {
    let (from, mut to) = (vec![7u8; bytes], vec![0u8; bytes]);
    let memcpy: Work<'_> = &mut |n| {
        (0..n).for_each(|_| black_box(&mut to[..]).copy_from_slice(black_box(&from)));
        Ok(())
    };
    bench.together(row(name).bytes(bytes).goal(GOAL), ours, &mut [("memcpy", memcpy)])
}
