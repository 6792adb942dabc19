//! Collective operations that move much, next to a copy of as many bytes by every rank.
use crate::Result;
use crate::bench::{Bench, row};
use crate::hop::{Flags, await_at_least};
use crate::measure::Work;
use crate::raw::Raw;
use rma::{Op, Rank, Window};
use std::cell::Cell;
use std::hint::black_box;
use std::sync::atomic::Ordering::Release;

/// Bytes that each rank has when it is over.
const SIZES: [usize; 3] = [64 << 10, 1 << 20, 64 << 20];
/// From here on fewer batches do: each is long.
const LARGE: usize = 1 << 20;
const LARGE_ROUNDS: usize = 31;
const LARGEST_ROUNDS: usize = 9;
/// In times of `memcpy`.
const GOAL: f64 = 2.0;
/// In times of what moves the bytes from one CPU to another by hand.
const GOAL_BY_HAND: f64 = 1.2;
/// What `memcpy` copies to begins so far behind its place in a page: `rep movsb`, which it is for
/// many lengths, is several times as slow on AMD's Zen 3 where both sides have nearly the same.
const APART: usize = 2 << 10;
/// Bytes that are handed over at a time.
const PIECE: usize = 8 << 10;

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    let world = bench.world();
    let window = world.window(Flags::BYTES + LARGE, 1).allocate()?;
    let sizes = if bench.is_smoke() { &SIZES[..2] } else { &SIZES };
    for &bytes in sizes {
        match bytes {
            ..LARGE => {}
            LARGE => bench.set_rounds(LARGE_ROUNDS),
            _ => bench.set_rounds(LARGEST_ROUNDS),
        }
        let len = bytes / size_of::<f64>();
        let mut values = vec![1.0f64; len];
        let mut bcast =
            |n| Ok((0..n).try_for_each(|_| world.bcast(black_box(&mut values[..]), Rank(0)))?);
        if world.size() == 2 && bytes <= LARGE {
            handed_over(bench, &window, bytes, &mut bcast)?;
        }
        measure(bench, "bcast", bytes, &mut bcast)?;
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
    Ok(window.free()?)
}

/// A broadcast between two ranks next to what moves its bytes from one to the other by hand: into
/// shared memory, whose lines the other CPU has, and out of it, with a flag for each piece and one
/// when all is read. That bytes pass from cache to cache is in it, which is not in `memcpy`.
fn handed_over(
    bench: &mut Bench<'_>,
    window: &Window,
    bytes: usize,
    bcast: Work<'_>,
) -> Result<()> {
    let part = Raw::new(&bench.part(window, Rank(0))?);
    let flags = Flags::new(&part);
    let is_first = bench.is_first();
    let mut payload = vec![7u8; bytes];
    let count = Cell::new(0);
    bench.world().barrier()?;
    if is_first {
        flags.request.store(0, Release);
        flags.reply.store(0, Release);
    }
    bench.world().barrier()?;
    let mut by_hand = |n| {
        for _ in 0..n {
            for (at, piece) in (Flags::BYTES..).step_by(PIECE).zip(payload.chunks_mut(PIECE)) {
                count.set(count.get() + 1);
                if is_first {
                    part.write_memcpy_at(at, black_box(piece));
                    // pairs with `await_at_least` of the other rank.
                    flags.request.store(count.get(), Release);
                } else {
                    await_at_least(flags.request, count.get());
                    part.read_memcpy_at(at, black_box(piece));
                }
            }
            if is_first {
                await_at_least(flags.reply, count.get());
            } else {
                // pairs with `await_at_least` of the first rank.
                flags.reply.store(count.get(), Release);
            }
        }
        Ok(())
    };
    bench.together(
        row("bcast beside a copy by hand").bytes(bytes).goal(GOAL_BY_HAND),
        bcast,
        &mut [("through shared memory", &mut by_hand)],
    )
}

fn measure(bench: &mut Bench<'_>, name: &str, bytes: usize, ours: Work<'_>) -> Result<()> {
    let (from, mut to) = (vec![7u8; bytes], vec![0u8; bytes + APART]);
    let memcpy: Work<'_> = &mut |n| {
        (0..n).for_each(|_| black_box(&mut to[APART..]).copy_from_slice(black_box(&from)));
        Ok(())
    };
    bench.together(row(name).bytes(bytes).goal(GOAL), ours, &mut [("memcpy", memcpy)])
}
