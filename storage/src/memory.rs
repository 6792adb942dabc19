//! A file or device, mapped, with memory beside it in one range of addresses.
#![allow(unsafe_code)] // room: maps files, and vouches for them

use crate::ahead::Ahead;
use crate::durable::{DurableBy, Means};
use crate::error::SpaceLimit;
use crate::file::{NewFile, StorageFile, is_too_long, retry, system};
use crate::lines::{Lines, SYNCHRONOUS};
use crate::{AccessStyle, StorageError, StorageFactor, StorageHints, StorageOrder};
use core::any::Any;
use core::ops::Range;
use core::ptr;
use rma_core::transport::{Beneath, FileId, Mapped, Mapping, WorldRank};
use rma_core::{Backing, Claim, Extent, PersistError, Place, Universe};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MsyncFlags, ProtFlags};
use rustix::process::Pid;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Memory on storage: what a window, or a region of one, can lie on.
///
/// ```
/// use rma_storage::{StorageHints, StorageMemory};
/// use std::sync::Arc;
///
/// # // Run by the tests of the crate `rma`; here for the compiler.
/// # fn example(universe: &rma_core::Universe) -> Result<(), Box<dyn std::error::Error>> {
/// let world = universe.world();
/// let hints = StorageHints::file("table.{rank}");
/// let memory = StorageMemory::open(universe, &hints, 1000 * size_of::<u64>())?;
/// let window = world.window(1000, size_of::<u64>()).create(Arc::new(memory));
/// let window = window.map_err(|refused| refused.error)?;
/// // … what was there is there again …
/// window.sync()?; // durable
/// window.free()?;
/// # Ok(())
/// # }
/// ```
///
/// The space is reserved when it is opened. What can still fail is the device (a page that cannot
/// be read), another program that truncates the file, and a full file system of the kind that
/// copies what is written (btrfs, or a file that shares its blocks with a snapshot): the process
/// that touches such a page ends by SIGBUS, and its peers in an error.
#[derive(Debug)]
pub struct StorageMemory {
    /// Of all pages that were mapped.
    pages: Pages,
    /// Bytes before the first one, in its page.
    before: usize,
    len: usize,
    /// Which bytes are on storage.
    stored: Range<usize>,
    file: Option<StorageFile>,
    means: Means,
    /// The file of the others, which neighbours map as well.
    memory: Option<OwnedFd>,
    path: PathBuf,
    offset: u64,
    /// Removes the file at the end; not any more once no window came of it.
    unlink: AtomicBool,
    /// The process that opened it; a fork of it has a copy, whose end is none.
    process: Pid,
    lost: Lost,
    written: Written,
    ahead: Ahead,
    discard: bool,
    /// Hints in force.
    info: Vec<(&'static str, String)>,
}

/// Where the part of a rank lies: an [attribute](rma_core::Window::attribute) of a window whose
/// part is a [`StorageMemory`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoragePart {
    /// The file or device.
    pub path: PathBuf,
    /// Where the bytes on storage begin there.
    pub offset: u64,
    /// Which bytes of the part are on storage; the others are in memory.
    pub stored: Range<usize>,
    /// Bytes of the part.
    pub len: usize,
    /// What makes those on storage durable, if there are any.
    pub durable_by: DurableBy,
}

/// A range of addresses, which unmaps itself.
#[derive(Debug)]
struct Pages {
    base: *mut u8,
    len: usize,
}

// SAFETY: an address that is the same for all threads.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

/// Which bytes are where.
#[derive(Debug, PartialEq, Eq)]
struct Division {
    memory: usize,
    storage: usize,
    /// Where the ones on storage begin.
    stored_at: usize,
}

impl Division {
    /// Of `len` bytes, if at most `available` can be in memory; parts begin with pages.
    fn new(hints: &StorageHints, len: usize, available: u64, page: usize) -> Self {
        let memory = match hints.factor {
            StorageFactor::Auto => usize::try_from(available).unwrap_or(len),
            // Rounds towards 0, and never above `len`.
            StorageFactor::Share(share) => ((1.0 - share) * len as f64) as usize,
        };
        let memory = memory.min(len);
        match hints.order {
            _ if memory == len => Self { memory, storage: 0, stored_at: len },
            StorageOrder::MemoryFirst => {
                let memory = memory / page * page;
                Self { memory, storage: len - memory, stored_at: memory }
            }
            StorageOrder::StorageFirst => {
                let storage = (len - memory).checked_next_multiple_of(page).unwrap_or(len).min(len);
                Self { memory: len - storage, storage, stored_at: 0 }
            }
        }
    }
}

impl StorageMemory {
    /// Opens, or makes, what the hints say, for `len` bytes of this rank. A file that is shorter
    /// grows; none is ever cut. Local.
    ///
    /// Of a new file, and of what one has grown by, the bytes are zero; so is what lies in memory.
    /// Those that were there are as they were.
    ///
    /// # Errors
    ///
    /// See [`StorageError`].
    pub fn open(
        universe: &Universe,
        hints: &StorageHints,
        len: usize,
    ) -> Result<Self, StorageError> {
        Self::open_in(&universe.transport(), hints, len)
    }

    pub(crate) fn open_in(
        transport: &Beneath<'_>,
        hints: &StorageHints,
        len: usize,
    ) -> Result<Self, StorageError> {
        Self::open_as(transport.rank().0, Self::room(transport), hints, len)
    }

    /// What this rank may have of the memory of its node.
    fn room(transport: &Beneath<'_>) -> (u64, &'static str) {
        let near = (0..transport.size()).filter(|rank| transport.is_near(WorldRank(*rank)));
        let sharers = near.count().max(1) as u64;
        let (together, limit) = transport.available();
        (together / sharers, limit)
    }

    /// The file that the hints name, if it is there, and the bytes that they ask for.
    pub(crate) fn claim(
        transport: &Beneath<'_>,
        hints: &StorageHints,
        len: usize,
    ) -> Option<Claim> {
        let (available, _) = Self::room(transport);
        let Division { storage, .. } =
            Division::new(hints, len, available / 2, rustix::param::page_size());
        let stat = rustix::fs::stat(hints.path_of(transport.rank().0)).ok()?;
        let (start, end) = (hints.offset, hints.offset.checked_add(storage as u64)?);
        Some(Claim { device: stat.st_dev, inode: stat.st_ino, start, end })
    }

    pub(crate) fn open_as(
        rank: u32,
        // What this rank may have of the memory of its node.
        room: (u64, &'static str),
        hints: &StorageHints,
        len: usize,
    ) -> Result<Self, StorageError> {
        Self::open_at(hints.path_of(rank), room, hints, len, None)
    }

    /// At this path, whatever the hints say; `by_msync` says why cache lines are not written back
    /// although they might be.
    pub(crate) fn open_at(
        path: PathBuf,
        (available, limit): (u64, &'static str),
        hints: &StorageHints,
        len: usize,
        by_msync: Option<&'static str>,
    ) -> Result<Self, StorageError> {
        let page = rustix::param::page_size();
        if path.as_os_str().is_empty() {
            return Err(StorageError::NoFile);
        }
        // The process may have another folder when the file is to be removed.
        let path = std::path::absolute(&path).unwrap_or(path);
        if len == 0 {
            return Err(StorageError::Empty { path });
        }
        let Division { memory, storage, stored_at } =
            Division::new(hints, len, available / 2, page);
        let (offset, page) = (hints.offset, page as u64);
        let before = if storage == 0 { 0 } else { (offset % page) as usize };
        if before > 0 && memory > 0 {
            return Err(StorageError::InsidePage { path, offset, memory: memory as u64, page });
        }
        if memory as u64 > available {
            let limit = SpaceLimit::Memory(limit);
            return Err(StorageError::Space { path, start: 0, end: memory as u64, limit });
        }
        let too_far = || StorageError::TooFar { path: path.clone(), offset, len: storage as u64 };
        let end = offset.checked_add(storage as u64).filter(|end| *end <= i64::MAX as u64);
        let end = end.ok_or_else(too_far)?;
        let failed = |call| move |errno| (call, errno);
        let refused = |(call, errno)| match (call, errno) {
            ("fallocate", Errno::FBIG) => {
                let limit = SpaceLimit::FileLength;
                StorageError::Space { path: path.clone(), start: 0, end: memory as u64, limit }
            }
            _ => system(&path, call, errno),
        };
        let at = if stored_at == 0 { storage } else { 0 };
        let huge_at = (memory >= HUGE).then_some(at);
        let pages = Pages::reserve(before.saturating_add(len), huge_at);
        let pages = pages.map_err(failed("mmap")).map_err(refused)?;
        let beside = pages.map_memory(at..at + memory).map_err(refused)?;
        // At last: what fails before leaves no file.
        let bytes = stored_at..stored_at + before + storage;
        let placed =
            (storage > 0).then(|| pages.map_storage(bytes, &path, hints, offset..end, by_msync));
        let (file, means) = placed.transpose()?.unzip();
        let means = means.unwrap_or(Means::Msync("nothing is on storage"));
        Ok(Self {
            info: in_force(hints, file.as_ref(), &path, means),
            pages,
            before,
            len,
            stored: stored_at..stored_at + storage,
            file,
            means,
            memory: beside,
            path,
            offset,
            unlink: AtomicBool::new(hints.unlink),
            process: rustix::process::getpid(),
            lost: Lost::default(),
            written: Written::new(len),
            ahead: Ahead::default(),
            discard: hints.discard,
        })
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none: never.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Which of its bytes are on storage; the others end with the job.
    pub fn stored(&self) -> Range<usize> {
        self.stored.clone()
    }

    /// The file or device; none is open there if no byte is on storage.
    pub fn path(&self) -> &Path {
        self.file.as_ref().map_or(&self.path, StorageFile::path)
    }

    /// What tells its file from all others of this machine.
    pub(crate) fn file_id(&self) -> Result<FileId, StorageError> {
        let no_file = || StorageError::Empty { path: self.path.clone() };
        let file = self.file.as_ref().ok_or_else(no_file)?;
        let stat = rustix::fs::fstat(&file.descriptor);
        let stat = stat.map_err(|errno| system(&self.path, "fstat", errno))?;
        Ok(FileId { device: stat.st_dev, inode: stat.st_ino })
    }

    /// Makes all durable, and gives the memory back; removes the file instead if the hints say so.
    ///
    /// # Errors
    ///
    /// See [`PersistError`]. To drop the value does the same, and does not tell of errors.
    pub fn close(mut self) -> Result<(), PersistError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), PersistError> {
        if rustix::process::getpid() != self.process {
            return Ok(());
        }
        let unlink = *self.unlink.get_mut();
        let keep = if self.discard || unlink { Ok(()) } else { self.sync(0..self.len) };
        if let Some(file) = self.file.take() {
            Some(&file).filter(|_| unlink).into_iter().for_each(StorageFile::unlink);
            file.unlock(self.offset..self.offset + self.stored.len() as u64);
        }
        // Nothing is left that would be lost.
        self.discard = true;
        keep
    }

    /// Writes what has changed of these bytes, by whichever process, and waits for the device.
    fn sync(&self, range: Range<usize>) -> Result<(), PersistError> {
        let (start, end) = (range.start.max(self.stored.start), range.end.min(self.stored.end));
        let Some(file) = self.file.as_ref().filter(|_| start < end) else { return Ok(()) };
        let bytes = self.before + start..self.before + end;
        self.lost.unless(|| match self.means.lines(end - start) {
            Some(lines) => {
                // First: lines behind its end are nowhere, and to touch them is a SIGBUS.
                self.check_whole(file)?;
                self.pages.write_back(lines, bytes);
                Ok(())
            }
            None => {
                self.written.forget(start..end);
                if (start..end) == self.stored {
                    self.ahead.synced();
                }
                self.pages.sync(bytes).map_err(failed_call)?;
                self.check_whole(file)
            }
        })
    }

    /// Whether another program has cut the file, of which the system says nothing: bytes that were
    /// behind its end are nowhere then, also if it has grown again.
    fn check_whole(&self, file: &StorageFile) -> Result<(), PersistError> {
        let needed = self.offset + self.stored.len() as u64;
        match file.len() {
            Ok(Some(len)) if len < needed => Err(PersistError::Cut { len, needed }),
            Ok(_) => Ok(()),
            Err(errno) => Err(PersistError::System { call: "fstat", errno: errno.raw_os_error() }),
        }
    }
}

impl Drop for StorageMemory {
    fn drop(&mut self) {
        _ = self.end();
    }
}

// SAFETY: mapped in `open_at`, where all of it was replaced by mappings of files that have those
// bytes; `pages` unmaps it in its own drop, and is never replaced.
unsafe impl Mapped for StorageMemory {
    fn mapping(&self) -> Mapping {
        Mapping { base: self.pages.base.wrapping_add(self.before), len: self.len }
    }
}

// SAFETY: no reference into the bytes is made here. Both files stay open as long as the value
// lives; the memory is sealed against being cut, and the file's space is reserved. A program that
// cuts the file all the same gets the ranks that touch it killed by a signal, which executes
// nothing of theirs. It is not exclusive.
unsafe impl Backing for StorageMemory {
    fn extents(&self) -> Vec<Extent> {
        // Neighbours map whole pages.
        if self.before > 0 {
            return Vec::new();
        }
        let extent = |len: usize, descriptor: Option<&OwnedFd>, offset, synchronous| {
            let place = Place::File { number: descriptor?.as_raw_fd(), offset, synchronous };
            Some(Extent { len: len as u64, place })
        };
        let file = self.file.as_ref().map(|file| &file.descriptor);
        let stored = extent(self.stored.len(), file, self.offset, self.means.is_synchronous());
        let memory = extent(self.len - self.stored.len(), self.memory.as_ref(), 0, false);
        let both = if self.stored.start == 0 { [stored, memory] } else { [memory, stored] };
        both.into_iter().flatten().collect()
    }

    fn info(&self) -> Vec<(&'static str, String)> {
        self.info.clone()
    }

    fn attribute(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        Some(Arc::new(StoragePart {
            path: self.path().to_owned(),
            offset: self.offset,
            stored: self.stored(),
            len: self.len,
            durable_by: self.means.into(),
        }))
    }

    fn unmake(&self) {
        // A file that was there before is not this window's to remove.
        self.unlink.store(false, Ordering::Relaxed);
        self.file.iter().for_each(StorageFile::unmake);
    }

    fn release(&self) -> Result<(), PersistError> {
        if self.discard || self.unlink.load(Ordering::Relaxed) {
            return Ok(());
        }
        // What was lost before was said before.
        if self.lost.is_told() { Ok(()) } else { self.sync(0..self.len) }
    }

    fn granularity(&self) -> u64 {
        rustix::param::page_size() as u64
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> bool {
        // What the system writes is durable only when it has written where that is, too.
        let Some(file) = self.file.as_ref().filter(|_| !self.means.is_synchronous()) else {
            return false;
        };
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = start.saturating_add(bytes.len());
        if start < self.stored.start || end > self.stored.end {
            return false;
        }
        let Some(times) = self.written.note(start..end) else { return false };
        let is_written = file.overwrite(bytes, self.offset + (start - self.stored.start) as u64);
        if is_written {
            let all = self.offset..self.offset + self.stored.len() as u64;
            self.ahead.written(&file.descriptor, bytes.len(), times > 0, all);
        }
        is_written
    }

    fn is_durable(&self) -> bool {
        self.file.is_some()
    }

    /// Of bytes in memory, nothing is to be done.
    fn persist(&self, range: Range<u64>) -> Result<(), PersistError> {
        if self.file.is_none() {
            return Err(PersistError::Volatile);
        }
        let clamp = |at: u64| usize::try_from(at).unwrap_or(self.len).min(self.len);
        self.sync(clamp(range.start)..clamp(range.end))
    }
}

/// What is told of hints: not those that only a new file takes, if it is none.
fn in_force(
    hints: &StorageHints,
    file: Option<&StorageFile>,
    path: &Path,
    means: Means,
) -> Vec<(&'static str, String)> {
    let at = file.map_or(path, StorageFile::path).to_string_lossy().into_owned();
    let mut info = vec![("alloc_type", "storage".to_owned()), ("storage_alloc_filename", at)];
    info.extend(hints.rest());
    if file.is_some() {
        info.push(("rma_storage_durable_by", means.explain()));
    }
    if file.is_some_and(StorageFile::is_new) {
        info.push(("file_perm", format!("{:04o}", hints.permissions)));
    }
    if file.is_some_and(StorageFile::is_striped) {
        info.extend(hints.stripes());
    }
    info
}

/// Bytes of a huge page: of x86-64, and of most others.
const HUGE: usize = 2 << 20;

/// A file in memory of so many zero bytes, without space for them.
fn memory(len: u64) -> Result<OwnedFd, (&'static str, Errno)> {
    if is_too_long(len) {
        return Err(("fallocate", Errno::FBIG));
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Not to be executed, where the system knows that.
    let file = rustix::fs::memfd_create("rma-storage", flags | MemfdFlags::NOEXEC_SEAL)
        .or_else(|_| rustix::fs::memfd_create("rma-storage", flags));
    let file = file.map_err(|errno| ("memfd_create", errno))?;
    retry(|| rustix::fs::ftruncate(&file, len)).map_err(|errno| ("ftruncate", errno))?;
    Ok(file)
}

/// Reserves its space, if it has not all of it, and has its length stay.
fn keep_memory(file: &OwnedFd, len: u64) -> Result<(), (&'static str, Errno)> {
    let reserve = || rustix::fs::fallocate(file, FallocateFlags::empty(), 0, len);
    retry(reserve).map_err(|errno| ("fallocate", errno))?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(file, seals).map_err(|errno| ("fcntl", errno))
}

impl Pages {
    /// Addresses for `len` bytes, where nothing is yet; a huge page can begin at `huge_at` of them.
    fn reserve(len: usize, huge_at: Option<usize>) -> Result<Self, Errno> {
        let (nothing, flags) = (ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE);
        let len = len.checked_next_multiple_of(rustix::param::page_size()).ok_or(Errno::NOMEM)?;
        let slack = if huge_at.is_some() { HUGE } else { 0 };
        let all = len.checked_add(slack).ok_or(Errno::NOMEM)?;
        // SAFETY: the kernel chooses addresses where nothing is mapped.
        let base = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), all, nothing, flags) }?;
        let at = base.addr().wrapping_add(huge_at.unwrap_or(0));
        let ahead = if slack > 0 { at.wrapping_neg() % HUGE } else { 0 };
        let (mut pages, behind) = (Self { base: base.cast(), len: all }, slack - ahead);
        for outside in [ahead + len..all, 0..ahead] {
            // SAFETY: of what was mapped above, where nothing is yet, and not of what is kept.
            unsafe { pages.give_back(outside) };
        }
        (pages.base, pages.len) = (pages.base.wrapping_add(ahead), all - ahead - behind);
        Ok(pages)
    }

    /// Unmaps some of the addresses.
    ///
    /// # Safety
    ///
    /// The bytes are whole pages of what `reserve` mapped, and this process does not use their
    /// addresses any more, or not yet.
    unsafe fn give_back(&self, bytes: Range<usize>) {
        if !bytes.is_empty() {
            let at = self.base.wrapping_add(bytes.start).cast();
            // SAFETY: the caller's; neighbours have mappings of their own.
            _ = unsafe { rustix::mm::munmap(at, bytes.len()) };
        }
    }

    /// Maps memory there, if it is any: in huge pages, if the system has some for it.
    fn map_memory(&self, bytes: Range<usize>) -> Result<Option<OwnedFd>, (&'static str, Errno)> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let file = memory(bytes.len() as u64)?;
        self.map(bytes.clone(), &file, 0, MapFlags::SHARED).map_err(|errno| ("mmap", errno))?;
        if bytes.len() >= HUGE {
            let at = self.base.wrapping_add(bytes.start).cast();
            // What is reserved first has small pages. Without any, it has no space yet.
            for advice in [Advice::LinuxHugepage, Advice::LinuxPopulateWrite] {
                // SAFETY: mapped by this value, and its bytes stay as they are.
                _ = unsafe { rustix::mm::madvise(at, bytes.len(), advice) };
            }
        }
        keep_memory(&file, bytes.len() as u64)?;
        Ok(Some(file))
    }

    /// Maps a file there from `offset` on; the first of the bytes begins a page, and the file has
    /// all of them.
    fn map(
        &self,
        bytes: Range<usize>,
        file: impl AsFd,
        offset: u64,
        flags: MapFlags,
    ) -> Result<(), Errno> {
        assert!(bytes.start <= bytes.end && bytes.end <= self.len, "outside of what is reserved");
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, flags | MapFlags::FIXED);
        let at = self.base.wrapping_add(bytes.start).cast();
        // SAFETY: inside of the addresses that this value reserved, which nothing else uses yet:
        // it is still being made.
        unsafe { rustix::mm::mmap(at, bytes.len(), prot, flags, file, offset) }?;
        Ok(())
    }

    /// Opens what the hints say, for these bytes of it, and maps it from the page on in which they
    /// begin.
    fn map_storage(
        &self,
        bytes: Range<usize>,
        path: &Path,
        hints: &StorageHints,
        range: Range<u64>,
        by_msync: Option<&'static str>,
    ) -> Result<(StorageFile, Means), StorageError> {
        let new = NewFile { permissions: hints.permissions, striping: hints.striping };
        let file = StorageFile::open(path, new, range.clone())?;
        let page = rustix::param::page_size() as u64;
        let offset = range.start / page * page;
        let means = by_msync.map_or_else(|| Means::of(&file.descriptor, offset), Means::Msync);
        let flags = if means.is_synchronous() { SYNCHRONOUS } else { MapFlags::SHARED };
        let refused = match hints.unlink && file.is_device() {
            true => Err(StorageError::UnlinkDevice { path: path.to_owned() }),
            false => self
                .map(bytes.clone(), &file.descriptor, offset, flags)
                .map_err(|errno| system(path, "mmap", errno))
                .and_then(|()| match means.is_synchronous() {
                    // Lines of the ranks' stores are not all: programs may have written to the
                    // file before, and not have made durable what they wrote.
                    true => file.sync(),
                    false => Ok(()),
                }),
        };
        refused.inspect_err(|_| file.unmake())?;
        self.advise(bytes, &hints.styles);
        file.advise(range, &hints.styles);
        Ok((file, means))
    }

    /// A wish: the system may do as it likes.
    fn advise(&self, bytes: Range<usize>, styles: &[AccessStyle]) {
        for style in styles {
            let advice = match style.advice() {
                Some(rustix::fs::Advice::Random) => Advice::Random,
                Some(rustix::fs::Advice::Sequential) => Advice::Sequential,
                // Of a mapping, the system knows no other.
                _ => continue,
            };
            let at = self.base.wrapping_add(bytes.start).cast();
            // SAFETY: mapped by this value; neither advice changes a byte.
            _ = unsafe { rustix::mm::madvise(at, bytes.len(), advice) };
        }
    }

    fn sync(&self, bytes: Range<usize>) -> Result<(), Errno> {
        sync_mapped(Mapping { base: self.base, len: self.len }, bytes)
    }

    /// Writes back the cache lines of bytes that lie in a file which has all of them.
    fn write_back(&self, lines: Lines, bytes: Range<usize>) {
        assert!(bytes.start <= bytes.end && bytes.end <= self.len, "outside of what is mapped");
        // SAFETY: mapped by this value as long as it lives; a program that cuts the file meanwhile
        // gets the process killed, which executes nothing (`Backing for StorageMemory`).
        unsafe { lines.write_back(self.base.wrapping_add(bytes.start), bytes.len()) };
    }
}

/// Writes what has changed of bytes of a mapping that begins with a page, by whichever process.
fn sync_mapped(mapping: Mapping, bytes: Range<usize>) -> Result<(), Errno> {
    assert!(bytes.start <= bytes.end && bytes.end <= mapping.len, "outside of what is mapped");
    let start = bytes.start / rustix::param::page_size() * rustix::param::page_size();
    let at = mapping.base.wrapping_add(start).cast();
    // SAFETY: mapped by the caller's value; the call changes no byte.
    retry(|| unsafe { rustix::mm::msync(at, bytes.end - start, MsyncFlags::SYNC) })
}

/// Whether the file of a mapping that begins with a page has the page before `end`, as far as the
/// system says: before Linux 5.14 it does not.
fn is_whole(mapping: Mapping, end: usize) -> bool {
    assert!(0 < end && end <= mapping.len, "outside of what is mapped");
    let page = rustix::param::page_size();
    let at = mapping.base.wrapping_add((end - 1) / page * page).cast();
    // SAFETY: mapped by the caller's value; the call reads the page, or fails where a load would be
    // a SIGBUS, and changes no byte.
    let read = unsafe { rustix::mm::madvise(at, page, Advice::LinuxPopulateRead) };
    read != Err(Errno::FAULT)
}

/// How often each block was written since it was last made durable: what decides whether this
/// process or the system writes it, and nothing else.
///
/// After a sync, the system has write-protected all pages, to know which become dirty; the first
/// store to each is a fault, which takes longer than to have the system write a page. Once they are
/// writable, stores are faster.
#[derive(Debug)]
struct Written(Box<[AtomicU8]>);

impl Written {
    const BLOCK: usize = 64 << 10;
    /// As many writes by the system take about as long as the faults of a block.
    const MOST: u8 = 8;

    fn new(len: usize) -> Self {
        Self((0..len.div_ceil(Self::BLOCK)).map(|_| AtomicU8::new(0)).collect())
    }

    fn blocks(&self, bytes: Range<usize>) -> &[AtomicU8] {
        let (first, end) = (bytes.start / Self::BLOCK, bytes.end.div_ceil(Self::BLOCK));
        self.0.get(first..end).unwrap_or_default()
    }

    /// How often the system has written some of these bytes before, if it is to write them again.
    fn note(&self, bytes: Range<usize>) -> Option<u8> {
        let blocks = self.blocks(bytes);
        let times = blocks.iter().map(|times| times.load(Ordering::Relaxed)).max().unwrap_or(0);
        if times >= Self::MOST {
            return None;
        }
        // Of two threads, one may not be counted.
        blocks.iter().for_each(|times| {
            times.store(times.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
        });
        Some(times)
    }

    /// They are made durable.
    fn forget(&self, bytes: Range<usize>) {
        self.blocks(bytes).iter().for_each(|times| times.store(0, Ordering::Relaxed));
    }
}

/// The first error of a write to storage, of one mapping.
#[derive(Debug, Default)]
struct Lost(Mutex<Option<PersistError>>);

impl Lost {
    fn is_told(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Calls `sync` unless an earlier call of it has failed.
    fn unless(&self, sync: impl FnOnce() -> Result<(), PersistError>) -> Result<(), PersistError> {
        // Held meanwhile: the system tells an error once, and the second thread must hear it.
        let mut lost = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*lost {
            Some(error) => Err(*error),
            None => sync().inspect_err(|error| {
                *lost = Some(match *error {
                    PersistError::System { call, errno } => PersistError::Poisoned { call, errno },
                    other => other,
                });
            }),
        }
    }
}

fn failed_call(errno: Errno) -> PersistError {
    PersistError::System { call: "msync", errno: errno.raw_os_error() }
}

/// Memory of rank 0 on storage, in which the parts of all ranks lie, as another rank maps it.
#[derive(Debug)]
struct OfFirstRank {
    all: Box<dyn Mapped>,
    lost: Lost,
}

/// Of an import of what [`StorageMemory::extents`] said.
pub(crate) fn of_first_rank(all: Box<dyn Mapped>) -> Arc<dyn Backing> {
    Arc::new(OfFirstRank { all, lost: Lost::default() })
}

// SAFETY: as of the import.
unsafe impl Mapped for OfFirstRank {
    fn mapping(&self) -> Mapping {
        self.all.mapping()
    }
}

// SAFETY: the import stays mapped as long as it lives; no rank is told how to map it, and no
// reference into it is made here. It is not exclusive.
unsafe impl Backing for OfFirstRank {
    fn extents(&self) -> Vec<Extent> {
        Vec::new()
    }

    fn info(&self) -> Vec<(&'static str, String)> {
        let by = Means::Msync("the file is rank 0's").explain();
        vec![("alloc_type", "storage".to_owned()), ("rma_storage_durable_by", by)]
    }

    fn is_durable(&self) -> bool {
        true
    }

    /// The system knows what any process has changed, and writes it: of a neighbour's part, too,
    /// where that has bytes of the same page.
    fn persist(&self, range: Range<u64>) -> Result<(), PersistError> {
        let mapping = self.mapping();
        let clamp = |at: u64| usize::try_from(at).unwrap_or(mapping.len).min(mapping.len);
        let bytes = clamp(range.start)..clamp(range.end);
        if bytes.is_empty() {
            return Ok(());
        }
        self.lost.unless(|| {
            sync_mapped(mapping, bytes.clone()).map_err(failed_call)?;
            // Its length is rank 0's to know.
            if is_whole(mapping, bytes.end) { Ok(()) } else { Err(PersistError::CutThere) }
        })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: all that this value has left of it. Addresses in it are given out by the memory
        // that has this value only, whose users have them as long as that lives (`Mapped`).
        unsafe { self.give_back(0..self.len) };
    }
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
