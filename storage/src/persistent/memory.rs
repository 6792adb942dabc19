//! Memory of a persistent window, and its commits.
#![allow(unsafe_code)] // room: vouches for the memory that it is made of

use super::error::{PersistentCode, PersistentError};
use super::hints::PersistentHints;
use super::request::{Asked, CommitRequest, Outcome, Pending, Writer, Written};
use super::root::Root;
use super::tracker::Tracker;
use super::transaction::{COMMIT, Numbers, Transaction, open};
use super::{OfWindow, Ranks, agree, finish};
use crate::hints::choice;
use crate::store::{Disk, Medium, State, tag, work_file};
use crate::{StorageError, StorageHints, StorageMemory};
use core::ops::Range;
use rma_core::transport::{Announced, FileMapping, Mapped, Mapping};
use rma_core::{Backing, CommitGroup, Communicator, Extent, HintChange, PersistError};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

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
    /// Dropped after it.
    _left: Left,
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
    /// Of its name and this opening of its root: other windows of the job have another one.
    tag: u64,
    rank: u32,
    ranks: u32,
    len: usize,
    /// Keeps other instances away.
    root: Root,
}

/// The transaction under way, and what will tell its commit what has changed.
#[derive(Debug)]
struct Running {
    /// Whose store a version has that is pending.
    transaction: Transaction<Disk>,
    tracker: Tracker,
    pending: Option<Pending>,
    /// Bytes for which the last request had no room, and which it wrote.
    unfit: u64,
}

#[derive(Debug, Default)]
struct Told {
    version: Option<u64>,
    tracking: String,
    unfit: u64,
    /// Ranks have asked for a version that is not decided.
    is_requested: bool,
}

/// What ranks tell each other when they meet to commit: which window it is, what they call, whether
/// it has transactions and is to have some, the serial of a version that was asked for, and
/// [`Numbers`].
type Words = [u64; 8];

/// A commit that all ranks have come to.
struct Met<'m> {
    running: MutexGuard<'m, Running>,
    _committing: Committing<'m>,
    all: Vec<Words>,
}

impl Met<'_> {
    /// Of the version that was asked for, which all ranks mean; 0 if there is none.
    fn serial(&self) -> u64 {
        self.all[0][3]
    }
}

/// What a volatile window leaves below its root.
#[derive(Debug)]
struct Left {
    root: Root,
    name: String,
    rank: u32,
    is_volatile: bool,
}

impl Drop for Left {
    fn drop(&mut self) {
        if self.is_volatile {
            // The last of the ranks finds it empty.
            let (disk, name) = (&self.root.inner.disk, &self.name);
            _ = disk.remove(&work_file(name, self.rank));
            _ = disk.remove(&crate::store::blocks_file(name, self.rank));
            _ = disk.remove_folder(name);
        }
    }
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
        let (rank, ranks) = (u32::from(comm.rank()), comm.size());
        let checked = hints.check().and_then(|()| {
            let arg = |what| PersistentError::Arg { name: hints.name.clone(), what };
            match len {
                0 => Err(arg("a rank has one byte of it at least")),
                _ if root.is_locked() => Ok(root.inner.opening),
                _ => Err(arg("its root is open to be listed only; use Root::open")),
            }
        });
        let (disk, key) = (&root.inner.disk, &root.inner.key);
        let make = || {
            let memory = open_file(disk.path(&work_file(&hints.name, rank)), hints, len)?;
            let (root, name, is_volatile) = (root.clone(), hints.name.clone(), hints.volatile);
            let (left, file) = (Left { root, name, rank, is_volatile }, memory.file_id()?);
            // Before the first version is made, whose end arms the marks of all mappings.
            let mapped = FileMapping::announce(file, 0, memory.mapping());
            Ok(((mapped, memory, left), file))
        };
        let mut tracker = Tracker::new(hints.tracking, comm, len as u64);
        let opened = open((disk, key), comm, hints, len as u64, checked, &mut tracker, make);
        let (transaction, (mapped, memory, left)) = finish(opened)?;
        let [plain, plain_next, keep_all] =
            [hints.plain, hints.plain, hints.keep_all].map(AtomicBool::new);
        let memory = Self {
            _mapped: mapped,
            memory,
            _left: left,
            state: Mutex::new(Running { transaction, tracker, pending: None, unfit: 0 }),
            committing: Mutex::new(false),
            plain,
            plain_next,
            keep_all,
            told: Mutex::default(),
            hints: hints.clone(),
            tag: tag(key, &[&root.inner.opening.to_le_bytes(), hints.name.as_bytes()].concat()),
            rank,
            ranks,
            len,
            root: root.clone(),
        };
        memory.tell(&memory.running());
        Ok(memory)
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
            let Told { tracking, unfit, .. } = &*self.told();
            keys.push(("pmem_dirty_tracking", tracking.clone()));
            keys.push(("pmem_snapshot_bytes", self.hints.snapshot_bytes.to_string()));
            keys.push(("rma_pmem_written_in_request", unfit.to_string()));
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

    /// Asks for a version of what the window holds, and returns while it is written:
    /// [`CommitRequest::wait`] makes it, at all ranks or at none. **Collective** over the ranks
    /// that opened the window, and a barrier, as [`commit`](Self::commit) is: end the epoch first,
    /// and from the call to its return no rank writes there. When it returns, all ranks may store
    /// anywhere: what they do belongs to the next transaction.
    ///
    /// ```
    /// # use rma_storage::{PersistentError, PersistentMemory};
    /// # // Run by the tests of the crate `rma`; here for the compiler.
    /// # fn example(memory: &PersistentMemory, world: &rma_core::Communicator)
    /// #     -> Result<(), PersistentError> {
    /// let request = memory.request_commit(world)?; // a copy of what has changed
    /// // … the next step of the program, on the same window …
    /// let version = request.wait()?; // durable, at all ranks or at none
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The call copies what a commit would look at, into memory of at most
    /// [`snapshot_bytes`](PersistentHints::snapshot_bytes): all blocks that may have changed if
    /// they find room, otherwise those that have; and writes to storage at once what finds none.
    /// The memory is kept until the window is dropped.
    ///
    /// One version is under way at a time: this call, and [`commit`](Self::commit), decide an
    /// earlier one first. Meanwhile [`commit_alone`](Self::commit_alone) is refused. Without
    /// transactions, and where they are turned off or on, it is a [`commit`](Self::commit).
    ///
    /// # Errors
    ///
    /// As of [`commit`](Self::commit); also those of an earlier request, and then nothing was asked
    /// for.
    pub fn request_commit<'m>(&'m self, comm: &'m Communicator) -> Result<CommitRequest<'m>> {
        let outcome = self.request(comm)?;
        Ok(CommitRequest { memory: self, comm, outcome })
    }

    fn request(&self, ranks: &impl Ranks) -> Result<Outcome> {
        let (mut met, plain_next) = self.begin(ranks, Asked::Request)?;
        if self.hints.volatile || self.is_plain() || plain_next {
            let made = self.make(ranks, &mut met, plain_next)?;
            return Ok(Outcome::new(OnceLock::from(Ok(made))));
        }
        let Met { running, all, .. } = &mut met;
        let Running { transaction, tracker, .. } = &mut **running;
        let room = usize::try_from(self.hints.snapshot_bytes).unwrap_or(usize::MAX);
        let (keep_all, told) = (self.keep_all.load(Relaxed), Some(numbers_of(all)));
        let requested = finish(transaction.request(ranks, tracker, keep_all, told, room));
        let requested = requested.and_then(|(requested, written)| {
            let store = transaction.store.take().ok_or_else(|| self.poisoned())?;
            Ok((requested, written, store))
        });
        let (requested, written, store) = requested.inspect_err(|_| self.tell(running))?;
        let (outcome, writer) = (Outcome::default(), Writer::start(store, requested.serial()));
        running.unfit = written;
        running.pending = Some(Pending { requested, writer, outcome: outcome.clone() });
        self.tell(running);
        Ok(outcome)
    }

    fn commit_all(&self, ranks: &impl Ranks) -> Result<Option<u64>> {
        let (mut met, plain_next) = self.begin(ranks, Asked::Commit)?;
        self.make(ranks, &mut met, plain_next)
    }

    /// Meets the ranks for a version, when one that was asked for before is decided; also returns
    /// whether transactions are to be off. **Collective**
    fn begin(&self, ranks: &impl Ranks, asked: Asked<'_>) -> Result<(Met<'_>, bool)> {
        let plain_next = self.plain_next.load(Relaxed);
        let mut met = self.meet(ranks, plain_next, asked)?;
        if met.serial() != 0 {
            self.decide(ranks, &mut met)?;
            let words = self.words(&met.running, plain_next, asked);
            met.all = finish(agree(ranks, COMMIT, words, |words| *words))?.1;
        }
        let first = met.all[0];
        if met.all.iter().any(|one| one[2] != first[2]) {
            let what = "pmem_dont_use_transactions was not set alike at all ranks; set it again";
            return Err(self.arg(what));
        }
        Ok((met, plain_next))
    }

    /// What this rank tells the others when they meet, of whatever version was asked for, or of
    /// the one that it waits for only.
    fn words(&self, running: &Running, plain_next: bool, asked: Asked<'_>) -> Result<Words> {
        let is_meant = |pending: &&Pending| match asked {
            Asked::Wait(awaited) => Arc::ptr_eq(awaited, &pending.outcome),
            Asked::Commit | Asked::Request => true,
        };
        let (serial, numbers) = match running.pending.as_ref().filter(is_meant) {
            Some(pending) => (pending.requested.serial(), Numbers::default()),
            None if matches!(asked, Asked::Wait(_)) => (0, Numbers::default()),
            None if self.hints.volatile || self.is_plain() && plain_next => (0, Numbers::default()),
            None => (0, running.transaction.numbers(self.keep_all.load(Relaxed))?),
        };
        let plain = u64::from(self.is_plain()) | u64::from(plain_next) << 1;
        let mut words = [self.tag, asked.word(), plain, serial, 0, 0, 0, 0];
        words[4..].copy_from_slice(&numbers);
        Ok(words)
    }

    /// Meets the ranks; none of them is refused, and all mean this window, call the same, and mean
    /// the same version. **Collective**
    fn meet(&self, ranks: &impl Ranks, plain_next: bool, asked: Asked<'_>) -> Result<Met<'_>> {
        let checked = match (ranks.rank(), ranks.size()) == (self.rank, self.ranks) {
            true => Ok(()),
            false => Err(self.arg("the ranks that commit are not those that have opened it")),
        };
        let checked = checked.and_then(|()| self.begin_commit());
        // Not of one that is refused: another commit has it, and waits for what this one tells.
        let ready = checked.and_then(|committing| {
            let running = self.running();
            let words = self.words(&running, plain_next, asked)?;
            Ok((running, committing, words))
        });
        let met = finish(agree(ranks, COMMIT, ready, |(.., words)| *words));
        let ((running, _committing, mine), all) = met.inspect_err(|error| {
            // Others may decide what was asked for, and this rank is not with them.
            if matches!(error, PersistentError::Collective(_) | PersistentError::Unheard { .. }) {
                self.give_up(error);
            }
        })?;
        let met = Met { running, _committing, all };
        let differ = |word: usize| met.all.iter().any(|one| one[word] != mine[word]);
        if differ(0) {
            let what = "ranks commit or wait for different windows; all name the same";
            return Err(self.arg(what));
        }
        if differ(1) {
            let what = "some ranks commit, request or wait where others do another of these; all \
                        call the same";
            return Err(self.arg(what));
        }
        if differ(3) {
            return Err(self.arg("ranks wait for different commits; all wait for the same"));
        }
        Ok(met)
    }

    /// Makes the version for which the ranks have met. **Collective**
    fn make(&self, ranks: &impl Ranks, met: &mut Met<'_>, plain_next: bool) -> Result<Option<u64>> {
        if self.hints.volatile || self.is_plain() && plain_next {
            finish(agree(ranks, COMMIT, self.flush(), |()| []))?;
            return Ok(None);
        }
        let (told, keep_all) = (numbers_of(&met.all), self.keep_all.load(Relaxed));
        let Running { transaction, tracker, .. } = &mut *met.running;
        let number = finish(transaction.commit(ranks, tracker, State::Kept, keep_all, Some(told)));
        let mut turn = || -> Result<()> {
            if plain_next {
                finish(transaction.end(ranks, tracker, keep_all))?;
            }
            self.plain.store(plain_next, Relaxed);
            Ok(())
        };
        let turned = number.and_then(|number| match turn() {
            // None for the parts or the record of what would have ended them: this version is
            // there, and transactions go on until there is space.
            Err(error) if error.code() == Some(PersistentCode::NoMem) => Ok(Some(number)),
            turned => turned.map(|()| Some(number)),
        });
        self.tell(&met.running);
        turned
    }

    /// Decides the version that is `awaited`, when all parts of it are durable, unless another
    /// call has; returns its number. **Collective**
    pub(super) fn conclude(&self, ranks: &impl Ranks, awaited: &Outcome) -> Result<Option<u64>> {
        let met = self.meet(ranks, self.plain_next.load(Relaxed), Asked::Wait(awaited));
        match (met, awaited.get()) {
            (Ok(mut met), _) if met.serial() != 0 => self.decide(ranks, &mut met),
            // Also if a rank that is done has left since.
            (_, Some(outcome)) => outcome.clone(),
            (Ok(_), None) => Err(self.poisoned()),
            (Err(error), None) => Err(error),
        }
    }

    /// Decides the version that the ranks have met for, and had asked for. **Collective**
    fn decide(&self, ranks: &impl Ranks, met: &mut Met<'_>) -> Result<Option<u64>> {
        let Running { transaction, tracker, pending, .. } = &mut *met.running;
        let Some(Pending { requested, writer, outcome }) = pending.take() else {
            return Err(self.poisoned());
        };
        let prepared = match writer.join().map(|written| *written) {
            Some(Written { store, prepared }) => {
                transaction.store = Some(store);
                prepared
            }
            None => Err(self.poisoned()),
        };
        let made = finish(transaction.conclude(ranks, tracker, &requested, prepared)).map(Some);
        _ = outcome.set(made.clone());
        self.tell(&met.running);
        made
    }

    /// This rank takes no part in a version that was asked for: others may not know.
    fn give_up(&self, error: &PersistentError) {
        let mut running = self.running();
        let Some(Pending { writer, outcome, .. }) = running.pending.take() else { return };
        running.transaction.store = writer.join().map(|written| {
            let mut store = written.store;
            store.poison();
            store
        });
        _ = outcome.set(Err(error.clone()));
        self.tell(&running);
    }

    /// What became of this rank's part of a version that was asked for, as far as that is known;
    /// nothing if there is none. Waits for no commit, which tells it itself.
    fn written(&self) -> Option<Result<()>> {
        let mut running = match self.state.try_lock() {
            Ok(running) => running,
            Err(TryLockError::Poisoned(running)) => running.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let written = running.pending.as_mut()?.writer.poll()?;
        Some(match written {
            Some(Written { prepared, .. }) => prepared.clone().map(drop),
            None => Err(self.poisoned()),
        })
    }

    pub(super) fn is_written(&self) -> bool {
        self.written().is_some()
    }

    fn arg(&self, what: &'static str) -> PersistentError {
        PersistentError::Arg { name: self.hints.name.clone(), what }
    }

    fn poisoned(&self) -> PersistentError {
        PersistentError::Poisoned { name: self.hints.name.clone() }
    }

    fn requested(&self) -> PersistentError {
        PersistentError::Requested { name: self.hints.name.clone() }
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
        let mut running = self.running();
        if running.pending.is_some() {
            return Err(self.requested());
        }
        let made = running.transaction.commit_alone(self.keep_all.load(Relaxed));
        self.tell(&running);
        made.map(Some)
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
        let (version, tracking) = (running.transaction.version, running.tracker.explain());
        let (unfit, is_requested) = (running.unfit, running.pending.is_some());
        *self.told() = Told { version, tracking, unfit, is_requested };
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
            PersistError::Cut { len, needed } => PersistentError::Cut { path, len, needed },
            _ => self.poisoned(),
        }
    }
}

/// Of each rank, for a commit.
fn numbers_of(all: &[Words]) -> Vec<Numbers> {
    all.iter().map(|&[_, _, _, _, numbers @ ..]| numbers).collect()
}

struct Committing<'m>(&'m PersistentMemory);

impl Drop for Committing<'_> {
    fn drop(&mut self) {
        *self.0.committing() = false;
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

impl Drop for PersistentMemory {
    fn drop(&mut self) {
        // The next to open the window has its files for itself.
        let pending = self.running().pending.take();
        drop(pending.map(|pending| pending.writer.join()));
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
        if self.told().is_requested {
            return Err(self.requested().into());
        }
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
        // What is known to have failed is told as soon as it can be.
        self.written().unwrap_or(Ok(()))?;
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
