//! Many single elements at once, next to the same by one call each.
use super::TARGET;
use crate::Result;
use crate::bench::{Bench, row};
use rma::{LockAll, Op, Rank};
use std::hint::black_box;

const WORDS: usize = 1 << 16;
const PLACES: usize = 1024;

/// In times of the loop of calls, near.
const GOAL: f64 = 1.1;

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    for path in bench.ways()? {
        let window = bench.world().window(WORDS, 8).hint("rma_path", path)?.allocate()?;
        if bench.is_first() {
            let epoch = window.lock_all()?;
            of(bench, &epoch, path)?;
            epoch.unlock()?;
        }
        bench.world().barrier()?;
        window.free()?;
    }
    Ok(())
}

/// Places all over the window, in no order: Fibonacci hashing.
fn places() -> Vec<(Rank, u64)> {
    let spread = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - WORDS.ilog2());
    (0..PLACES as u64).map(|i| (TARGET, spread(i))).collect()
}

fn of(bench: &mut Bench<'_>, epoch: &LockAll<'_>, path: &str) -> Result<()> {
    let (places, values) = (places(), vec![1u64; PLACES]);
    let (mut found, mut others) = (vec![0u64; PLACES], vec![0u64; PLACES]);
    let near = path == "load_store";
    let named = |what: &str| {
        let row = row(format!("{what} of {PLACES} places, {path}")).bytes(8 * PLACES);
        if near { row.goal(GOAL) } else { row }
    };
    bench.alone(
        named("accumulate"),
        &mut |n| {
            for _ in 0..n {
                epoch.batch(black_box(&places)).accumulate(Op::Sum, &values)?;
                epoch.flush(TARGET)?;
            }
            Ok(())
        },
        &mut [("a call each", &mut |n| {
            for _ in 0..n {
                for ((target, disp), value) in black_box(&places).iter().zip(&values) {
                    epoch.accumulate(*target, *disp, Op::Sum, &[*value])?;
                }
                epoch.flush(TARGET)?;
            }
            Ok(())
        })],
    )?;
    bench.alone(
        named("get"),
        &mut |n| {
            for _ in 0..n {
                epoch.batch(black_box(&places)).get(&mut found)?;
            }
            Ok(())
        },
        &mut [("a call each", &mut |n| {
            for _ in 0..n {
                let others = black_box(&mut others);
                epoch.ops(|ops| {
                    let mut each = places.iter().zip(others.chunks_mut(1));
                    each.try_for_each(|((target, disp), value)| ops.get(*target, *disp, value))
                })?;
            }
            Ok(())
        })],
    )
}
