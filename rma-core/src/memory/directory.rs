//! What a rank has attached to a dynamic window, in memory that its neighbours read.
//!
//! A slot describes one region. Its state word counts who uses the region at the moment (pins), so
//! that the owner takes it away from nobody: pin, look whether it is still the region meant, use,
//! unpin. What is meant is told by its address in the window, which no other region ever has.
#![allow(unsafe_code)]

use super::atomic;
use core::marker::PhantomData;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Words of a slot: the state, then what [`Entry`] holds.
const SLOT_WORDS: usize = 10;
/// Words of an [`Entry`].
const ENTRY_WORDS: usize = SLOT_WORDS - 1;
const SLOT_BYTES: usize = SLOT_WORDS * 8;

/// Set in a state while the slot describes a region. Below it are the pins.
const LIVE: u64 = 1 << 63;

/// Bytes of a directory of so many slots.
pub(crate) const fn directory_bytes(slots: usize) -> usize {
    slots * SLOT_BYTES
}

/// What a slot says of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Entry {
    /// Its address in the window: the window gives out none twice.
    pub(crate) start: u64,
    /// Bytes.
    pub(crate) len: u64,
    /// Nobody else maps it: whoever wants to copy there asks its owner where it lies.
    pub(crate) raw: bool,
    /// How to map it.
    pub(crate) descriptor: [u64; ENTRY_WORDS - 3],
}

/// A directory that is mapped for `'a`.
#[derive(Clone, Copy)]
pub(crate) struct Directory<'a> {
    base: *mut u8,
    slots: usize,
    life: PhantomData<&'a AtomicU64>,
}

/// Keeps a region attached until dropped.
pub(crate) struct Pin<'a>(&'a AtomicU64);

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        // pairs with the Acquire load in `is_unused`: what was done to the region is done.
        self.0.fetch_sub(1, Release);
    }
}

impl<'a> Directory<'a> {
    /// # Safety
    ///
    /// `directory_bytes(slots)` from `base` on stay mapped for `'a`, are aligned to 8, were zero at
    /// first, and are accessed through values of this type only, in every process.
    pub(crate) unsafe fn new(base: *mut u8, slots: usize) -> Self {
        Self { base, slots, life: PhantomData }
    }

    fn word(self, slot: usize, index: usize) -> &'a AtomicU64 {
        assert!(slot < self.slots && index < SLOT_WORDS, "a word of the directory");
        // SAFETY: inside the directory, by the assertion.
        let at = unsafe { self.base.add(slot * SLOT_BYTES + index * 8) };
        // SAFETY: mapped and aligned, by the contract of `new`.
        unsafe { atomic::word(at) }
    }

    fn state(self, slot: usize) -> &'a AtomicU64 {
        self.word(slot, 0)
    }

    /// Owner: describes a region in a slot that is free.
    pub(crate) fn publish(self, slot: usize, entry: &Entry) {
        let words = [entry.start, entry.len, entry.raw.into()].into_iter().chain(entry.descriptor);
        words.enumerate().for_each(|(i, word)| self.word(slot, i + 1).store(word, Relaxed));
        // pairs with the Acquire loads in `read` and `pin`: the entry, and the region's contents.
        self.state(slot).fetch_or(LIVE, Release);
    }

    /// Owner: the slot describes no region any more. Those that use it go on: wait for
    /// [`is_unused`](Self::is_unused).
    pub(crate) fn withdraw(self, slot: usize) {
        // Who pins comes before this, and is counted, or after it, and sees it: it is one word.
        self.state(slot).fetch_and(!LIVE, Relaxed);
    }

    /// Owner: whether nobody uses the region that was withdrawn.
    pub(crate) fn is_unused(self, slot: usize) -> bool {
        // pairs with the Release in `Pin`'s drop.
        self.state(slot).load(Acquire) & (LIVE - 1) == 0
    }

    /// The region of a slot, if it describes one.
    pub(crate) fn read(self, slot: usize) -> Option<Entry> {
        if slot >= self.slots {
            return None;
        }
        // Pinned, so that the entry does not change meanwhile.
        let pin = self.pinned(slot)?;
        let word = |i| self.word(slot, i + 1).load(Relaxed);
        let descriptor = core::array::from_fn(|i| word(i + 3));
        let entry = Entry { start: word(0), len: word(1), raw: word(2) != 0, descriptor };
        drop(pin);
        Some(entry)
    }

    /// Keeps the region attached that begins at `start`, if it still is, in that slot.
    pub(crate) fn pin(self, slot: usize, start: u64) -> Option<Pin<'a>> {
        if slot >= self.slots {
            return None;
        }
        let pin = self.pinned(slot)?;
        // Pinned, so that it stays what it is.
        (self.word(slot, 1).load(Relaxed) == start).then_some(pin)
    }

    /// Keeps what a slot describes attached, if it describes anything.
    fn pinned(self, slot: usize) -> Option<Pin<'a>> {
        let word = self.state(slot);
        // Most slots are free, and looking costs less than counting.
        if word.load(Relaxed) & LIVE == 0 {
            return None;
        }
        // pairs with the Release in `publish`.
        let state = word.fetch_add(1, Acquire);
        let pin = Pin(word);
        (state & LIVE != 0).then_some(pin)
    }

    /// Slots.
    pub(crate) fn slots(self) -> usize {
        self.slots
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOTS: usize = 3;

    fn with_directory(test: impl FnOnce(Directory<'_>)) {
        let mut memory = [0u64; directory_bytes(SLOTS) / 8];
        // SAFETY: zeroed, aligned, and borrowed by nobody else until `test` has returned.
        test(unsafe { Directory::new(memory.as_mut_ptr().cast(), SLOTS) });
    }

    fn entry(start: u64) -> Entry {
        Entry { start, len: 64, raw: true, descriptor: [1, 2, 3, 4, 5, 6] }
    }

    #[test]
    fn a_slot_tells_what_was_published() {
        with_directory(|directory| {
            assert!(directory.read(1).is_none());
            directory.publish(1, &entry(4096));
            assert_eq!(directory.read(1), Some(entry(4096)));
            assert!(directory.read(0).is_none());
            assert!(directory.read(SLOTS).is_none(), "no such slot");
        });
    }

    #[test]
    fn a_withdrawn_region_is_not_pinned_and_its_successor_is_another() {
        with_directory(|directory| {
            directory.publish(2, &entry(0));
            let (pin, other) = (directory.pin(2, 0).unwrap(), directory.pin(2, 0));
            directory.withdraw(2);
            directory.withdraw(2);
            assert!(directory.read(2).is_none(), "withdrawn once");
            assert!(!directory.is_unused(2), "still pinned, by two");
            drop(other);
            assert!(directory.pin(2, 0).is_none());
            assert!(!directory.is_unused(2), "a refusal takes its own pin back only");
            drop(pin);
            assert!(directory.is_unused(2));
            directory.publish(2, &entry(8));
            assert!(directory.pin(2, 0).is_none(), "the slot's earlier life");
            assert_eq!(directory.read(2), Some(entry(8)));
            assert!(directory.pin(2, 8).is_some());
            assert!(directory.pin(SLOTS, 8).is_none(), "no such slot");
        });
    }

    #[test]
    fn taking_away_waits_for_users_on_other_threads() {
        with_directory(|directory| {
            struct Shared<'a>(Directory<'a>);
            // SAFETY: a directory is made to be shared, by processes too.
            unsafe impl Sync for Shared<'_> {}
            let (shared, region) = (Shared(directory), AtomicU64::new(0));
            directory.publish(0, &entry(0));
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    let (shared, region) = (&shared, &region);
                    scope.spawn(move || {
                        while let Some(_pin) = shared.0.pin(0, 0) {
                            assert_eq!(region.load(Relaxed), 0, "taken away under a pin");
                        }
                    });
                }
                directory.withdraw(0);
                while !directory.is_unused(0) {
                    std::thread::yield_now();
                }
                region.store(1, Relaxed);
            });
        });
    }
}
