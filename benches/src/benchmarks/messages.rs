//! Messages there and back of an operation: counted, so no clock and no noise.
use super::TARGET;
use crate::Result;
use crate::bench::{Bench, row};
use crate::record::Unit;
use rma::{LockAll, LockKind, Op, Window};
use std::hint::black_box;

/// How often each is done: what comes once is not seen.
const TIMES: u64 = 100;
const LARGE: usize = 1 << 20;
const PATHS: [&str; 2] = ["load_store", "messages"];

/// The target waits in a barrier, and so serves.
pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    for path in PATHS {
        let window = bench.world().window(LARGE / 8, 8).hint("rma_path", path)?.allocate()?;
        if bench.is_first() {
            let epoch = window.lock_all()?;
            transfers(bench, &epoch, path)?;
            atomics(bench, &epoch, path)?;
            epoch.unlock()?;
            epochs(bench, &window, path)?;
        }
        bench.world().barrier()?;
        window.free()?;
    }
    Ok(())
}

/// One operation, after a first one.
fn of(
    bench: &mut Bench<'_>,
    what: &str,
    path: &str,
    bytes: Option<usize>,
    mut operation: impl FnMut() -> Result<()>,
) -> Result<()> {
    operation()?;
    let before = bench.messages();
    (0..TIMES).try_for_each(|_| operation())?;
    let each = (bench.messages() - before) as f64 / TIMES as f64;
    let draft = row(format!("{what}, {path}"));
    let draft = match bytes {
        Some(bytes) => draft.bytes(bytes),
        None => draft,
    };
    bench.note(draft, Unit::Count, &[each])
}

fn transfers(bench: &mut Bench<'_>, epoch: &LockAll<'_>, path: &str) -> Result<()> {
    for bytes in [8, 4 << 10, 64 << 10, LARGE] {
        let mut buffer = vec![7u8; bytes];
        of(bench, "put + flush", path, Some(bytes), || {
            epoch.put(TARGET, 0, black_box(&buffer[..]))?;
            Ok(epoch.flush(TARGET)?)
        })?;
        of(bench, "get", path, Some(bytes), || {
            Ok(epoch.get(TARGET, 0, black_box(&mut buffer[..]))?)
        })?;
    }
    of(bench, "flush, nothing outstanding", path, None, || Ok(epoch.flush(TARGET)?))
}

fn atomics(bench: &mut Bench<'_>, epoch: &LockAll<'_>, path: &str) -> Result<()> {
    of(bench, "fetch_and_op", path, Some(8), || {
        black_box(epoch.fetch_and_op(TARGET, 0, Op::Sum, 1u64)?);
        Ok(())
    })?;
    of(bench, "compare_and_swap", path, Some(8), || {
        black_box(epoch.compare_and_swap(TARGET, 0, 1u64, 2)?);
        Ok(())
    })?;
    let operands = vec![1.0f64; 1 << 10];
    for elements in [1, operands.len()] {
        let operands = &operands[..elements];
        of(bench, "accumulate + flush", path, Some(size_of_val(operands)), || {
            epoch.accumulate(TARGET, 0, Op::Sum, black_box(operands))?;
            Ok(epoch.flush(TARGET)?)
        })?;
    }
    Ok(())
}

fn epochs(bench: &mut Bench<'_>, window: &Window, path: &str) -> Result<()> {
    for (name, kind) in [("exclusive", LockKind::Exclusive), ("shared", LockKind::Shared)] {
        let what = format!("lock + put + unlock {name}");
        of(bench, &what, path, Some(8), || {
            let epoch = window.lock(TARGET, kind)?;
            epoch.put(0, &[1u64])?;
            Ok(epoch.unlock()?)
        })?;
    }
    of(bench, "lock_all + unlock_all", path, None, || Ok(window.lock_all()?.unlock()?))
}
