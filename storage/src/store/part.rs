//! The part of one rank: its blocks, and the versions that refer to them.
use super::catalog::{Catalog, NEW, blocks_file, parse_part, part_file, version_file, work_file};
use super::divide::{Piece, left_over};
use super::format::{
    BLOCK, Block, ElementType, Key, Part, PartRef, State, Version, blocks_of, part_record,
    read_part, version_record,
};
use super::medium::{Medium, MediumError};
use crate::PersistentError;
use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet};

type Result<T> = std::result::Result<T, PersistentError>;

/// What a rank knows of a version that its part belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Held {
    number: u64,
    serial: u64,
    alone: bool,
    plain: bool,
    part: Option<PartRef>,
}

/// What is to become a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) number: u64,
    pub(crate) serial: u64,
    pub(crate) highest: u64,
    pub(crate) time_ns: u64,
    pub(crate) state: State,
    pub(crate) alone: bool,
    pub(crate) element: ElementType,
}

/// The part of a rank, with a transaction under way since it was opened or committed.
#[derive(Debug)]
pub(crate) struct PartStore<M: Medium> {
    medium: M,
    key: Key,
    name: String,
    rank: u32,
    ranks: u32,
    size: u64,
    work: M::File,
    blocks: M::File,
    /// What the transaction began with.
    base: Part,
    base_ref: Option<PartRef>,
    held: Vec<Held>,
    /// How many parts refer to a slot.
    counts: Vec<u32>,
    free: BTreeSet<u64>,
    /// Manifests of this rank, by their serials, and how many versions refer to each.
    parts: BTreeMap<u64, u32>,
    /// Those of versions that were dropped, which is not durable yet.
    retiring: Vec<u64>,
    /// What a version is to have that is not written yet.
    snapshot: Option<Snapshot>,
    /// The bytes of its blocks. Kept: new memory costs more than the copies do.
    copies: Vec<u8>,
    /// Slots that were written for a version that is not decided.
    pending: Option<(Part, PartRef, Vec<u64>)>,
    /// Blocks that the last one that was prepared wrote.
    changed_blocks: usize,
    highest_serial: u64,
    poisoned: bool,
    /// Uses slots again at once: a mistake that tests must notice.
    #[cfg(test)]
    pub(crate) hasty: bool,
    /// Makes blocks durable only once the version is decided: another one.
    #[cfg(test)]
    pub(crate) late: bool,
}

/// What a version is to have of a part.
#[derive(Debug)]
struct Snapshot {
    /// All blocks: those of the base, and changed ones that were written already.
    blocks: Vec<Block>,
    /// Slots that were written for these.
    taken: Vec<u64>,
    /// And how many bytes.
    written: u64,
    /// Blocks whose bytes are in the store's copies, one behind the other.
    copied: Vec<usize>,
}

/// What a block has become since the base.
enum Change {
    Zeros,
    Bytes { crc: u32 },
}

/// Reads a block of a version: into as many bytes as it has.
pub(crate) fn read_block<M: Medium>(
    medium: &M,
    file: &M::File,
    block: &Block,
    bytes: &mut [u8],
) -> std::result::Result<(), &'static str> {
    read_unchecked(medium, file, block, bytes)?;
    let is_intact = block.slot().is_none() || medium.is_intact(bytes, block.crc);
    if is_intact { Ok(()) } else { Err("its checksum does not match") }
}

/// As [`read_block`], whatever the bytes have become.
fn read_unchecked<M: Medium>(
    medium: &M,
    file: &M::File,
    block: &Block,
    bytes: &mut [u8],
) -> std::result::Result<(), &'static str> {
    let Some(slot) = block.slot() else {
        bytes.fill(0);
        return Ok(());
    };
    let offset = slot.checked_mul(BLOCK as u64).ok_or("its place is none")?;
    medium.read_at(file, bytes, offset).map_err(|_| "it cannot be read")
}

fn damaged(name: &str, what: String, flaw: &'static str) -> PersistentError {
    PersistentError::Damaged { name: name.to_owned(), what, flaw }
}

/// The manifest of a part of a version.
fn load_part<M: Medium>(
    medium: &M,
    key: &Key,
    name: &str,
    rank: u32,
    wanted: &PartRef,
) -> Result<Part> {
    let file = part_file(name, rank, wanted.serial);
    let bytes = medium.read(&file)?;
    let bytes = bytes.ok_or_else(|| damaged(name, file.clone(), "it is missing"))?;
    let part = read_part(&bytes, (name, rank), Some(wanted), key);
    part.map_err(|flaw| damaged(name, file, flaw.text()))
}

/// Reads these bytes of a part of a version, block by block, and hands them on.
pub(crate) fn read_range<M: Medium>(
    medium: &M,
    key: &Key,
    name: &str,
    rank: u32,
    wanted: &PartRef,
    range: Range<u64>,
    mut bytes_are: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let part = load_part(medium, key, name, rank, wanted)?;
    let file = blocks_file(name, rank);
    let blocks = medium.open(&file)?;
    let mut bytes = vec![0; BLOCK];
    let numbers = (range.start / BLOCK as u64) as usize..blocks_of(range.end);
    for (number, block) in part.blocks.iter().enumerate().take(numbers.end).skip(numbers.start) {
        let len = block_len(part.size, number);
        let what = || format!("{file}, block {number} of part {}", part.serial);
        match &blocks {
            Some(blocks) => read_block(medium, blocks, block, &mut bytes[..len])
                .map_err(|flaw| damaged(name, what(), flaw))?,
            None if block.slot().is_none() => bytes.fill(0),
            None => return Err(damaged(name, file, "it is missing")),
        }
        let first = number as u64 * BLOCK as u64;
        let here = |at: u64| (at.max(first) - first).min(len as u64) as usize;
        bytes_are(&bytes[here(range.start)..here(range.end)])?;
    }
    Ok(())
}

fn is_zero(bytes: &[u8]) -> bool {
    // Of several bytes at a time: most blocks that are not zero say so at once, and others take
    // all of them.
    let (words, rest) = bytes.as_chunks::<16>();
    words.iter().all(|word| u128::from_ne_bytes(*word) == 0) && rest.iter().all(|byte| *byte == 0)
}

/// Blocks that are written together, one behind the other.
#[derive(Default)]
struct Batch {
    /// Their numbers and checksums.
    blocks: Vec<(usize, u32)>,
    bytes: Vec<u8>,
}

impl Batch {
    /// 1 MiB: large enough that a call costs little, and small enough to stay in a cache.
    const MOST: usize = 64;

    /// Room for the bytes of one more, which [`keep`](Self::keep) keeps. All before are whole.
    fn room(&mut self, len: usize) -> &mut [u8] {
        let start = self.blocks.len() * BLOCK;
        self.bytes.resize(start + len, 0);
        &mut self.bytes[start..]
    }

    fn keep(&mut self, number: usize, crc: u32) {
        self.blocks.push((number, crc));
    }

    fn is_full(&self) -> bool {
        self.blocks.len() == Self::MOST
    }
}

/// Sees that a buffer, which will have `most` bytes at most, has so many; false if the system has
/// no memory for them.
fn make_room(buffer: &mut Vec<u8>, len: usize, most: usize) -> bool {
    if len <= buffer.len() {
        return true;
    }
    // In few steps, none of which is beyond the budget.
    let target = (2 * buffer.len()).clamp(len, most.max(len));
    let has = buffer.try_reserve_exact(target - buffer.len()).is_ok();
    if has {
        buffer.resize(len, 0);
    }
    has
}

/// Bytes of a block of a part of so many: the last one may be shorter.
fn block_len(size: u64, number: usize) -> usize {
    let start = number as u64 * BLOCK as u64;
    (size - start).min(BLOCK as u64) as usize
}

/// What is opened.
pub(crate) struct Opening<'c> {
    pub(crate) name: &'c str,
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    pub(crate) size: u64,
    /// What the transaction begins with; zeros if there is none.
    pub(crate) base: Option<&'c Version>,
}

impl<M: Medium> PartStore<M> {
    /// Opens the part of a rank, whose `catalog` was read after a `sync` of its folder. No other
    /// process has it. What no version refers to is given back. Its file is not touched yet.
    pub(crate) fn open(medium: M, key: Key, catalog: &Catalog, opening: &Opening) -> Result<Self> {
        let &Opening { name, rank, ranks, size, base } = opening;
        let file = |path: String| match medium.open(&path)? {
            Some(file) => Ok(file),
            None => medium.create(&path),
        };
        let (work, blocks) = (file(work_file(name, rank))?, file(blocks_file(name, rank))?);
        let base_ref = base.and_then(|version| version.part_of(rank)).copied();
        let base = match &base_ref {
            Some(part) => load_part(&medium, &key, name, rank, part)?,
            None => Part::zeros(rank, ranks, size),
        };
        let mut store = Self {
            medium,
            key,
            name: name.to_owned(),
            rank,
            ranks,
            size,
            work,
            blocks,
            base,
            base_ref,
            held: Vec::new(),
            counts: Vec::new(),
            free: BTreeSet::new(),
            parts: BTreeMap::new(),
            retiring: Vec::new(),
            snapshot: None,
            copies: Vec::new(),
            pending: None,
            changed_blocks: 0,
            highest_serial: catalog.highest_serial(),
            poisoned: false,
            #[cfg(test)]
            hasty: false,
            #[cfg(test)]
            late: false,
        };
        store.take_stock(catalog)?;
        Ok(store)
    }

    /// Finds out which slots are in use, and removes what is left of commits that came to no end.
    fn take_stock(&mut self, catalog: &Catalog) -> Result<()> {
        for version in &catalog.versions {
            let alone = version.alone.is_some();
            if version.alone.is_some_and(|alone| alone != self.rank) {
                continue;
            }
            let part = version.part_of(self.rank).copied();
            let (number, serial) = (version.number, version.serial);
            let plain = version.state == State::Plain;
            self.held.push(Held { number, serial, alone, plain, part });
            part.iter().for_each(|part| *self.parts.entry(part.serial).or_default() += 1);
        }
        if self.rank == 0 {
            let (records, files) = left_over(catalog, self.ranks);
            for (serial, rank) in &records {
                self.medium.remove(&version_file(&self.name, *serial, Some(*rank)))?;
            }
            if !records.is_empty() {
                self.medium.sync_folder(&self.name)?;
            }
            files
                .iter()
                .try_for_each(|file| self.medium.remove(&format!("{}/{file}", self.name)))?;
        }
        // A record that cannot be read may refer to any of them.
        let keep_all = !catalog.damaged.is_empty();
        for file in &catalog.files {
            let path = format!("{}/{file}", self.name);
            match parse_part(file) {
                Some((rank, serial)) if rank == self.rank => {
                    if keep_all || self.parts.contains_key(&serial) {
                        self.count(&path)?;
                    } else {
                        self.medium.remove(&path)?;
                    }
                }
                _ if self.rank == 0 && file.ends_with(NEW) => self.medium.remove(&path)?,
                _ => {}
            }
        }
        let len = self.medium.len(&self.blocks)? / BLOCK as u64;
        self.counts.resize(self.counts.len().max(len as usize), 0);
        let unused = |slot: &u64| self.counts[*slot as usize] == 0;
        self.free = (0..self.counts.len() as u64).filter(unused).collect();
        Ok(())
    }

    /// Counts the slots of a manifest; one that cannot be read is of a version that cannot be.
    fn count(&mut self, path: &str) -> Result<()> {
        let bytes = self.medium.read(path)?.unwrap_or_default();
        if let Ok(part) = read_part(&bytes, (&self.name, self.rank), None, &self.key) {
            part.blocks.iter().filter_map(Block::slot).for_each(|slot| self.add(slot));
        }
        Ok(())
    }

    fn add(&mut self, slot: u64) {
        // What has a true checksum was written by a store, into a file that was that long.
        let slot = slot as usize;
        self.counts.resize(self.counts.len().max(slot + 1), 0);
        self.counts[slot] += 1;
    }

    fn subtract(&mut self, slot: u64) {
        let count = &mut self.counts[slot as usize];
        *count = count.saturating_sub(1);
        if *count == 0 {
            self.free.insert(slot);
        }
    }

    pub(crate) fn highest_serial(&self) -> u64 {
        self.highest_serial
    }

    pub(crate) fn changed_blocks(&self) -> usize {
        self.changed_blocks
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.poisoned
    }

    /// From now on, nothing is known but by opening it again.
    pub(crate) fn poison(&mut self) {
        self.poisoned = true;
    }

    /// Rolls back: gives the part the bytes that the transaction began with, and zeros behind them.
    pub(crate) fn fill(&self) -> Result<()> {
        let (mut want, mut have) = (vec![0; BLOCK], vec![0; BLOCK]);
        let there = self.medium.len(&self.work)?;
        for number in 0..blocks_of(self.size) {
            let len = block_len(self.size, number);
            let offset = number as u64 * BLOCK as u64;
            want.fill(0);
            if let Some(block) = self.base.blocks.get(number) {
                let bytes = &mut want[..block_len(self.base.size, number).min(len)];
                let (serial, file) = (self.base.serial, blocks_file(&self.name, self.rank));
                let what = || format!("{file}, block {number} of part {serial}");
                read_block(&self.medium, &self.blocks, block, bytes)
                    .map_err(|flaw| damaged(&self.name, what(), flaw))?;
            }
            let is_there = offset + len as u64 <= there;
            if is_there {
                self.medium.read_at(&self.work, &mut have[..len], offset)?;
            }
            if !is_there || have[..len] != want[..len] {
                self.medium.write_at(&self.work, &want[..len], offset)?;
            }
        }
        Ok(())
    }

    /// Gives the part the bytes of these pieces, one behind the other.
    pub(crate) fn fill_from(&self, pieces: &[Piece]) -> Result<()> {
        let mut at = 0;
        for Piece { rank, part, range } in pieces {
            let (medium, range) = (&self.medium, range.clone());
            read_range(medium, &self.key, &self.name, *rank, part, range, |bytes| {
                medium.write_at(&self.work, bytes, at)?;
                at += bytes.len() as u64;
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Makes durable what the window lies on.
    pub(crate) fn sync_work(&self) -> Result<()> {
        Ok(self.medium.sync(&self.work)?)
    }

    /// Makes what the window holds now durable, as a part of no version yet: the first phase of a
    /// commit. What has failed leaves the store as it was. Blocks that were not `stored` to since
    /// the last commit of all ranks are as the transaction began with them; without, all are looked
    /// at.
    pub(crate) fn prepare(&mut self, serial: u64, stored: Option<&[bool]>) -> Result<PartRef> {
        self.capture(stored, 0)?;
        self.write(serial)
    }

    /// As [`prepare`](Self::prepare), of which [`write`](Self::write) does the rest: when this
    /// returns, the window may be stored to. Blocks are copied, of at most `room` bytes together.
    /// Where all that are looked at find room, they are not compared before; otherwise those that
    /// have changed are copied, and once there is no more room, they are written here and now.
    /// Returns how many bytes those are.
    pub(crate) fn capture(&mut self, stored: Option<&[bool]>, room: usize) -> Result<u64> {
        if self.poisoned {
            return Err(PersistentError::Poisoned { name: self.name.clone() });
        }
        let room = room.min(usize::try_from(self.size).unwrap_or(usize::MAX));
        let mut blocks = self.base.blocks.clone();
        blocks.resize(blocks_of(self.size), Block::ZEROS);
        let stored = stored.filter(|_| self.base.size == self.size);
        let is_looked_at =
            |number: &usize| stored.is_none_or(|stored| stored.get(*number) != Some(&false));
        let numbers: Vec<_> = (0..blocks.len()).filter(is_looked_at).collect();
        let mut snapshot = Snapshot { blocks, taken: Vec::new(), written: 0, copied: Vec::new() };
        self.changed_blocks = 0;
        let captured = match self.copy_all(&numbers, room) {
            Ok(true) => {
                snapshot.copied = numbers;
                Ok(())
            }
            Ok(false) => self.copy_changed(&numbers, room, &mut snapshot),
            Err(error) => Err(error),
        };
        let written = snapshot.written;
        self.snapshot = Some(snapshot);
        captured.map(|()| written).inspect_err(|error| self.fail(error))
    }

    /// Copies these blocks as they are, if there is room for all.
    fn copy_all(&mut self, numbers: &[usize], room: usize) -> Result<bool> {
        let len = |numbers: &[usize]| -> usize {
            numbers.iter().map(|number| block_len(self.size, *number)).sum()
        };
        if len(numbers) > room || !make_room(&mut self.copies, len(numbers), len(numbers)) {
            return Ok(false);
        }
        let mut copies = &mut *self.copies;
        for run in numbers.chunk_by(|one, next| one + 1 == *next) {
            let (here, rest) = copies.split_at_mut(len(run));
            self.medium.read_at(&self.work, here, run[0] as u64 * BLOCK as u64)?;
            copies = rest;
        }
        Ok(true)
    }

    /// Copies those of these blocks that have changed, and writes those for which there is no room.
    fn copy_changed(
        &mut self,
        numbers: &[usize],
        room: usize,
        snapshot: &mut Snapshot,
    ) -> Result<()> {
        let mut then = vec![0; BLOCK];
        for (at, &number) in numbers.iter().enumerate() {
            // Those before are whole: only the last one of the part may be shorter.
            let start = snapshot.copied.len() * BLOCK;
            let end = start + block_len(self.size, number);
            if end > room || !make_room(&mut self.copies, end, room) {
                return self.write_changed(&numbers[at..], false, snapshot);
            }
            let offset = number as u64 * BLOCK as u64;
            self.medium.read_at(&self.work, &mut self.copies[start..end], offset)?;
            let (block, now) = (&snapshot.blocks[number], &self.copies[start..end]);
            if self.change(number, block, now, &mut then).is_some() {
                snapshot.copied.push(number);
            }
        }
        Ok(())
    }

    /// Makes durable what was captured, as a part of no version yet.
    pub(crate) fn write(&mut self, serial: u64) -> Result<PartRef> {
        let Some(mut snapshot) = self.snapshot.take().filter(|_| !self.poisoned) else {
            return Err(PersistentError::Poisoned { name: self.name.clone() });
        };
        let copied = core::mem::take(&mut snapshot.copied);
        let wrote = self.write_changed(&copied, true, &mut snapshot);
        let Snapshot { blocks, taken, .. } = snapshot;
        if let Some(base) = self
            .base_ref
            .filter(|base| wrote.is_ok() && self.changed_blocks == 0 && base.size == self.size)
        {
            self.pending = Some((self.base.clone(), base, Vec::new()));
            return Ok(base);
        }
        let (rank, ranks, size) = (self.rank, self.ranks, self.size);
        let part = Part { rank, ranks, serial, size, blocks };
        let file = part_file(&self.name, rank, serial);
        let (bytes, mac) = part_record(&part, &self.name, &self.key);
        let part_ref = PartRef { serial, size, mac };
        self.pending = Some((part, part_ref, taken));
        let durable = wrote.and_then(|()| {
            self.sync_blocks()?;
            self.medium.write_durable(&file, &bytes)?;
            Ok(self.medium.sync_folder(&self.name)?)
        });
        durable.map(|()| part_ref).inspect_err(|error| self.fail(error))
    }

    /// Gives back what was written, after an error that is this rank's own.
    fn fail(&mut self, error: &PersistentError) {
        // A device that has failed to write once may have lost what it said it had.
        self.poisoned |= !matches!(error, PersistentError::Space { .. });
        self.abandon();
    }

    /// Those of the part that was just written, if there are any.
    fn sync_blocks(&self) -> Result<()> {
        #[cfg(test)]
        if self.late {
            return Ok(());
        }
        match &self.pending {
            Some((.., taken)) if !taken.is_empty() => Ok(self.medium.sync(&self.blocks)?),
            _ => Ok(()),
        }
    }

    /// Writes those of these blocks that differ from the base's into slots of their own, taken
    /// then, and makes the snapshot say so. Each is read once, from the copies or from the window:
    /// what is compared is what is written, and its checksum is of that.
    fn write_changed(
        &mut self,
        numbers: &[usize],
        is_copied: bool,
        snapshot: &mut Snapshot,
    ) -> Result<()> {
        let (mut batch, mut then) = (Batch::default(), vec![0; BLOCK]);
        for (at, &number) in numbers.iter().enumerate() {
            let now = batch.room(block_len(self.size, number));
            if is_copied {
                now.copy_from_slice(&self.copies[at * BLOCK..][..now.len()]);
            } else {
                self.medium.read_at(&self.work, now, number as u64 * BLOCK as u64)?;
            }
            let changed = self.change(number, &snapshot.blocks[number], now, &mut then);
            self.changed_blocks += usize::from(changed.is_some());
            match changed {
                None => {}
                Some(Change::Zeros) => snapshot.blocks[number] = Block::ZEROS,
                Some(Change::Bytes { crc }) => {
                    batch.keep(number, crc);
                    if batch.is_full() {
                        self.write_batch(&mut batch, snapshot)?;
                    }
                }
            }
        }
        self.write_batch(&mut batch, snapshot)
    }

    /// What a block of the base has become, if it has not these bytes.
    fn change(&self, number: usize, block: &Block, now: &[u8], then: &mut [u8]) -> Option<Change> {
        let is_there = block.slot().is_some();
        if is_zero(now) {
            return is_there.then_some(Change::Zeros);
        }
        let crc = crc32fast::hash(now);
        let is_same = is_there && self.is_same(number, block, crc, now, then);
        (!is_same).then_some(Change::Bytes { crc })
    }

    /// Whether a block of the base has these bytes: they are compared, not checksums only, of which
    /// two that differ may have the same. Bytes that are the same have the one that was compared.
    fn is_same(&self, number: usize, block: &Block, crc: u32, now: &[u8], then: &mut [u8]) -> bool {
        let then = &mut then[..now.len()];
        let has_grown = block_len(self.base.size, number) != now.len();
        !has_grown
            && crc == block.crc
            && read_unchecked(&self.medium, &self.blocks, block, then).is_ok()
            && now == then
    }

    fn write_batch(&mut self, batch: &mut Batch, snapshot: &mut Snapshot) -> Result<()> {
        let slots = self.reserve(batch.blocks.len())?;
        snapshot.taken.extend(&slots);
        snapshot.written += batch.bytes.len() as u64;
        for ((number, crc), slot) in batch.blocks.drain(..).zip(&slots) {
            snapshot.blocks[number] = Block::new(*slot, crc);
        }
        // Slots side by side are written in one piece. The last block may be a short one.
        let mut bytes = &*batch.bytes;
        for run in slots.chunk_by(|one, next| one + 1 == *next) {
            let (here, rest) = bytes.split_at((run.len() * BLOCK).min(bytes.len()));
            let at = run[0] * BLOCK as u64;
            self.medium.write_at(&self.blocks, here, at)?;
            self.medium.begin_sync(&self.blocks, at..at + here.len() as u64);
            bytes = rest;
        }
        batch.bytes.clear();
        Ok(())
    }

    /// Takes slots that no version refers to, with their space reserved.
    fn reserve(&mut self, count: usize) -> Result<Vec<u64>> {
        let there = self.free.len();
        let end = self.counts.len() as u64;
        if count > there {
            let grown = end + (count - there) as u64;
            let (from, to) = (end * BLOCK as u64, grown * BLOCK as u64);
            self.medium.allocate(&self.blocks, from, to)?;
            self.counts.resize(grown as usize, 0);
            self.free.extend(end..grown);
        }
        Ok((0..count).filter_map(|_| self.free.pop_first()).collect())
    }

    /// The second phase, of rank 0, or of the rank that is alone: what makes the version. Without
    /// space for its record ([`PersistentError::Space`]) there is none, and all is as it was; any
    /// other error leaves open whether it is there, so that the store is poisoned.
    pub(crate) fn decide(&mut self, decision: &Decision, parts: Vec<PartRef>) -> Result<()> {
        let &Decision { number, serial, highest, time_ns, state, alone, element } = decision;
        let (ranks, alone) = (self.ranks, alone.then_some(self.rank));
        let version =
            Version { number, serial, highest, time_ns, state, ranks, alone, element, parts };
        let decided = write_version(&self.medium, &self.key, &self.name, &version);
        decided.inspect_err(|error| match error {
            PersistentError::Space { .. } => self.abandon(),
            _ => self.poisoned = true,
        })
    }

    /// The end, of each rank: the version is there, and the next transaction begins. Those that it
    /// takes the place of are dropped: all older ones unless they are to be kept, and in any case
    /// those from number `from` on.
    pub(crate) fn adopt(&mut self, decision: &Decision, keep: bool, from: u64) -> Result<()> {
        #[cfg(test)]
        if self.late {
            self.medium.sync(&self.blocks)?;
        }
        let Some((part, part_ref, taken)) = self.pending.take() else { return Ok(()) };
        self.highest_serial = self.highest_serial.max(decision.serial);
        if taken.is_empty() && Some(part_ref) == self.base_ref {
            *self.parts.entry(part_ref.serial).or_default() += 1;
        } else {
            self.parts.insert(part_ref.serial, 1);
            part.blocks.iter().filter_map(Block::slot).for_each(|slot| self.add(slot));
        }
        (self.base, self.base_ref) = (part, Some(part_ref));
        // It is durable by now that those are gone that the last commit dropped.
        let gone = core::mem::take(&mut self.retiring);
        gone.into_iter().try_for_each(|serial| self.forget(serial))?;
        let plain = decision.state == State::Plain;
        let dropped = |held: &Held| match plain {
            true => held.plain,
            // What all have made is not for one to drop.
            false if decision.alone && !held.alone => false,
            false => !keep || held.number >= from,
        };
        let (dropped, kept) = core::mem::take(&mut self.held).into_iter().partition(dropped);
        self.held = kept;
        self.drop_versions(dropped)?;
        let (number, serial, alone) = (decision.number, decision.serial, decision.alone);
        self.held.push(Held { number, serial, alone, plain, part: Some(part_ref) });
        Ok(())
    }

    fn drop_versions(&mut self, dropped: Vec<Held>) -> Result<()> {
        for Held { serial, alone, part, .. } in dropped {
            if alone || self.rank == 0 {
                let alone = alone.then_some(self.rank);
                self.medium.remove(&version_file(&self.name, serial, alone))?;
            }
            let Some(part) = part else { continue };
            let count = self.parts.entry(part.serial).or_default();
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.parts.remove(&part.serial);
                self.retiring.push(part.serial);
            }
        }
        #[cfg(test)]
        if self.hasty {
            let gone = core::mem::take(&mut self.retiring);
            gone.into_iter().try_for_each(|serial| self.forget(serial))?;
        }
        Ok(())
    }

    /// Removes a manifest that no version refers to, durably, and takes its slots back.
    fn forget(&mut self, serial: u64) -> Result<()> {
        let file = part_file(&self.name, self.rank, serial);
        let bytes = self.medium.read(&file)?.unwrap_or_default();
        if let Ok(part) = read_part(&bytes, (&self.name, self.rank), None, &self.key) {
            part.blocks.iter().filter_map(Block::slot).for_each(|slot| self.subtract(slot));
        }
        Ok(self.medium.remove(&file)?)
    }

    /// The first phase has not come to its end at all ranks, as this one hears.
    pub(crate) fn give_up(&mut self, error: &PersistentError) {
        match error {
            // The others may have heard of all parts and have decided: what was written stays, and
            // the next to open it finds out.
            PersistentError::Collective(_) | PersistentError::Unheard { .. } => self.poison(),
            _ => self.abandon(),
        }
    }

    /// There will be no version: gives back what was written for it.
    pub(crate) fn abandon(&mut self) {
        self.free.extend(self.snapshot.take().into_iter().flat_map(|snapshot| snapshot.taken));
        if let Some((part, part_ref, taken)) = self.pending.take()
            && Some(part_ref) != self.base_ref
        {
            _ = self.medium.remove(&part_file(&self.name, self.rank, part.serial));
            self.free.extend(taken);
        }
    }
}

/// Puts the record of a version into its place, durably. An error is [`PersistentError::Space`]
/// only if nothing has its name yet.
pub(crate) fn write_version<M: Medium>(
    medium: &M,
    key: &Key,
    name: &str,
    version: &Version,
) -> Result<()> {
    let file = version_file(name, version.serial, version.alone);
    let new = format!("{file}{NEW}");
    let wrote = medium.write_durable(&new, &version_record(version, name, key));
    wrote.inspect_err(|_| _ = medium.remove(&new))?;
    let placed = medium.rename(&new, &file).and_then(|()| medium.sync_folder(name));
    placed.map_err(|MediumError { path, call, errno }| PersistentError::System {
        path,
        call,
        errno: errno.raw_os_error(),
    })
}
