//! Writing that begins before a thread waits for it.
#![allow(unsafe_code)] // room: one call of the system that starts to write

use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use rustix::fd::{AsFd, AsRawFd};

/// Has the system begin to write these bytes of a file to the device, where it knows how: a thread
/// that synchronises the file later waits the less. A wish, which fails in silence.
pub(crate) fn begin_to_write(file: impl AsFd, bytes: Range<u64>) {
    let file = file.as_fd().as_raw_fd();
    let of = |at: u64| libc::off64_t::try_from(at).ok();
    let (Some(start), Some(len)) = (of(bytes.start), of(bytes.end - bytes.start)) else { return };
    // SAFETY: it takes numbers only, and touches no memory of this process; the descriptor is open,
    // as the caller lends it.
    _ = unsafe { libc::sync_file_range(file, start, len, libc::SYNC_FILE_RANGE_WRITE) };
}

/// What of a file was written, of which the system begins to bring some to the device: for a
/// program that has made the file durable and will do so again, and what is not written again
/// before that. What was between the last two times tells. Counts are hints: threads that come at
/// once may lose some.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    is_worth_it: AtomicBool,
    /// Bytes for which the system has not begun.
    waiting: AtomicUsize,
    /// Bytes since the file was last made durable, that were written the first time and that were
    /// written before.
    first: AtomicUsize,
    again: AtomicUsize,
}

impl Ahead {
    /// Enough for a call, and for a device to have something to do.
    const BYTES: usize = 2 << 20;
    /// If more than this part of what was written is written again, it is brought to the device
    /// twice too often.
    const AGAIN: usize = 8;

    /// So many bytes of the range were written, which had been before or not.
    pub(crate) fn written(&self, file: impl AsFd, bytes: usize, again: bool, range: Range<u64>) {
        add(if again { &self.again } else { &self.first }, bytes);
        if again || !self.is_worth_it.load(Relaxed) || add(&self.waiting, bytes) < Self::BYTES {
            return;
        }
        self.waiting.store(0, Relaxed);
        begin_to_write(file, range);
    }

    #[cfg(test)]
    pub(crate) fn is_worth_it(&self) -> bool {
        self.is_worth_it.load(Relaxed)
    }

    /// All bytes of the file are made durable that the memory has of it.
    pub(crate) fn synced(&self) {
        let [_, first, again] =
            [&self.waiting, &self.first, &self.again].map(|bytes| bytes.swap(0, Relaxed));
        if first > 0 {
            self.is_worth_it.store(again <= first / Self::AGAIN, Relaxed);
        }
    }
}

fn add(all: &AtomicUsize, bytes: usize) -> usize {
    let sum = all.load(Relaxed).saturating_add(bytes);
    all.store(sum, Relaxed);
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The system begins with what was written after a sync, once that is enough; not where it
    /// would have to write it again.
    #[test]
    fn only_what_will_be_synchronised_is_written_ahead() {
        let file = tempfile::tempfile().unwrap();
        let (ahead, piece) = (Ahead::default(), Ahead::BYTES / 2);
        let left = |bytes, again| {
            ahead.written(&file, bytes, again, 0..1);
            ahead.waiting.load(Relaxed)
        };
        assert_eq!(left(piece, false), 0, "nobody has made it durable");
        ahead.synced();
        assert_eq!(left(piece, false), piece);
        assert_eq!(left(piece, false), 0, "begun");
        assert_eq!(left(3 * piece, false), 0, "at once");
        assert_eq!(left(1, false), 1);
        assert_eq!(left(piece, true), 1, "it was begun with before");
        ahead.synced();
        assert_eq!(left(4 * piece, false), 0, "little was written again");
        assert_eq!(left(piece, true), 0);
        ahead.synced();
        assert_eq!(left(3, false), 0, "a quarter was");
        ahead.synced();
        ahead.synced();
        assert_eq!(left(3, false), 3, "nothing was, and then there was nothing to tell");
    }
}
