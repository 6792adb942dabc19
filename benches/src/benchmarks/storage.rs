//! Windows on storage: operations while the page cache holds, and streams with a sync at the end.
use super::TARGET;
use crate::Result;
use crate::bench::{Bench, row};
use crate::measure::Work;
use crate::raw::Raw;
use rma::{LockAll, OnStorage, StorageFactor, StorageHints, View, Window};
use std::cell::RefCell;
use std::fs::{self, File};
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{Ordering::SeqCst, fence};
use std::time::Duration;

const SIZES: [usize; 9] =
    [8, 64, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 2 << 20, 4 << 20, 16 << 20];
const LARGEST: usize = SIZES[SIZES.len() - 1];
/// From here on fewer batches do: each is long.
const LARGE: usize = 1 << 20;
const LARGE_ROUNDS: usize = 101;
/// In times of a memory window: the paper loses 1 %.
const GOAL: f64 = 1.02;

/// What a stream writes before its sync, and each of its pieces.
const STREAMS: [usize; 2] = [8 << 20, 32 << 20];
const SMOKE_STREAMS: [usize; 1] = [1 << 20];
const PIECE: usize = 64 << 10;
pub(super) const STREAM_ROUNDS: usize = 15;
/// In times of `pwrite` and `fdatasync` of the same bytes.
const STREAM_GOAL: f64 = 1.15;

/// A number that has no factor with a power of two steps through all pieces.
const STEP: usize = 0x9e37_79b1;
type Place = fn(usize, usize) -> usize;
/// Which piece is written in a turn: mSTREAM's sequential, padded, random, and its mix of these.
const ORDERS: [(&str, Place); 4] = [
    ("SEQ", |turn, _| turn),
    // Every other one: as many turns write each of these twice.
    ("PAD", |turn, pieces| turn * 2 % pieces),
    ("RND", |turn, pieces| turn.wrapping_mul(STEP) % pieces),
    ("MIX", |turn, pieces| match turn % 3 {
        0 => turn,
        1 => turn * 2 % pieces,
        _ => turn.wrapping_mul(STEP) % pieces,
    }),
];

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    transfers(bench)?;
    streams(bench)
}

/// A file beside the program, where there is room for such.
pub(super) fn file(what: &str) -> Result<PathBuf> {
    let name = format!("rma-bench-{what}-{{rank}}.tmp");
    Ok(std::env::current_exe()?.with_file_name(name))
}

/// Has all ranks use a folder of that name beside the program, which is empty at first and gone
/// afterwards.
pub(super) fn in_folder(
    bench: &mut Bench<'_>,
    name: &str,
    measure: impl FnOnce(&mut Bench<'_>, &Path) -> Result<()>,
) -> Result<()> {
    // Without a place for the rank, which hints would fill.
    let folder = std::env::current_exe()?.with_file_name(format!("rma-bench-{name}.tmp"));
    if bench.is_first() {
        // What a run left that was killed.
        _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder)?;
    }
    bench.world().barrier()?;
    measure(bench, &folder)?;
    bench.world().barrier()?;
    if bench.is_first() {
        fs::remove_dir_all(&folder)?;
    }
    Ok(())
}

/// A new file of each rank, removed with its window, for that share of it; the rest is in memory.
pub(super) fn hints(bench: &Bench<'_>, what: &str, share: f64) -> Result<StorageHints> {
    let pattern = file(what)?;
    let rank = u32::from(bench.world().rank()).to_string();
    // What a run left that was killed.
    _ = fs::remove_file(pattern.to_string_lossy().replace("{rank}", &rank));
    Ok(StorageHints::file(pattern).unlink(true).factor(StorageFactor::Share(share))?)
}

fn stored(bench: &Bench<'_>, what: &str, bytes: usize, share: f64) -> Result<Window> {
    let hints = hints(bench, what, share)?;
    Ok(bench.world().window(bytes, 1).on_storage(&hints)?.allocate()?)
}

/// Put and get without a sync, beside those of a memory window and raw copies on the same mapping.
fn transfers(bench: &mut Bench<'_>) -> Result<()> {
    let (on_storage, in_memory) =
        (stored(bench, "put", LARGEST, 1.0)?, bench.world().window(LARGEST, 1).allocate()?);
    if bench.is_first() {
        let part = Raw::new(&bench.part(&on_storage, TARGET)?);
        let (ours, theirs) = (on_storage.lock_all()?, in_memory.lock_all()?);
        let mut buffer = vec![7u8; LARGEST];
        for bytes in SIZES {
            if bytes >= LARGE {
                bench.set_rounds(LARGE_ROUNDS);
            }
            puts(bench, &ours, &theirs, &part, &buffer[..bytes])?;
            gets(bench, &ours, &theirs, &part, &mut buffer[..bytes])?;
        }
        ours.unlock()?;
        theirs.unlock()?;
    }
    bench.world().barrier()?;
    in_memory.free()?;
    Ok(on_storage.free()?)
}

fn puts(
    bench: &mut Bench<'_>,
    ours: &LockAll<'_>,
    theirs: &LockAll<'_>,
    part: &Raw<'_>,
    buffer: &[u8],
) -> Result<()> {
    let put = |epoch: &LockAll<'_>, n: u64| -> Result<()> {
        for _ in 0..n {
            epoch.put(TARGET, 0, black_box(buffer))?;
            epoch.flush(TARGET)?;
        }
        Ok(())
    };
    let mut raw = |n| {
        for _ in 0..n {
            part.write_memcpy(black_box(buffer));
            fence(SeqCst);
        }
        Ok(())
    };
    let draft = row("put + flush on storage").bytes(buffer.len()).goal(GOAL);
    let limits: &mut [(&str, Work<'_>)] =
        &mut [("memory window", &mut |n| put(theirs, n)), ("memcpy + fence there", &mut raw)];
    bench.alone(draft, &mut |n| put(ours, n), limits)
}

fn gets(
    bench: &mut Bench<'_>,
    ours: &LockAll<'_>,
    theirs: &LockAll<'_>,
    part: &Raw<'_>,
    buffer: &mut [u8],
) -> Result<()> {
    let draft = row("get on storage").bytes(buffer.len()).goal(GOAL);
    // Every work reads into the same buffer, one at a time.
    let buffer = RefCell::new(buffer);
    let get = |epoch: &LockAll<'_>, n: u64| -> Result<()> {
        for _ in 0..n {
            epoch.get(TARGET, 0, black_box(&mut **buffer.borrow_mut()))?;
        }
        Ok(())
    };
    let mut raw = |n| {
        (0..n).for_each(|_| part.read_memcpy(black_box(&mut buffer.borrow_mut())));
        Ok(())
    };
    let limits: &mut [(&str, Work<'_>)] =
        &mut [("memory window", &mut |n| get(theirs, n)), ("memcpy from there", &mut raw)];
    bench.alone(draft, &mut |n| get(ours, n), limits)
}

/// mSTREAM: this rank writes all of its part in pieces, in order and in none, and makes it durable,
/// beside the same pieces by `pwrite` into a file of its own, and `fdatasync`, and into memory.
fn streams(bench: &mut Bench<'_>) -> Result<()> {
    let sizes = if bench.is_smoke() { &SMOKE_STREAMS[..] } else { &STREAMS[..] };
    let kinds = [("storage", 1.0), ("half on storage", 0.5)];
    for (bytes, (kind, share)) in sizes.iter().flat_map(|bytes| kinds.map(|kind| (*bytes, kind))) {
        let window = stored(bench, "stream", bytes, share)?;
        // Of its own: pages that a store was the first to touch are small ones for good.
        let mapped = stored(bench, "mapped", bytes, share)?;
        let twin = bench.world().window(bytes, 1).allocate()?;
        if bench.is_first() {
            bench.set_rounds(STREAM_ROUNDS);
            bench.set_batch(Duration::from_millis(1));
            stream(bench, [&window, &mapped, &twin], kind, bytes, share)?;
        }
        bench.world().barrier()?;
        twin.free()?;
        mapped.free()?;
        window.free()?;
    }
    Ok(())
}

/// Writes pieces at these places, from `first` on to a file that is made durable then, and those
/// before to memory, if there is any for them.
fn by_hand(
    file: &File,
    memory: &mut [u8],
    first: usize,
    places: impl Iterator<Item = usize>,
) -> Result<()> {
    let piece = [7u8; PIECE];
    for place in places {
        let at = place * PIECE;
        if place >= first {
            file.write_all_at(&piece, at as u64)?;
        } else if let Some(there) = memory.get_mut(at..at + PIECE) {
            there.copy_from_slice(&piece);
        }
    }
    black_box(memory);
    Ok(file.sync_data()?)
}

fn stream(
    bench: &mut Bench<'_>,
    [window, mapped, twin]: [&Window; 3],
    kind: &str,
    bytes: usize,
    share: f64,
) -> Result<()> {
    let path = file("pwrite")?;
    let file = File::create_new(&path)?;
    fs::remove_file(&path)?;
    let piece = vec![7u8; PIECE];
    let (pieces, view, mapped) = (bytes / PIECE, window.local(), mapped.local());
    let part = Raw::new(&mapped);
    // Of a window that is half in memory, the other half is what has to be written.
    let first = pieces - (pieces as f64 * share) as usize;
    // What a file system does at the first write of a block is done.
    let mut beside = vec![1u8; first * PIECE];
    (first..pieces).try_for_each(|at| file.write_all_at(&piece, (at * PIECE) as u64))?;
    file.sync_data()?;
    for (order, place) in ORDERS {
        let place = |turn| place(turn, pieces);
        let writes = |view: &View<'_>| {
            (0..pieces).try_for_each(|turn| view.write((place(turn) * PIECE) as u64, &piece[..]))
        };
        let mut ours = |n| {
            for _ in 0..n {
                writes(&view)?;
                window.sync()?;
            }
            Ok(())
        };
        let mut in_memory = |n| {
            let view = twin.local();
            Ok((0..n).try_for_each(|_| writes(&view))?)
        };
        let mut mapped = |n| {
            for _ in 0..n {
                for turn in 0..pieces {
                    part.write_memcpy_at(place(turn) * PIECE, &piece);
                }
                part.msync()?;
            }
            Ok(())
        };
        let by_hand = |memory: &mut [u8], n| {
            (0..n).try_for_each(|_| by_hand(&file, memory, first, (0..pieces).map(place)))
        };
        let mut raw = |n| by_hand(&mut [], n);
        // What of the window is in memory is copied there, by us too.
        let mut both = |n| by_hand(&mut beside, n);
        let draft = row(format!("mSTREAM {order} + sync, {kind}")).bytes(bytes).goal(STREAM_GOAL);
        let mut limits: Vec<(&str, Work<'_>)> = vec![
            ("pwrite + fdatasync", &mut raw),
            ("memcpy + msync", &mut mapped),
            ("memory window, no sync", &mut in_memory),
        ];
        if first > 0 {
            limits.push(("that and memcpy of the half in memory", &mut both));
        }
        bench.alone(draft, &mut ours, &mut limits)?;
    }
    Ok(())
}
