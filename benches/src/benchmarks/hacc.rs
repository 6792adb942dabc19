//! Checkpoint and restart of particles, as the I/O kernel of HACC does it: nine arrays of each rank
//! in its own part of one file, which all share.
use super::storage::{STREAM_ROUNDS, file};
use crate::Result;
use crate::bench::{Bench, row};
use rma::{OnStorage, PersistentHints, PersistentMemory, Root, StorageHints, View, Window};
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
    let folder = file("hacc")?.with_extension("folder");
    if bench.is_first() {
        // What a run left that was killed.
        _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder)?;
    }
    bench.world().barrier()?;
    bench.set_rounds(STREAM_ROUNDS);
    bench.set_batch(Duration::from_millis(1));
    let counts = if bench.is_smoke() { &SMOKE_PARTICLES[..] } else { &PARTICLES[..] };
    counts.iter().try_for_each(|count| measure(bench, &folder, *count))?;
    bench.world().barrier()?;
    if bench.is_first() {
        fs::remove_dir_all(&folder)?;
    }
    Ok(())
}

fn measure(bench: &mut Bench<'_>, folder: &Path, count: usize) -> Result<()> {
    let (world, particles) = (bench.world(), Particles::new(count, 7));
    let (bytes, all) = (particles.bytes, particles.bytes * world.size() as usize);
    let hints = StorageHints::shared_file(folder.join("window")).unlink(true);
    let window = world.window(bytes, 1).on_storage(&hints)?.allocate()?;
    let twin = world.window(bytes, 1).allocate()?;
    let root = folder.join("root");
    if bench.is_first() {
        fs::create_dir(&root)?;
    }
    world.barrier()?;
    let root = Root::open(world, &root)?;
    let memory =
        Arc::new(PersistentMemory::open(&root, world, &PersistentHints::name("h"), bytes)?);
    let versions = world.window(bytes, 1).create(memory.clone())?;
    let beside = Beside::open(folder, bytes, u32::from(world.rank()))?;
    let barrier = || Ok(world.barrier()?);

    let saved = |window: &Window, n: u64, make_durable: &dyn Fn() -> Result<()>| -> Result<()> {
        for _ in 0..n {
            particles.save(&window.local())?;
            make_durable()?;
            world.barrier()?;
        }
        Ok(())
    };
    for calls in CALLS {
        let mut ours = |n| saved(&window, n, &|| Ok(window.sync()?));
        let mut in_memory = |n| saved(&twin, n, &|| Ok(()));
        let mut raw = |n| (0..n).try_for_each(|_| beside.save(&particles).and_then(|()| barrier()));
        let draft = row(format!("HACC checkpoint, MPI-IO {calls}")).bytes(all);
        bench.together(
            draft,
            &mut ours,
            &mut [("pwrite + fdatasync", &mut raw), ("memory window", &mut in_memory)],
        )?;
    }
    let mut ours =
        |n| saved(&versions, n, &|| memory.commit(world).map(|_| ()).map_err(Into::into));
    let mut raw = |n| (0..n).try_for_each(|_| beside.save(&particles).and_then(|()| barrier()));
    let draft = row("HACC checkpoint committed, MPI-IO individual").bytes(all);
    bench.together(draft, &mut ours, &mut [("pwrite + fdatasync", &mut raw)])?;

    let found = RefCell::new(Particles::new(count, 0));
    let loaded = |window: &Window, n: u64| -> Result<()> {
        for _ in 0..n {
            found.borrow_mut().load(&window.local())?;
            world.barrier()?;
        }
        Ok(())
    };
    loaded(&window, 1)?;
    if found.borrow().fields != particles.fields {
        return Err("the particles that were read are not those that were saved".into());
    }
    for calls in CALLS {
        let mut ours = |n| loaded(&window, n);
        let mut in_memory = |n| loaded(&twin, n);
        let mut raw = |n| {
            (0..n).try_for_each(|_| beside.load(&mut found.borrow_mut()).and_then(|()| barrier()))
        };
        let draft = row(format!("HACC restart, MPI-IO {calls}")).bytes(all);
        bench.together(
            draft,
            &mut ours,
            &mut [("pread", &mut raw), ("memory window", &mut in_memory)],
        )?;
    }
    versions.free()?;
    drop((memory, root));
    twin.free()?;
    window.free()?;
    world.barrier()?;
    if bench.is_first() {
        fs::remove_dir_all(folder.join("root"))?;
        fs::remove_file(folder.join(Beside::NAME))?;
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

    fn save(&self, particles: &Particles) -> Result<()> {
        for (at, field) in &particles.fields {
            self.file.write_all_at(field, (self.begin + at) as u64)?;
        }
        Ok(self.file.sync_data()?)
    }

    fn load(&self, particles: &mut Particles) -> Result<()> {
        for (at, field) in &mut particles.fields {
            self.file.read_exact_at(field, (self.begin + *at) as u64)?;
        }
        Ok(())
    }
}
