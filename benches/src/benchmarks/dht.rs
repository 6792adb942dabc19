//! A hash table over all ranks, filled by one-sided operations: on windows in memory, on storage,
//! half on each, and larger than the memory that the ranks may have.
use super::storage::hints;
use crate::Result;
use crate::bench::{Bench, row};
use crate::group::MemoryGroup;
use crate::raw::Raw;
use crate::record::Unit;
use rma::{AccessStyle, LockAll, OnStorage, Op, Rank, StoragePart, Window};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

/// Of the tables of all ranks together.
const SIZES: [usize; 3] = [16 << 20, 64 << 20, 256 << 20];
const SMOKE_SIZES: [usize; 1] = [2 << 20];
const ROUNDS: usize = 3;
const SMOKE_ROUNDS: usize = 1;

/// What all ranks may have together out of core, and tables in hundredths of it.
const MEMORY: usize = 128 << 20;
const SMOKE_MEMORY: usize = 64 << 20;
const SHARES: [usize; 4] = [50, 100, 133, 166];
const OUT_ROUNDS: usize = 3;

/// Where a table is, by name and the share of it on storage, and the paper's times of a memory
/// window: in memory, and out of core.
const PLACES: [(&str, f64, f64, f64); 2] =
    [("storage", 1.0, 1.20, 1.89), ("half on storage", 0.5, 1.08, 1.36)];

/// Words of a bucket and of an entry of the heap: a key, and where the next of the chain is.
const ENTRY: u64 = 2;
/// Words before the first bucket; the first counts the entries of the heap that are used.
const HEAD: u64 = 2;
/// Entries of the heap for each bucket.
const HEAP_FACTOR: u64 = 4;

/// A rank's part of the table, and how many there are.
#[derive(Clone, Copy)]
struct Table {
    buckets: u64,
    ranks: u64,
}

impl Table {
    fn of(bench: &Bench<'_>, bytes: usize) -> Self {
        let ranks = u64::from(bench.world().size());
        let words = bytes as u64 / 8 / ranks;
        Self { buckets: (words - HEAD) / (ENTRY * (1 + HEAP_FACTOR)), ranks }
    }

    fn words(self) -> u64 {
        HEAD + ENTRY * self.buckets * (1 + HEAP_FACTOR)
    }

    /// Four fifths of all that there is room for.
    fn inserts(self) -> u64 {
        self.buckets * (1 + HEAP_FACTOR) * 4 / 5
    }

    /// The keys of a rank: no other rank has them, none is 0.
    fn keys(self, rank: Rank) -> impl Iterator<Item = u64> {
        let first = u64::from(rank);
        (0..self.inserts()).map(move |at| mixed(1 + first + at * self.ranks))
    }

    /// The rank, and the words of the key and of the chain of its bucket.
    fn place(self, key: u64) -> (Rank, u64, u64) {
        let bucket = HEAD + ENTRY * (key / self.ranks % self.buckets);
        (Rank((key % self.ranks) as u32), bucket, bucket + 1)
    }

    /// The word of an entry of the heap, if there are so many.
    fn entry(self, used: u64) -> Result<u64> {
        let is_there = used < HEAP_FACTOR * self.buckets;
        is_there.then(|| HEAD + ENTRY * (self.buckets + used)).ok_or_else(|| "no room".into())
    }

    /// Claims the bucket, or links an entry of the heap at the head of its chain.
    fn insert(self, epoch: &LockAll<'_>, key: u64) -> Result<()> {
        let (owner, bucket, chain) = self.place(key);
        if epoch.compare_and_swap(owner, bucket, 0u64, key)? == 0 {
            return Ok(());
        }
        let at = self.entry(epoch.fetch_and_op(owner, 0u64, Op::Sum, 1u64)?)?;
        let mut head = epoch.fetch_and_op(owner, chain, Op::NoOp, 0u64)?;
        loop {
            epoch.put(owner, at, &[key, head])?;
            // Whole before another rank can find it.
            epoch.flush(owner)?;
            match epoch.compare_and_swap(owner, chain, head, at)? {
                seen if seen == head => return Ok(()),
                seen => head = seen,
            }
        }
    }

    /// The same by the machine's own atomics on the parts of all ranks.
    fn insert_raw(self, parts: &[Raw<'_>], key: u64) -> Result<()> {
        let (owner, bucket, chain) = self.place(key);
        let part = &parts[usize::try_from(u32::from(owner))?];
        let word = |at: u64| part.word64(at as usize * 8);
        if word(bucket).compare_exchange(0, key, SeqCst, SeqCst).is_ok() {
            return Ok(());
        }
        let at = self.entry(word(0).fetch_add(1, SeqCst))?;
        let mut head = word(chain).load(SeqCst);
        loop {
            word(at).store(key, SeqCst);
            word(at + 1).store(head, SeqCst);
            match word(chain).compare_exchange(head, at, SeqCst, SeqCst) {
                Ok(_) => return Ok(()),
                Err(seen) => head = seen,
            }
        }
    }

    /// Number and sum of the keys in this rank's part.
    fn holds(self, window: &Window) -> Result<[u64; 2]> {
        let part = window.local();
        let used = part.load::<u64>(0)?;
        let entries = self.buckets + used.min(HEAP_FACTOR * self.buckets);
        let mut found = [0u64; 2];
        for at in 0..entries {
            let key: u64 = part.load(HEAD + ENTRY * at)?;
            found = [found[0] + u64::from(key != 0), found[1].wrapping_add(key)];
        }
        Ok(found)
    }
}

/// Every number another one, and 0 none of them but of 0 itself (splitmix64).
fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// What fills a table: our operations, or the machine's own.
#[derive(Clone, Copy)]
enum By {
    Us,
    Machine,
}

/// Nanoseconds until all ranks have filled a new table on `window`, and until it is durable.
fn fill(bench: &Bench<'_>, table: Table, window: Window, by: By) -> Result<[f64; 2]> {
    let (world, rank) = (bench.world(), bench.world().rank());
    let is_stored = window.attribute::<StoragePart>().is_some();
    let views = (0..world.size()).map(|rank| bench.part(&window, Rank(rank)));
    let views = views.collect::<Result<Vec<_>>>()?;
    let parts: Vec<Raw<'_>> = views.iter().map(Raw::new).collect();
    let epoch = window.lock_all()?;
    world.barrier()?;
    let start = Instant::now();
    match by {
        By::Us => table.keys(rank).try_for_each(|key| table.insert(&epoch, key))?,
        By::Machine => table.keys(rank).try_for_each(|key| table.insert_raw(&parts, key))?,
    }
    world.barrier()?;
    let filled = start.elapsed();
    if is_stored {
        window.sync()?;
        world.barrier()?;
    }
    let durable = start.elapsed();
    epoch.unlock()?;
    let found = table.holds(&window)?;
    let keys = table.keys(rank).fold([0u64; 2], |[n, sum], key| [n + 1, sum.wrapping_add(key)]);
    let all = world.allreduce(&[found, keys].concat(), Op::Sum)?;
    if all[..2] != all[2..] {
        return Err("keys were lost: the table has others than were inserted".into());
    }
    drop((parts, views));
    window.free()?;
    Ok([filled, durable].map(|time| time.as_nanos() as f64))
}

/// What was measured in each round.
#[derive(Default)]
struct Times {
    /// By us, and by the machine.
    memory: [Vec<f64>; 2],
    places: [Place; PLACES.len()],
}

/// Nanoseconds on windows of one kind.
#[derive(Default)]
struct Place {
    filled: Vec<f64>,
    durable: Vec<f64>,
    /// By the machine.
    limit: Vec<f64>,
}

impl Times {
    /// Fills a table in memory.
    fn memory(&mut self, bench: &Bench<'_>, table: Table, by: By) -> Result<()> {
        let window = bench.world().window(table.words() as usize, 8).allocate()?;
        self.memory[by as usize].push(fill(bench, table, window, by)?[0]);
        Ok(())
    }

    /// Fills tables on storage.
    fn places(&mut self, bench: &Bench<'_>, table: Table) -> Result<()> {
        for ((_, share, ..), place) in PLACES.iter().zip(&mut self.places) {
            let window = || -> Result<Window> {
                // Where it is not told so, the system reads as much beside each page as it does of
                // a stream, 8 MiB on some machines.
                let hints = hints(bench, "dht", *share)?.access_style(&[AccessStyle::Random]);
                let builder = bench.world().window(table.words() as usize, 8);
                Ok(builder.on_storage(&hints)?.allocate()?)
            };
            if !bench.is_far() {
                place.limit.push(fill(bench, table, window()?, By::Machine)?[0]);
            }
            let [filled, durable] = fill(bench, table, window()?, By::Us)?;
            place.filled.push(filled);
            place.durable.push(durable);
        }
        Ok(())
    }

    /// Rows of the tables on storage; `goal` tells which of the paper's figures they have.
    fn note(
        &self,
        bench: &mut Bench<'_>,
        (bytes, title): (usize, &str),
        goal: fn(&(&str, f64, f64, f64)) -> f64,
    ) -> Result<()> {
        let memory = ("memory window", &self.memory[By::Us as usize][..]);
        for (of, place) in PLACES.iter().zip(&self.places) {
            let limits = [memory, ("atomics there", &place.limit[..])];
            let draft = row(format!("{title}, {}", of.0)).bytes(bytes).goal(goal(of));
            bench.note_beside(draft, Unit::Nanoseconds, &place.filled, &limits)?;
            let draft = row(format!("{title} and synced, {}", of.0)).bytes(bytes);
            bench.note_beside(draft, Unit::Nanoseconds, &place.durable, &[memory])?;
        }
        Ok(())
    }
}

/// In memory, and on storage while the page cache holds it.
pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    // An insertion over a network takes a thousand times as long.
    let is_small = bench.is_smoke() || bench.is_far();
    let sizes = if is_small { &SMOKE_SIZES[..] } else { &SIZES[..] };
    let rounds = if bench.is_smoke() { SMOKE_ROUNDS } else { ROUNDS };
    for bytes in sizes {
        let (table, mut times) = (Table::of(bench, *bytes), Times::default());
        for _ in 0..rounds {
            if !bench.is_far() {
                times.memory(bench, table, By::Machine)?;
            }
            times.memory(bench, table, By::Us)?;
            times.places(bench, table)?;
        }
        let [ours, limit] = &times.memory;
        let draft = row("DHT filled, memory").bytes(*bytes);
        bench.note_beside(draft, Unit::Nanoseconds, ours, &[("atomics there", limit)])?;
        times.note(bench, (*bytes, "DHT filled"), |of| of.2)?;
    }
    Ok(())
}

/// Larger than the memory that the ranks may have, which is that of a control group. What lies in
/// memory only would end them there: it is filled outside of it.
pub(super) fn out_of_core(bench: &mut Bench<'_>) -> Result<()> {
    let (memory, rounds) = match bench.is_smoke() {
        true => (SMOKE_MEMORY, SMOKE_ROUNDS),
        false => (MEMORY, OUT_ROUNDS),
    };
    let world = bench.world();
    let name = format!("rma-bench-{}", world.allgather(&[std::process::id()])?[0]);
    let mut group = Err(std::io::Error::other("another rank makes it"));
    if bench.is_first() {
        group = MemoryGroup::make(&name, memory as u64);
    }
    world.barrier()?;
    if !bench.is_first() {
        group = MemoryGroup::of(&name);
    }
    // All are in it, or none.
    let is_in = group.as_ref().is_ok_and(|group| group.enter().is_ok());
    let group = group.ok().filter(|_| is_in);
    let all_in = world.allreduce(&[u64::from(is_in)], Op::Min)?[0] == 1;
    let title = format!("DHT in {} MiB", memory >> 20);
    for share in SHARES {
        let bytes = memory * share / 100;
        let (table, mut times) = (Table::of(bench, bytes), Times::default());
        for _ in 0..rounds {
            group.iter().try_for_each(MemoryGroup::leave)?;
            times.memory(bench, table, By::Us)?;
            if all_in {
                group.iter().try_for_each(MemoryGroup::enter)?;
                times.places(bench, table)?;
            }
        }
        let draft = row(format!("{title}, memory, of which there is more")).bytes(bytes);
        bench.note(draft, Unit::Nanoseconds, &times.memory[By::Us as usize])?;
        if all_in {
            times.note(bench, (bytes, &title), |of| of.3)?;
        }
    }
    group.iter().try_for_each(MemoryGroup::leave)?;
    if all_in && bench.is_first() && !group.as_ref().map_or(Ok(true), MemoryGroup::was_full)? {
        return Err("the ranks never had all of the memory that they may have".into());
    }
    // It can be removed only when nothing is in it.
    Ok(bench.world().barrier()?)
}
