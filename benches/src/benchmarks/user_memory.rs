//! Windows over memory of the user.
use super::TARGET;
use crate::Result;
use crate::aligned::Aligned;
use crate::bench::{Bench, row};
use crate::raw::{Raw, RawTarget, leaked};
use rma::{LockAll, Window};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{Ordering::SeqCst, fence};

/// Bytes of a part.
const PART: usize = 1 << 20;
const SIZES: [usize; 3] = [8, 4096, PART];

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    given(bench)?;
    stored(bench)?;
    attached(bench)?;
    raw(bench)
}

/// The same without the library.
type Copy<'a> = &'a mut dyn FnMut(&[u8]) -> Result<()>;

/// A put to a displacement of the target, and its flush, next to a limit.
fn puts(
    bench: &mut Bench<'_>,
    name: &str,
    epoch: &LockAll<'_>,
    base: u64,
    what: &str,
    copy: Copy<'_>,
) -> Result<()> {
    for bytes in SIZES {
        let buffer = Aligned::new(7u8, bytes);
        bench.alone(
            row(name).bytes(bytes),
            &mut |n| {
                for _ in 0..n {
                    epoch.put(TARGET, base, black_box(&buffer[..]))?;
                    epoch.flush(TARGET)?;
                }
                Ok(())
            },
            &mut [(what, &mut |n| (0..n).try_for_each(|_| copy(black_box(&buffer[..]))))],
        )?;
    }
    Ok(())
}

/// A vector that was given away.
fn given(bench: &mut Bench<'_>) -> Result<()> {
    let window =
        bench.world().window(PART, 1).create(vec![0u8; PART]).map_err(rma::WindowError::from)?;
    if bench.is_first() {
        let part = Raw::new(&bench.part(&window, TARGET)?);
        let epoch = window.lock_all()?;
        let mut copy = |bytes: &[u8]| {
            part.write_memcpy(bytes);
            fence(SeqCst);
            Ok(())
        };
        puts(bench, "put + flush, created", &epoch, 0, "memcpy + fence", &mut copy)?;
        epoch.unlock()?;
    }
    bench.world().barrier()?;
    Ok(window.free()?)
}

/// A file of the system's temporary folder; the limit is the same put to an allocated window.
fn stored(bench: &mut Bench<'_>) -> Result<()> {
    let name = format!("rma-bench-{}-{{rank}}", std::process::id());
    let hints = rma::StorageHints::file(std::env::temp_dir().join(name)).unlink(true);
    let memory = rma::StorageMemory::open(bench.universe(), &hints, PART)?;
    let stored = bench.world().window(PART, 1).create(Arc::new(memory));
    let (stored, allocated) =
        (stored.map_err(rma::WindowError::from)?, bench.world().window(PART, 1).allocate()?);
    if bench.is_first() {
        let (epoch, in_memory) = (stored.lock_all()?, allocated.lock_all()?);
        let mut copy = |bytes: &[u8]| {
            in_memory.put(TARGET, 0, bytes)?;
            Ok(in_memory.flush(TARGET)?)
        };
        puts(bench, "put + flush, on storage", &epoch, 0, "memory window", &mut copy)?;
        epoch.unlock()?;
        in_memory.unlock()?;
    }
    bench.world().barrier()?;
    allocated.free()?;
    Ok(stored.free()?)
}

/// The same, attached to a dynamic window; the limit is a copy to an allocated one.
fn attached(bench: &mut Bench<'_>) -> Result<()> {
    let (dynamic, allocated) =
        (bench.world().window(0, 1).create_dynamic()?, bench.world().window(PART, 1).allocate()?);
    let region = dynamic.attach(vec![0u8; PART]).map_err(rma::RmaError::from)?;
    let base = bench.world().allgather(&[region.address()])?[usize::from(TARGET)];
    if bench.is_first() {
        let part = Raw::new(&bench.part(&allocated, TARGET)?);
        let epoch = dynamic.lock_all()?;
        let mut copy = |bytes: &[u8]| {
            part.write_memcpy(bytes);
            fence(SeqCst);
            Ok(())
        };
        puts(bench, "put + flush, dynamic", &epoch, base, "memcpy + fence", &mut copy)?;
        epoch.unlock()?;
    }
    bench.world().barrier()?;
    allocated.free()?;
    Ok(dynamic.free()?)
}

/// Memory that stays where it is.
fn raw(bench: &mut Bench<'_>) -> Result<()> {
    let part = leaked(PART);
    let mine = RawTarget::of(part);
    let all = bench.world().allgather(&[mine])?;
    let window: Window =
        bench.world().window(PART, 1).create(part).map_err(rma::WindowError::from)?;
    if bench.is_first() && window.path(TARGET) == Some(rma::Path::Cma) {
        let epoch = window.lock_all()?;
        let target = all[usize::from(TARGET)];
        let mut copy = |bytes: &[u8]| Ok(target.write(bytes)?);
        puts(bench, "put + flush, raw part", &epoch, 0, "process_vm_writev", &mut copy)?;
        epoch.unlock()?;
    }
    bench.world().barrier()?;
    Ok(window.free()?)
}
