//! Memory of a persistent window, and its commits.
#![allow(unsafe_code)] // room: vouches for the memory that it is made of

use super::agree;
use super::error::{PersistentCode, PersistentError};
use super::hints::{PersistentHints, PersistentMode};
use super::root::Root;
use crate::store::{
    Catalog, Decision, Disk, ElementType, Medium, Opening, PartRef, PartStore, State, Version,
    following, work_file,
};
use crate::{StorageError, StorageHints, StorageMemory};
use core::ops::Range;
use rma_core::transport::{Mapped, Mapping};
use rma_core::{Backing, Communicator, Extent, PersistError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

type Result<T> = std::result::Result<T, PersistentError>;

/// This rank's part of a persistent window: what outlives a crash of ranks, job and machine are the
/// versions that [`commit`](Self::commit) makes.
///
/// ```
/// use rma_storage::{PersistentHints, PersistentMemory, Root};
/// use std::sync::Arc;
///
/// # // Run by the tests of the crate `rma`; here for the compiler.
/// # fn example(universe: &rma_core::Universe) -> Result<(), Box<dyn std::error::Error>> {
/// let world = universe.world();
/// let root = Root::open(world, "instance-1")?;
/// let hints = PersistentHints::name("table").elements::<u64>();
/// let memory = Arc::new(PersistentMemory::open(&root, world, &hints, 1000 * 8)?);
/// let window = world.window(1000, 8).create(memory.clone()).map_err(|refused| refused.error)?;
/// // … begins with the last version that was committed, or zeros; operations, and a fence …
/// let version = memory.commit(world)?; // durable, at all ranks or at none
/// window.free()?;
/// # Ok(())
/// # }
/// ```
///
/// A transaction is what happens between two commits: it is rolled back when the window is opened
/// again, whatever ended the program. [`Window::sync`](rma_core::Window::sync) makes nothing
/// durable here, and [`Window::persist`](rma_core::Window::persist) is
/// [`commit_alone`](Self::commit_alone). Without transactions, both flush.
///
/// A commit compares what the window holds with the last version, so that its time grows with the
/// size of the window; what it writes, and the space of a version, grow with what has changed.
#[derive(Debug)]
pub struct PersistentMemory {
    memory: StorageMemory,
    state: Mutex<Running>,
    hints: PersistentHints,
    element: ElementType,
    rank: u32,
    ranks: u32,
    len: usize,
    /// Keeps other instances away.
    root: Root,
}

/// The transaction under way.
#[derive(Debug)]
struct Running {
    /// None if the window is volatile.
    store: Option<PartStore<Disk>>,
    /// The version that it began with.
    version: Option<u64>,
    next: u64,
    highest: u64,
    keep_all: bool,
    /// At its commit, older versions go in any case: they are of another size.
    expands: bool,
    /// At its commit, versions of its number and above go.
    replaces: bool,
}

/// What a rank begins with.
struct Beginning {
    catalog: Catalog,
    base: Option<Version>,
    /// What the window lies on is what it holds.
    is_plain: bool,
    /// Bytes of this rank's part so far.
    held: Option<u64>,
}

impl PersistentMemory {
    /// Opens the window of that name, or makes it, with `len` bytes of this rank. **Collective**:
    /// all ranks of `comm` give the same hints; sizes may differ.
    ///
    /// # Errors
    ///
    /// See [`PersistentError`]; if one rank fails, all do, and no version is harmed.
    pub fn open(
        root: &Root,
        comm: &Communicator,
        hints: &PersistentHints,
        len: usize,
    ) -> Result<Self> {
        let (what, disk, name) = ("opening a persistent window", &root.inner.disk, &hints.name);
        let (rank, ranks) = (u32::from(comm.rank()), comm.size());
        let told = crc32fast::hash(format!("{hints:?}").as_bytes());
        let checked = hints.check().and_then(|()| {
            let arg = |what| PersistentError::Arg { name: name.clone(), what };
            match len {
                0 => Err(arg("a rank has one byte of it at least")),
                _ if root.is_locked() => Ok(()),
                _ => Err(arg("its root is open to be listed only; use Root::open")),
            }
        });
        let ((), all) = agree(comm, what, checked, |()| [u64::from(told)])?;
        if all.iter().any(|one| *one != all[0]) {
            let what = "ranks gave different hints; all give the same";
            return Err(PersistentError::Arg { name: name.clone(), what });
        }
        let make = || {
            disk.make_folder(name)?;
            Ok(disk.sync_folder("")?)
        };
        agree(comm, what, if rank == 0 { make() } else { Ok(()) }, |()| [])?;
        let beginning = Beginning::find(root, hints, (rank, ranks), len as u64);
        let (mut beginning, _) = agree(comm, what, beginning, |_| [])?;
        if hints.mode == PersistentMode::Checkpoint {
            let number = beginning.number(comm, hints)?;
            let chosen = beginning.choose(hints, rank, number, len as u64);
            agree(comm, what, chosen, |()| [])?;
        }
        let opened = Self::open_part(root, hints, (rank, ranks), len, &beginning);
        // Of its own part, a rank knows; a record is of all parts.
        let begins = beginning.catalog.is_nothing()
            || if hints.plain {
                !beginning.is_plain || beginning.held != Some(len as u64)
            } else {
                beginning.is_plain
            };
        let (memory, all) = agree(comm, what, opened, |_| [u64::from(begins)])?;
        if !hints.volatile && all.iter().any(|[begins]| *begins > 0) {
            memory.decide_all(comm, if hints.plain { State::Plain } else { State::Kept })?;
        }
        Ok(memory)
    }

    /// The local part of opening: no other rank has it, and it has the bytes that it begins with.
    fn open_part(
        root: &Root,
        hints: &PersistentHints,
        (rank, ranks): (u32, u32),
        len: usize,
        beginning: &Beginning,
    ) -> Result<Self> {
        let (disk, name) = (&root.inner.disk, &hints.name);
        let path = disk.path(&work_file(name, rank));
        // Only what is flushed by hand is to be found there again.
        let file = StorageHints::file(&path).discard(!hints.plain).unlink(hints.volatile);
        // As it is: whatever a root or a window is called, the store's other files are beside it.
        let memory = StorageMemory::open_at(path, (0, ""), &file, len);
        let memory = memory.map_err(|error| match error {
            StorageError::InUse { .. } => PersistentError::WindowInUse { name: name.clone() },
            error => error.into(),
        })?;
        let Beginning { catalog, base, is_plain, .. } = beginning;
        let (base, size) = (base.as_ref(), len as u64);
        let opening = Opening { name, rank, ranks, size, base };
        let store = PartStore::open(disk.clone(), root.inner.key, catalog, &opening)?;
        if !is_plain {
            store.fill()?;
        }
        if hints.plain {
            store.sync_work()?;
        }
        let (version, highest) = (base.map(|base| base.number), catalog.highest_number());
        let is_version = hints.mode == PersistentMode::Checkpoint && !hints.append;
        let next = match version {
            Some(version) if is_version => following(name, version)?,
            _ if catalog.is_nothing() => 0,
            _ => following(name, highest)?,
        };
        let expands = hints.mode == PersistentMode::Expand;
        let store = Some(store).filter(|_| !hints.volatile);
        let (keep_all, replaces) = (hints.keep_all, is_version);
        let state = Running { store, version, next, highest, keep_all, expands, replaces };
        let (state, hints, root) = (Mutex::new(state), hints.clone(), root.clone());
        let told = [hints.element].into_iter().chain(catalog.versions.last().map(|of| of.element));
        let element = told.into_iter().find(|of| of.size > 0).unwrap_or_default();
        Ok(Self { memory, state, hints, element, rank, ranks, len, root })
    }

    /// Bytes of this rank's part.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none: never.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What the window is called.
    pub fn name(&self) -> &str {
        &self.hints.name
    }

    /// The root that it lies below.
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// The version that the transaction under way began with.
    pub fn version(&self) -> Option<u64> {
        self.running().version
    }

    /// The keys that are in force, with their values.
    pub fn info(&self) -> Vec<(&'static str, String)> {
        let keep_all = self.running().keep_all;
        self.hints.in_force(keep_all)
    }

    /// Whether commits from now on keep older versions. Local; all ranks say the same, and if they
    /// do not, they are kept.
    pub fn keep_all_checkpoints(&self, keep_all: bool) {
        self.running().keep_all = keep_all;
    }

    /// Makes what the window holds a version, durably, at all ranks or at none, and begins the next
    /// transaction; returns its number. **Collective** over the ranks that opened the window, and a
    /// barrier.
    ///
    /// What each rank's part holds is what operations and stores have brought there that were
    /// complete before: end the epoch first. From then on until it returns no rank writes there.
    ///
    /// Without transactions it flushes, and there is no number; of a volatile window it does not
    /// even that.
    ///
    /// # Errors
    ///
    /// See [`PersistentError`]. The window goes on after [`PersistentError::Space`], at whichever
    /// rank, and is as it was before the call; after all others, open it again.
    pub fn commit(&self, comm: &Communicator) -> Result<Option<u64>> {
        let same = (u32::from(comm.rank()), comm.size()) == (self.rank, self.ranks);
        let what = "the communicator is not the one that the window was opened on";
        let name = self.hints.name.clone();
        let checked = if same { Ok(()) } else { Err(PersistentError::Arg { name, what }) };
        agree(comm, "a commit", checked, |()| [])?;
        if self.hints.transactions() {
            return self.decide_all(comm, State::Kept).map(Some);
        }
        agree(comm, "a commit", self.flush(), |()| [])?;
        Ok(None)
    }

    /// Makes what this rank's part holds a version of this rank only, durably; returns its number.
    /// Local: no other rank takes part, and versions of others do not change. See
    /// [`global_checkpoint`](PersistentHints::global_checkpoint).
    ///
    /// Without transactions it flushes, and there is no number.
    ///
    /// # Errors
    ///
    /// As of [`commit`](Self::commit).
    pub fn commit_alone(&self) -> Result<Option<u64>> {
        if !self.hints.transactions() {
            return self.flush().map(|()| None);
        }
        let running = &mut *self.running();
        let Some(store) = &mut running.store else { return Ok(None) };
        let serial = following(&self.hints.name, store.highest_serial())?;
        following(&self.hints.name, running.next)?;
        let part = store.prepare(serial)?;
        let (number, highest) = (running.next, running.highest.max(running.next));
        let element = self.element;
        let (state, alone, time_ns) = (State::Kept, true, now());
        let decision = Decision { number, serial, highest, time_ns, state, alone, element };
        store.decide(&decision, vec![part])?;
        running.adopt(&decision, running.keep_all)?;
        Ok(Some(number))
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn flush(&self) -> Result<()> {
        if self.hints.volatile {
            return Ok(());
        }
        self.memory.persist(0..self.len as u64).map_err(|error| self.failed(error))
    }

    fn failed(&self, error: PersistError) -> PersistentError {
        let path = work_file(&self.hints.name, self.rank);
        match error {
            PersistError::System { call, errno } => PersistentError::System { path, call, errno },
            _ => PersistentError::Poisoned { name: self.hints.name.clone() },
        }
    }

    /// Both phases of a version of all ranks: all parts are durable, and then rank 0 decides.
    fn decide_all(&self, comm: &Communicator, state: State) -> Result<u64> {
        let (what, element) = ("a commit", self.element);
        let running = &mut *self.running();
        let poisoned = PersistentError::Poisoned { name: self.hints.name.clone() };
        let Some(store) = &mut running.store else { return Err(poisoned) };
        let ready = if store.is_poisoned() { Err(poisoned) } else { Ok(()) };
        let words =
            [store.highest_serial(), running.next, running.highest, running.keep_all.into()];
        let ((), all) = agree(comm, what, ready, |()| words)?;
        let most = |word: usize| all.iter().map(|all| all[word]).max().unwrap_or(0);
        let (keep_all, time_ns) = (most(3) > 0, now());
        let number = if state == State::Plain { most(2) } else { most(1) };
        // The same at all ranks.
        let serial = following(&self.hints.name, most(0))?;
        following(&self.hints.name, number)?;
        let (highest, alone) = (most(2).max(number), false);
        let decision = Decision { number, serial, highest, time_ns, state, alone, element };
        let prepared = store.prepare(serial);
        let parts = match agree(comm, what, prepared, words_of) {
            Ok((_, parts)) => parts.into_iter().map(part_of).collect(),
            Err(error) => {
                store.give_up(&error);
                return Err(error);
            }
        };
        let decided = if self.rank == 0 { store.decide(&decision, parts) } else { Ok(()) };
        agree(comm, what, decided, |()| []).inspect_err(|error| {
            // Rank 0 says so as long as it has decided nothing.
            match error.code() {
                Some(PersistentCode::NoMem) => store.abandon(),
                _ => store.poison(),
            }
        })?;
        // The version is there, whatever becomes of those that it takes the place of; and their
        // records are gone before the next commit of any rank synchronises the folder.
        let adopted = running.adopt(&decision, keep_all);
        agree(comm, what, adopted, |()| [])?;
        Ok(number)
    }
}

impl Running {
    fn adopt(&mut self, decision: &Decision, keep_all: bool) -> Result<()> {
        let Some(store) = &mut self.store else { return Ok(()) };
        let from = if self.replaces { decision.number } else { u64::MAX };
        let adopted = store.adopt(decision, keep_all && !self.expands, from);
        adopted.inspect_err(|_| store.poison())?;
        self.highest = decision.highest;
        if decision.state == State::Kept {
            (self.version, self.next) = (Some(decision.number), decision.number + 1);
            (self.expands, self.replaces) = (false, false);
        }
        Ok(())
    }
}

impl Beginning {
    /// What there is, and whether it is what the hints ask for.
    fn find(
        root: &Root,
        hints: &PersistentHints,
        (rank, here): (u32, u32),
        len: u64,
    ) -> Result<Self> {
        let (disk, name) = (&root.inner.disk, || hints.name.clone());
        // What processes that were ended have written may be seen, and lost by the machine yet.
        disk.sync_folder(&hints.name)?;
        let catalog = Catalog::read(disk, &hints.name, &root.inner.key)?;
        if hints.volatile && !catalog.is_nothing() {
            let what = "it is a persistent window, which pmem_volatile would remove; choose \
                        another name, or delete it";
            return Err(PersistentError::Name { name: name(), what });
        }
        if let Some(held) = catalog.versions.iter().map(|version| version.ranks).next_back()
            && held != here
        {
            return Err(PersistentError::Ranks { name: name(), held, here });
        }
        let told = |element: &ElementType| element.size > 0;
        if let Some(version) = catalog.versions.last()
            && told(&version.element)
            && told(&hints.element)
            && version.element != hints.element
        {
            let text = |element: ElementType| {
                let name = String::from_utf8_lossy(&element.name);
                format!("type {:?}, {} bytes", name.trim_end_matches('\0'), element.size)
            };
            let (held, requested) = (text(version.element), text(hints.element));
            return Err(PersistentError::Element { name: name(), held, requested });
        }
        let is_plain = catalog.is_plain(rank);
        let mut beginning = Self { catalog, base: None, is_plain, held: None };
        if hints.mode != PersistentMode::Checkpoint {
            beginning.base = beginning.catalog.newest(rank)?.cloned();
            let last = beginning.catalog.of_rank(rank).into_iter().rev();
            let held = last.filter_map(|version| version.part_of(rank)).map(|part| part.size);
            beginning.held = held.clone().next();
            beginning.check_size(hints, rank, len)?;
        }
        Ok(beginning)
    }

    fn check_size(&self, hints: &PersistentHints, rank: u32, requested: u64) -> Result<()> {
        let is_it = |held: u64| match hints.mode {
            PersistentMode::Expand => held <= requested,
            _ => held == requested,
        };
        match self.held {
            Some(held) if !is_it(held) => {
                Err(PersistentError::Size { name: hints.name.clone(), rank, held, requested })
            }
            _ => Ok(()),
        }
    }

    /// Which version all ranks return to; none if each to its own newest. **Collective**
    fn number(&self, comm: &Communicator, hints: &PersistentHints) -> Result<Option<u64>> {
        if hints.checkpoint_version.is_some() || !hints.global {
            return Ok(hints.checkpoint_version);
        }
        let rank = u32::from(comm.rank());
        // One that cannot be read is not passed over in silence.
        let newest = self.catalog.newest(rank).map(drop);
        agree(comm, "opening a persistent window", newest, |()| [])?;
        let mine = self.catalog.numbers(rank);
        let all = comm.allgatherv(&mine)?;
        let held = |number: &u64| all.iter().all(|one| one.contains(number));
        let number = mine.into_iter().rev().find(held);
        number.map(Some).ok_or_else(|| self.no_version(hints, "at all".into(), "every rank", rank))
    }

    fn no_version(
        &self,
        hints: &PersistentHints,
        version: String,
        holder: &str,
        rank: u32,
    ) -> PersistentError {
        let numbers: Vec<_> = self.catalog.numbers(rank).iter().map(u64::to_string).collect();
        let held = if numbers.is_empty() { "none".to_owned() } else { numbers.join(", ") };
        PersistentError::NoVersion {
            name: hints.name.clone(),
            version,
            holder: holder.to_owned(),
            held,
        }
    }

    fn choose(
        &mut self,
        hints: &PersistentHints,
        rank: u32,
        number: Option<u64>,
        len: u64,
    ) -> Result<()> {
        if self.is_plain {
            let what = "what it holds was stored without transactions and is no version; open it \
                        without pmem_mode first, which makes it one";
            return Err(PersistentError::Mode { name: hints.name.clone(), what });
        }
        let found = match number {
            Some(number) => self.catalog.version(rank, number),
            None => self.catalog.newest(rank)?,
        };
        let wanted = number.map_or("at all".to_owned(), |number| number.to_string());
        let missing = || self.no_version(hints, wanted, &format!("rank {rank}"), rank);
        let found = found.cloned().ok_or_else(missing)?;
        self.held = found.part_of(rank).map(|part| part.size);
        self.base = Some(found);
        self.check_size(hints, rank, len)
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn words_of(part: &PartRef) -> [u64; 6] {
    let mut words = [part.serial, part.size, 0, 0, 0, 0];
    for (word, bytes) in words[2..].iter_mut().zip(part.mac.chunks_exact(8)) {
        *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    }
    words
}

fn part_of([serial, size, mac @ ..]: [u64; 6]) -> PartRef {
    let mut bytes = [0; 32];
    for (bytes, word) in bytes.chunks_exact_mut(8).zip(mac) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    PartRef { serial, size, mac: bytes }
}

impl Drop for PersistentMemory {
    fn drop(&mut self) {
        if self.hints.volatile {
            // The last of the ranks finds it empty.
            let (disk, name) = (&self.root.inner.disk, &self.hints.name);
            _ = disk.remove(&work_file(name, self.rank));
            _ = disk.remove(&crate::store::blocks_file(name, self.rank));
            _ = disk.remove_folder(name);
        }
    }
}

// SAFETY: the mapping of a memory that lives as long, and is never replaced.
unsafe impl Mapped for PersistentMemory {
    fn mapping(&self) -> Mapping {
        self.memory.mapping()
    }
}

// SAFETY: all is as that memory says. The store reads and writes its file by calls of the system,
// never through the mapping, and makes no reference into it; it does not cut the file.
unsafe impl Backing for PersistentMemory {
    fn extents(&self) -> Vec<Extent> {
        self.memory.extents()
    }

    fn granularity(&self) -> u64 {
        self.memory.granularity()
    }

    /// What RMA's own synchronisation is to flush: nothing, in transactions.
    fn is_durable(&self) -> bool {
        self.hints.plain && !self.hints.volatile
    }

    fn persist(&self, range: Range<u64>) -> std::result::Result<(), PersistError> {
        if self.hints.volatile {
            return Err(PersistError::Volatile);
        }
        if self.hints.plain {
            return self.memory.persist(range);
        }
        self.commit_alone().map(|_| ()).map_err(|error| match error {
            PersistentError::System { call, errno, .. } => PersistError::System { call, errno },
            PersistentError::Space { .. } => {
                let errno = rustix::io::Errno::NOSPC.raw_os_error();
                PersistError::System { call: "fallocate", errno }
            }
            _ => PersistError::Poisoned { call: "a commit", errno: 0 },
        })
    }
}
