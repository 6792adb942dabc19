//! Writing that begins before anybody waits for it.
#![allow(unsafe_code)] // room: one call of the system that starts to write

use core::ops::Range;
use rustix::fd::{AsFd, AsRawFd};

/// Has the system begin to write these bytes of a file to the device, where it knows how: whoever
/// synchronises the file later waits the less. A wish, which fails in silence.
pub(crate) fn begin_to_write(file: impl AsFd, bytes: Range<u64>) {
    let file = file.as_fd().as_raw_fd();
    let of = |at: u64| libc::off64_t::try_from(at).ok();
    let (Some(start), Some(len)) = (of(bytes.start), of(bytes.end - bytes.start)) else { return };
    // SAFETY: it takes numbers only, and touches no memory of this process; the descriptor is open,
    // as the caller lends it.
    _ = unsafe { libc::sync_file_range(file, start, len, libc::SYNC_FILE_RANGE_WRITE) };
}
