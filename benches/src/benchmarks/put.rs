//! Small puts and gets.
use super::TARGET;
use crate::Result;
use crate::aligned::Aligned;
use crate::bench::{Bench, row};
use crate::raw::Raw;
use rma::LockAll;
use std::cell::RefCell;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst, fence};

/// Bytes of a part.
const PART: usize = 16 << 10;
/// Besides 8; larger ones are transfers of `bandwidth`.
const SIZES: [usize; 4] = [64, 512, 4 << 10, PART];

pub(super) fn latency(bench: &mut Bench<'_>) -> Result<()> {
    let window = bench.world().window(PART / 8, 8).allocate()?;
    if bench.is_first() {
        let part = Raw::new(&bench.part(&window, TARGET)?);
        let word = part.word64(0);
        let epoch = window.lock_all()?;
        put_word(bench, "put + flush", &epoch, word)?;
        get_word(bench, &epoch, word)?;
        for bytes in SIZES {
            latency_of(bench, &epoch, &part, bytes)?;
        }
        epoch.unlock()?;
    }
    bench.world().barrier()?;
    window.free()?;
    // Ranks of other nodes have no memory to share.
    if bench.is_far() { Ok(()) } else { shared(bench) }
}

/// A window that all ranks see as one piece of memory.
fn shared(bench: &mut Bench<'_>) -> Result<()> {
    let window = bench.world().window(1, 8).allocate_shared()?;
    if bench.is_first() {
        let part = Raw::new(&window.shared_query(TARGET)?);
        let epoch = window.lock_all()?;
        put_word(bench, "put + flush, shared window", &epoch, part.word64(0))?;
        epoch.unlock()?;
    }
    bench.world().barrier()?;
    Ok(window.free()?)
}

fn put_word(
    bench: &mut Bench<'_>,
    name: &str,
    epoch: &LockAll<'_>,
    word: &AtomicU64,
) -> Result<()> {
    bench.alone(
        row(name).bytes(8).goal(3.0),
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
    )
}

fn get_word(bench: &mut Bench<'_>, epoch: &LockAll<'_>, word: &AtomicU64) -> Result<()> {
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
    bench.alone(
        row("get + flush").bytes(8),
        &mut |n| {
            for _ in 0..n {
                epoch.get(TARGET, 0, &mut value)?;
                epoch.flush(TARGET)?;
                black_box(&value);
            }
            Ok(())
        },
        &mut [("load + fence", &mut |n| {
            for _ in 0..n {
                black_box(&[word.load(Relaxed)]);
                fence(SeqCst);
            }
            Ok(())
        })],
    )
}

/// A put and a get of a block, each with the flush behind it; the get also without.
fn latency_of(
    bench: &mut Bench<'_>,
    epoch: &LockAll<'_>,
    part: &Raw<'_>,
    bytes: usize,
) -> Result<()> {
    // Every work uses the same buffer, one at a time.
    let buffer = RefCell::new(Aligned::new(7u8, bytes));
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
    )?;
    bench.alone(
        row("get + flush").bytes(bytes),
        &mut |n| {
            let mut buffer = buffer.borrow_mut();
            for _ in 0..n {
                epoch.get(TARGET, 0, black_box(&mut buffer[..]))?;
                epoch.flush(TARGET)?;
            }
            Ok(())
        },
        &mut [("memcpy + fence", &mut |n| {
            let mut buffer = buffer.borrow_mut();
            for _ in 0..n {
                part.read_memcpy(black_box(&mut buffer[..]));
                fence(SeqCst);
            }
            Ok(())
        })],
    )
}
