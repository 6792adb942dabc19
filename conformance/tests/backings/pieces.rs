//! A backing that the core knows nothing of: pieces of files without a name, side by side.
#![allow(unsafe_code)] // room: maps files, and vouches for them

use rma_core::transport::{Mapped, Mapping};
use rma_core::{Backing, Extent, PersistError, Place};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::c_void;
use std::ops::Range;
use std::ptr;
use std::sync::{Arc, Mutex};

/// Where each piece begins in its file.
const OFFSET: u64 = 4096;

#[derive(Debug)]
pub(crate) struct Pieces {
    base: *mut u8,
    len: usize,
    files: Vec<OwnedFd>,
    /// What is said of them.
    pub(crate) extents: Vec<Extent>,
    pub(crate) granularity: u64,
    pub(crate) exclusive: bool,
    /// What was made durable last.
    pub(crate) persisted: Mutex<Option<Range<u64>>>,
    /// There as long as the memory is mapped.
    _life: Arc<()>,
}

// SAFETY: of the address, only threads of the core make use, and it is the same for all.
unsafe impl Send for Pieces {}
// SAFETY: as above.
unsafe impl Sync for Pieces {}

impl Pieces {
    /// Zeroed pieces of so many bytes, pages all but the last; mapped as long as `life` is shared.
    pub(crate) fn new(lens: &[usize], life: &Arc<()>) -> Self {
        let len = lens.iter().sum::<usize>();
        let (nothing, flags) = (ProtFlags::empty(), MapFlags::PRIVATE);
        // SAFETY: the kernel chooses addresses where nothing is mapped.
        let base = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), len, nothing, flags) };
        let base = base.unwrap().cast::<u8>();
        let (mut start, mut files, mut extents) = (0, Vec::new(), Vec::new());
        for &len in lens {
            let file = rustix::fs::memfd_create("piece", MemfdFlags::CLOEXEC).unwrap();
            rustix::fs::ftruncate(&file, OFFSET + len as u64).unwrap();
            let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
            let (at, flags) = (base.wrapping_add(start).cast(), flags | MapFlags::FIXED);
            // SAFETY: inside of what was mapped above, which no other code knows.
            unsafe { rustix::mm::mmap(at, len, prot, flags, &file, OFFSET) }.unwrap();
            let number = file.as_raw_fd();
            let place = Place::File { number, offset: OFFSET, synchronous: false };
            extents.push(Extent { len: len as u64, place });
            files.push(file);
            start += len;
        }
        let (persisted, _life) = (Mutex::default(), life.clone());
        Self { base, len, files, extents, granularity: 4096, exclusive: true, persisted, _life }
    }

    /// What the files hold.
    pub(crate) fn contents(&self) -> Vec<u8> {
        let mut all = Vec::new();
        for (file, extent) in self.files.iter().zip(&self.extents) {
            let mut bytes = vec![0; extent.len as usize];
            let read = rustix::io::pread(file, &mut bytes, OFFSET).unwrap();
            assert_eq!(read, bytes.len());
            all.extend(bytes);
        }
        all
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        // SAFETY: what `new` mapped, which is not used any more: the value is dropped.
        unsafe { rustix::mm::munmap(self.base.cast::<c_void>(), self.len) }.unwrap();
    }
}

// SAFETY: mapped by `new` until it is dropped; the files are not truncated.
unsafe impl Mapped for Pieces {
    fn mapping(&self) -> Mapping {
        Mapping { base: self.base, len: self.len }
    }
}

// SAFETY: the files are this value's own and stay open; tests that change what it says of them
// describe bytes of its files, or what is refused. It gives no reference out, and no code makes a
// `Weak` of an `Arc` of it.
unsafe impl Backing for Pieces {
    fn extents(&self) -> Vec<Extent> {
        self.extents.clone()
    }

    fn granularity(&self) -> u64 {
        self.granularity
    }

    fn is_exclusive(&self) -> bool {
        self.exclusive
    }

    fn persist(&self, range: Range<u64>) -> Result<(), PersistError> {
        *self.persisted.lock().unwrap() = Some(range);
        Ok(())
    }
}
