//! Accumulates of single elements and of arrays.
use super::TARGET;
use crate::Result;
use crate::aligned::Aligned;
use crate::bench::{Bench, Draft, row};
use crate::measure::Work;
use crate::raw::{HAS_ADD_F64, Raw};
use rma::{BasicElement, LockAll, Op};
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
        for bytes in SIZES {
            let draft = row("accumulate f64 sum").bytes(bytes);
            let draft = if bytes == LARGE { draft.goal(GOAL_LARGE) } else { draft };
            let simd = simd_loop(bytes, |operands: &[f64]| part.add_f64(operands));
            arrays(bench, &epoch, (draft, bytes), 1.0, simd)?;
        }
        for bytes in SIZES {
            let draft = row("accumulate i64 sum").bytes(bytes);
            let simd = simd_loop(bytes, |operands: &[i64]| part.add_i64(operands));
            arrays(bench, &epoch, (draft, bytes), 1, simd)?;
        }
        epoch.unlock()?;
    }
    bench.world().barrier()?;
    window.free()?;
    of_several(bench)?;
    by_lock(bench)
}

/// Where the target has combined elements of its part before: no thread is alone there.
fn of_several(bench: &mut Bench<'_>) -> Result<()> {
    let each = |part: &Raw<'_>, operands: &[i64]| add_each(part, operands);
    let begun = [0i64; 64];
    several(bench, &begun[..1], |bench, epoch, part| {
        let name = "accumulate i64 sum, several origins";
        let limit = Some(("fetch_add each", |operands: &[i64]| each(part, operands)));
        arrays(bench, epoch, (row(name).bytes(8), 8), 1, limit)?;
        // Which by now have ended the locks of arrays.
        let name = "accumulate i64 sum, several origins, after single elements";
        let limit = Some(("fetch_add each", |operands: &[i64]| each(part, operands)));
        arrays(bench, epoch, (row(name).bytes(8 << 10), 8 << 10), 1, limit)
    })?;
    several(bench, &begun, |bench, epoch, part| {
        for bytes in SIZES {
            let draft = row("accumulate i64 sum, several origins").bytes(bytes);
            let simd = simd_loop(bytes, |operands: &[i64]| part.add_i64(operands));
            arrays(bench, epoch, (draft, bytes), 1, simd)?;
        }
        for bytes in [8].into_iter().chain(SIZES) {
            let draft = row("accumulate f64 sum, several origins").bytes(bytes);
            let draft = if bytes == LARGE { draft.goal(GOAL_LARGE) } else { draft };
            let simd = simd_loop(bytes, |operands: &[f64]| part.add_f64(operands));
            arrays(bench, epoch, (draft, bytes), 1.0, simd)?;
        }
        Ok(())
    })
}

/// Has the first rank measure in a window in which all ranks have combined `begun`, the target
/// before the others.
fn several(
    bench: &mut Bench<'_>,
    begun: &[i64],
    measure: impl FnOnce(&mut Bench<'_>, &LockAll<'_>, &Raw<'_>) -> Result<()>,
) -> Result<()> {
    let window = bench.world().window(LARGE / 8, 8).allocate()?;
    let epoch = window.lock_all()?;
    for is_turn in [window.rank() == TARGET, window.rank() != TARGET].repeat(2) {
        if is_turn {
            epoch.accumulate(TARGET, 0, Op::Sum, begun)?;
        }
        bench.world().barrier()?;
    }
    if bench.is_first() {
        let part = Raw::new(&bench.part(&window, TARGET)?);
        measure(bench, &epoch, &part)?;
    }
    epoch.unlock()?;
    bench.world().barrier()?;
    Ok(window.free()?)
}

/// As [`of_several`], integers of a window that combines arrays of them.
fn by_lock(bench: &mut Bench<'_>) -> Result<()> {
    let window = bench.world().window(LARGE / 8, 8);
    let window = window.hint("mpi_accumulate_granularity", "4096")?.allocate()?;
    let epoch = window.lock_all()?;
    epoch.accumulate(TARGET, 0, Op::Sum, &[0i64])?;
    bench.world().barrier()?;
    if bench.is_first() {
        let part = Raw::new(&bench.part(&window, TARGET)?);
        for bytes in [8].into_iter().chain(SIZES) {
            let draft = row("accumulate i64 sum, by lock").bytes(bytes);
            let simd = simd_loop(bytes, |operands: &[i64]| part.add_i64(operands));
            arrays(bench, &epoch, (draft, bytes), 1, simd)?;
        }
    }
    epoch.unlock()?;
    bench.world().barrier()?;
    Ok(window.free()?)
}

/// What adds operands to the part without regard to others, where the machine has a loop for that.
fn simd_loop<L>(bytes: usize, add: L) -> Option<(&'static str, L)> {
    (HAS_ADD_F64 && bytes >= 64).then_some(("SIMD loop", add))
}

/// Adds each operand to the part by an atomic.
fn add_each(part: &Raw<'_>, operands: &[i64]) {
    for (i, operand) in operands.iter().enumerate() {
        part.word64(8 * i).fetch_add(operand.cast_unsigned(), SeqCst);
    }
}

/// Sums of arrays of so many bytes, beside what adds such arrays otherwise.
fn arrays<E: BasicElement>(
    bench: &mut Bench<'_>,
    epoch: &LockAll<'_>,
    (draft, bytes): (Draft, usize),
    one: E,
    beside: Option<(&'static str, impl Fn(&[E]))>,
) -> Result<()> {
    let operands = Aligned::new(one, bytes / size_of::<E>());
    let mut ours = |n| {
        for _ in 0..n {
            epoch.accumulate(TARGET, 0, Op::Sum, black_box(&operands[..]))?;
        }
        Ok(())
    };
    let Some((name, add)) = beside else { return bench.alone(draft, &mut ours, &mut []) };
    let mut plain = |n| {
        for _ in 0..n {
            add(black_box(&operands[..]));
        }
        Ok(())
    };
    bench.alone(draft, &mut ours, &mut [(name, &mut plain)])
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
