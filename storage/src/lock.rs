//! Locks of ranges of a file, which belong to what opened it: also two of one process exclude each
//! other, and the kernel gives them back with the last use of that: descriptors, mappings, forks.
#![allow(unsafe_code)] // room: one call of fcntl

use rustix::fd::{AsFd, AsRawFd};
use rustix::io::Errno;

/// Locks `len` bytes from `start` on against all others that lock them; false if one has some.
pub(crate) fn lock_range(file: impl AsFd, start: u64, len: u64) -> Result<bool, Errno> {
    set(file, libc::F_WRLCK, start, len)
}

/// Gives them back, also while a process that was forked meanwhile still has the file open.
pub(crate) fn unlock_range(file: impl AsFd, start: u64, len: u64) {
    _ = set(file, libc::F_UNLCK, start, len);
}

fn set(file: impl AsFd, kind: libc::c_int, start: u64, len: u64) -> Result<bool, Errno> {
    let number = |value: u64| libc::off64_t::try_from(value).map_err(|_| Errno::OVERFLOW);
    let range = libc::flock64 {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: number(start)?,
        l_len: number(len)?,
        // Must be 0 in a lock of an open file description.
        l_pid: 0,
    };
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open as long as it is borrowed, and the call reads the range only.
    let locked = unsafe { libc::fcntl(fd, libc::F_OFD_SETLK, &raw const range) };
    match Errno::from_io_error(&std::io::Error::last_os_error()) {
        _ if locked == 0 => Ok(true),
        Some(Errno::AGAIN | Errno::ACCESS) => Ok(false),
        errno => Err(errno.unwrap_or(Errno::IO)),
    }
}
