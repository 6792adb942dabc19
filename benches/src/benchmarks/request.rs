//! Transfers with a request, waited for at once.
use super::TARGET;
use crate::Result;
use crate::bench::{Bench, row};
use crate::raw::Raw;
use rma::LockAll;
use std::hint::black_box;

const SIZES: [usize; 6] = [8, 64, 512, 4 << 10, 64 << 10, 1 << 20];

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    let largest = SIZES[SIZES.len() - 1];
    let window = bench.world().window(largest, 1).allocate()?;
    if bench.is_first() {
        let part = Raw::new(&window.shared_query(TARGET)?);
        let epoch = window.lock_all()?;
        for bytes in SIZES {
            of(bench, &epoch, &part, bytes)?;
        }
        epoch.unlock()?;
    }
    bench.world().barrier()?;
    Ok(window.free()?)
}

fn of(bench: &mut Bench<'_>, epoch: &LockAll<'_>, part: &Raw<'_>, bytes: usize) -> Result<()> {
    // A request owns its buffer and gives it back.
    let mut buffer = vec![7u8; bytes];
    let mut other = vec![7u8; bytes];
    bench.alone(
        row("rput + wait").bytes(bytes),
        &mut |n| {
            for _ in 0..n {
                let origin = black_box(std::mem::take(&mut buffer));
                buffer = epoch.rput(TARGET, 0, origin)?.wait()?;
            }
            Ok(())
        },
        &mut [("memcpy", &mut |n| {
            (0..n).for_each(|_| part.write_memcpy(black_box(&other)));
            Ok(())
        })],
    )?;
    bench.alone(
        row("rget + wait").bytes(bytes),
        &mut |n| {
            for _ in 0..n {
                let origin = black_box(std::mem::take(&mut buffer));
                buffer = epoch.rget(TARGET, 0, origin)?.wait()?;
            }
            Ok(())
        },
        &mut [("memcpy", &mut |n| {
            (0..n).for_each(|_| part.read_memcpy(black_box(&mut other)));
            Ok(())
        })],
    )
}
