//! Accumulates of single elements and of arrays.
use super::TARGET;
use crate::Result;
use crate::aligned::Aligned;
use crate::bench::{Bench, row};
use crate::measure::Work;
use crate::raw::{HAS_ADD_F64, Raw};
use rma::{LockAll, Op};
use std::hint::black_box;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// For one element, in times of a raw atomic.
const GOAL: f64 = 3.0;
/// For a large array, in times of a plain loop.
const GOAL_LARGE: f64 = 1.1;
const LARGE: usize = 1 << 20;
const SIZES: [usize; 6] = [64, 512, 4 << 10, 8 << 10, 64 << 10, LARGE];

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    let window = bench.world().window(LARGE / 8, 8).allocate()?;
    if bench.is_first() {
        let part = Raw::new(&bench.part(&window, TARGET)?);
        let epoch = window.lock_all()?;
        of_i64(bench, &epoch, &part)?;
        of_f64(bench, &epoch, &part)?;
        arrays(bench, &epoch, &part)?;
        for bytes in SIZES {
            integers_by_atomics(bench, &epoch, &part, bytes)?;
        }
        epoch.unlock()?;
    }
    bench.world().barrier()?;
    window.free()?;
    by_lock(bench)
}

/// Integers of a window that combines arrays of them.
fn by_lock(bench: &mut Bench<'_>) -> Result<()> {
    let window = bench.world().window(LARGE / 8, 8);
    let window = window.hint("mpi_accumulate_granularity", "4096")?.allocate()?;
    if bench.is_first() {
        let part = Raw::new(&bench.part(&window, TARGET)?);
        let epoch = window.lock_all()?;
        for bytes in [8].into_iter().chain(SIZES) {
            integers_by_lock(bench, &epoch, &part, bytes)?;
        }
        epoch.unlock()?;
    }
    bench.world().barrier()?;
    Ok(window.free()?)
}

fn integers_by_atomics(
    bench: &mut Bench<'_>,
    epoch: &LockAll<'_>,
    part: &Raw<'_>,
    bytes: usize,
) -> Result<()> {
    let operands = Aligned::new(1i64, bytes / 8);
    bench.alone(
        row("accumulate i64 sum").bytes(bytes),
        &mut |n| {
            for _ in 0..n {
                epoch.accumulate(TARGET, 0, Op::Sum, black_box(&operands[..]))?;
            }
            Ok(())
        },
        &mut [("fetch_add each", &mut |n| {
            for _ in 0..n {
                for (i, operand) in black_box(&operands).iter().enumerate() {
                    part.word64(8 * i).fetch_add(operand.cast_unsigned(), SeqCst);
                }
            }
            Ok(())
        })],
    )
}

fn integers_by_lock(
    bench: &mut Bench<'_>,
    epoch: &LockAll<'_>,
    part: &Raw<'_>,
    bytes: usize,
) -> Result<()> {
    let operands = Aligned::new(1i64, bytes / 8);
    let mut ours = |n| {
        for _ in 0..n {
            epoch.accumulate(TARGET, 0, Op::Sum, black_box(&operands[..]))?;
        }
        Ok(())
    };
    let mut plain = |n| {
        for _ in 0..n {
            part.add_i64(black_box(&operands));
        }
        Ok(())
    };
    let mut limits: [(&str, Work<'_>); 1] = [("SIMD loop", &mut plain)];
    let limits = &mut limits[..usize::from(HAS_ADD_F64 && bytes >= 64)];
    bench.alone(row("accumulate i64 sum, by lock").bytes(bytes), &mut ours, limits)
}

/// As [`run`], with the values before.
pub(super) fn with_values(bench: &mut Bench<'_>) -> Result<()> {
    let window = bench.world().window(LARGE / 8, 8).allocate()?;
    if bench.is_first() {
        let part = Raw::new(&bench.part(&window, TARGET)?);
        let epoch = window.lock_all()?;
        one_with_value(bench, &epoch, &part)?;
        for bytes in SIZES {
            array_with_values(bench, &epoch, &part, bytes)?;
        }
        epoch.unlock()?;
    }
    bench.world().barrier()?;
    Ok(window.free()?)
}

fn one_with_value(bench: &mut Bench<'_>, epoch: &LockAll<'_>, part: &Raw<'_>) -> Result<()> {
    let word = part.word64(0);
    let mut before = [0i64];
    bench.alone(
        row("get_accumulate i64 sum").bytes(8).goal(GOAL),
        &mut |n| {
            for _ in 0..n {
                epoch.get_accumulate(TARGET, 0, Op::Sum, &[black_box(1i64)], &mut before)?;
                black_box(&before[..]);
            }
            Ok(())
        },
        &mut [("fetch_add", &mut |n| {
            for _ in 0..n {
                black_box(word.fetch_add(black_box(1), SeqCst));
            }
            Ok(())
        })],
    )
}

fn array_with_values(
    bench: &mut Bench<'_>,
    epoch: &LockAll<'_>,
    part: &Raw<'_>,
    bytes: usize,
) -> Result<()> {
    let operands = Aligned::new(1.0f64, bytes / 8);
    let (mut before, mut other) =
        (Aligned::new(0.0f64, bytes / 8), Aligned::new(0.0f64, bytes / 8));
    let mut ours = |n| {
        for _ in 0..n {
            epoch.get_accumulate(TARGET, 0, Op::Sum, black_box(&operands[..]), &mut before[..])?;
            black_box(&before[..]);
        }
        Ok(())
    };
    let mut plain = |n: u64| {
        for _ in 0..n {
            part.read_memcpy(black_box(bytemuck::cast_slice_mut(&mut other[..])));
            part.add_f64(black_box(&operands));
        }
        Ok(())
    };
    let mut limits: [(&str, Work<'_>); 1] = [("memcpy + SIMD loop", &mut plain)];
    let limits = &mut limits[..usize::from(HAS_ADD_F64)];
    bench.alone(row("get_accumulate f64 sum").bytes(bytes), &mut ours, limits)
}

fn of_i64(bench: &mut Bench<'_>, epoch: &LockAll<'_>, part: &Raw<'_>) -> Result<()> {
    let word = part.word64(0);
    bench.alone(
        row("accumulate i64 sum").bytes(8).goal(GOAL),
        &mut |n| {
            for _ in 0..n {
                epoch.accumulate(TARGET, 0, Op::Sum, &[black_box(1i64)])?;
            }
            Ok(())
        },
        &mut [("fetch_add", &mut |n| {
            for _ in 0..n {
                black_box(word.fetch_add(black_box(1), SeqCst));
            }
            Ok(())
        })],
    )
}

fn of_f64(bench: &mut Bench<'_>, epoch: &LockAll<'_>, part: &Raw<'_>) -> Result<()> {
    let word = part.word64(0);
    let mut add = |n| {
        for _ in 0..n {
            let add = |bits| Some((f64::from_bits(bits) + black_box(1.0)).to_bits());
            _ = black_box(word.fetch_update(SeqCst, Relaxed, add));
        }
        Ok(())
    };
    bench.alone(
        row("accumulate f64 sum").bytes(8).goal(GOAL),
        &mut |n| {
            for _ in 0..n {
                epoch.accumulate(TARGET, 0, Op::Sum, &[black_box(1.0f64)])?;
            }
            Ok(())
        },
        &mut [("compare_exchange", &mut add)],
    )?;
    bench.alone(
        row("fetch_and_op f64 sum").bytes(8).goal(GOAL),
        &mut |n| {
            for _ in 0..n {
                black_box(epoch.fetch_and_op(TARGET, 0, Op::Sum, black_box(1.0f64))?);
            }
            Ok(())
        },
        &mut [("compare_exchange", &mut add)],
    )
}

fn arrays(bench: &mut Bench<'_>, epoch: &LockAll<'_>, part: &Raw<'_>) -> Result<()> {
    for bytes in SIZES {
        let operands = Aligned::new(1.0f64, bytes / 8);
        let mut ours = |n| {
            for _ in 0..n {
                epoch.accumulate(TARGET, 0, Op::Sum, black_box(&operands[..]))?;
            }
            Ok(())
        };
        let mut plain = |n| {
            for _ in 0..n {
                part.add_f64(black_box(&operands));
            }
            Ok(())
        };
        let draft = row("accumulate f64 sum").bytes(bytes);
        let draft = if bytes == LARGE { draft.goal(GOAL_LARGE) } else { draft };
        if HAS_ADD_F64 {
            bench.alone(draft, &mut ours, &mut [("SIMD loop", &mut plain)])?;
        } else {
            bench.alone(draft, &mut ours, &mut [])?;
        }
    }
    Ok(())
}
