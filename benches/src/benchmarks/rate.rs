//! How many small operations a second, without a flush in between.
use super::TARGET;
use crate::Result;
use crate::bench::{Bench, row};
use crate::raw::Raw;
use rma::{LockAll, Op};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst, fence};

/// Operations go round these many words.
const WORDS: u64 = 64;

pub(super) fn puts(bench: &mut Bench<'_>) -> Result<()> {
    on_words(bench, |bench, epoch, words| {
        bench.alone(
            row("put").bytes(8),
            &mut |n| {
                for i in 0..n {
                    epoch.put(TARGET, i % WORDS, &[i])?;
                }
                Ok(epoch.flush(TARGET)?)
            },
            &mut [("store", &mut |n| {
                for i in 0..n {
                    words[(i % WORDS) as usize].store(i, Relaxed);
                }
                fence(SeqCst);
                Ok(())
            })],
        )
    })
}

pub(super) fn others(bench: &mut Bench<'_>) -> Result<()> {
    on_words(bench, |bench, epoch, words| {
        get(bench, epoch, words)?;
        rput(bench, epoch, words)?;
        accumulate(bench, epoch, words)
    })
}

/// Runs `rows` on rank 0, with a window of [`WORDS`] and the words themselves.
fn on_words(
    bench: &mut Bench<'_>,
    rows: impl FnOnce(&mut Bench<'_>, &LockAll<'_>, &[&AtomicU64]) -> Result<()>,
) -> Result<()> {
    let window = bench.world().window(WORDS as usize, 8).allocate()?;
    if bench.is_first() {
        let part = Raw::new(&window.shared_query(TARGET)?);
        let words: Vec<_> = (0..WORDS as usize).map(|i| part.word64(i * 8)).collect();
        let epoch = window.lock_all()?;
        rows(bench, &epoch, &words)?;
        epoch.unlock()?;
    }
    bench.world().barrier()?;
    Ok(window.free()?)
}

fn get(bench: &mut Bench<'_>, epoch: &LockAll<'_>, words: &[&AtomicU64]) -> Result<()> {
    let mut value = [0u64];
    bench.alone(
        row("get").bytes(8),
        &mut |n| {
            for i in 0..n {
                epoch.get(TARGET, i % WORDS, &mut value)?;
                black_box(&value);
            }
            Ok(epoch.flush(TARGET)?)
        },
        &mut [("load", &mut |n| {
            for i in 0..n {
                black_box(&[words[(i % WORDS) as usize].load(Relaxed)]);
            }
            fence(SeqCst);
            Ok(())
        })],
    )
}

/// A request owns its buffer and gives it back: the same goes round.
fn rput(bench: &mut Bench<'_>, epoch: &LockAll<'_>, words: &[&AtomicU64]) -> Result<()> {
    let mut buffer = vec![7u64];
    bench.alone(
        row("rput, waited for at once").bytes(8),
        &mut |n| {
            for i in 0..n {
                let origin = black_box(std::mem::take(&mut buffer));
                let (back, done) = epoch.rput(TARGET, i % WORDS, origin)?.wait();
                buffer = back;
                done?;
            }
            Ok(epoch.flush(TARGET)?)
        },
        &mut [("store", &mut |n| {
            for i in 0..n {
                words[(i % WORDS) as usize].store(i, Relaxed);
            }
            fence(SeqCst);
            Ok(())
        })],
    )
}

fn accumulate(bench: &mut Bench<'_>, epoch: &LockAll<'_>, words: &[&AtomicU64]) -> Result<()> {
    bench.alone(
        row("accumulate i64 sum").bytes(8),
        &mut |n| {
            for i in 0..n {
                epoch.accumulate(TARGET, i % WORDS, Op::Sum, &[black_box(1i64)])?;
            }
            Ok(epoch.flush(TARGET)?)
        },
        &mut [("fetch_add", &mut |n| {
            for i in 0..n {
                black_box(words[(i % WORDS) as usize].fetch_add(black_box(1), SeqCst));
            }
            Ok(())
        })],
    )
}
