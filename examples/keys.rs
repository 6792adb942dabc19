//! A key-value store on a persistent window: every command is a job, and a transaction.
//!
//! ```text
//! rma-run -n 4 --root DIR target/release/examples/keys put colour red size 7
//! rma-run -n 4 --root DIR target/release/examples/keys get colour
//! rma-run -n 4 --root DIR target/release/examples/keys list
//! rma-run -n 4 --root DIR target/release/examples/keys delete colour
//! ```
//!
//! A key's hash says which rank has it. All ranks put at the same time, each some of the pairs,
//! into the parts of whichever ranks, one at a time in each part: an exclusive lock. What a command
//! changes is there as a whole when it has ended, and not at all if it was killed before.
//!
//! ```text
//! part     [ end ] [ chain ] [ chain ] … [ record ] [ record ] …     offsets in bytes, 0 for none
//! record   [ next | length of the key | of the value | key, value … ]
//! ```
mod common;

use clap::{Parser, Subcommand};
use common::{Failure, print};
use rma::bytemuck::cast_slice;
use rma::{
    Communicator, Lock, LockKind, Op, PersistentHints, PersistentMemory, Rank, Root, Universe,
    Window,
};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

const NAME: &str = "keys";
/// Bytes of a word.
const WORD: u64 = 8;
/// Words of a record before its key.
const HEAD: u64 = 3;
/// Bytes of a part.
const SIZES: Range<u64> = 1024..1 << 40;
/// Bytes of a part for each of its chains.
const PER_CHAIN: u64 = 128;

/// Keeps values by their keys, in a folder
#[derive(Debug, Parser)]
#[command(name = "keys")]
struct Arguments {
    /// Folder of this store only, which is there; each of its commands has as many ranks. Unless
    /// rma-run --root says it
    #[arg(long)]
    root: Option<PathBuf>,
    /// Bytes of a rank, when the store is made
    #[arg(long, default_value_t = 1 << 20, value_parser = clap::value_parser!(u64).range(SIZES))]
    bytes: u64,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Puts all of these pairs, or none; a value that was there is replaced
    Put {
        /// KEY VALUE, again and again
        #[arg(required = true, num_args = 2.., value_names = ["KEY", "VALUE"])]
        pairs: Vec<String>,
    },
    /// Prints the value of a key
    Get {
        /// The key
        key: String,
    },
    /// Prints all keys in order, each with a tab and its value behind it
    List,
    /// Deletes keys
    Delete {
        /// The keys
        #[arg(required = true)]
        keys: Vec<String>,
    },
}

/// What a rank says of its share of a command; the most counts.
const DONE: u64 = 0;
const MISSING: u64 = 1;
const FULL: u64 = 2;

fn main() -> Result<(), Failure> {
    let universe = rma::initialize()?;
    let Some(arguments) = common::arguments::<Arguments>(&universe)? else { return Ok(()) };
    let is_first = universe.world().rank() == Rank(0);
    if let Command::Put { pairs } = &arguments.command
        && !pairs.len().is_multiple_of(2)
    {
        // Said once: the others have the same arguments.
        let last = pairs.last().map_or("", |last| last);
        let what = format!("there is no value behind the key {last:?}");
        return if is_first { Err(Failure::new(what)) } else { Ok(()) };
    }
    let mut trouble = None;
    let outcome = perform(&universe, &arguments, &mut trouble)?;
    universe.finalize()?;
    if let Some(failure) = trouble {
        return Err(failure);
    }
    match (outcome, &arguments.command) {
        (MISSING, Command::Get { key }) if is_first => {
            Err(Failure::new(format!("there is no key {key:?}")))
        }
        (MISSING, _) if is_first => {
            Err(Failure::new("some of these keys were not there; the others are deleted"))
        }
        (FULL, _) if is_first => Err(Failure::new(
            "no room: nothing was put. Delete keys, or make a store with more --bytes",
        )),
        _ => Ok(()),
    }
}

/// `trouble` is what only one rank has, and tells: the others go on to the end.
fn perform(
    universe: &Universe,
    arguments: &Arguments,
    trouble: &mut Option<Failure>,
) -> Result<u64, Failure> {
    let world = universe.world();
    let root = match &arguments.root {
        Some(root) => Root::open(world, root)?,
        None => Root::of_job(universe)?,
    };
    let held = root.windows()?.into_iter().find(|window| window.name == NAME);
    world.barrier()?;
    let bytes = match (&held, &arguments.command) {
        (None, Command::Get { .. } | Command::Delete { .. }) => return Ok(MISSING),
        (None, Command::List) => return Ok(DONE),
        // As it was made; that the ranks are others, or nothing whole, is said when it is opened.
        (Some(held), _) if held.ranks > 0 => held.bytes / u64::from(held.ranks),
        _ => arguments.bytes.next_multiple_of(WORD),
    };
    if !SIZES.contains(&bytes) {
        return Err(Failure::new("another program made the window keys in this folder"));
    }
    let hints = PersistentHints::name(NAME).elements::<u8>();
    let len = usize::try_from(bytes)?;
    let memory = Arc::new(PersistentMemory::open(&root, world, &hints, len)?);
    let window = world.window(len, 1).create(memory.clone())?;
    let store = Store { window, bytes, ranks: world.size() };
    let outcome = match &arguments.command {
        Command::Put { pairs } => {
            // Of a key that is there twice, the last value.
            let pairs: BTreeMap<_, _> =
                pairs.chunks_exact(2).map(|pair| (&pair[0], &pair[1])).collect();
            // All that they replace first: what is left then has to fit, in whatever order.
            for key in share(world, &pairs).map(|pair| pair.0) {
                store.delete(key)?;
            }
            world.barrier()?;
            shared(world, &memory, &pairs, |key, value| store.put(key, value))?
        }
        Command::Delete { keys } => {
            let keys: BTreeMap<_, _> = keys.iter().map(|key| (key, ())).collect();
            shared(world, &memory, &keys, |key, ()| store.delete(key))?
        }
        Command::Get { key } => alone(world, trouble, || {
            let part = store.part_of(key, LockKind::Shared)?;
            let value = part.find(key)?.map(|found| found.record.value);
            part.lock.unlock()?;
            let Some(value) = value else { return Ok(MISSING) };
            print(&(value + "\n"))?;
            Ok(DONE)
        })?,
        Command::List => alone(world, trouble, || {
            let text: Vec<String> =
                store.all()?.iter().map(|(key, value)| format!("{key}\t{value}\n")).collect();
            print(&text.concat())?;
            Ok(DONE)
        })?,
    };
    store.window.free()?;
    Ok(outcome)
}

/// What rank 0 does, and what became of it, at all ranks. **Collective.**
fn alone(
    world: &Communicator,
    trouble: &mut Option<Failure>,
    work: impl FnOnce() -> Result<u64, Failure>,
) -> Result<u64, Failure> {
    let mut outcome = [DONE];
    if world.rank() == Rank(0) {
        match work() {
            Ok(done) => outcome[0] = done,
            Err(failure) => *trouble = Some(failure),
        }
    }
    world.bcast(&mut outcome, Rank(0))?;
    Ok(outcome[0])
}

/// What this rank has to do of all.
fn share<'a, K, V>(
    world: &Communicator,
    all: &'a BTreeMap<K, V>,
) -> impl Iterator<Item = (&'a K, &'a V)> {
    all.iter().skip(world.rank().into()).step_by(world.ranks().len())
}

/// Each rank does its share; then all is committed, unless a rank had no room. **Collective.**
fn shared<K, V>(
    world: &Communicator,
    memory: &PersistentMemory,
    all: &BTreeMap<K, V>,
    work: impl Fn(&K, &V) -> Result<u64, Failure>,
) -> Result<u64, Failure> {
    let mut outcome = DONE;
    for (key, value) in share(world, all) {
        outcome = outcome.max(work(key, value)?);
    }
    let outcome = world.allreduce(&[outcome], Op::Max)?[0];
    if outcome != FULL {
        memory.commit(world)?;
    }
    Ok(outcome)
}

/// The parts of all ranks.
struct Store {
    window: Window,
    bytes: u64,
    ranks: u32,
}

/// A part that is locked.
struct Part<'w> {
    lock: Lock<'w>,
    bytes: u64,
}

struct Record {
    next: u64,
    key: String,
    value: String,
}

/// A record, and where the word is that points to it.
struct Found {
    from: u64,
    record: Record,
}

/// FNV-1a: the same in each run.
fn hash(key: &str) -> u64 {
    key.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn damaged() -> Failure {
    Failure::new("a record is damaged: another program wrote to the store")
}

impl Store {
    fn part(&self, rank: Rank, kind: LockKind) -> Result<Part<'_>, Failure> {
        Ok(Part { lock: self.window.lock(rank, kind)?, bytes: self.bytes })
    }

    fn part_of(&self, key: &str, kind: LockKind) -> Result<Part<'_>, Failure> {
        // The low bits say which chain.
        self.part(Rank::try_from((hash(key) >> 32) % u64::from(self.ranks))?, kind)
    }

    /// Puts a key that is not there.
    fn put(&self, key: &str, value: &str) -> Result<u64, Failure> {
        let part = self.part_of(key, LockKind::Exclusive)?;
        let mut fits = part.append(key, value)?;
        if !fits {
            part.compact()?;
            fits = part.append(key, value)?;
        }
        part.lock.unlock()?;
        Ok(if fits { DONE } else { FULL })
    }

    fn delete(&self, key: &str) -> Result<u64, Failure> {
        let part = self.part_of(key, LockKind::Exclusive)?;
        let was_there = part.remove(key)?;
        part.lock.unlock()?;
        Ok(if was_there { DONE } else { MISSING })
    }

    fn all(&self) -> Result<BTreeMap<String, String>, Failure> {
        let mut all = BTreeMap::new();
        for rank in 0..self.ranks {
            let part = self.part(Rank(rank), LockKind::Shared)?;
            all.extend(part.records()?);
            part.lock.unlock()?;
        }
        Ok(all)
    }
}

impl Part<'_> {
    fn chains(&self) -> u64 {
        self.bytes / PER_CHAIN
    }

    /// Where the word is that begins the chain of a key.
    fn chain(&self, key: &str) -> u64 {
        WORD * (1 + hash(key) % self.chains())
    }

    /// Where records begin.
    fn heap(&self) -> u64 {
        WORD * (1 + self.chains())
    }

    fn word(&self, at: u64) -> Result<u64, Failure> {
        let mut word = [0u64];
        self.lock.get(at, &mut word)?;
        Ok(word[0])
    }

    fn set(&self, at: u64, word: u64) -> Result<(), Failure> {
        self.lock.put(at, &[word])?;
        // Before the next get from there.
        Ok(self.lock.flush()?)
    }

    fn record(&self, at: u64) -> Result<Record, Failure> {
        let mut head = [0u64; 3];
        if at < self.heap() || at > self.bytes || self.bytes - at < HEAD * WORD {
            return Err(damaged());
        }
        self.lock.get(at, &mut head)?;
        let [next, key, value] = head;
        let room = self.bytes - at - HEAD * WORD;
        // A chain leads backwards: it has an end.
        if next >= at || key > room || value > room - key {
            return Err(damaged());
        }
        let mut bytes = vec![0u8; usize::try_from(key + value)?];
        self.lock.get(at + HEAD * WORD, &mut bytes[..])?;
        let value = bytes.split_off(usize::try_from(key)?);
        let text = |bytes| String::from_utf8(bytes).map_err(|_| damaged());
        Ok(Record { next, key: text(bytes)?, value: text(value)? })
    }

    fn find(&self, key: &str) -> Result<Option<Found>, Failure> {
        let mut from = self.chain(key);
        let mut at = self.word(from)?;
        while at != 0 {
            let record = self.record(at)?;
            if record.key == key {
                return Ok(Some(Found { from, record }));
            }
            // The first word of a record is the next one's place.
            (from, at) = (at, record.next);
        }
        Ok(None)
    }

    /// False if the key was not there. Its bytes stay until the part is compacted.
    fn remove(&self, key: &str) -> Result<bool, Failure> {
        let Some(found) = self.find(key)? else { return Ok(false) };
        self.set(found.from, found.record.next)?;
        Ok(true)
    }

    /// Adds a record of a key that is not there; false if there is no room behind the last one.
    fn append(&self, key: &str, value: &str) -> Result<bool, Failure> {
        let at = self.word(0)?.max(self.heap());
        let bytes = [key.as_bytes(), value.as_bytes()].concat();
        let len = u64::try_from(bytes.len())?.next_multiple_of(WORD);
        let end = at.saturating_add(HEAD * WORD + len);
        if end > self.bytes {
            return Ok(false);
        }
        let chain = self.chain(key);
        let head = [self.word(chain)?, key.len().try_into()?, value.len().try_into()?];
        self.lock.put(at, cast_slice::<u64, u8>(&head))?;
        self.lock.put(at + HEAD * WORD, &bytes[..])?;
        self.set(chain, at)?;
        self.set(0, end)?;
        Ok(true)
    }

    fn records(&self) -> Result<BTreeMap<String, String>, Failure> {
        let mut all = BTreeMap::new();
        for chain in 0..self.chains() {
            let mut at = self.word(WORD * (1 + chain))?;
            while at != 0 {
                let Record { next, key, value } = self.record(at)?;
                all.insert(key, value);
                at = next;
            }
        }
        Ok(all)
    }

    /// Writes what is there anew, without what was removed.
    fn compact(&self) -> Result<(), Failure> {
        let all = self.records()?;
        self.lock.put(0, &vec![0u8; usize::try_from(self.heap())?][..])?;
        self.lock.flush()?;
        for (key, value) in &all {
            if !self.append(key, value)? {
                return Err(damaged());
            }
        }
        Ok(())
    }
}
