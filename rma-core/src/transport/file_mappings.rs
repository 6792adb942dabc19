//! Where files lie that several processes map: what tracks stores to them by the page tables of a
//! process has to know all mappings of it.

use crate::transport::Mapping;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A file, on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId {
    /// Of its file system, as `fstat` tells it.
    pub device: u64,
    /// And in that.
    pub inode: u64,
}

/// A mapping of a file that other processes may map as well.
#[derive(Debug, Clone, Copy)]
pub struct FileMapping {
    number: u64,
    /// What is mapped.
    pub file: FileId,
    /// Where in the file it begins, in bytes.
    pub offset: u64,
    /// The first address.
    pub base: usize,
    /// Bytes.
    pub len: usize,
    /// Whether stores there leave a mark, for a watcher that tracks them.
    pub is_armed: bool,
}

#[derive(Debug)]
struct Watched {
    number: u64,
    files: Vec<FileId>,
    has_ended: bool,
}

struct All {
    mappings: Vec<FileMapping>,
    watched: Vec<Watched>,
    /// Mappings and watches.
    made: u64,
}

/// Those of this process.
static ALL: Mutex<All> = Mutex::new(All { mappings: Vec::new(), watched: Vec::new(), made: 0 });

fn all() -> MutexGuard<'static, All> {
    // Every change is whole before anything can panic.
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FileMapping {
    /// Makes it known that `mapping` is of a file, from `offset` on, until what is returned is
    /// dropped: before it is unmapped.
    pub fn announce(file: FileId, offset: u64, mapping: Mapping) -> Announced {
        let all = &mut *all();
        all.made += 1;
        let (base, len) = (mapping.base.addr(), mapping.len);
        let number = all.made;
        all.mappings.push(Self { number, file, offset, base, len, is_armed: false });
        Announced(number)
    }
}

/// Files of which the owner of this wants to know whether a mapping of them ends.
#[derive(Debug)]
pub struct FileWatch(u64);

impl FileWatch {
    /// Of these files, from now on.
    pub fn new(files: Vec<FileId>) -> Self {
        let all = &mut *all();
        all.made += 1;
        let number = all.made;
        all.watched.push(Watched { number, files, has_ended: false });
        Self(number)
    }

    /// The mappings of these files in this process, none of which ends meanwhile, each with the
    /// numbers of the files that it is of, in the order of [`new`](Self::new).
    pub fn each(&self, mut look: impl FnMut(&mut FileMapping, &[usize])) {
        let All { mappings, watched, .. } = &mut *all();
        let Some(watch) = watched.iter().find(|watch| watch.number == self.0) else { return };
        for mapping in mappings {
            let is_it = |number: &usize| watch.files[*number] == mapping.file;
            let numbers: Vec<_> = (0..watch.files.len()).filter(is_it).collect();
            if !numbers.is_empty() {
                look(mapping, &numbers);
            }
        }
    }

    /// Whether a mapping of one of these files has ended since this was asked last, or since
    /// [`new`](Self::new).
    pub fn has_ended(&self) -> bool {
        let mut all = all();
        let watch = all.watched.iter_mut().find(|watch| watch.number == self.0);
        watch.is_some_and(|watch| core::mem::take(&mut watch.has_ended))
    }
}

impl Drop for FileWatch {
    fn drop(&mut self) {
        all().watched.retain(|watch| watch.number != self.0);
    }
}

/// A mapping that is known as long as this lives.
#[derive(Debug)]
pub struct Announced(u64);

impl Drop for Announced {
    fn drop(&mut self) {
        let all = &mut *all();
        let Some(at) = all.mappings.iter().position(|mapping| mapping.number == self.0) else {
            return;
        };
        let FileMapping { file, .. } = all.mappings.swap_remove(at);
        let watched = all.watched.iter_mut().filter(|watch| watch.files.contains(&file));
        watched.for_each(|watch| watch.has_ended = true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_known_until_it_ends() {
        // Other tests have none of these files.
        let [file, other, none] = [7, 8, 9].map(|inode| FileId { device: u64::MAX, inode });
        let watch = FileWatch::new(vec![other, file, file]);
        let beside = FileWatch::new(vec![other, none]);
        let found = || {
            let mut found = Vec::new();
            watch.each(|one, numbers| found.push((one.offset, one.len, numbers.to_vec())));
            found
        };
        let mut bytes = [0u8; 4];
        let mapping = Mapping { base: bytes.as_mut_ptr(), len: bytes.len() };
        let announced = FileMapping::announce(file, 4096, mapping);
        assert_eq!(found(), [(4096, 4, vec![1, 2])]);
        beside.each(|_, _| panic!("that file is not watched"));
        assert!(!watch.has_ended());
        drop(announced);
        assert!(found().is_empty());
        assert!(watch.has_ended() && !beside.has_ended());
        assert!(!watch.has_ended(), "it is told once");
        drop(FileMapping::announce(other, 0, mapping));
        assert!(watch.has_ended() && beside.has_ended());
    }
}
