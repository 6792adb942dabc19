//! Shared segments: memfds without a name, sealed against resizing, their space reserved when they
//! are made; and the mapping of a peer's segment, or of files that it has open, verified before it
//! is touched.
#![allow(unsafe_code)] // room: mmap, munmap, zeroing of the owner's own mapping

use core::ffi::c_void;
use core::ptr::{self, NonNull};

use rma_core::transport::{AllocateError, ImportError, WorldRank};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, FileType, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};

use crate::memory_limits::{self, MemoryLimits};

/// Space is reserved in steps of this many bytes, with a look at what is left before each: several
/// ranks may be taking from the same limits.
const RESERVE_STEP: u64 = 32 << 20;

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A mapping of a whole segment; unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Span {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a span is an address range that stays mapped until it is dropped; which thread drops it
// is all the same to munmap.
unsafe impl Send for Span {}
// SAFETY: a shared span only tells its address and length.
unsafe impl Sync for Span {}

impl Span {
    /// Maps all of `file`, which is `len` bytes long and can never shrink.
    fn map(file: &OwnedFd, len: usize, populate: bool) -> Result<Self, Errno> {
        let flags = if populate { MapFlags::POPULATE } else { MapFlags::empty() };
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | flags);
        // SAFETY: the kernel chooses an address where nothing is mapped, so no object of this
        // process changes.
        let base = unsafe { rustix::mm::mmap(ptr::null_mut(), len, prot, flags, file, 0) }?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, len })
    }

    /// Zeroed memory that is in no file, and so in this process only.
    pub(crate) fn anonymous(len: usize) -> Result<Self, Errno> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: as in `map`.
        let base = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), len, prot, flags) }?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, len })
    }

    /// Addresses that nothing is mapped at yet.
    fn reserve(len: usize) -> Result<Self, Errno> {
        let (prot, flags) = (ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: as in `map`.
        let base = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), len, prot, flags) }?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, len })
    }

    /// Maps a piece of `file` at `at`, both from the beginning of a page on.
    fn place(&mut self, at: usize, file: &OwnedFd, piece: &Piece) -> Result<(), Errno> {
        let (offset, len) = (piece.offset as u64, piece.len);
        assert!(at <= self.len && len <= self.len - at, "a range of reserved addresses");
        if piece.is_synchronous {
            Self::try_synchronous(file, offset)?;
        }
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, flags_of(piece.is_synchronous));
        let (base, flags) = (self.at(at).cast::<c_void>(), flags | MapFlags::FIXED);
        // SAFETY: the range lies inside of this span, which is made of whole pages, and to which
        // there is no pointer elsewhere yet.
        unsafe { rustix::mm::mmap(base, len, prot, flags, file, offset) }?;
        Ok(())
    }

    /// Whether the system maps the file with `MAP_SYNC`: asked where nothing is lost by a refusal,
    /// which may come after what was mapped at a fixed address is gone.
    fn try_synchronous(file: &OwnedFd, offset: u64) -> Result<(), Errno> {
        let (len, prot) = (rustix::param::page_size(), ProtFlags::READ);
        // SAFETY: as in `map`.
        let base =
            unsafe { rustix::mm::mmap(ptr::null_mut(), len, prot, flags_of(true), file, offset) }?;
        // SAFETY: mapped above; nothing refers to it.
        unsafe { rustix::mm::munmap(base, len) }
    }

    /// The first byte; aligned to a page.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The byte at `offset`, which may be the end.
    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.len, "offset outside of a segment");
        self.base.as_ptr().wrapping_add(offset)
    }

    /// Zeroes a part that only the caller knows of.
    ///
    /// # Safety
    ///
    /// Nothing else touches these bytes at the same time.
    pub(crate) unsafe fn zero(&self, offset: usize, len: usize) {
        assert!(len <= self.len && offset <= self.len - len, "range outside of a segment");
        // SAFETY: the range lies inside this mapping, which is writable and whose pages are
        // reserved; the caller promises that nothing else touches it.
        unsafe { self.at(offset).write_bytes(0, len) }
    }
}

fn flags_of(is_synchronous: bool) -> MapFlags {
    match is_synchronous {
        false => MapFlags::SHARED,
        true => MapFlags::SHARED_VALIDATE | MapFlags::SYNC,
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        // SAFETY: `base..base+len` is exactly the range that `map` got, and every pointer into it
        // is derived from a value that keeps this span alive.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast::<c_void>(), self.len) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

/// Tells one segment from every other file a descriptor could lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) len: u64,
}

/// A segment of this rank. The descriptor stays open as long as the segment lives, because it is
/// what neighbours open.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) span: Span,
    pub(crate) identity: Identity,
    /// `None` once no neighbour opens it any more.
    file: Option<OwnedFd>,
}

impl Segment {
    /// Makes a zeroed segment of at least `len` bytes, a whole number of pages. `requested` is what
    /// errors name. `populate` also sets up the page table.
    pub(crate) fn create(
        name: &str,
        len: usize,
        requested: u64,
        limits: &MemoryLimits,
        populate: bool,
    ) -> Result<Self, AllocateError> {
        let page = rustix::param::page_size();
        let bytes = len
            .max(1)
            .checked_next_multiple_of(page)
            .filter(|&bytes| isize::try_from(bytes).is_ok())
            .ok_or_else(|| {
                let left = limits.available();
                AllocateError::Shortage { requested, available: left.bytes, limit: left.limit }
            })?;
        let total = bytes as u64;
        let left = limits.available();
        if left.bytes < total {
            let (available, limit) = (left.bytes, left.limit);
            return Err(AllocateError::Shortage { requested, available, limit });
        }
        let refused = |call, errno| refusal(requested, call, errno, limits);
        let file = memfd(name).map_err(|e| refused("memfd_create", e))?;
        rustix::fs::ftruncate(&file, total).map_err(|e| refused("ftruncate", e))?;
        reserve(&file, total, requested, limits)?;
        rustix::fs::fcntl_add_seals(&file, SEALS).map_err(|e| refused("fcntl", e))?;
        let stat = rustix::fs::fstat(&file).map_err(|e| refused("fstat", e))?;
        let span = Span::map(&file, bytes, populate).map_err(|e| refused("mmap", e))?;
        let identity = Identity { device: stat.st_dev, inode: stat.st_ino, len: total };
        Ok(Self { span, identity, file: Some(file) })
    }

    /// The number neighbours open.
    pub(crate) fn descriptor(&self) -> i32 {
        self.file.as_ref().map_or(-1, |file| file.as_raw_fd())
    }

    /// From now on, no neighbour can map it; the mappings that there are stay.
    pub(crate) fn close(&mut self) {
        self.file = None;
    }

    /// The mapping, and the file that has to stay open for the neighbours.
    pub(crate) fn into_parts(self) -> (Span, Option<OwnedFd>) {
        (self.span, self.file)
    }
}

fn memfd(name: &str) -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        // Linux before 6.3 does not know the flag.
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags),
        made => made,
    }
}

/// Takes the pages of the whole file, so that touching them cannot fail later.
fn reserve(
    file: &OwnedFd,
    len: u64,
    requested: u64,
    limits: &MemoryLimits,
) -> Result<(), AllocateError> {
    let mut done = 0;
    while done < len {
        if done > 0 {
            let left = limits.memory();
            if left.bytes < len - done {
                let available = left.bytes.saturating_add(done);
                return Err(AllocateError::Shortage { requested, available, limit: left.limit });
            }
        }
        let step = RESERVE_STEP.min(len - done);
        match rustix::fs::fallocate(file, FallocateFlags::empty(), done, step) {
            Ok(()) => done += step,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(refusal(requested, "fallocate", errno, limits)),
        }
    }
    Ok(())
}

/// What an error number of the system says about memory. The limit is named when this side can
/// tell it.
fn refusal(
    requested: u64,
    call: &'static str,
    errno: Errno,
    limits: &MemoryLimits,
) -> AllocateError {
    let left = limits.available();
    let limit = match errno {
        Errno::NOMEM | Errno::NOSPC if left.bytes < requested => left.limit,
        Errno::NOMEM if call == "mmap" => "mappings of a process, vm.max_map_count",
        Errno::NOMEM | Errno::NOSPC => "memory the kernel commits, vm.overcommit_memory",
        Errno::FBIG => memory_limits::FILE_SIZE,
        _ => return AllocateError::System { requested, call, errno: errno.raw_os_error() },
    };
    AllocateError::Shortage { requested, available: left.bytes, limit }
}

/// Why a peer's segment could not be mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpenError {
    /// There is no such process any more.
    Gone,
    /// The descriptor is closed, or leads to something else.
    Different,
    /// What was found cannot be mapped side by side.
    Apart(&'static str),
    /// The operating system refused.
    System { call: &'static str, errno: i32 },
}

impl OpenError {
    /// The same of a segment of that rank.
    pub(crate) fn of(self, owner: WorldRank) -> ImportError {
        match self {
            Self::Gone => ImportError::PeerGone(owner),
            Self::Different => ImportError::Malformed(owner),
            Self::Apart(why) => ImportError::Extents { owner, why },
            Self::System { call, errno } => ImportError::System { owner, call, errno },
        }
    }

    /// The call and its error number, if this process may not look there.
    pub(crate) fn refusal(self) -> Option<(&'static str, i32)> {
        let errnos = [Errno::PERM, Errno::ACCESS].map(Errno::raw_os_error);
        match self {
            Self::System { call, errno } if errnos.contains(&errno) => Some((call, errno)),
            _ => None,
        }
    }

    fn system(call: &'static str) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::System { call, errno: errno.raw_os_error() }
    }
}

/// Maps the segment that process `pid` has open as `descriptor`, if it still is `expected`.
pub(crate) fn import(
    pid: Pid,
    descriptor: i32,
    expected: Identity,
    populate: bool,
) -> Result<Span, OpenError> {
    let len = usize::try_from(expected.len).map_err(|_| OpenError::Different)?;
    if descriptor < 0 {
        return Err(OpenError::Different);
    }
    let file = open(pid, descriptor)?;
    verify(&file, expected)?;
    Span::map(&file, len, populate).map_err(OpenError::system("mmap"))
}

/// Part of a file that a peer has open.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) descriptor: i32,
    /// With the length that the file has at least.
    pub(crate) file: Identity,
    /// Whether it is a segment, which is sealed; of another file, its owner vouches for the length.
    pub(crate) is_segment: bool,
    /// Whether it is mapped with `MAP_SYNC`, or not at all.
    pub(crate) is_synchronous: bool,
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

/// Maps pieces of files that process `pid` has open one behind the other, and tells how many bytes
/// these are. All but the last are whole pages.
pub(crate) fn import_side_by_side(pid: Pid, pieces: &[Piece]) -> Result<(Span, usize), OpenError> {
    let page = rustix::param::page_size();
    let mut total = 0usize;
    for piece in pieces {
        if piece.len == 0 {
            return Err(OpenError::Apart("one has no bytes"));
        }
        if !piece.offset.is_multiple_of(page) || !total.is_multiple_of(page) {
            return Err(OpenError::Apart("one does not begin with a page"));
        }
        let next = total.checked_add(piece.len).filter(|next| isize::try_from(*next).is_ok());
        total = next.ok_or(OpenError::Apart("they are more than there are addresses"))?;
    }
    if total == 0 {
        return Err(OpenError::Apart("there is none"));
    }
    let mut span =
        Span::reserve(total.next_multiple_of(page)).map_err(OpenError::system("mmap"))?;
    let mut at = 0;
    for piece in pieces {
        if piece.descriptor < 0 {
            return Err(OpenError::Different);
        }
        let file = open(pid, piece.descriptor)?;
        if piece.is_segment {
            verify(&file, piece.file)?
        } else {
            verify_file(&file, piece.file)?
        }
        let call = if piece.is_synchronous { "mmap with MAP_SYNC" } else { "mmap" };
        span.place(at, &file, piece).map_err(OpenError::system(call))?;
        at += piece.len;
    }
    Ok((span, total))
}

/// What tells the file that this process has open as `file` from every other, and its length.
pub(crate) fn identify(file: BorrowedFd<'_>) -> Result<Identity, Errno> {
    let stat = rustix::fs::fstat(file)?;
    // Files of other kinds, devices above all, do not tell how long they are.
    let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let len = if regular { u64::try_from(stat.st_size).unwrap_or(0) } else { isize::MAX as u64 };
    Ok(Identity { device: stat.st_dev, inode: stat.st_ino, len })
}

/// A file that is no segment may have grown.
fn verify_file(file: &OwnedFd, expected: Identity) -> Result<(), OpenError> {
    let found = identify(file.as_fd()).map_err(OpenError::system("fstat"))?;
    let same = found.device == expected.device && found.inode == expected.inode;
    if same && found.len >= expected.len { Ok(()) } else { Err(OpenError::Different) }
}

/// Opens what a process has open as that descriptor.
pub(crate) fn open(pid: Pid, descriptor: i32) -> Result<OwnedFd, OpenError> {
    let path = format!("/proc/{}/fd/{descriptor}", pid.as_raw_nonzero());
    // NONBLOCK and NOCTTY: with a reused number this may be a pipe or a terminal.
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => return Ok(file),
        Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => {
            return Err(OpenError::System { call: "open", errno: errno.raw_os_error() });
        }
        Err(_) => {}
    }
    // Without /proc, or without the right to look there, the process itself may still be asked.
    let process = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Err(Errno::SRCH) => return Err(OpenError::Gone),
        opened => opened.map_err(OpenError::system("pidfd_open"))?,
    };
    if exited(&process) {
        return Err(OpenError::Gone);
    }
    match rustix::process::pidfd_getfd(&process, descriptor, PidfdGetfdFlags::empty()) {
        Err(Errno::SRCH) => Err(OpenError::Gone),
        Err(Errno::BADF) => Err(OpenError::Different),
        got => got.map_err(OpenError::system("pidfd_getfd")),
    }
}

/// Process and descriptor numbers are reused, so what was opened must prove to be the segment; the
/// seals are what makes its length final.
fn verify(file: &OwnedFd, expected: Identity) -> Result<(), OpenError> {
    let stat = rustix::fs::fstat(file).map_err(OpenError::system("fstat"))?;
    let same = stat.st_dev == expected.device
        && stat.st_ino == expected.inode
        && u64::try_from(stat.st_size) == Ok(expected.len);
    let sealed = rustix::fs::fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SEALS));
    if same && sealed { Ok(()) } else { Err(OpenError::Different) }
}

/// A process that has ended makes its descriptor readable, also before it is waited for.
pub(crate) fn exited(process: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
}

/// Whether process `pid` lives and still has the segment open. Errs on the side of life.
pub(crate) fn is_open(pid: Pid, descriptor: i32, expected: Identity) -> bool {
    let path = format!("/proc/{}/fd/{descriptor}", pid.as_raw_nonzero());
    let at_descriptor = rustix::fs::stat(path);
    if let Ok(stat) = &at_descriptor {
        return stat.st_dev == expected.device && stat.st_ino == expected.inode;
    }
    match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Err(Errno::SRCH) => false,
        Ok(process) if exited(&process) => false,
        // It has ended and this process is out of descriptors, or the number is another
        // process's by now; unless there is no /proc to look at.
        _ => {
            let absent = matches!(at_descriptor, Err(Errno::NOENT));
            !(absent && rustix::fs::stat("/proc/self/fd").is_ok())
        }
    }
}

#[cfg(test)]
#[path = "segment_tests.rs"]
mod tests;
