//! Which pages of a mapping were stored to, by marks that the kernel keeps in the page tables of
//! this process: pages are write-protected, and the first store to each of them takes that away
//! without asking a handler (Linux 6.7: `UFFD_FEATURE_WP_ASYNC`, and `PAGEMAP_SCAN` to read and
//! renew the marks in one call).
//!
//! They are of this process: stores by other processes leave theirs there. They outlive that a page
//! is written back or reclaimed, as the kernel keeps them in entries of pages that are not there.
#![allow(unsafe_code)] // room: ioctls that write-protect pages, and read what was stored to

use crate::file::retry;
use core::ops::Range;
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Pid;
use std::sync::OnceLock;

/// `UFFD_USER_MODE_ONLY`: what unprivileged processes may have; no fault waits for this process.
const USER_MODE_ONLY: i32 = 1;
const API: u64 = 0xaa;
/// `UFFD_FEATURE_WP_UNPOPULATED`: also of pages that are not there yet.
const UNPOPULATED: u64 = 1 << 13;
/// `UFFD_FEATURE_WP_ASYNC`
const ASYNC: u64 = 1 << 15;
/// `UFFDIO_REGISTER_MODE_WP`, `UFFDIO_WRITEPROTECT_MODE_WP`
const REGISTER_WP: u64 = 1 << 1;
const PROTECT: u64 = 1;
/// `PM_SCAN_WP_MATCHING`: write-protects again what it finds; `PM_SCAN_CHECK_WPASYNC`: only where
/// marks are kept.
const RENEW: u64 = 1 | 2;
/// `PAGE_IS_WRITTEN`. With this alone the kernel counts pages that lost their entry as stored to.
const WRITTEN: u64 = 1 << 1;

/// Runs of pages that one call finds, at most.
const RUNS: usize = 512;

#[repr(C)]
#[derive(Default)]
struct UffdApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct UffdRange {
    start: u64,
    len: u64,
}

#[repr(C)]
struct Register {
    range: UffdRange,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct WriteProtect {
    range: UffdRange,
    mode: u64,
}

/// `struct pm_scan_arg`
#[repr(C)]
#[derive(Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region`
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

const fn code(direction: u32, kind: u8, number: u8, size: usize) -> libc::Ioctl {
    // As on all machines but MIPS, PowerPC and SPARC.
    (direction << 30 | (size as u32) << 16 | (kind as u32) << 8 | number as u32) as libc::Ioctl
}

const READ: u32 = 2;
const READ_WRITE: u32 = 3;
const UFFDIO_API: libc::Ioctl = code(READ_WRITE, 0xaa, 0x3f, size_of::<UffdApi>());
const UFFDIO_REGISTER: libc::Ioctl = code(READ_WRITE, 0xaa, 0x00, size_of::<Register>());
const UFFDIO_UNREGISTER: libc::Ioctl = code(READ, 0xaa, 0x01, size_of::<UffdRange>());
const UFFDIO_WRITEPROTECT: libc::Ioctl = code(READ_WRITE, 0xaa, 0x06, size_of::<WriteProtect>());
const PAGEMAP_SCAN: libc::Ioctl = code(READ_WRITE, b'f', 16, size_of::<Scan>());

fn errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Hands the kernel an argument that the call takes, and reads how many it says.
fn ioctl<T>(file: &OwnedFd, call: libc::Ioctl, argument: &mut T) -> Result<usize, Errno> {
    retry(|| {
        // SAFETY: the descriptor is open, and of the kind that knows these calls, each of which
        // reads and writes an argument of the size in its code: that of `T`, as all callers in this
        // file pass the type that the code was made of. None of them changes a byte of memory, maps
        // or unmaps anything: they set and read marks beside the pages of a range, whatever range.
        // A scan also writes up to `vec_len` regions to `vec`, of which its caller says so.
        let done = unsafe { libc::ioctl(file.as_raw_fd(), call, &raw mut *argument) };
        usize::try_from(done).map_err(|_| errno())
    })
}

/// What the kernel has for this process.
#[derive(Debug)]
pub(crate) struct Marks {
    uffd: OwnedFd,
    pagemap: OwnedFd,
    /// A fork of it has descriptors of another's page tables.
    process: Pid,
}

/// The marks of this process, if the kernel keeps them and they were seen to work; otherwise why
/// not.
pub(crate) fn marks() -> Result<&'static Marks, &'static str> {
    static MARKS: OnceLock<Result<Marks, &'static str>> = OnceLock::new();
    let marks = MARKS.get_or_init(Marks::probe).as_ref().map_err(|why| *why)?;
    match rustix::process::getpid() == marks.process {
        true => Ok(marks),
        false => Err("the process is a fork of the one that began"),
    }
}

impl Marks {
    fn probe() -> Result<Self, &'static str> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
        // SAFETY: it takes flags only, and makes a descriptor or fails.
        let made = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        let made = i32::try_from(made).ok().filter(|made| *made >= 0);
        // SAFETY: new, and no other value owns it.
        let uffd = made.map(|made| unsafe { OwnedFd::from_raw_fd(made) });
        let uffd = uffd.ok_or("the system has no userfaultfd for this process")?;
        let mut api = UffdApi { api: API, features: ASYNC | UNPOPULATED, ioctls: 0 };
        ioctl(&uffd, UFFDIO_API, &mut api).map_err(|_| "the system is older than Linux 6.7")?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let pagemap = rustix::fs::open("/proc/self/pagemap", flags, Mode::empty());
        let pagemap = pagemap.map_err(|_| "/proc/self/pagemap cannot be opened")?;
        let marks = Self { uffd, pagemap, process: rustix::process::getpid() };
        if marks.works() { Ok(marks) } else { Err("the system's write-protect marks do not work") }
    }

    /// Tries them on three pages of a file, of which two are stored to.
    fn works(&self) -> bool {
        use rustix::mm::{MapFlags, ProtFlags};
        let page = rustix::param::page_size();
        let len = 3 * page;
        let Ok(file) = rustix::fs::memfd_create("rma-marks", rustix::fs::MemfdFlags::CLOEXEC)
        else {
            return false;
        };
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        let grown = rustix::fs::ftruncate(&file, len as u64);
        // SAFETY: the kernel chooses addresses where nothing is mapped.
        let map = || unsafe { rustix::mm::mmap(core::ptr::null_mut(), len, prot, flags, &file, 0) };
        let Ok(base) = grown.and_then(|()| map()) else { return false };
        let store = |at: usize| {
            let at = base.cast::<u8>().wrapping_add(at);
            // SAFETY: inside of what was mapped above, which only this function knows of.
            unsafe { at.write_volatile(1) };
        };
        let scan = || {
            let mut found = Vec::new();
            self.scan(base.addr(), len, |bytes| found.push(bytes)).ok().map(|()| found)
        };
        store(0);
        let armed = self.arm(base.addr(), len).is_ok();
        let nothing = scan();
        [0, 2 * page].into_iter().for_each(store);
        let both = scan();
        let nothing_again = scan();
        // SAFETY: mapped above; nothing refers to it any more.
        _ = unsafe { rustix::mm::munmap(base, len) };
        let none = Some(Vec::new());
        armed
            && both == Some(vec![0..page, 2 * page..len])
            && (nothing, nothing_again) == (none.clone(), none)
    }

    /// From now on, stores to these pages leave a mark.
    pub(crate) fn arm(&self, base: usize, len: usize) -> Result<(), Errno> {
        let len = len.next_multiple_of(rustix::param::page_size()) as u64;
        let range = || UffdRange { start: base as u64, len };
        let mut register = Register { range: range(), mode: REGISTER_WP, ioctls: 0 };
        ioctl(&self.uffd, UFFDIO_REGISTER, &mut register)?;
        let mut protect = WriteProtect { range: range(), mode: PROTECT };
        let protected = ioctl(&self.uffd, UFFDIO_WRITEPROTECT, &mut protect);
        protected.map(drop).inspect_err(|_| self.disarm(base, len as usize))
    }

    /// Stores leave no mark any more, and are as fast as without.
    pub(crate) fn disarm(&self, base: usize, len: usize) {
        let len = len.next_multiple_of(rustix::param::page_size()) as u64;
        // Of what was not armed, there is nothing to take away.
        _ = ioctl(&self.uffd, UFFDIO_UNREGISTER, &mut UffdRange { start: base as u64, len });
    }

    /// Tells which bytes, counted from `base`, lie on pages that were stored to since they were
    /// armed or scanned, whole pages in ascending order, and arms these again.
    pub(crate) fn scan(
        &self,
        base: usize,
        len: usize,
        mut found: impl FnMut(Range<usize>),
    ) -> Result<(), Errno> {
        let mut regions = [Region::default(); RUNS];
        let (mut start, end) = (base, base + len.next_multiple_of(rustix::param::page_size()));
        while start < end {
            let mut scan = Scan {
                size: size_of::<Scan>() as u64,
                flags: RENEW,
                start: start as u64,
                end: end as u64,
                // It writes there, to as many as it is told, and they live until it returns.
                vec: regions.as_mut_ptr().expose_provenance() as u64,
                vec_len: RUNS as u64,
                category_mask: WRITTEN,
                return_mask: WRITTEN,
                ..Scan::default()
            };
            let count = ioctl(&self.pagemap, PAGEMAP_SCAN, &mut scan)?;
            for Region { start, end, .. } in regions.get(..count).ok_or(Errno::INVAL)? {
                found(*start as usize - base..*end as usize - base);
            }
            let next = scan.walk_end as usize;
            // It has come as far as it says, and there is more only if all regions are in use.
            if count < RUNS {
                break;
            }
            if next <= start || next > end {
                return Err(Errno::INVAL);
            }
            start = next;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{StorageHints, StorageMemory};
    use rma_core::Backing;
    use rma_core::transport::Mapped;

    /// Marks of a file, whatever becomes of its pages: as many as were stored to, and no others.
    #[test]
    fn stores_to_a_file_leave_marks() {
        let Ok(marks) = marks().inspect_err(|why| eprintln!("skipped: marks: {why}")) else {
            return;
        };
        let page = rustix::param::page_size();
        let pages = 4 * RUNS;
        let folder = tempfile::tempdir().unwrap();
        let hints = StorageHints::file(folder.path().join("file"));
        let memory = StorageMemory::open_as(0, (0, ""), &hints, pages * page).unwrap();
        let mapping = memory.mapping();
        let (base, len) = (mapping.base.addr(), mapping.len);
        let store = |at: usize| {
            let at = mapping.base.wrapping_add(at * page + 5);
            // SAFETY: inside of the mapping of `memory`, which lives, and which is this test's.
            unsafe { at.write_volatile(1) };
        };
        let scan = || {
            let mut found = Vec::new();
            marks.scan(base, len, |bytes| found.extend(bytes.step_by(page))).unwrap();
            found.into_iter().map(|at| at / page).collect::<Vec<_>>()
        };
        marks.arm(base, len).unwrap();
        assert!(scan().is_empty());
        // More runs than one call finds.
        let every_other: Vec<_> = (0..pages).step_by(2).collect();
        every_other.iter().copied().for_each(store);
        assert_eq!(scan(), every_other);
        assert!(scan().is_empty());
        // A page that is written back and reclaimed before it is looked at.
        store(7);
        memory.persist(0..len as u64).unwrap();
        // SAFETY: `memory` maps it; no byte changes.
        unsafe { libc::madvise(mapping.base.cast(), len, libc::MADV_PAGEOUT) };
        let file = std::fs::File::open(memory.path()).unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        assert_eq!(scan(), [7]);
        store(8);
        marks.disarm(base, len);
        store(9);
        marks.arm(base, len).unwrap();
        assert!(scan().is_empty(), "armed anew");
        store(pages - 1);
        assert_eq!(scan(), [pages - 1]);
    }
}
