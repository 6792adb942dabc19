//! Writing that begins before anybody waits for it.
#![allow(unsafe_code)] // room: one call of the system that starts to write

use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
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

/// What of a file was written since the system last began to bring it to the device. Counts are
/// hints: threads that come at once may lose some.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    /// Who has made it durable once will do so again; others may not want it on the device at all.
    is_synced: AtomicBool,
    bytes: AtomicUsize,
}

impl Ahead {
    /// Enough for a call, and for a device to have something to do.
    const BYTES: usize = 2 << 20;

    /// So many bytes of the range were written.
    pub(crate) fn written(&self, file: impl AsFd, bytes: usize, range: Range<u64>) {
        if !self.is_synced.load(Relaxed) {
            return;
        }
        let all = self.bytes.load(Relaxed).saturating_add(bytes);
        if all < Self::BYTES {
            return self.bytes.store(all, Relaxed);
        }
        self.bytes.store(0, Relaxed);
        begin_to_write(file, range);
    }

    /// All is made durable.
    pub(crate) fn synced(&self) {
        self.is_synced.store(true, Relaxed);
        self.bytes.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The system begins with what was written after a sync, once that is enough.
    #[test]
    fn only_what_will_be_synchronised_is_written_ahead() {
        let file = tempfile::tempfile().unwrap();
        let (ahead, piece) = (Ahead::default(), Ahead::BYTES / 2);
        let left = |bytes| {
            ahead.written(&file, bytes, 0..1);
            ahead.bytes.load(Relaxed)
        };
        assert_eq!(left(piece), 0, "nobody has made it durable");
        ahead.synced();
        assert_eq!(left(piece), piece);
        assert_eq!(left(piece), 0, "begun");
        assert_eq!(left(3 * piece), 0, "at once");
        assert_eq!(left(1), 1);
        ahead.synced();
        assert_eq!(left(0), 0);
    }
}
