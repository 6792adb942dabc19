//! One element by each form of a call, next to the plain one.
use super::TARGET;
use crate::Result;
use crate::bench::{Bench, row};
use rma::{Layout, LockAll, Op};
use std::hint::black_box;
use std::mem::take;

/// In times of the plain call.
const GOAL: f64 = 3.0;

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    let window = bench.world().window(1 << 10, 8).allocate()?;
    if bench.is_first() {
        let epoch = window.lock_all()?;
        of_put(bench, &epoch)?;
        of_get(bench, &epoch)?;
        of_accumulate(bench, &epoch)?;
        of_get_accumulate(bench, &epoch)?;
        epoch.unlock()?;
    }
    bench.world().barrier()?;
    Ok(window.free()?)
}

/// Loops are in the closures of both, so that calls are inlined as they are in programs.
macro_rules! beside {
    ($bench:expr, $name:expr, $plain:expr, $form:expr) => {
        $bench.alone(
            row($name).bytes(8).goal(GOAL),
            &mut |n| {
                for _ in 0..n {
                    $form?;
                }
                Ok(())
            },
            &mut [("plain", &mut |n| {
                for _ in 0..n {
                    $plain?;
                }
                Ok(())
            })],
        )?
    };
}

fn of_put(bench: &mut Bench<'_>, epoch: &LockAll<'_>) -> Result<()> {
    let element = Layout::element::<u64>();
    let value = [black_box(1u64)];
    let put = || epoch.put(TARGET, 0, black_box(&value));
    beside!(bench, "put in ops", put(), epoch.ops(|ops| ops.put(TARGET, 0, black_box(&value))));
    beside!(
        bench,
        "put of a layout",
        put(),
        epoch.put(TARGET, element.at(0), element.of(black_box(&value)))
    );
    let mut buffer = vec![1u64];
    // What a request cannot be faster than: its buffer travels in and out.
    beside!(bench, "put of a buffer that is moved in and out", put(), {
        let moved = black_box(take(&mut buffer));
        let done = epoch.put(TARGET, 0, &moved);
        buffer = black_box(moved);
        done
    });
    // In registers, which a small array or a single value travels in.
    beside!(bench, "rput of an array + wait", put(), {
        let request = epoch.rput(TARGET, 0, [black_box(1u64)]);
        request.and_then(|request| request.wait()).map(|back| _ = black_box(back))
    });
    beside!(bench, "rput + wait", put(), {
        let request = epoch.rput(TARGET, 0, black_box(take(&mut buffer)));
        request.and_then(|request| request.wait()).map(|back| buffer = back)
    });
    Ok(())
}

fn of_get(bench: &mut Bench<'_>, epoch: &LockAll<'_>) -> Result<()> {
    let element = Layout::element::<u64>();
    let (mut value, mut other) = ([0u64], [0u64]);
    let mut get = || epoch.get(TARGET, 0, black_box(&mut value));
    beside!(bench, "get in ops", get(), epoch.ops(|ops| ops.get(TARGET, 0, black_box(&mut other))));
    beside!(
        bench,
        "get of a layout",
        get(),
        epoch.get(TARGET, element.at(0), element.of(black_box(&mut other)))
    );
    beside!(bench, "rget of an array + wait", get(), {
        let request = epoch.rget(TARGET, 0, [black_box(0u64)]);
        request.and_then(|request| request.wait()).map(|back| _ = black_box(back))
    });
    let mut buffer = vec![1u64];
    beside!(bench, "rget + wait", get(), {
        let request = epoch.rget(TARGET, 0, black_box(take(&mut buffer)));
        request.and_then(|request| request.wait()).map(|back| buffer = back)
    });
    Ok(())
}

fn of_accumulate(bench: &mut Bench<'_>, epoch: &LockAll<'_>) -> Result<()> {
    let (element, float) = (Layout::element::<u64>(), Layout::element::<f64>());
    let (value, real) = ([black_box(1u64)], [black_box(1.0f64)]);
    let sum = || epoch.accumulate(TARGET, 0, Op::Sum, black_box(&value));
    beside!(
        bench,
        "accumulate in ops",
        sum(),
        epoch.ops(|ops| ops.accumulate(TARGET, 0, Op::Sum, black_box(&value)))
    );
    beside!(
        bench,
        "accumulate u64 of a layout",
        sum(),
        epoch.accumulate(TARGET, element.at(0), Op::Sum, element.of(black_box(&value)))
    );
    beside!(
        bench,
        "accumulate f64 of a layout",
        epoch.accumulate(TARGET, 0, Op::Sum, black_box(&real)),
        epoch.accumulate(TARGET, float.at(0), Op::Sum, float.of(black_box(&real)))
    );
    let mut buffer = vec![1u64];
    beside!(bench, "raccumulate + wait", sum(), {
        let request = epoch.raccumulate(TARGET, 0, Op::Sum, black_box(take(&mut buffer)));
        request.and_then(|request| request.wait()).map(|back| buffer = back)
    });
    Ok(())
}

fn of_get_accumulate(bench: &mut Bench<'_>, epoch: &LockAll<'_>) -> Result<()> {
    let element = Layout::element::<u64>();
    let value = [black_box(1u64)];
    let (mut before, mut other) = ([0u64], [0u64]);
    let mut sum =
        || epoch.get_accumulate(TARGET, 0, Op::Sum, black_box(&value), black_box(&mut before));
    beside!(
        bench,
        "get_accumulate in ops",
        sum(),
        epoch.ops(|ops| {
            ops.get_accumulate(TARGET, 0, Op::Sum, black_box(&value), black_box(&mut other))
        })
    );
    beside!(
        bench,
        "get_accumulate of a layout",
        sum(),
        epoch.get_accumulate(
            TARGET,
            element.at(0),
            Op::Sum,
            element.of(black_box(&value)),
            element.of(black_box(&mut other)),
        )
    );
    let mut buffer = vec![1u64];
    beside!(bench, "rget_accumulate + wait", sum(), {
        let into = black_box(take(&mut buffer));
        let request = epoch.rget_accumulate(TARGET, 0, Op::Sum, black_box(&value), into);
        request.and_then(|request| request.wait()).map(|back| buffer = back)
    });
    Ok(())
}
