//! Transfers with a request, waited for at once.
use super::TARGET;
use crate::Result;
use crate::aligned::{Aligned, Line};
use crate::bench::{Bench, row};
use crate::raw::Raw;
use rma::{Element, LockAll};
use std::hint::black_box;

const SIZES: [usize; 6] = [8, 64, 512, 4 << 10, 64 << 10, 1 << 20];

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    let largest = SIZES[SIZES.len() - 1];
    let window = bench.world().window(largest, 1).allocate()?;
    if bench.is_first() {
        let part = Raw::new(&bench.part(&window, TARGET)?);
        let epoch = window.lock_all()?;
        for bytes in SIZES {
            match bytes {
                8 => of(bench, &epoch, &part, vec![7u64])?,
                _ => of(bench, &epoch, &part, vec![Line([7; 64]); bytes / size_of::<Line>()])?,
            }
        }
        epoch.unlock()?;
    }
    bench.world().barrier()?;
    Ok(window.free()?)
}

/// A request owns its buffer and gives it back.
fn of<E: Element>(
    bench: &mut Bench<'_>,
    epoch: &LockAll<'_>,
    part: &Raw<'_>,
    mut buffer: Vec<E>,
) -> Result<()> {
    let bytes = size_of_val(&buffer[..]);
    let mut other = Aligned::new(7u8, bytes);
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
