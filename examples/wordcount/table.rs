//! Compare-and-swap, puts and flushes: a hash table spread over the windows of all ranks.
//!
//! Every rank owns a part of the buckets and a part of the overflow heap, and every rank inserts
//! into every part with one-sided operations; the owner does nothing.
//!
//! ```text
//! bucket      [ key | count | chain ]                         three words of 64 bits
//! heap        [ used ] [ entry ] [ entry ] …
//! heap entry  [ count | next | hash | length | key bytes … ]
//! ```
//!
//! A word of at most eight bytes fits into `key` as a whole: one compare-and-swap from 0 claims the
//! bucket and publishes the word at the same time, so no rank ever sees half a word. `key` never
//! changes again. Words that are longer, or find the bucket claimed by another, go to the heap.
//!
//! A heap entry is reserved with a fetch-and-add on `used`, written, flushed, and only then linked
//! at the head of the bucket's chain by a compare-and-swap. If that fails, another rank has
//! linked an entry meanwhile: the new head of the chain is searched before the next attempt, so
//! that no word is ever there twice. Entries are never moved or removed while a rank inserts.
use rma::bytemuck::cast_slice;
use rma::{Communicator, Error, LockAll, Op, Rank, RmaError, Window, WindowError};

/// Words of a bucket, and where they are.
const BUCKET: u64 = 3;
const KEY: u64 = 0;
const COUNT: u64 = 1;
const CHAIN: u64 = 2;

/// Words of a heap entry before its key, and where they are.
const HEAD: u64 = 4;
const ENTRY_COUNT: u64 = 0;
const ENTRY_NEXT: u64 = 1;

/// How large the part of each rank is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    /// Buckets.
    pub(crate) buckets: u64,
    /// 64-bit words of the overflow heap.
    pub(crate) heap: u64,
}

/// The table. Making it, growing it and taking the entries out is collective.
pub(crate) struct Table {
    buckets: Window,
    heap: Window,
    size: Size,
}

/// The right to insert: an epoch to all ranks on both windows.
pub(crate) struct Inserter<'t> {
    buckets: LockAll<'t>,
    heap: LockAll<'t>,
    size: Size,
    ranks: u64,
}

/// What became of an insertion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Added {
    /// It is in the table.
    Counted,
    /// The heap of the word's owner has no room; the table is as it was.
    Full,
}

/// A word and how often it was counted.
pub(crate) type Entry = (String, u64);

/// Why a part could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TableError {
    /// A call of the library failed.
    #[error(transparent)]
    Rma(Error),
    /// An entry is not as it was written.
    #[error("rank {0}'s part of the hash table is damaged: an entry points out of its heap")]
    Damaged(Rank),
}

impl<E: Into<Error>> From<E> for TableError {
    fn from(error: E) -> Self {
        Self::Rma(error.into())
    }
}

impl Table {
    /// Makes an empty table. **Collective.**
    pub(crate) fn new(world: &Communicator, size: Size) -> Result<Self, WindowError> {
        let size = Size { buckets: size.buckets.max(1), heap: size.heap };
        // The windows start as zeros: free buckets, empty chains, nothing used.
        let window = |count: u64| world.window(count, size_of::<u64>()).allocate();
        let buckets = window(size.buckets.saturating_mul(BUCKET))?;
        let heap = window(size.heap.saturating_add(1))?;
        Ok(Self { buckets, heap, size })
    }

    /// How large it is.
    pub(crate) fn size(&self) -> Size {
        self.size
    }

    /// Words of a rank's part of a table.
    pub(crate) fn words_of(size: Size) -> Result<usize, Error> {
        Ok(usize::try_from(size.buckets * BUCKET + 1 + size.heap)?)
    }

    /// This rank's part, while no rank inserts.
    pub(crate) fn read_part(&self) -> Result<Vec<u64>, Error> {
        let mut words = vec![0; Self::words_of(self.size)?];
        let (buckets, heap) = words.split_at_mut(usize::try_from(self.size.buckets * BUCKET)?);
        self.buckets.local().read(0, buckets)?;
        self.heap.local().read(0, heap)?;
        Ok(words)
    }

    /// Makes this rank's part what [`read_part`](Self::read_part) has found in a table of this
    /// size.
    pub(crate) fn write_part(&self, words: &[u64]) -> Result<(), Error> {
        let (buckets, heap) = words.split_at(usize::try_from(self.size.buckets * BUCKET)?);
        self.buckets.local().write(0, buckets)?;
        Ok(self.heap.local().write(0, heap)?)
    }

    /// Begins to insert.
    pub(crate) fn open(&self) -> Result<Inserter<'_>, RmaError> {
        Ok(Inserter {
            buckets: self.buckets.lock_all()?,
            heap: self.heap.lock_all()?,
            size: self.size,
            ranks: u64::from(self.buckets.ranks()),
        })
    }

    /// Takes the entries of this rank's part out, and ends the table. **Collective:** it waits
    /// until all ranks have inserted what they have.
    pub(crate) fn into_entries(self) -> Result<Vec<Entry>, TableError> {
        let rank = self.buckets.rank();
        // Sealed, a window takes no operations of any rank, and the part is plain memory.
        let (buckets, heap) = (self.buckets.seal()?, self.heap.seal()?);
        let entries = read(buckets.as_slice()?, heap.as_slice()?);
        buckets.unseal()?.free()?;
        heap.unseal()?.free()?;
        entries.ok_or(TableError::Damaged(rank))
    }

    /// Replaces the table by a larger one until all that `waiting` holds is in it; these are the
    /// words for which it was [`Added::Full`]. **Collective.** Returns how often it grew.
    pub(crate) fn grow(
        mut self,
        world: &Communicator,
        mut waiting: Vec<Entry>,
    ) -> Result<(Self, u64), TableError> {
        let mut times = 0;
        loop {
            let need = waiting.iter().map(|(word, _)| entry_len(word)).sum();
            // If all of them had the same owner, they would fit.
            let need: u64 = world.allreduce(&[need], Op::Sum)?[0];
            if need == 0 {
                return Ok((self, times));
            }
            times += 1;
            let Size { buckets, heap } = self.size;
            let size = Size { buckets: buckets * 2, heap: heap * 2 + need };
            // Freed first, so that never both are in memory.
            let mut entries = self.into_entries()?;
            entries.append(&mut waiting);
            self = Self::new(world, size)?;
            let inserter = self.open()?;
            for (word, count) in entries {
                if inserter.add(&word, count)? == Added::Full {
                    waiting.push((word, count));
                }
            }
            inserter.close()?;
        }
    }
}

impl Inserter<'_> {
    /// Adds `count` to what `word` has.
    pub(crate) fn add(&self, word: &str, count: u64) -> Result<Added, Error> {
        let hash = hash(word.as_bytes());
        let owner = Rank::try_from(hash % self.ranks)?;
        let bucket = hash / self.ranks % self.size.buckets * BUCKET;
        if let Some(key) = short(word) {
            let mut there = self.buckets.fetch_and_op(owner, bucket + KEY, Op::NoOp, 0u64)?;
            if there == 0 {
                there = self.buckets.compare_and_swap(owner, bucket + KEY, 0, key)?;
            }
            // Claimed now, or by the same word before.
            if there == 0 || there == key {
                self.buckets.fetch_and_op(owner, bucket + COUNT, Op::Sum, count)?;
                return Ok(Added::Counted);
            }
        }
        Ok(self.add_to_chain(owner, bucket + CHAIN, word, hash, count)?)
    }

    /// Ends the epochs: all that was added is in the table.
    pub(crate) fn close(self) -> Result<(), RmaError> {
        self.heap.unlock()?;
        self.buckets.unlock()
    }

    fn add_to_chain(
        &self,
        owner: Rank,
        chain: u64,
        word: &str,
        hash: u64,
        count: u64,
    ) -> Result<Added, RmaError> {
        let mut head = self.buckets.fetch_and_op(owner, chain, Op::NoOp, 0u64)?;
        if self.count_in_chain(owner, head, 0, word, hash, count)? {
            return Ok(Added::Counted);
        }
        let len = entry_len(word);
        let used = self.heap.fetch_and_op(owner, 0, Op::Sum, len)?;
        if used.checked_add(len).is_none_or(|end| end > self.size.heap) {
            return Ok(Added::Full);
        }
        // Behind the word that counts the used ones.
        let at = 1 + used;
        let mut entry = vec![count, head, hash, number(word.len())];
        entry.extend(pack(word));
        self.heap.put(owner, at, &entry)?;
        loop {
            // The entry must be complete at its owner before another rank can find it.
            self.heap.flush(owner)?;
            let seen = self.buckets.compare_and_swap(owner, chain, head, at)?;
            if seen == head {
                return Ok(Added::Counted);
            }
            // Others were faster; maybe with the same word. What this rank has reserved is then
            // lost: a few bytes, now and then.
            if self.count_in_chain(owner, seen, head, word, hash, count)? {
                return Ok(Added::Counted);
            }
            head = seen;
            self.heap.put(owner, at + ENTRY_NEXT, &[head])?;
        }
    }

    /// Searches the chain from the entry `at` up to `end`, exclusively; adds `count` to `word` if
    /// it is there, and returns whether it is.
    fn count_in_chain(
        &self,
        owner: Rank,
        mut at: u64,
        end: u64,
        word: &str,
        hash: u64,
        count: u64,
    ) -> Result<bool, RmaError> {
        while at != end {
            // Not the count: others are changing it. The rest of a linked entry is constant.
            let rest = self.heap.rget(owner, at + ENTRY_NEXT, [0u64; 3])?;
            let [next, its_hash, len] = rest.wait()?;
            if its_hash == hash && len == number(word.len()) {
                let key = vec![0u64; word.len().div_ceil(8)];
                let key = self.heap.rget(owner, at + HEAD, key)?.wait()?;
                if cast_slice::<_, u8>(&key)[..word.len()] == *word.as_bytes() {
                    self.heap.fetch_and_op(owner, at + ENTRY_COUNT, Op::Sum, count)?;
                    return Ok(true);
                }
            }
            at = next;
        }
        Ok(false)
    }
}

/// All entries of one part, or `None` if it is damaged.
fn read(buckets: &[u64], heap: &[u64]) -> Option<Vec<Entry>> {
    let mut entries = Vec::new();
    for bucket in buckets.as_chunks::<3>().0 {
        let [key, count, mut at] = *bucket;
        if key != 0 {
            let len = key.to_le_bytes().iter().rposition(|byte| *byte != 0)? + 1;
            entries.push((unpack(&[key], len)?, count));
        }
        while at != 0 {
            let entry = heap.get(usize::try_from(at).ok()?..)?;
            let (&[count, next, _, len], key) = entry.split_first_chunk::<4>()?;
            entries.push((unpack(key, usize::try_from(len).ok()?)?, count));
            at = next;
        }
    }
    Some(entries)
}

/// Entries as 64-bit words, for messages: count, length and key of each.
pub(crate) fn encode(entries: &[Entry]) -> Vec<u64> {
    let mut words = Vec::new();
    for (word, count) in entries {
        words.extend([*count, number(word.len())]);
        words.extend(pack(word));
    }
    words
}

/// The inverse of [`encode`]; `None` if the words are not what it makes.
pub(crate) fn decode(mut words: &[u64]) -> Option<Vec<Entry>> {
    let mut entries = Vec::new();
    while let Some((&[count, len], rest)) = words.split_first_chunk::<2>() {
        let len = usize::try_from(len).ok()?;
        entries.push((unpack(rest, len)?, count));
        words = rest.get(len.div_ceil(8)..)?;
    }
    words.is_empty().then_some(entries)
}

/// A length as words of the table have it.
pub(crate) fn number(len: usize) -> u64 {
    len.try_into().expect("a length has at most 64 bits")
}

/// Words of the heap that an entry takes.
fn entry_len(word: &str) -> u64 {
    HEAD + number(word.len().div_ceil(8))
}

/// The bytes of `word` in 64-bit words, the last one filled up with zeros.
fn pack(word: &str) -> impl Iterator<Item = u64> {
    word.as_bytes().chunks(8).map(|chunk| {
        let mut bytes = [0; 8];
        bytes[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(bytes)
    })
}

fn unpack(words: &[u64], len: usize) -> Option<String> {
    let words = words.get(..len.div_ceil(8))?;
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).take(len).collect();
    String::from_utf8(bytes).ok()
}

/// The word as the key of a bucket, if it fits. Never 0: there is no NUL in a word.
fn short(word: &str) -> Option<u64> {
    if word.len() <= 8 { pack(word).next() } else { None }
}

/// FNV-1a: the same on every rank, and short.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}
