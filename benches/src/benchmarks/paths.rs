//! The same small operations on every way that leads to a target.
use super::TARGET;
use crate::Result;
use crate::bench::{Bench, row};
use crate::raw::{Raw, RawTarget, leaked};
use rma::{LockAll, Op, Window, WindowError};
use std::hint::black_box;
use std::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst, fence};

/// Words of a part.
const WORDS: usize = 64;
const PATHS: [&str; 4] = ["load_store", "cma", "device", "messages"];

/// The target waits in a barrier, and so serves messages. A path that the system does not permit
/// has no rows.
pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    let there = RawTarget::of(leaked(size_of::<u64>()));
    let there = bench.world().allgather(&[there])?[usize::from(TARGET)];
    for path in PATHS {
        let builder = bench.world().window(WORDS, size_of::<u64>()).hint("rma_path", path)?;
        let window = match builder.allocate() {
            Err(WindowError::NoPath { .. }) => continue,
            window => window?,
        };
        if bench.is_first() {
            let epoch = window.lock_all()?;
            put(bench, &window, &epoch, path, there)?;
            others(bench, &epoch, path)?;
            epoch.unlock()?;
        }
        bench.world().barrier()?;
        window.free()?;
    }
    Ok(())
}

/// Next to what the path is made of; messages are made of nothing smaller.
fn put(
    bench: &mut Bench<'_>,
    window: &Window,
    epoch: &LockAll<'_>,
    path: &str,
    there: RawTarget,
) -> Result<()> {
    let part = Raw::new(&bench.part(window, TARGET)?);
    let word = part.word64(0);
    let draft = row(format!("put + flush, {path}")).bytes(8);
    let mut ours = |n| {
        for i in 0..n {
            epoch.put(TARGET, 0, &[i])?;
            epoch.flush(TARGET)?;
        }
        Ok(())
    };
    match path {
        "load_store" => bench.alone(
            draft,
            &mut ours,
            &mut [("store + fence", &mut |n| {
                for i in 0..n {
                    word.store(i, Relaxed);
                    fence(SeqCst);
                }
                Ok(())
            })],
        ),
        "cma" => bench.alone(
            draft,
            &mut ours,
            &mut [("process_vm_writev", &mut |n| {
                Ok((0..n).try_for_each(|i: u64| there.write(&i.to_ne_bytes()))?)
            })],
        ),
        _ => bench.alone(draft, &mut ours, &mut []),
    }
}

fn others(bench: &mut Bench<'_>, epoch: &LockAll<'_>, path: &str) -> Result<()> {
    let mut value = [0u64];
    bench.alone(
        row(format!("get, {path}")).bytes(8),
        &mut |n| {
            for _ in 0..n {
                epoch.get(TARGET, 0, &mut value)?;
                black_box(&value);
            }
            Ok(())
        },
        &mut [],
    )?;
    bench.alone(
        row(format!("fetch_and_op sum, {path}")).bytes(8),
        &mut |n| {
            for _ in 0..n {
                black_box(epoch.fetch_and_op(TARGET, 0, Op::Sum, 1u64)?);
            }
            Ok(())
        },
        &mut [],
    )?;
    bench.alone(
        row(format!("accumulate sum + flush, {path}")).bytes(8),
        &mut |n| {
            for _ in 0..n {
                epoch.accumulate(TARGET, 0, Op::Sum, &[black_box(1u64)])?;
                epoch.flush(TARGET)?;
            }
            Ok(())
        },
        &mut [],
    )
}
