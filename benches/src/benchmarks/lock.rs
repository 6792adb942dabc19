//! What passive epochs cost when no other rank wants one.
use super::TARGET;
use crate::Result;
use crate::bench::{Bench, row};
use crate::raw::Raw;
use rma::{LockKind, Window};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst, fence};

/// Apart from the word that is put to by a cache line.
const LOCK_AT: usize = 64;

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    let window = bench.world().window(16, 8).allocate()?;
    if bench.is_first() {
        let part = Raw::new(&bench.part(&window, TARGET)?);
        let (word, lock) = (part.word64(0), part.word64(LOCK_AT));
        for (name, kind) in [("exclusive", LockKind::Exclusive), ("shared", LockKind::Shared)] {
            pairs(bench, &window, name, kind, word, lock)?;
        }
        bench.alone(
            row("lock_all + unlock_all, empty"),
            &mut |n| {
                for _ in 0..n {
                    window.lock_all()?.unlock()?;
                }
                Ok(())
            },
            &mut [("2 atomics", &mut |n| raw_pairs(n, lock, |_| ()))],
        )?;
        flushes(bench, &window)?;
    }
    bench.world().barrier()?;
    Ok(window.free()?)
}

/// With nothing outstanding.
fn flushes(bench: &mut Bench<'_>, window: &Window) -> Result<()> {
    let mut fences = |n| {
        for _ in 0..n {
            fence(SeqCst);
            // Two fences in a row would be merged.
            black_box(());
        }
        Ok(())
    };
    let epoch = window.lock_all()?;
    let mut flush = |n| Ok((0..n).try_for_each(|_| epoch.flush(TARGET))?);
    bench.alone(row("flush, nothing outstanding"), &mut flush, &mut [("fence", &mut fences)])?;
    let mut flush_all = |n| Ok((0..n).try_for_each(|_| epoch.flush_all())?);
    bench.alone(
        row("flush_all, nothing outstanding"),
        &mut flush_all,
        &mut [("fence", &mut fences)],
    )?;
    let mut sync = |n| {
        for _ in 0..n {
            window.sync()?;
            black_box(());
        }
        Ok(())
    };
    bench.alone(row("sync"), &mut sync, &mut [("fence", &mut fences)])?;
    Ok(epoch.unlock()?)
}

fn pairs(
    bench: &mut Bench<'_>,
    window: &Window,
    name: &str,
    kind: LockKind,
    word: &AtomicU64,
    lock: &AtomicU64,
) -> Result<()> {
    bench.alone(
        row(format!("lock + unlock {name}, empty")),
        &mut |n| {
            for _ in 0..n {
                window.lock(TARGET, kind)?.unlock()?;
            }
            Ok(())
        },
        &mut [("2 atomics", &mut |n| raw_pairs(n, lock, |_| ()))],
    )?;
    bench.alone(
        row(format!("lock + put + unlock {name}")).bytes(8),
        &mut |n| {
            for i in 0..n {
                let epoch = window.lock(TARGET, kind)?;
                epoch.put(0, &[i])?;
                epoch.unlock()?;
            }
            Ok(())
        },
        &mut [("2 atomics + store", &mut |n| raw_pairs(n, lock, |i| word.store(i, Relaxed)))],
    )
}

/// The least a lock and an unlock can be: two atomics on one word, and `inside` in between.
fn raw_pairs(n: u64, lock: &AtomicU64, inside: impl Fn(u64)) -> Result<()> {
    for i in 0..n {
        _ = lock.compare_exchange(0, 1, SeqCst, SeqCst);
        inside(i);
        _ = lock.compare_exchange(1, 0, SeqCst, SeqCst);
    }
    Ok(())
}
