//! Small puts and gets.
use super::TARGET;
use crate::Result;
use crate::bench::{Bench, row};
use crate::raw::Raw;
use std::cell::RefCell;
use std::hint::black_box;
use std::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst, fence};

/// Bytes of a part.
const PART: usize = 4096;
/// Puts of the rate go round these many words.
const WORDS: u64 = 64;

pub(super) fn latency(bench: &mut Bench<'_>) -> Result<()> {
    let window = bench.world().window(PART / 8, 8).allocate()?;
    if bench.is_first() {
        let part = Raw::new(&window.shared_query(TARGET)?);
        let word = part.word64(0);
        let epoch = window.lock_all()?;
        bench.alone(
            row("put + flush").bytes(8).goal(3.0),
            &mut |n| {
                for i in 0..n {
                    epoch.put(TARGET, 0, &[i])?;
                    epoch.flush(TARGET)?;
                }
                Ok(())
            },
            &mut [("store + fence", &mut |n| {
                for i in 0..n {
                    word.store(i, Relaxed);
                    fence(SeqCst);
                }
                Ok(())
            })],
        )?;
        let mut value = [0u64];
        bench.alone(
            row("get").bytes(8).goal(3.0),
            &mut |n| {
                for _ in 0..n {
                    epoch.get(TARGET, 0, &mut value)?;
                    black_box(&value);
                }
                Ok(())
            },
            &mut [("load", &mut |n| {
                for _ in 0..n {
                    black_box(&[word.load(Relaxed)]);
                }
                Ok(())
            })],
        )?;
        for bytes in [64, 4096] {
            latency_of(bench, &epoch, &part, bytes)?;
        }
        epoch.unlock()?;
    }
    bench.world().barrier()?;
    Ok(window.free()?)
}

fn latency_of(
    bench: &mut Bench<'_>,
    epoch: &rma::LockAll<'_>,
    part: &Raw<'_>,
    bytes: usize,
) -> Result<()> {
    // Every work uses the same buffer, one at a time.
    let buffer = RefCell::new(vec![7u8; bytes]);
    bench.alone(
        row("put + flush").bytes(bytes),
        &mut |n| {
            let buffer = buffer.borrow();
            for _ in 0..n {
                epoch.put(TARGET, 0, black_box(&buffer[..]))?;
                epoch.flush(TARGET)?;
            }
            Ok(())
        },
        &mut [("memcpy + fence", &mut |n| {
            let buffer = buffer.borrow();
            for _ in 0..n {
                part.write_memcpy(black_box(&buffer[..]));
                fence(SeqCst);
            }
            Ok(())
        })],
    )?;
    bench.alone(
        row("get").bytes(bytes),
        &mut |n| {
            let mut buffer = buffer.borrow_mut();
            for _ in 0..n {
                epoch.get(TARGET, 0, black_box(&mut buffer[..]))?;
            }
            Ok(())
        },
        &mut [("memcpy", &mut |n| {
            let mut buffer = buffer.borrow_mut();
            for _ in 0..n {
                part.read_memcpy(black_box(&mut buffer[..]));
            }
            Ok(())
        })],
    )
}

pub(super) fn rate(bench: &mut Bench<'_>) -> Result<()> {
    let window = bench.world().window(WORDS as usize, 8).allocate()?;
    if bench.is_first() {
        let part = Raw::new(&window.shared_query(TARGET)?);
        let words: Vec<_> = (0..WORDS as usize).map(|i| part.word64(i * 8)).collect();
        let epoch = window.lock_all()?;
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
        )?;
        epoch.unlock()?;
    }
    bench.world().barrier()?;
    Ok(window.free()?)
}
