//! Memory of a persistent window, and its commits.
#![allow(unsafe_code)] // room: vouches for the memory that it is made of

use super::error::{PersistentCode, PersistentError};
use super::hints::{PersistentHints, PersistentMode};
use super::root::Root;
use super::start::Beginning;
use super::tracker::Tracker;
use super::{OfWindow, Ranks, agree};
use crate::hints::choice;
use crate::store::{
    Decision, Disk, ElementType, Medium, Opening, PartRef, PartStore, State, following, work_file,
};
use crate::{StorageError, StorageHints, StorageMemory};
use core::ops::Range;
use rma_core::transport::{Announced, FileId, FileMapping, Mapped, Mapping};
use rma_core::{Backing, CommitGroup, Communicator, Extent, HintChange, PersistError};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
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
/// What a commit writes, and the space of a version, grow with what has changed. To find that out,
/// it compares the window with the last version, or looks at the pages that the kernel says were
/// stored to: see [`DirtyTracking`](super::DirtyTracking).
#[derive(Debug)]
pub struct PersistentMemory {
    /// Before it is unmapped.
    _mapped: Announced,
    memory: StorageMemory,
    state: Mutex<Running>,
    /// Whether a commit of all ranks is under way, which holds `state` while it waits for other
    /// ranks: no thread waits for it there to commit, it is refused. A commit of this rank alone
    /// holds this lock.
    committing: Mutex<bool>,
    /// Without transactions: what the window lies on is what it holds. Not in `state`, which a
    /// commit holds while others may ask for a sync and come to that commit only then.
    plain: AtomicBool,
    /// Whether it is to be so from the next commit of all ranks on.
    plain_next: AtomicBool,
    /// Whether commits from now on keep older versions.
    keep_all: AtomicBool,
    /// What is told of `state`, also while a commit holds that.
    told: Mutex<Told>,
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
    /// At its commit, older versions go in any case: their parts are of other sizes.
    drops: bool,
    /// At its commit, versions of its number and above go.
    replaces: bool,
    tracker: Tracker,
}

#[derive(Debug, Default)]
struct Told {
    version: Option<u64>,
    tracking: String,
}

/// What a rank tells of its transaction before a commit: the highest serial, the number that it
/// would have, the highest number, and whether older versions are kept.
type Numbers = [u64; 4];

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
        let (mut beginning, sizes) = agree(comm, what, beginning, |_| [len as u64])?;
        let mut is_known = hints.mode != PersistentMode::Checkpoint;
        if hints.divides() {
            let divided = beginning.divide(hints, rank, sizes.as_flattened());
            (is_known, _) = agree(comm, what, divided, |_| [])?;
        }
        if !is_known {
            let number = beginning.number(comm, hints)?;
            let chosen = beginning.choose(hints, rank, number, len as u64);
            agree(comm, what, chosen, |()| [])?;
        }
        let tracker = Tracker::new(hints.tracking, comm, len as u64);
        let opened = Self::open_part(root, hints, (rank, ranks), len, &beginning, tracker);
        // Of its own part, a rank knows; a record is of all parts.
        let begins = beginning.catalog.is_nothing()
            || beginning.pieces.is_some()
            || if hints.plain {
                !beginning.is_plain || beginning.held != Some(len as u64)
            } else {
                beginning.is_plain
            };
        let (memory, all) = agree(comm, what, opened, |(_, FileId { device, inode })| {
            [u64::from(begins), *device, *inode]
        })?;
        let (memory, _) = memory;
        let file = |&[_, device, inode]: &[u64; 3]| FileId { device, inode };
        let mut guard = memory.running();
        let running = &mut *guard;
        running.tracker.begin(all.iter().map(file).collect());
        if !hints.volatile && all.iter().any(|[begins, ..]| *begins > 0) {
            let state = if hints.plain { State::Plain } else { State::Kept };
            memory.decide_all(comm, running, state, None)?;
        }
        memory.tell(running);
        drop(guard);
        Ok(memory)
    }

    /// The local part of opening: no other rank has it, and it has the bytes that it begins with.
    fn open_part(
        root: &Root,
        hints: &PersistentHints,
        (rank, ranks): (u32, u32),
        len: usize,
        beginning: &Beginning,
        tracker: Tracker,
    ) -> Result<(Self, FileId)> {
        let (disk, name) = (&root.inner.disk, &hints.name);
        let memory = open_file(disk.path(&work_file(name, rank)), hints, len)?;
        let Beginning { catalog, base, is_plain, pieces, .. } = beginning;
        let (base, size) = (base.as_ref(), len as u64);
        let opening = Opening { name, rank, ranks, size, base };
        let store = PartStore::open(disk.clone(), root.inner.key, catalog, &opening)?;
        match pieces {
            Some(pieces) => store.fill_from(pieces)?,
            None if *is_plain => {}
            None => store.fill()?,
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
        let store = Some(store).filter(|_| !hints.volatile);
        let state = Running {
            store,
            version,
            next,
            highest,
            drops: hints.mode == PersistentMode::Expand || pieces.is_some(),
            replaces: is_version && pieces.is_none(),
            tracker,
        };
        let (state, hints, root) = (Mutex::new(state), hints.clone(), root.clone());
        let told = [hints.element].into_iter().chain(catalog.versions.last().map(|of| of.element));
        let element = told.into_iter().find(|of| of.size > 0).unwrap_or_default();
        let [plain, plain_next, keep_all] =
            [hints.plain, hints.plain, hints.keep_all].map(AtomicBool::new);
        let file = memory.file_id()?;
        let mapped = FileMapping::announce(file, 0, memory.mapping());
        Ok((
            Self {
                _mapped: mapped,
                memory,
                state,
                committing: Mutex::new(false),
                plain,
                plain_next,
                keep_all,
                told: Mutex::default(),
                hints,
                element,
                rank,
                ranks,
                len,
                root,
            },
            file,
        ))
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
        self.told().version
    }

    /// The keys that are in force, with their values.
    pub fn info(&self) -> Vec<(&'static str, String)> {
        let mut keys = self.hints.in_force(self.keep_all.load(Relaxed), self.is_plain());
        if !self.hints.volatile && !self.is_plain() {
            keys.push(("pmem_dirty_tracking", self.told().tracking.clone()));
        }
        keys
    }

    /// Whether commits from now on keep older versions. Local; all ranks say the same, and if they
    /// do not, they are kept.
    pub fn keep_all_checkpoints(&self, keep_all: bool) {
        self.keep_all.store(keep_all, Relaxed);
    }

    /// Whether commits make no versions, and flush. From the next commit of all ranks on, which
    /// ends the transaction under way first, or begins one: until then all is as it was. Local; all
    /// ranks say the same, and if they do not, that commit is refused.
    pub fn dont_use_transactions(&self, dont: bool) {
        self.plain_next.store(dont, Relaxed);
    }

    /// Makes what the window holds a version, durably, at all ranks or at none, and begins the next
    /// transaction; returns its number. **Collective** over the ranks that opened the window, and a
    /// barrier. [`Fence::next_persist`](rma_core::Fence::next_persist) and
    /// [`end_persist`](rma_core::Fence::end_persist) call it at the end of an epoch.
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
    /// rank, and is as it was before the call; so it is after [`PersistentError::Committing`],
    /// which other ranks know as [`PersistentError::Elsewhere`]. After all others, open it again.
    pub fn commit(&self, comm: &Communicator) -> Result<Option<u64>> {
        self.commit_all(comm)
    }

    fn commit_all(&self, ranks: &dyn Ranks) -> Result<Option<u64>> {
        let what = "a commit";
        let arg = |what| PersistentError::Arg { name: self.hints.name.clone(), what };
        let checked = match (ranks.rank(), ranks.size()) == (self.rank, self.ranks) {
            true => Ok(()),
            false => Err(arg("the ranks that commit are not those that have opened it")),
        };
        let checked = checked.and_then(|()| self.begin_commit());
        let (plain, plain_next) = (self.is_plain(), self.plain_next.load(Relaxed));
        let is_flush = self.hints.volatile || plain && plain_next;
        let name = u64::from(crc32fast::hash(self.hints.name.as_bytes()));
        let alike = [name, plain.into(), plain_next.into()];
        // Not of one that is refused: another commit has it, and waits for what this one tells.
        let ready = checked.and_then(|committing| {
            let running = self.running();
            let numbers = if is_flush { Numbers::default() } else { self.numbers(&running)? };
            Ok((committing, running, numbers))
        });
        let words = |(.., numbers): &(_, _, Numbers)| {
            let mut words = [0; 7];
            words[..3].copy_from_slice(&alike);
            words[3..].copy_from_slice(numbers);
            words
        };
        let ((_committing, mut running, _), all) = agree(ranks, what, ready, words)?;
        if all.iter().any(|one| one[0] != name) {
            return Err(arg("ranks commit different windows; all commit the same"));
        }
        if all.iter().any(|one| one[..3] != alike) {
            let what = "pmem_dont_use_transactions was not set alike at all ranks; set it again";
            return Err(arg(what));
        }
        if is_flush {
            agree(ranks, what, self.flush(), |()| [])?;
            return Ok(None);
        }
        let all = all.iter().map(|&[_, _, _, numbers @ ..]| numbers).collect();
        let running = &mut *running;
        let number = self.decide_all(ranks, running, State::Kept, Some(all));
        let turned = number.and_then(|number| match self.turn(ranks, running, plain_next) {
            // The version is there, and transactions go on until there is space.
            Err(error) if error.code() == Some(PersistentCode::NoMem) => Ok(Some(number)),
            turned => turned.map(|()| Some(number)),
        });
        self.tell(running);
        turned
    }

    /// A commit of all ranks is under way until the value is dropped; fails if another is.
    fn begin_commit(&self) -> Result<Committing<'_>> {
        *self.not_committing()? = true;
        Ok(Committing(self))
    }

    fn not_committing(&self) -> Result<MutexGuard<'_, bool>> {
        let committing = self.committing();
        if *committing {
            return Err(PersistentError::Committing { name: self.hints.name.clone() });
        }
        Ok(committing)
    }

    fn committing(&self) -> MutexGuard<'_, bool> {
        self.committing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Behind a version, goes on with transactions or without.
    fn turn(&self, ranks: &dyn Ranks, running: &mut Running, plain: bool) -> Result<()> {
        if plain {
            // What the window lies on is durable before the record that says so is.
            let synced = running.store.as_mut().map_or(Ok(()), |store| {
                let synced = store.sync_work();
                synced.inspect_err(|_| store.poison())
            });
            agree(ranks, "turning transactions off", synced, |()| [])?;
            self.decide_all(ranks, running, State::Plain, None)?;
        }
        self.plain.store(plain, Relaxed);
        Ok(())
    }

    /// Makes what this rank's part holds a version of this rank only, durably; returns its number.
    /// Local: no other rank takes part, and versions of others do not change. See
    /// [`global_checkpoint`](PersistentHints::global_checkpoint). The forms that persist of
    /// [`post`](rma_core::Window::post_persist), [`wait`](rma_core::Exposure::wait_persist) and
    /// [`test`](rma_core::Exposure::test_persist) call it.
    ///
    /// Without transactions it flushes, and there is no number.
    ///
    /// # Errors
    ///
    /// As of [`commit`](Self::commit).
    pub fn commit_alone(&self) -> Result<Option<u64>> {
        if self.hints.volatile || self.is_plain() {
            return self.flush().map(|()| None);
        }
        // Held until the version is there.
        let _alone = self.not_committing()?;
        let running = &mut *self.running();
        let Some(store) = &mut running.store else { return Ok(None) };
        let serial = following(&self.hints.name, store.highest_serial())?;
        following(&self.hints.name, running.next)?;
        let part = store.prepare(serial, None)?;
        let (number, highest) = (running.next, running.highest.max(running.next));
        let element = self.element;
        let (state, alone, time_ns) = (State::Kept, true, now());
        let decision = Decision { number, serial, highest, time_ns, state, alone, element };
        store.decide(&decision, vec![part])?;
        let adopted = running.adopt(&decision, self.keep_all.load(Relaxed));
        self.tell(running);
        adopted.map(|()| Some(number))
    }

    fn is_plain(&self) -> bool {
        self.plain.load(Relaxed)
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What has become of the transaction is told from now on.
    fn tell(&self, running: &Running) {
        let (version, tracking) = (running.version, running.tracker.explain());
        *self.told() = Told { version, tracking };
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

    fn numbers(&self, running: &Running) -> Result<Numbers> {
        match running.store.as_ref().filter(|store| !store.is_poisoned()) {
            Some(store) => {
                let keep_all = self.keep_all.load(Relaxed).into();
                Ok([store.highest_serial(), running.next, running.highest, keep_all])
            }
            None => Err(PersistentError::Poisoned { name: self.hints.name.clone() }),
        }
    }

    /// Both phases of a version of all ranks, of which `told` has what they have told, if they
    /// have: all parts are durable, and then rank 0 decides.
    fn decide_all(
        &self,
        ranks: &dyn Ranks,
        running: &mut Running,
        state: State,
        told: Option<Vec<Numbers>>,
    ) -> Result<u64> {
        let (what, element) = ("a commit", self.element);
        let all = match told {
            Some(told) => told,
            None => agree(ranks, what, self.numbers(running), |numbers| *numbers)?.1,
        };
        // All have come, so that what they store meanwhile has ended.
        let stored = running.tracker.stored(ranks);
        let Some(store) = &mut running.store else {
            return Err(PersistentError::Poisoned { name: self.hints.name.clone() });
        };
        let stored = stored.inspect_err(|_| store.poison())?;
        let most = |word: usize| all.iter().map(|all| all[word]).max().unwrap_or(0);
        let (keep_all, time_ns) = (most(3) > 0, now());
        let number = if state == State::Plain { most(2) } else { most(1) };
        // The same at all ranks.
        let serial = following(&self.hints.name, most(0))?;
        following(&self.hints.name, number)?;
        let (highest, alone) = (most(2).max(number), false);
        let decision = Decision { number, serial, highest, time_ns, state, alone, element };
        let prepared = store.prepare(serial, stored.as_deref());
        let changed = store.changed_blocks();
        let parts = match agree(ranks, what, prepared, words_of) {
            Ok((_, parts)) => parts.into_iter().map(part_of).collect(),
            Err(error) => {
                store.give_up(&error);
                return Err(error);
            }
        };
        let decided = if self.rank == 0 { store.decide(&decision, parts) } else { Ok(()) };
        agree(ranks, what, decided, |()| []).inspect_err(|error| {
            // Rank 0 says so as long as it has decided nothing.
            match error.code() {
                Some(PersistentCode::NoMem) => store.abandon(),
                _ => store.poison(),
            }
        })?;
        // The version is there, whatever becomes of those that it takes the place of; and their
        // records are gone before the next commit of any rank synchronises the folder.
        let adopted = running.adopt(&decision, keep_all);
        agree(ranks, what, adopted, |()| [])?;
        if state == State::Kept {
            running.tracker.committed(changed);
        }
        Ok(number)
    }
}

struct Committing<'m>(&'m PersistentMemory);

impl Drop for Committing<'_> {
    fn drop(&mut self) {
        *self.0.committing() = false;
    }
}

impl Running {
    fn adopt(&mut self, decision: &Decision, keep_all: bool) -> Result<()> {
        let Some(store) = &mut self.store else { return Ok(()) };
        let from = if self.replaces { decision.number } else { u64::MAX };
        let adopted = store.adopt(decision, keep_all && !self.drops, from);
        adopted.inspect_err(|_| store.poison())?;
        self.highest = decision.highest;
        if decision.state == State::Kept {
            (self.version, self.next) = (Some(decision.number), decision.number + 1);
            (self.drops, self.replaces) = (false, false);
        }
        Ok(())
    }
}

/// What a part lies on.
fn open_file(path: PathBuf, hints: &PersistentHints, len: usize) -> Result<StorageMemory> {
    // Only what is flushed by hand is to be found there again.
    let file = StorageHints::file(&path).discard(!hints.plain).unlink(hints.volatile);
    // As it is: whatever a root or a window is called, the store's other files are beside it.
    // Else, what is durable is versions, and stores need not wait until a page can be found again.
    let by_msync = if hints.plain { None } else { Some("the window has transactions") };
    StorageMemory::open_at(path, (0, ""), &file, len, by_msync).map_err(|error| match error {
        StorageError::InUse { .. } => PersistentError::WindowInUse { name: hints.name.clone() },
        error => error.into(),
    })
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
        // What lies there is what the next to open it finds: transactions were turned off.
        if self.is_plain() && !self.hints.plain {
            _ = self.flush();
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

    fn info(&self) -> Vec<(&'static str, String)> {
        Self::info(self)
    }

    fn set_info(&self, key: &str, value: &str) -> HintChange {
        let transactions = self.has_transactions();
        let (key, set): (_, fn(&Self, bool)) = match key {
            "pmem_dont_use_transactions" if !self.hints.volatile => {
                ("pmem_dont_use_transactions", Self::dont_use_transactions)
            }
            "pmem_keep_all_checkpoints" if transactions => {
                ("pmem_keep_all_checkpoints", Self::keep_all_checkpoints)
            }
            _ => return HintChange::Unknown,
        };
        let values = [("false", false), ("true", true)];
        let Ok(wanted) = choice(key, value, &values) else {
            return HintChange::Malformed { key, allowed: "false, true" };
        };
        set(self, wanted);
        let is = Self::info(self).iter().any(|(of, is)| *of == key && *is == wanted.to_string());
        if is { HintChange::InForce } else { HintChange::NotInForce }
    }

    fn is_durable(&self) -> bool {
        !self.hints.volatile
    }

    fn release(&self) -> std::result::Result<(), PersistError> {
        if self.hints.volatile || !self.is_plain() {
            return Ok(());
        }
        match self.memory.persist(0..self.len as u64) {
            // That was said before.
            Err(PersistError::Poisoned { .. }) => Ok(()),
            flushed => flushed,
        }
    }

    fn persist(&self, range: Range<u64>) -> std::result::Result<(), PersistError> {
        if self.hints.volatile {
            return Err(PersistError::Volatile);
        }
        if self.is_plain() {
            return self.memory.persist(range);
        }
        Ok(self.commit_alone().map(drop)?)
    }

    /// What RMA's own synchronisation is to flush: nothing, in transactions.
    fn sync(&self, range: Range<u64>) -> std::result::Result<bool, PersistError> {
        let plain = self.is_plain();
        if plain && !self.hints.volatile {
            self.memory.persist(range)?;
        }
        Ok(plain)
    }

    fn has_transactions(&self) -> bool {
        !(self.hints.volatile || self.is_plain() && self.plain_next.load(Relaxed))
    }

    fn commit(&self, together: Option<&dyn CommitGroup>) -> std::result::Result<(), PersistError> {
        let committed = match together {
            Some(ranks) => self.commit_all(&OfWindow(ranks)),
            None => self.commit_alone(),
        };
        Ok(committed.map(drop)?)
    }
}
