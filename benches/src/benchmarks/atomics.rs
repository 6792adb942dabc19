//! Atomics on one word.
use super::TARGET;
use crate::Result;
use crate::bench::{Bench, row};
use crate::raw::Raw;
use rma::{LockAll, Op};
use std::hint::black_box;
use std::sync::atomic::Ordering::SeqCst;

const GOAL: f64 = 2.0;

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    let window = bench.world().window(1, 8).allocate()?;
    if bench.is_first() {
        let part = Raw::new(&bench.part(&window, TARGET)?);
        let epoch = window.lock_all()?;
        of_u64(bench, &epoch, &part)?;
        of_u32(bench, &epoch, &part)?;
        epoch.unlock()?;
    }
    bench.world().barrier()?;
    Ok(window.free()?)
}

/// The two rows of a type and the word that has its width.
macro_rules! rows {
    ($name:ident, $int:ty, $word:ident) => {
        fn $name(bench: &mut Bench<'_>, epoch: &LockAll<'_>, part: &Raw<'_>) -> Result<()> {
            let word = part.$word(0);
            let (one, bytes): ($int, _) = (1, size_of::<$int>());
            bench.alone(
                row("fetch_and_op sum").bytes(bytes).goal(GOAL),
                &mut |n| {
                    for _ in 0..n {
                        black_box(epoch.fetch_and_op(TARGET, 0, Op::Sum, one)?);
                    }
                    Ok(())
                },
                &mut [("fetch_add", &mut |n| {
                    for _ in 0..n {
                        black_box(word.fetch_add(one, SeqCst));
                    }
                    Ok(())
                })],
            )?;
            bench.alone(
                row("compare_and_swap").bytes(bytes).goal(GOAL),
                &mut |n| {
                    let mut seen = word.load(SeqCst);
                    for _ in 0..n {
                        let new = seen.wrapping_add(1);
                        epoch.compare_and_swap(TARGET, 0, seen, new)?;
                        seen = new;
                    }
                    Ok(())
                },
                &mut [("compare_exchange", &mut |n| {
                    let mut seen = word.load(SeqCst);
                    for _ in 0..n {
                        let new = seen.wrapping_add(1);
                        _ = black_box(word.compare_exchange(seen, new, SeqCst, SeqCst));
                        seen = new;
                    }
                    Ok(())
                })],
            )
        }
    };
}
rows!(of_u64, u64, word64);
rows!(of_u32, u32, word32);
