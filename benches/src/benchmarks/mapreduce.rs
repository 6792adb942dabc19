//! Word count as one-sided MapReduce, with a checkpoint after each task of a rank's map phase and
//! after its reduce phase: what a checkpoint costs a program that computes in between.
use super::commit::{Records, WHOLE};
use super::storage::in_folder;
use crate::Result;
use crate::bench::{Bench, row};
use crate::record::Unit;
use rma::{
    Communicator, OnStorage, Op, PersistentHints, PersistentMemory, Rank, Root, StorageHints,
    Window,
};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Tasks of a rank, as many as the paper's smallest job has, and bytes of text in each.
const TASKS: usize = 8;
const TASK_BYTES: [usize; 2] = [1 << 20, 8 << 20];
const SMOKE_TASK_BYTES: [usize; 1] = [16 << 10];
const ROUNDS: usize = 5;
/// Words that there are.
const WORDS: u64 = 8 << 10;
/// The paper's time with checkpoints, in times of that without: 16 of them, 64 to 512 ranks.
const GOAL: f64 = 1.038;

/// A word by its hash, and how often it was found.
const PAIR: usize = 2;

/// Where what a rank has found lies in its part: for each rank that reduces, how many pairs there
/// are for it, then the pairs; at the end, the pairs that this rank has reduced, and how many.
#[derive(Clone, Copy)]
struct Parts {
    ranks: usize,
    /// Most pairs for one rank.
    room: usize,
}

impl Parts {
    fn new(ranks: usize) -> Self {
        Self { ranks, room: TASKS * WORDS as usize }
    }

    fn words(self) -> usize {
        (self.ranks + 1) * (1 + PAIR * self.room)
    }

    /// Of a rank that reduces; behind the last, of what was reduced.
    fn begin(self, rank: usize) -> u64 {
        (rank * (1 + PAIR * self.room)) as u64
    }
}

/// Text of a rank, task by task.
struct Text {
    tasks: Vec<Vec<u8>>,
    words: u64,
}

impl Text {
    /// Few words are frequent and many are rare, as in a language.
    fn new(rank: Rank, bytes: usize) -> Self {
        let mut state = 0x9e37_79b9_7f4a_7c15 ^ u64::from(u32::from(rank));
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let mut words = 0;
        let mut task = || {
            let mut text = Vec::with_capacity(bytes + 16);
            while text.len() < bytes {
                // The product of two shares of one.
                let word = (next() % WORDS) * (next() % WORDS) / WORDS;
                text.extend_from_slice(format!("w{word} ").as_bytes());
                words += 1;
            }
            text
        };
        Self { tasks: (0..TASKS).map(|_| task()).collect(), words }
    }
}

/// FNV-1a.
fn hash(word: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    word.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// A job on a window, with a checkpoint after each task and at the end.
struct Job<'j> {
    world: &'j Communicator,
    text: &'j Text,
    parts: Parts,
}

impl Job<'_> {
    fn run(&self, window: &Window, checkpoint: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let view = window.local();
        let mut used = vec![0usize; self.parts.ranks];
        for task in &self.text.tasks {
            let mut found = HashMap::<u64, u64>::new();
            for word in task.split(|byte| *byte == b' ').filter(|word| !word.is_empty()) {
                *found.entry(hash(word)).or_default() += 1;
            }
            let mut pairs = vec![Vec::new(); self.parts.ranks];
            for (word, count) in found {
                pairs[(word % self.parts.ranks as u64) as usize].extend([word, count]);
            }
            for (rank, pairs) in pairs.iter().enumerate() {
                let begin = self.parts.begin(rank);
                view.write(begin + 1 + (PAIR * used[rank]) as u64, &pairs[..])?;
                used[rank] += pairs.len() / PAIR;
                view.store(begin, used[rank] as u64)?;
            }
            checkpoint()?;
        }
        self.world.barrier()?;
        self.reduce(window)?;
        checkpoint()?;
        Ok(self.world.barrier()?)
    }

    /// Nanoseconds of a run of all ranks, whose result is right.
    fn time(&self, window: &Window, checkpoint: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
        self.world.barrier()?;
        let start = Instant::now();
        self.run(window, checkpoint)?;
        let took = start.elapsed();
        self.check(window)?;
        Ok(took.as_nanos() as f64)
    }

    /// Gets what all ranks have found for this one.
    fn reduce(&self, window: &Window) -> Result<()> {
        let me = self.world.rank();
        let begin = self.parts.begin(u32::from(me) as usize);
        let mut sums = HashMap::<u64, u64>::new();
        let epoch = window.lock_all()?;
        for rank in 0..self.world.size() {
            let mut used = [0u64];
            epoch.get(Rank(rank), begin, &mut used)?;
            let mut pairs = vec![0u64; PAIR * usize::try_from(used[0])?];
            epoch.get(Rank(rank), begin + 1, &mut pairs)?;
            for pair in pairs.chunks_exact(PAIR) {
                *sums.entry(pair[0]).or_default() += pair[1];
            }
        }
        epoch.unlock()?;
        let reduced: Vec<u64> = sums.into_iter().flat_map(|(word, sum)| [word, sum]).collect();
        let (view, end) = (window.local(), self.parts.begin(self.parts.ranks));
        view.write(end + 1, &reduced[..])?;
        Ok(view.store(end, (reduced.len() / PAIR) as u64)?)
    }

    /// Fails unless all words of all ranks were counted.
    fn check(&self, window: &Window) -> Result<()> {
        let (view, end) = (window.local(), self.parts.begin(self.parts.ranks));
        let mut reduced = vec![0u64; PAIR * usize::try_from(view.load::<u64>(end)?)?];
        view.read(end + 1, &mut reduced[..])?;
        let counted = reduced.chunks_exact(PAIR).map(|pair| pair[1]).sum();
        let all = self.world.allreduce(&[counted, self.text.words], Op::Sum)?;
        if all[0] == all[1] {
            Ok(())
        } else {
            Err(format!("{} words of {}", all[0], all[1]).into())
        }
    }
}

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    let (sizes, rounds) = match bench.is_smoke() {
        true => (&SMOKE_TASK_BYTES[..], 1),
        false => (&TASK_BYTES[..], ROUNDS),
    };
    sizes.iter().try_for_each(|bytes| {
        in_folder(bench, "mapreduce", |bench, folder| measure(bench, folder, (*bytes, rounds)))
    })
}

fn measure(
    bench: &mut Bench<'_>,
    folder: &Path,
    (task_bytes, rounds): (usize, usize),
) -> Result<()> {
    let world = bench.world();
    let (parts, text) = (Parts::new(world.size() as usize), Text::new(world.rank(), task_bytes));
    let job = Job { world, text: &text, parts };
    let hints = StorageHints::shared_file(folder.join("window")).unlink(true);
    let stored = world.window(parts.words(), 8).on_storage(&hints)?.allocate()?;
    let plain = world.window(parts.words(), 8).allocate()?;
    let root = Root::open(world, folder)?;
    let hints = PersistentHints::name("mapreduce");
    let memory = Arc::new(PersistentMemory::open(&root, world, &hints, parts.words() * 8)?);
    let committed = world.window(parts.words(), 8).create(memory.clone())?;
    let mut by_hand = ByHand::open(folder, world.rank(), parts)?;
    let mut records = Records::new(world, folder.join("by-hand"), parts.words() * 8)?;
    let mut times = [const { Vec::new() }; 6];
    for _ in 0..rounds {
        let mut asked = 0;
        // Each decides the one before, and the last one itself.
        let mut request = || {
            let request = memory.request_commit(world)?;
            asked += 1;
            if asked > TASKS {
                request.wait()?;
            }
            Ok(())
        };
        let took = [
            job.time(&plain, &mut || Ok(()))?,
            job.time(&plain, &mut || by_hand.save(&plain))?,
            job.time(&plain, &mut || by_hand.save(&plain).and_then(|()| records.make()))?,
            job.time(&stored, &mut || Ok(stored.sync()?))?,
            job.time(&committed, &mut || Ok(memory.commit(world).map(drop)?))?,
            job.time(&committed, &mut request)?,
        ];
        times.iter_mut().zip(took).for_each(|(times, took)| times.push(took));
    }
    let [without, written, whole, synced, with_commits, with_requests] = &times;
    let limits = [
        ("no checkpoint", &without[..]),
        ("pwrite + fdatasync of all", &written[..]),
        (WHOLE, &whole[..]),
    ];
    let draft = |name| row(name).bytes(task_bytes * TASKS * parts.ranks);
    let unit = Unit::Nanoseconds;
    bench.note_beside(draft("MapReduce, synced").goal(GOAL), unit, synced, &limits[..2])?;
    bench.note_beside(draft("MapReduce, committed"), unit, with_commits, &limits)?;
    let asked = draft("MapReduce, committed while it goes on");
    bench.note_beside(asked, unit, with_requests, &limits)?;
    committed.free()?;
    drop((memory, root));
    plain.free()?;
    Ok(stored.free()?)
}

/// A checkpoint without windows on storage: all that a rank has so far, into a file of its own.
struct ByHand {
    file: File,
    buffer: Vec<u64>,
    parts: Parts,
}

impl ByHand {
    fn open(folder: &Path, rank: Rank, parts: Parts) -> Result<Self> {
        let path = folder.join(format!("by-hand-{}", u32::from(rank)));
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
        Ok(Self { file, buffer: Vec::new(), parts })
    }

    fn save(&mut self, window: &Window) -> Result<()> {
        let view = window.local();
        for rank in 0..=self.parts.ranks {
            let begin = self.parts.begin(rank);
            let used = usize::try_from(view.load::<u64>(begin)?)?;
            self.buffer.resize(1 + PAIR * used, 0);
            view.read(begin, &mut self.buffer[..])?;
            self.file.write_all_at(bytemuck::cast_slice(&self.buffer), begin * 8)?;
        }
        Ok(self.file.sync_data()?)
    }
}
