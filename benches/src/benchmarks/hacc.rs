//! Checkpoint and restart of particles, as the I/O kernel of HACC does it: nine arrays of each rank
//! in its own part of one file, which all share.
use super::storage::{STREAM_ROUNDS, in_folder};
use crate::Result;
use crate::bench::{Bench, row};
use crate::measure::Work;
use rma::{
    Communicator, OnStorage, PersistentHints, PersistentMemory, Root, StorageHints, View, Window,
};
use std::cell::RefCell;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a particle in each array: place, velocity, potential; number; mask.
const FIELDS: [usize; 9] = [4, 4, 4, 4, 4, 4, 4, 8, 2];
/// Of a rank. `peerbench` has the same.
const PARTICLES: [usize; 3] = [16 << 10, 128 << 10, 1 << 20];
const SMOKE_PARTICLES: [usize; 1] = [1 << 10];
/// How MPI-IO does the same, in the rows beside it.
const CALLS: [&str; 2] = ["individual", "collective"];

/// The arrays of a rank, and where each begins in its part.
struct Particles {
    fields: Vec<(usize, Vec<u8>)>,
    bytes: usize,
}

impl Particles {
    fn new(count: usize, fill: u8) -> Self {
        let mut bytes = 0;
        let fields = FIELDS.map(|size| {
            let at = bytes;
            bytes += size * count;
            (at, vec![fill; size * count])
        });
        Self { fields: fields.into(), bytes }
    }

    fn of_all(&self, world: &Communicator) -> usize {
        self.bytes * world.size() as usize
    }

    fn save(&self, view: &View<'_>) -> Result<()> {
        self.fields.iter().try_for_each(|(at, field)| Ok(view.write(*at as u64, &field[..])?))
    }

    fn load(&mut self, view: &View<'_>) -> Result<()> {
        self.fields
            .iter_mut()
            .try_for_each(|(at, field)| Ok(view.read(*at as u64, &mut field[..])?))
    }
}

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    bench.set_rounds(STREAM_ROUNDS);
    bench.set_batch(Duration::from_millis(1));
    let counts = if bench.is_smoke() { &SMOKE_PARTICLES[..] } else { &PARTICLES[..] };
    in_folder(bench, "hacc", |bench, folder| {
        counts.iter().try_for_each(|count| measure(bench, folder, *count))
    })
}

fn measure(bench: &mut Bench<'_>, folder: &Path, count: usize) -> Result<()> {
    let (world, particles) = (bench.world(), Particles::new(count, 7));
    let bytes = particles.bytes;
    let hints = StorageHints::shared_file(folder.join("window")).unlink(true);
    let window = world.window(bytes, 1).on_storage(&hints)?.allocate()?;
    let twin = world.window(bytes, 1).allocate()?;
    let beside = Beside::open(folder, bytes, u32::from(world.rank()))?;
    checkpoints(bench, &particles, [&window, &twin], &beside)?;
    restarts(bench, &particles, [&window, &twin], &beside)?;
    twin.free()?;
    window.free()?;
    in_folder(bench, "hacc-root", |bench, root| commits(bench, &particles, root, &beside))?;
    bench.world().barrier()?;
    if bench.is_first() {
        fs::remove_file(folder.join(Beside::NAME))?;
    }
    Ok(())
}

/// By `sync`, beside the same without a sync into a window in memory.
fn checkpoints(
    bench: &mut Bench<'_>,
    particles: &Particles,
    [window, twin]: [&Window; 2],
    beside: &Beside,
) -> Result<()> {
    let world = bench.world();
    for calls in CALLS {
        let mut ours = |n| {
            for _ in 0..n {
                particles.save(&window.local())?;
                window.sync()?;
                world.barrier()?;
            }
            Ok(())
        };
        let mut in_memory = |n| {
            for _ in 0..n {
                particles.save(&twin.local())?;
                world.barrier()?;
            }
            Ok(())
        };
        let mut raw = |n| beside.saves(world, particles, n);
        let draft = row(format!("HACC checkpoint, MPI-IO {calls}")).bytes(particles.of_all(world));
        let limits: &mut [(&str, Work<'_>)] =
            &mut [("pwrite + fdatasync", &mut raw), ("memory window", &mut in_memory)];
        bench.together(draft, &mut ours, limits)?;
    }
    Ok(())
}

/// By `commit` of a persistent window: what no crash leaves in part.
fn commits(
    bench: &mut Bench<'_>,
    particles: &Particles,
    folder: &Path,
    beside: &Beside,
) -> Result<()> {
    let world = bench.world();
    let (root, hints) = (Root::open(world, folder)?, PersistentHints::name("particles"));
    let memory = Arc::new(PersistentMemory::open(&root, world, &hints, particles.bytes)?);
    let window = world.window(particles.bytes, 1).create(memory.clone())?;
    let mut fill = 0;
    let mut changed = Particles::new(particles.bytes / FIELDS.iter().sum::<usize>(), fill);
    let mut ours = |n| {
        for _ in 0..n {
            // A commit writes what has changed only: here, all.
            fill = u8::wrapping_add(fill, 1);
            changed.fields.iter_mut().for_each(|(_, field)| field.fill(fill));
            changed.save(&window.local())?;
            memory.commit(world)?;
        }
        Ok(())
    };
    let mut raw = |n| beside.saves(world, particles, n);
    let draft = row("HACC checkpoint committed, MPI-IO individual");
    let draft = draft.bytes(particles.of_all(world));
    bench.together(draft, &mut ours, &mut [("pwrite + fdatasync", &mut raw)])?;
    Ok(window.free()?)
}

fn restarts(
    bench: &mut Bench<'_>,
    particles: &Particles,
    [window, twin]: [&Window; 2],
    beside: &Beside,
) -> Result<()> {
    let world = bench.world();
    let found = RefCell::new(Particles::new(particles.bytes / FIELDS.iter().sum::<usize>(), 0));
    let loads = |window: &Window, n: u64| -> Result<()> {
        for _ in 0..n {
            found.borrow_mut().load(&window.local())?;
            world.barrier()?;
        }
        Ok(())
    };
    loads(window, 1)?;
    if found.borrow().fields != particles.fields {
        return Err("the particles that were read are not those that were saved".into());
    }
    for calls in CALLS {
        let mut raw = |n| {
            for _ in 0..n {
                beside.load(&mut found.borrow_mut())?;
                world.barrier()?;
            }
            Ok(())
        };
        let draft = row(format!("HACC restart, MPI-IO {calls}")).bytes(particles.of_all(world));
        let limits: &mut [(&str, Work<'_>)] =
            &mut [("pread", &mut raw), ("memory window", &mut |n| loads(twin, n))];
        bench.together(draft, &mut |n| loads(window, n), limits)?;
    }
    Ok(())
}

/// A rank's part of one file, without windows.
struct Beside {
    file: File,
    begin: usize,
}

impl Beside {
    const NAME: &str = "pwrite";

    fn open(folder: &Path, bytes: usize, rank: u32) -> Result<Self> {
        let options =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).clone();
        Ok(Self { file: options.open(folder.join(Self::NAME))?, begin: bytes * rank as usize })
    }

    fn saves(&self, world: &Communicator, particles: &Particles, n: u64) -> Result<()> {
        for _ in 0..n {
            for (at, field) in &particles.fields {
                self.file.write_all_at(field, (self.begin + at) as u64)?;
            }
            self.file.sync_data()?;
            world.barrier()?;
        }
        Ok(())
    }

    fn load(&self, particles: &mut Particles) -> Result<()> {
        for (at, field) in &mut particles.fields {
            self.file.read_exact_at(field, (self.begin + *at) as u64)?;
        }
        Ok(())
    }
}
