//! Persistent windows: what a commit costs by what has changed, and what opening one costs.
use super::storage::{STREAM_ROUNDS, in_folder};
use crate::Result;
use crate::bench::{Bench, row};
use crate::measure::Work;
use crate::record::Unit;
use rma::{Communicator, DirtyTracking, PersistentHints, PersistentMemory, Rank, Root};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A part, and what is compared of it at a time.
const BYTES: usize = 32 << 20;
const SMOKE_BYTES: usize = 1 << 20;
const BLOCK: usize = 16 << 10;
/// Shares of the blocks that change before a commit, in thousands of all.
const SHARES: [usize; 6] = [1, 10, 100, 250, 500, 1000];
/// In times of `pwrite` and `fdatasync` of what has changed, from a tenth on.
const GOAL: f64 = 1.2;
const GOAL_FROM: usize = 100;
/// The limit that survives a crash, as a commit does.
pub(super) const WHOLE: &str = "that and records by hand";

/// How commits find out what has changed, as rows name it.
const WAYS: [(&str, DirtyTracking); 2] =
    [("commit", DirtyTracking::Compare), ("commit by marks", DirtyTracking::WriteProtect)];

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    bench.set_rounds(STREAM_ROUNDS);
    bench.set_batch(Duration::from_millis(1));
    in_folder(bench, "root", |bench, folder| {
        let root = Root::open(bench.world(), folder)?;
        WAYS.into_iter().try_for_each(|(way, tracking)| commits(bench, &root, way, tracking))?;
        WAYS.into_iter().try_for_each(|(way, tracking)| stops(bench, &root, way, tracking))?;
        openings(bench, &root)
    })
}

/// Blocks that change: every so many of them.
fn places(share: usize, bytes: usize) -> impl Iterator<Item = usize> + Clone {
    let changed = (bytes / BLOCK * share / 1000).max(1);
    let apart = bytes / BLOCK / changed;
    (0..changed).map(move |at| at * apart * BLOCK)
}

fn percent(share: usize) -> f64 {
    share as f64 / 10.0
}

/// A window of that name, for which nothing else is to be said.
fn hints(name: &str) -> PersistentHints {
    PersistentHints::name(name.replace(' ', "-"))
}

fn bytes_of(bench: &Bench<'_>) -> usize {
    if bench.is_smoke() { SMOKE_BYTES } else { BYTES }
}

/// A file of this rank beside its window, which has been written once.
fn beside(bench: &Bench<'_>, root: &Root, bytes: usize) -> Result<File> {
    let path = root.path().join(format!("pwrite.{}", u32::from(bench.world().rank())));
    let file = File::create_new(&path)?;
    std::fs::remove_file(path)?;
    file.write_all_at(&vec![7u8; bytes], 0)?;
    file.sync_data()?;
    Ok(file)
}

fn commits(bench: &mut Bench<'_>, root: &Root, way: &str, tracking: DirtyTracking) -> Result<()> {
    let (world, bytes) = (bench.world(), bytes_of(bench));
    let hints = hints(way).dirty_tracking(tracking);
    let memory = Arc::new(PersistentMemory::open(root, world, &hints, bytes)?);
    let window = world.window(bytes, 1).create(memory.clone())?;
    let beside = beside(bench, root, bytes)?;
    let folder = root.path().join(format!("by-hand-{}", way.replace(' ', "-")));
    let mut records = Records::new(world, folder, bytes)?;
    let view = window.local();
    for share in SHARES {
        let changed = places(share, bytes).count();
        let places = || places(share, bytes).map(|at| at as u64);
        let mut fill = 0u8;
        let mut ours = |n| {
            for _ in 0..n {
                fill = fill.wrapping_add(1);
                places().try_for_each(|at| view.write(at, &[fill; BLOCK][..]))?;
                memory.commit(world)?;
            }
            Ok(())
        };
        let mut raw = |n| {
            for _ in 0..n {
                places().try_for_each(|at| beside.write_all_at(&[9; BLOCK], at))?;
                beside.sync_data()?;
                world.barrier()?;
            }
            Ok(())
        };
        let name = format!("{way}, {} % of {} MiB changed", percent(share), bytes >> 20);
        let draft = row(name).bytes(changed * BLOCK);
        let draft = if share < GOAL_FROM { draft } else { draft.goal(GOAL) };
        let mut whole = |n| {
            for _ in 0..n {
                places().try_for_each(|at| beside.write_all_at(&[9; BLOCK], at))?;
                beside.sync_data()?;
                records.make()?;
            }
            Ok(())
        };
        let beside: &mut [(&str, Work<'_>)] =
            &mut [("pwrite + fdatasync", &mut raw), (WHOLE, &mut whole)];
        bench.together(draft, &mut ours, beside)?;
    }
    Ok(window.free()?)
}

/// How long ranks do not store for a version that they ask for, beside a copy of the blocks that
/// have changed and beside the whole commit.
fn stops(bench: &mut Bench<'_>, root: &Root, way: &str, tracking: DirtyTracking) -> Result<()> {
    let (world, bytes) = (bench.world(), bytes_of(bench));
    let hints = hints(&way.replace("commit", "request")).dirty_tracking(tracking);
    let memory = Arc::new(PersistentMemory::open(root, world, &hints, bytes)?);
    let window = world.window(bytes, 1).create(memory.clone())?;
    let (view, rounds) = (window.local(), if bench.is_smoke() { 2 } else { STREAM_ROUNDS });
    let (from, mut to) = (vec![7u8; bytes], vec![0u8; bytes]);
    let mut fill = 0u8;
    for share in SHARES {
        let places = places(share, bytes);
        let mut change = || -> Result<Instant> {
            fill = fill.wrapping_add(1);
            places.clone().try_for_each(|at| view.write(at as u64, &[fill; BLOCK][..]))?;
            world.barrier()?;
            Ok(Instant::now())
        };
        let mut took = [const { Vec::new() }; 3];
        // The first time, the memory of the copies is new.
        for round in 0..=rounds {
            let start = change()?;
            let request = memory.request_commit(world)?;
            let asked = start.elapsed();
            request.wait()?;
            let start = change()?;
            memory.commit(world)?;
            let committed = start.elapsed();
            world.barrier()?;
            let start = Instant::now();
            for at in places.clone() {
                to[at..at + BLOCK].copy_from_slice(&from[at..at + BLOCK]);
            }
            let copied = start.elapsed();
            core::hint::black_box(&to);
            for (took, time) in took.iter_mut().zip([asked, copied, committed]) {
                took.extend((round > 0).then_some(time.as_nanos() as f64));
            }
        }
        let [asked, copied, committed] = &took;
        let way = way.replace("commit", "ranks stop");
        let name = format!("{way}, {} % of {} MiB changed", percent(share), bytes >> 20);
        let draft = row(name).bytes(places.count() * BLOCK);
        let beside = [("memcpy of it", &copied[..]), ("commit", &committed[..])];
        bench.note_beside(draft, Unit::Nanoseconds, asked, &beside)?;
    }
    Ok(window.free()?)
}

/// Makes durable by hand what a version has beside its blocks, as its records are: a file of each
/// rank, with 16 bytes for each block, and its name; then one of rank 0, and its name.
pub(super) struct Records<'r> {
    world: &'r Communicator,
    folder: PathBuf,
    manifest: Vec<u8>,
    number: u64,
}

impl<'r> Records<'r> {
    pub(super) fn new(world: &'r Communicator, folder: PathBuf, bytes: usize) -> Result<Self> {
        if world.rank() == Rank(0) {
            std::fs::create_dir(&folder)?;
        }
        world.barrier()?;
        let manifest = vec![7; 16 * bytes.div_ceil(BLOCK)];
        Ok(Self { world, folder, manifest, number: 0 })
    }

    /// In place of those before, when the blocks of this rank are durable.
    pub(super) fn make(&mut self) -> Result<()> {
        let rank = u32::from(self.world.rank());
        let folder = File::open(&self.folder)?;
        let part = |number| self.folder.join(format!("part.{rank}.{number}"));
        let record = |number| self.folder.join(format!("version.{number}"));
        let durable = |path: &PathBuf, bytes: &[u8]| {
            let file = File::create(path)?;
            file.write_all_at(bytes, 0)?;
            file.sync_data()
        };
        let (old, new) = (self.number, self.number + 1);
        durable(&part(new), &self.manifest)?;
        folder.sync_all()?;
        self.world.barrier()?;
        if rank == 0 {
            let path = self.folder.join("new");
            durable(&path, &self.manifest[..16])?;
            std::fs::rename(path, record(new))?;
            folder.sync_all()?;
        }
        self.world.barrier()?;
        for path in [part(old), record(old)] {
            // There is none before the first, and only rank 0 has a record.
            _ = std::fs::remove_file(path);
        }
        self.number = new;
        Ok(())
    }
}

/// Of the first of those windows.
fn openings(bench: &mut Bench<'_>, root: &Root) -> Result<()> {
    let (world, bytes, hints) = (bench.world(), bytes_of(bench), hints(WAYS[0].0));
    let beside = beside(bench, root, bytes)?;
    world.barrier()?;
    let mut buffer = vec![0u8; bytes];
    let mut ours = |n| {
        for _ in 0..n {
            drop(PersistentMemory::open(root, world, &hints, bytes)?);
            // No rank has it when the next opens it.
            world.barrier()?;
        }
        Ok(())
    };
    let mut raw = |n| {
        for _ in 0..n {
            beside.read_exact_at(&mut buffer, 0)?;
            beside.write_all_at(&buffer, 0)?;
            world.barrier()?;
        }
        Ok(())
    };
    let draft = row("open what was committed").bytes(bytes);
    bench.together(draft, &mut ours, &mut [("read and write as much", &mut raw)])
}
