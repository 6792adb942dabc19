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
    /// Whether stores there leave a mark, for whom tracks them.
    pub is_armed: bool,
}

#[derive(Default)]
struct All {
    mappings: Vec<FileMapping>,
    made: u64,
    ended: u64,
}

/// Those of this process.
static ALL: Mutex<All> = Mutex::new(All { mappings: Vec::new(), made: 0, ended: 0 });

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

    /// Those of this process, none of which ends meanwhile, and how many have ended so far.
    pub fn with_all<T>(look: impl FnOnce(&mut [Self], u64) -> T) -> T {
        let all = &mut *all();
        look(&mut all.mappings, all.ended)
    }
}

/// A mapping that is known as long as this lives.
#[derive(Debug)]
pub struct Announced(u64);

impl Drop for Announced {
    fn drop(&mut self) {
        let all = &mut *all();
        all.mappings.retain(|mapping| mapping.number != self.0);
        all.ended += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_known_until_it_ends() {
        // Other tests have none of this file.
        let file = FileId { device: u64::MAX, inode: 7 };
        let mut bytes = [0u8; 4];
        let mapping = Mapping { base: bytes.as_mut_ptr(), len: bytes.len() };
        let found = || {
            FileMapping::with_all(|all, ended| {
                let of_it = all.iter().filter(|one| one.file == file);
                (of_it.map(|one| (one.offset, one.len)).collect::<Vec<_>>(), ended)
            })
        };
        let announced = FileMapping::announce(file, 4096, mapping);
        let (there, ended) = found();
        assert_eq!(there, [(4096, 4)]);
        drop(announced);
        let (there, later) = found();
        assert!(there.is_empty() && later > ended);
    }
}
