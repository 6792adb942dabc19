//! The words in which ranks tell their launcher what they do: a file without a name, of as many
//! bytes for each rank, which ranks inherit and map. It is gone with the job's last process.
#![allow(unsafe_code)]

use std::ffi::OsStr;
#[cfg(feature = "server")]
use std::os::fd::OwnedFd;
use std::ptr;
#[cfg(feature = "server")]
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rustix::fs::{FileType, SealFlags, fcntl_get_seals, fstat};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::param::page_size;

use crate::inherited;

/// Words of a rank.
const WORDS: usize = 64;
/// Bytes of a rank; those of a rank lie in one page.
pub(crate) const BYTES: usize = WORDS * size_of::<u64>();

/// The words of one rank.
pub type BulletinWords = [AtomicU64; WORDS];

/// Maps the words of `rank` in the file that `name` names, for as long as this process lives;
/// `None` if that is no such file. The job can do without.
pub(crate) fn map(name: &OsStr, rank: u32) -> Option<&'static BulletinWords> {
    let file = inherited::open(name, FileType::RegularFile)?;
    // A file that cannot be cut has these bytes for ever.
    let sealed = fcntl_get_seals(&file).ok()?.contains(SealFlags::SHRINK);
    let (len, start) = (fstat(&file).ok()?.st_size, u64::from(rank) * BYTES as u64);
    if !sealed || start + BYTES as u64 > u64::try_from(len).ok()? {
        return None;
    }
    let page = start / page_size() as u64 * page_size() as u64;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses, so no other is replaced. It is
    // at least as long as what is used of it below.
    let mapped = unsafe { mmap(ptr::null_mut(), page_size(), prot, MapFlags::SHARED, &file, page) };
    let words = mapped.ok()?.cast::<u8>().wrapping_add((start - page) as usize);
    // SAFETY: the words lie in the page that was mapped, since `BYTES` divides its size, which is a
    // multiple of their alignment, as is their place in it. The file is at least as long and cannot
    // be cut, so they can be read and written; the mapping is never undone. All that this process
    // knows of are atomics. What other processes write there, whatever it is, are values of them.
    Some(unsafe { &*words.cast::<BulletinWords>() })
}

/// Such a file for a job, and what names it to a process that inherits it.
#[cfg(feature = "server")]
pub(crate) fn create(ranks: u32) -> std::io::Result<(Arc<OwnedFd>, String)> {
    use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, fcntl_add_seals, memfd_create};

    let bytes = (u64::from(ranks) * BYTES as u64).next_multiple_of(page_size() as u64);
    let file = memfd_create("rma-bulletin", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    // With its space: touching it never faults.
    fallocate(&file, FallocateFlags::empty(), 0, bytes)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    let (file, name) = inherited::named(&file)?;
    Ok((Arc::new(file), name))
}

#[cfg(all(test, feature = "server"))]
mod tests {
    use super::*;
    use std::os::fd::{AsFd, IntoRawFd};
    use std::sync::atomic::Ordering::SeqCst;

    #[test]
    fn each_rank_has_its_own_words() {
        let (file, name) = create(40).unwrap();
        let words = |rank| map(name.as_ref(), rank).unwrap();
        for rank in [0, 7, 8, 39] {
            assert!(words(rank).iter().all(|word| word.load(SeqCst) == 0), "rank {rank}");
            words(rank)[0].store(u64::from(rank) + 1, SeqCst);
            words(rank)[WORDS - 1].store(u64::from(rank) + 1, SeqCst);
        }
        let mut bytes = [0; 8];
        let at = 8 * BYTES as u64 - 8;
        assert_eq!(rustix::io::pread(file.as_fd(), &mut bytes, at), Ok(8));
        assert_eq!(u64::from_le_bytes(bytes), 8, "the last word of rank 7");
        assert!(map(name.as_ref(), 1 << 20).is_none(), "no such rank");
    }

    #[test]
    fn a_file_that_could_be_cut_is_not_mapped() {
        use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
        let file = memfd_create("open", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, 4096).unwrap();
        let (file, name) = inherited::named(&file).unwrap();
        assert!(map(name.as_ref(), 0).is_none());
        let _ = file.into_raw_fd();
        assert!(map("3:1:1".as_ref(), 0).is_none());
    }
}
