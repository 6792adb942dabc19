//! Files of a disk, what of them is durable, and what a power cut leaves.
use std::collections::{BTreeMap, HashMap};

/// What a disk writes as a whole.
const SECTOR: usize = 512;
/// The inode of the folder that all others are below.
const ROOT: u64 = 1;

/// Random numbers (splitmix64).
pub(super) struct Random(pub(super) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

/// A change of the bytes of a file.
#[derive(Debug, Clone)]
enum Write {
    Bytes(usize, Vec<u8>),
    Length(usize),
}

/// A change of the names in a folder.
#[derive(Debug, Clone)]
enum Change {
    Link(String, u64),
    Unlink(String),
    Rename(String, String, u64),
}

type Names = BTreeMap<String, u64>;

/// A file or folder, as programs see it, as it was at its last sync, and what came since.
#[derive(Debug, Clone, Default)]
pub(super) struct Inode {
    pub(super) is_folder: bool,
    pub(super) mode: u16,
    pub(super) bytes: Vec<u8>,
    durable: Vec<u8>,
    writes: Vec<Write>,
    pub(super) names: Names,
    durable_names: Names,
    changes: Vec<Change>,
}

/// All of the disk.
#[derive(Debug)]
pub(super) struct Contents {
    inodes: HashMap<u64, Inode>,
    next: u64,
}

impl Inode {
    fn apply(bytes: &mut Vec<u8>, write: &Write) {
        match write {
            Write::Length(len) => bytes.resize(*len, 0),
            Write::Bytes(at, wrote) => {
                bytes.resize(bytes.len().max(at + wrote.len()), 0);
                bytes[*at..at + wrote.len()].copy_from_slice(wrote);
            }
        }
    }

    fn note(&mut self, write: Write) {
        Self::apply(&mut self.bytes, &write);
        self.writes.push(write);
    }

    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) {
        self.note(Write::Bytes(at, bytes.to_vec()));
    }

    pub(super) fn resize(&mut self, len: usize) {
        self.note(Write::Length(len));
    }

    /// All bytes are durable.
    pub(super) fn sync(&mut self) {
        self.durable.clone_from(&self.bytes);
        self.writes.clear();
    }

    /// What came since the last sync never will be durable, unless it is written again.
    pub(super) fn forget(&mut self) {
        self.writes.clear();
    }

    /// All names of a folder are durable.
    pub(super) fn sync_names(&mut self) {
        self.durable_names.clone_from(&self.names);
        self.changes.clear();
    }

    pub(super) fn link(&mut self, name: &str, inode: u64) {
        self.names.insert(name.to_owned(), inode);
        self.changes.push(Change::Link(name.to_owned(), inode));
    }

    pub(super) fn unlink(&mut self, name: &str) {
        self.names.remove(name);
        self.changes.push(Change::Unlink(name.to_owned()));
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) {
        if let Some(inode) = self.names.remove(from) {
            self.names.insert(to.to_owned(), inode);
            self.changes.push(Change::Rename(from.to_owned(), to.to_owned(), inode));
        }
    }

    /// Some sectors of what was written since the last sync are there, in any order; some names.
    fn cut(&mut self, random: &mut Random) {
        let odds = random.below(5);
        let (mut bytes, mut writes) = (self.durable.clone(), std::mem::take(&mut self.writes));
        while !writes.is_empty() {
            let write = writes.swap_remove(random.below(writes.len()));
            let Write::Bytes(at, wrote) = &write else {
                (random.below(4) < odds).then(|| Self::apply(&mut bytes, &write));
                continue;
            };
            for (number, sector) in wrote.chunks(SECTOR).enumerate() {
                if random.below(4) < odds {
                    let sector = Write::Bytes(at + number * SECTOR, sector.to_vec());
                    Self::apply(&mut bytes, &sector);
                }
            }
        }
        let mut names = self.durable_names.clone();
        let odds = random.below(5);
        for change in self.changes.drain(..) {
            if random.below(4) >= odds {
                continue;
            }
            match change {
                Change::Link(name, inode) => _ = names.insert(name, inode),
                Change::Unlink(name) => _ = names.remove(&name),
                Change::Rename(from, to, inode) => {
                    names.retain(|name, other| *name != from || *other != inode);
                    names.insert(to, inode);
                }
            }
        }
        (self.durable, self.bytes) = (bytes.clone(), bytes);
        (self.durable_names, self.names) = (names.clone(), names);
    }
}

impl Contents {
    pub(super) fn new() -> Self {
        let root = Inode { is_folder: true, mode: 0o755, ..Inode::default() };
        Self { inodes: HashMap::from([(ROOT, root)]), next: ROOT + 1 }
    }

    pub(super) fn get(&mut self, inode: u64) -> Option<&mut Inode> {
        self.inodes.get_mut(&inode)
    }

    /// A new file or folder below `folder`.
    pub(super) fn make(&mut self, folder: u64, name: &str, is_folder: bool, mode: u32) -> u64 {
        let inode = self.next;
        self.next += 1;
        let mode = mode as u16 & 0o777;
        self.inodes.insert(inode, Inode { is_folder, mode, ..Inode::default() });
        if let Some(folder) = self.get(folder) {
            folder.link(name, inode);
        }
        inode
    }

    /// The power goes, and comes back.
    pub(super) fn power_cut(&mut self, random: &mut Random) {
        // In the same order in every run.
        let mut inodes: Vec<_> = self.inodes.iter_mut().collect();
        inodes.sort_unstable_by_key(|(inode, _)| **inode);
        inodes.into_iter().for_each(|(_, inode)| inode.cut(random));
    }

    /// Of an inode, for people.
    pub(super) fn name_of(&self, inode: u64) -> String {
        let named = |folder: &Inode| {
            folder.names.iter().find(|(_, other)| **other == inode).map(|(name, _)| name.clone())
        };
        self.inodes.values().find_map(named).unwrap_or_else(|| "/".to_owned())
    }
}
