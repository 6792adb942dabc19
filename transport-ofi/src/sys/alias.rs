//! A second mapping of memory, which can be taken from a provider that reaches memory through it.
//!
//! A provider without hardware copies to and from registered memory in its calls, and may be in the
//! middle of a transfer when the registration is closed. It is given an alias: memory of the
//! system's comes in its place before the memory itself may die, whatever peers and provider do.
#![allow(unsafe_code)]

use super::end::end;
use super::object::Failed;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::fs::read;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::{Mutex, OnceLock, PoisonError};

/// A second mapping of memory of this process; nothing is touched through it when it is gone.
pub(crate) struct Alias {
    pages: Pages,
    /// What comes in its place.
    instead: BorrowedFd<'static>,
    /// From the beginning of a page to the first byte.
    skip: usize,
    len: usize,
}

/// Addresses that this process has mapped.
struct Pages {
    start: NonNull<u8>,
    len: usize,
}

/// What is left of an alias that was cut: its addresses, with memory behind them that nothing is
/// kept in.
pub(crate) struct Remains {
    /// Unmapped when it is dropped.
    _pages: Pages,
}

// SAFETY: mapped for the whole process, and not touched here.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

/// Why memory has no alias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoAlias {
    /// It is this process's alone, or made of several pieces.
    Unfit,
    /// The system refused the call.
    System(&'static str, i32),
}

impl From<Failed> for NoAlias {
    fn from((call, errno): Failed) -> Self {
        Self::System(call, errno)
    }
}

impl Alias {
    /// Maps `len` bytes from `base` on a second time.
    ///
    /// # Safety
    ///
    /// They are mapped during the call.
    pub(crate) unsafe fn new(base: *mut u8, len: usize) -> Result<Self, NoAlias> {
        // SAFETY: it takes nothing but a name.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let page = usize::try_from(page).ok().filter(|page| page.is_power_of_two());
        let page = page.ok_or(NoAlias::Unfit)?;
        let skip = base.addr() % page;
        let whole = skip.checked_add(len).and_then(|len| len.checked_next_multiple_of(page));
        let whole = whole.filter(|_| len > 0).ok_or(NoAlias::Unfit)?;
        let first = base.wrapping_sub(skip);
        // Bytes: a mapped file may have any name.
        let maps = read("/proc/self/maps");
        let maps = maps.map_err(|error| refused("read of /proc/self/maps", &error))?;
        if !is_one_shared(&maps, first.addr(), whole) {
            return Err(NoAlias::Unfit);
        }
        let instead = instead(whole)?;
        // SAFETY: an old length of 0 maps the same pages once more, somewhere else, and leaves
        // what is there: they are shared, and follow each other in one file.
        let start = unsafe { libc::mremap(first.cast(), 0, whole, libc::MREMAP_MAYMOVE) };
        match NonNull::new(start.cast::<u8>()).filter(|_| start != libc::MAP_FAILED) {
            Some(start) => Ok(Self { pages: Pages { start, len: whole }, instead, skip, len }),
            None => Err(refused("mremap", &io::Error::last_os_error()).into()),
        }
    }

    /// New memory, which has no other owner.
    pub(super) fn fresh(len: usize) -> Result<Self, Failed> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let instead = instead(len)?;
        // SAFETY: it replaces nothing.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, rights, flags, -1, 0) };
        match NonNull::new(start.cast::<u8>()).filter(|_| start != libc::MAP_FAILED) {
            Some(start) => Ok(Self { pages: Pages { start, len }, instead, skip: 0, len }),
            None => Err(refused("mmap", &io::Error::last_os_error())),
        }
    }

    /// Its first byte, and how many there are.
    pub(crate) fn span(&self) -> (*mut u8, usize) {
        (self.pages.start.as_ptr().wrapping_add(self.skip), self.len)
    }

    /// Puts other memory in its place: what is touched through it from now on is that. The
    /// addresses are no other mapping's until the remains are dropped. The process ends if the
    /// system refuses, since the memory would not be safe from peers otherwise.
    pub(crate) fn cut(self) -> Remains {
        let Pages { start, len } = &self.pages;
        let (rights, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
        let (at, file) = (start.as_ptr().cast(), self.instead.as_raw_fd());
        // SAFETY: addresses of this alias, which no reference or safe code has.
        let mapped = unsafe { libc::mmap(at, *len, rights, flags, file, 0) };
        if mapped == libc::MAP_FAILED {
            end("memory of a window", ("mmap", last_errno()));
        }
        Remains { _pages: self.pages }
    }
}

/// What comes in the place of all aliases of this process: a file as long as the longest. Only what
/// is touched takes memory, and its mappings are no private memory of the process, which may be
/// limited. It has so many bytes at least.
fn instead(len: usize) -> Result<BorrowedFd<'static>, Failed> {
    static FILE: OnceLock<OwnedFd> = OnceLock::new();
    /// Its bytes, of which it never has less. Held by the thread that makes it or has it grow.
    static BYTES: Mutex<usize> = Mutex::new(0);
    let mut bytes = BYTES.lock().unwrap_or_else(PoisonError::into_inner);
    let file = match FILE.get() {
        Some(file) => file,
        None => {
            let file = memfd_create("rma-remains", MemfdFlags::CLOEXEC);
            let file = file.map_err(|error| refused("memfd_create", &error.into()))?;
            FILE.get_or_init(|| file)
        }
    };
    if *bytes < len {
        ftruncate(file, len as u64).map_err(|error| refused("ftruncate", &error.into()))?;
        *bytes = len;
    }
    Ok(file.as_fd())
}

fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or_default()
}

fn refused(call: &'static str, error: &io::Error) -> Failed {
    (call, error.raw_os_error().unwrap_or_default())
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `Alias::new`, and unmapped here only; the owner vouches that nothing is
        // touched there any more: an alias stands below its registration, remains below the
        // endpoint that used it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Whether these addresses are mapped, shared, from consecutive bytes of one file, by what
/// /proc/self/maps says.
fn is_one_shared(maps: &[u8], start: usize, len: usize) -> bool {
    let Some(end) = start.checked_add(len) else { return false };
    let (mut at, mut follows) = (start, None);
    for line in maps.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let Some(entry) = Entry::parse(line) else { return false };
        if entry.end <= at {
            continue;
        }
        let offset = at.wrapping_sub(entry.start).wrapping_add(entry.offset);
        let expected = *follows.get_or_insert((entry.file, offset.wrapping_sub(at)));
        if entry.start > at || !entry.is_shared || (entry.file, offset.wrapping_sub(at)) != expected
        {
            return false;
        }
        at = entry.end;
        if at >= end {
            return true;
        }
    }
    false
}

/// A line of /proc/self/maps.
struct Entry<'m> {
    start: usize,
    end: usize,
    is_shared: bool,
    offset: usize,
    /// Device and inode.
    file: (&'m [u8], &'m [u8]),
}

impl<'m> Entry<'m> {
    fn parse(line: &'m [u8]) -> Option<Self> {
        let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let (range, rights, offset) = (words.next()?, words.next()?, words.next()?);
        let mut ends = range.split(|byte| *byte == b'-').map(number);
        Some(Self {
            start: ends.next()??,
            end: ends.next()??,
            is_shared: rights.ends_with(b"s") && rights.starts_with(b"rw"),
            offset: number(offset)?,
            file: (words.next()?, words.next()?),
        })
    }
}

fn number(text: &[u8]) -> Option<usize> {
    usize::from_str_radix(std::str::from_utf8(text).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::{Alias, NoAlias, is_one_shared};
    use std::ptr;

    const MAPS: &[u8] = b"\
0100-0200 r--p 00000000 00:01 3 /a file \xff\xfe
1000-3000 rw-s 00000000 00:01 7 /memfd:a (deleted)
3000-4000 rw-s 00002000 00:01 7 /memfd:a (deleted)
4000-5000 rw-s 00000000 00:01 7 /memfd:a (deleted)
6000-7000 rw-p 00000000 00:00 0
7000-8000 r--s 00000000 00:01 9 /file
8000-9000 rw-s 00000000 00:01 9 /file
9000-a000 rw-s 00001000 00:01 8 /other
";

    #[test]
    fn one_piece_of_one_shared_file_has_an_alias() {
        for (start, len) in [(0x1000, 0x3000), (0x2000, 0x1000), (0x2000, 0x2000), (0x8000, 0x1000)]
        {
            assert!(is_one_shared(MAPS, start, len), "{start:x} {len:x}");
        }
    }

    #[test]
    fn other_memory_has_none() {
        let gap_before = (0x0, 0x2000);
        let jumps_back = (0x3000, 0x2000);
        let gap_behind = (0x4000, 0x2000);
        let (private, read_only) = ((0x6000, 0x1000), (0x7000, 0x1000));
        let other_file = (0x8000, 0x2000);
        let (beyond, wraps) = ((0x9000, 0x2000), (0x9000, usize::MAX));
        for (start, len) in
            [gap_before, jumps_back, gap_behind, private, read_only, other_file, beyond, wraps]
        {
            assert!(!is_one_shared(MAPS, start, len), "{start:x} {len:x}");
        }
    }

    fn map(len: usize, flags: i32) -> *mut u8 {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let flags = flags | libc::MAP_ANONYMOUS;
        // SAFETY: new memory, wherever the system has room.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, rights, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        start.cast()
    }

    #[test]
    fn what_is_written_through_an_alias_arrives_until_it_is_cut() {
        let memory = map(3 * 4096, libc::MAP_SHARED);
        // SAFETY: mapped above.
        let alias = unsafe { Alias::new(memory.wrapping_add(4000), 200) }.unwrap();
        let (start, len) = alias.span();
        assert_eq!(len, 200);
        assert_ne!(start, memory.wrapping_add(4000));
        // SAFETY: a byte of the alias, which this test alone has.
        unsafe { start.wrapping_add(199).write_volatile(7) };
        // SAFETY: the same by its other address.
        let seen = unsafe { memory.wrapping_add(4199).read_volatile() };
        assert_eq!(seen, 7);
        let remains = alias.cut();
        // SAFETY: the addresses are mapped until the remains are dropped.
        unsafe { start.wrapping_add(199).write_volatile(9) };
        // SAFETY: mapped above.
        let seen = unsafe { memory.wrapping_add(4199).read_volatile() };
        assert_eq!(seen, 7, "the memory is out of reach");
        drop(remains);
        // SAFETY: mapped above, and not used any more.
        unsafe { libc::munmap(memory.cast(), 3 * 4096) };
    }

    /// Else windows that come and go use up what a process may have (RLIMIT_DATA).
    #[test]
    fn what_is_left_is_no_private_memory() {
        let memory = map(4096, libc::MAP_SHARED);
        // SAFETY: mapped above.
        let alias = unsafe { Alias::new(memory, 4096) }.unwrap();
        let start = alias.span().0.addr();
        let remains = alias.cut();
        assert!(is_one_shared(&std::fs::read("/proc/self/maps").unwrap(), start, 4096));
        drop(remains);
        // SAFETY: mapped above, and not used any more.
        unsafe { libc::munmap(memory.cast(), 4096) };
    }

    #[test]
    fn private_memory_has_none() {
        let memory = map(4096, libc::MAP_PRIVATE);
        // SAFETY: mapped above.
        let refused = unsafe { Alias::new(memory, 64) }.err();
        assert_eq!(refused, Some(NoAlias::Unfit));
        // SAFETY: as above, and not used any more.
        unsafe { libc::munmap(memory.cast(), 4096) };
    }
}
