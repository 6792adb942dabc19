//! Storage that loses power: what was not synchronised is lost, or not, or in part, in any order.
use super::medium::{Medium, MediumError, Result};
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// What a disk writes as a whole.
const SECTOR: usize = 512;

/// Random numbers (splitmix64).
#[derive(Debug, Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

#[derive(Debug, Clone, Default)]
struct Inode {
    /// As programs see it.
    bytes: Vec<u8>,
    /// As it was at the last sync.
    durable: Vec<u8>,
    /// Since then.
    writes: Vec<(usize, Vec<u8>)>,
}

/// A change of a folder that is not durable.
#[derive(Debug, Clone)]
enum Change {
    Link(String, usize),
    Unlink(String),
    Rename(String, String, usize),
}

#[derive(Debug, Clone, Default)]
struct Contents {
    inodes: Vec<Inode>,
    names: BTreeMap<String, usize>,
    durable: BTreeMap<String, usize>,
    changes: Vec<Change>,
    folders: BTreeSet<String>,
}

/// A mistake of a store, or of storage, that tests must notice: which calls do nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mistake {
    None,
    /// A sync of files whose path contains this.
    FileSync(&'static str),
    /// Of a folder, so many calls after a file of such a name was made; see [`Simulated`].
    FolderSyncAfter(&'static str),
    /// Checksums of blocks match always.
    BlockChecksums,
    /// A store to the first block of a part leaves no mark; the tests' own, which store there.
    LostMark,
    /// A store makes blocks durable when the version is decided, and not before.
    LateBlocks,
}

/// Storage in memory. Clones are the same, for the same process.
#[derive(Debug, Clone)]
pub(crate) struct Simulated {
    contents: Rc<RefCell<Contents>>,
    /// Calls that change something, so far, and after how many nothing works any more.
    calls: Rc<Cell<(u64, u64)>>,
    /// The same, of one process.
    own: Rc<Cell<(u64, u64)>>,
    /// What kind of call was the last one.
    last: Rc<RefCell<&'static str>>,
    pub(crate) mistake: Mistake,
    /// No file has more bytes.
    pub(crate) space: Rc<Cell<u64>>,
    /// Calls of this name find no space.
    pub(crate) full: Rc<Cell<&'static str>>,
}

/// An inode, and by what name it was opened.
#[derive(Debug, Clone)]
pub(crate) struct SimulatedFile(usize, String);

fn folder_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

impl Simulated {
    pub(crate) fn new(mistake: Mistake) -> Self {
        let contents = Rc::default();
        let [calls, own] = [(); 2].map(|()| Rc::new(Cell::new((0, u64::MAX))));
        let (last, space) = (Rc::new(RefCell::new("open")), Rc::new(Cell::new(u64::MAX)));
        let full = Rc::default();
        Self { contents, calls, own, last, mistake, space, full }
    }

    /// Nothing works after so many more changes.
    pub(crate) fn freeze_after(&self, changes: u64) {
        self.calls.set((0, changes));
    }

    /// As another process has it.
    pub(crate) fn process(&self) -> Self {
        Self { own: Rc::new(Cell::new((0, u64::MAX))), ..self.clone() }
    }

    /// The process ends in its change of that number from now on, which is not made.
    pub(crate) fn end_after(&self, changes: u64) {
        self.own.set((0, changes));
    }

    /// The process ends.
    pub(crate) fn end(&self) {
        self.own.set((1, 0));
    }

    /// Whether the process has ended, or all have.
    pub(crate) fn is_over(&self) -> bool {
        [&self.calls, &self.own].into_iter().any(|calls| calls.get().0 > calls.get().1)
    }

    /// The processes are ended and the machine goes on: what was written is there.
    pub(crate) fn restart(&self) {
        self.calls.set((0, u64::MAX));
        *self.last.borrow_mut() = "open";
    }

    /// The power goes, and comes back.
    pub(crate) fn power_cut(&self, random: &mut Random) {
        self.restart();
        let contents = &mut *self.contents.borrow_mut();
        for inode in &mut contents.inodes {
            inode.cut(random);
        }
        let mut names = contents.durable.clone();
        let odds = 1 + random.below(4);
        for change in contents.changes.drain(..) {
            if random.below(4) >= odds {
                continue;
            }
            match change {
                Change::Link(path, inode) => _ = names.insert(path, inode),
                Change::Unlink(path) => _ = names.remove(&path),
                Change::Rename(from, to, inode) => {
                    if names.get(&from) == Some(&inode) {
                        names.remove(&from);
                    }
                    names.insert(to, inode);
                }
            }
        }
        contents.durable.clone_from(&names);
        contents.names = names;
    }

    /// Names of all files.
    pub(crate) fn files(&self) -> Vec<String> {
        self.contents.borrow().names.keys().cloned().collect()
    }

    /// Storage as it is now, by itself.
    pub(crate) fn copy(&self) -> Self {
        let contents = Rc::new(RefCell::new(self.contents.borrow().clone()));
        Self { contents, ..Self::new(self.mistake) }
    }

    /// Changes the bytes of a file as no program does.
    pub(crate) fn damage(&self, path: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let contents = &mut *self.contents.borrow_mut();
        let inode = contents.names[path];
        change(&mut contents.inodes[inode].bytes);
    }

    /// Counts a change; an error from the one on that is one too many.
    fn change(&self, path: &str, call: &'static str) -> Result<()> {
        for calls in [&self.calls, &self.own] {
            let (made, most) = calls.get();
            calls.set((made + 1, most));
        }
        let failed = |errno| Err(MediumError { path: path.to_owned(), call, errno });
        match (self.is_over(), self.full.get() == call) {
            (true, _) => failed(Errno::IO),
            (false, true) => failed(Errno::NOSPC),
            (false, false) => Ok(()),
        }
    }

    fn note(&self, path: &str) {
        let file = path.rsplit('/').next().unwrap_or_default();
        let kinds = ["part", "version", "rma-root"];
        *self.last.borrow_mut() =
            kinds.into_iter().find(|kind| file.starts_with(kind)).unwrap_or("other");
    }
}

impl Inode {
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        self.bytes.resize(self.bytes.len().max(end), 0);
        self.bytes[offset..end].copy_from_slice(bytes);
        self.writes.push((offset, bytes.to_vec()));
    }

    /// Some sectors of what was written since the last sync are there, in any order.
    fn cut(&mut self, random: &mut Random) {
        let odds = random.below(5);
        let mut bytes = self.durable.clone();
        let mut writes = core::mem::take(&mut self.writes);
        while !writes.is_empty() {
            let (offset, wrote) = writes.swap_remove(random.below(writes.len()));
            for (number, sector) in wrote.chunks(SECTOR).enumerate() {
                if random.below(4) < odds {
                    let start = offset + number * SECTOR;
                    bytes.resize(bytes.len().max(start + sector.len()), 0);
                    bytes[start..start + sector.len()].copy_from_slice(sector);
                }
            }
        }
        if random.below(2) == 0 {
            bytes.resize(bytes.len().max(self.bytes.len()), 0);
        }
        self.durable.clone_from(&bytes);
        self.bytes = bytes;
    }
}

impl Medium for Simulated {
    type File = SimulatedFile;

    fn open(&self, path: &str) -> Result<Option<SimulatedFile>> {
        let inode = self.contents.borrow().names.get(path).copied();
        Ok(inode.map(|inode| SimulatedFile(inode, path.to_owned())))
    }

    fn create(&self, path: &str) -> Result<SimulatedFile> {
        self.change(path, "create")?;
        let contents = &mut *self.contents.borrow_mut();
        let missing = MediumError { path: path.to_owned(), call: "create", errno: Errno::NOENT };
        let folder = folder_of(path);
        if !folder.is_empty() && !contents.folders.contains(folder) {
            return Err(missing);
        }
        // Emptying a file is one of the things that storage may forget: a new one is the same.
        let inode = contents.inodes.len();
        contents.inodes.push(Inode::default());
        contents.names.insert(path.to_owned(), inode);
        contents.changes.push(Change::Link(path.to_owned(), inode));
        self.note(path);
        Ok(SimulatedFile(inode, path.to_owned()))
    }

    fn len(&self, file: &SimulatedFile) -> Result<u64> {
        Ok(self.contents.borrow().inodes[file.0].bytes.len() as u64)
    }

    fn read_at(&self, file: &SimulatedFile, bytes: &mut [u8], offset: u64) -> Result<()> {
        let contents = self.contents.borrow();
        let all = &contents.inodes[file.0].bytes;
        let short = MediumError { path: file.1.clone(), call: "read", errno: Errno::NODATA };
        let from = all.get(offset as usize..).and_then(|from| from.get(..bytes.len()));
        bytes.copy_from_slice(from.ok_or(short)?);
        Ok(())
    }

    fn write_at(&self, file: &SimulatedFile, bytes: &[u8], offset: u64) -> Result<()> {
        let working = self.change(&file.1, "write");
        // The last one is torn.
        let bytes = if working.is_ok() { bytes } else { &bytes[..bytes.len() / 2] };
        let too_many = |calls: &Cell<(u64, u64)>| calls.get().0.saturating_sub(calls.get().1);
        let is_last = too_many(&self.calls).max(too_many(&self.own)) == 1;
        if working.is_ok() || is_last {
            self.contents.borrow_mut().inodes[file.0].write(offset as usize, bytes);
        }
        working
    }

    fn allocate(&self, file: &SimulatedFile, _: u64, end: u64) -> Result<()> {
        self.change(&file.1, "allocate")?;
        if end > self.space.get() {
            let (path, errno) = (file.1.clone(), Errno::NOSPC);
            return Err(MediumError { path, call: "allocate", errno });
        }
        let bytes = &mut self.contents.borrow_mut().inodes[file.0].bytes;
        bytes.resize(bytes.len().max(end as usize), 0);
        Ok(())
    }

    fn sync(&self, file: &SimulatedFile) -> Result<()> {
        self.change(&file.1, "sync")?;
        if matches!(self.mistake, Mistake::FileSync(kind) if file.1.contains(kind)) {
            return Ok(());
        }
        let inode = &mut self.contents.borrow_mut().inodes[file.0];
        inode.durable.clone_from(&inode.bytes);
        inode.writes.clear();
        Ok(())
    }

    fn sync_folder(&self, folder: &str) -> Result<()> {
        self.change(folder, "sync_folder")?;
        let last = *self.last.borrow();
        if self.mistake == Mistake::FolderSyncAfter(last) {
            return Ok(());
        }
        let contents = &mut *self.contents.borrow_mut();
        let is_here = |path: &String| folder_of(path) == folder;
        let durable = core::mem::take(&mut contents.durable);
        let others = durable.into_iter().filter(|(path, _)| !is_here(path));
        let here = contents.names.iter().filter(|(path, _)| is_here(path));
        contents.durable = others.chain(here.map(|(path, inode)| (path.clone(), *inode))).collect();
        contents.changes.retain(|change| match change {
            Change::Link(path, _) | Change::Unlink(path) | Change::Rename(path, ..) => {
                !is_here(path)
            }
        });
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.change(to, "rename")?;
        let contents = &mut *self.contents.borrow_mut();
        let missing = MediumError { path: from.to_owned(), call: "rename", errno: Errno::NOENT };
        let inode = contents.names.remove(from).ok_or(missing)?;
        contents.names.insert(to.to_owned(), inode);
        contents.changes.push(Change::Rename(from.to_owned(), to.to_owned(), inode));
        self.note(to);
        Ok(())
    }

    fn remove(&self, path: &str) -> Result<()> {
        self.change(path, "remove")?;
        let contents = &mut *self.contents.borrow_mut();
        if contents.names.remove(path).is_some() {
            contents.changes.push(Change::Unlink(path.to_owned()));
        }
        Ok(())
    }

    fn list(&self, folder: &str) -> Result<Option<Vec<String>>> {
        let contents = self.contents.borrow();
        let name = |path: &String| {
            (folder_of(path) == folder).then(|| path.rsplit('/').next().unwrap_or("").to_owned())
        };
        let is_there = folder.is_empty() || contents.folders.contains(folder);
        Ok(is_there.then(|| contents.names.keys().filter_map(name).collect()))
    }

    fn make_folder(&self, folder: &str) -> Result<()> {
        self.change(folder, "make_folder")?;
        self.contents.borrow_mut().folders.insert(folder.to_owned());
        Ok(())
    }

    fn remove_folder(&self, folder: &str) -> Result<()> {
        self.change(folder, "remove_folder")?;
        self.contents.borrow_mut().folders.remove(folder);
        Ok(())
    }

    fn is_intact(&self, bytes: &[u8], crc: u32) -> bool {
        self.mistake == Mistake::BlockChecksums || crc32fast::hash(bytes) == crc
    }
}
