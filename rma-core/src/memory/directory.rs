//! What a rank has attached to a dynamic window, in memory that its neighbours read.
//!
//! A slot describes one region. Its state word counts its users at the moment (pins), so that the
//! owner takes it away from none: pin, look whether it is still the region meant, use, unpin. What
//! is meant is told by its address in the window, which no other region ever has.
//!
//! A region that lies on several extents has a slot for each: those of the further ones describe no
//! region, and are read and given to others while that of the region is pinned, or is unused.
//!
//! A directory begins with the first page of slots and an index of those that its owner adds when
//! it has none left, each as long as all before it together. A page stays once it is there.
#![allow(unsafe_code)]

use super::atomic;
use crate::transport::Descriptor;
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

/// Outstanding of the first page.
const FIRST_SLOTS: usize = 64;
/// Pages, with the first.
pub(crate) const PAGES: usize = 21;
/// Outstanding of all pages.
pub(crate) const SLOTS_MAX: usize = FIRST_SLOTS << (PAGES - 1);

/// Words of a page's place in the index: whether it is there, and how to map it.
const PLACE_WORDS: usize = 1 + WORDS;
const INDEX_BYTES: usize = (PAGES - 1) * PLACE_WORDS * 8;
/// Bytes that a directory begins with.
pub(crate) const DIRECTORY_BYTES: usize = INDEX_BYTES + page_bytes(0);

/// Words of a descriptor.
const WORDS: usize = Descriptor::LEN / 8;

/// Outstanding of a page.
pub(crate) const fn page_slots(page: usize) -> usize {
    if page == 0 { FIRST_SLOTS } else { FIRST_SLOTS << (page - 1) }
}

/// Outstanding of so many pages, the first ones.
pub(crate) const fn slots_before(pages: usize) -> usize {
    if pages == 0 { 0 } else { FIRST_SLOTS << (pages - 1) }
}

/// Bytes of a page.
pub(crate) const fn page_bytes(page: usize) -> usize {
    page_slots(page) * SLOT_BYTES
}

/// The page that a slot is in.
pub(crate) const fn page_of(slot: usize) -> usize {
    if slot < FIRST_SLOTS { 0 } else { (slot / FIRST_SLOTS).ilog2() as usize + 1 }
}

/// What a slot says of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Entry {
    /// Its address in the window: the window gives out none twice.
    pub(crate) start: u64,
    /// Bytes.
    pub(crate) len: u64,
    /// How many extents neighbours map, side by side. None: an origin that wants to copy there
    /// asks its owner where it lies.
    pub(crate) extents: u32,
    /// The slot of the second extent, if there is one.
    pub(crate) next: u32,
    /// How to map the first.
    pub(crate) descriptor: [u64; ENTRY_WORDS - 3],
}

impl Entry {
    /// Whether the region has `len` bytes at `address`.
    pub(crate) fn holds(&self, address: u64, len: u64) -> bool {
        holds((self.start, self.len), address, len)
    }
}

/// Whether `len` bytes at `address` lie in a region with that start and length.
pub(crate) fn holds((start, size): (u64, u64), address: u64, len: u64) -> bool {
    let room = address.checked_sub(start).and_then(|offset| size.checked_sub(offset));
    room.is_some_and(|room| len <= room)
}

/// What a directory begins with, mapped for `'a`.
#[derive(Clone, Copy)]
pub(crate) struct Directory<'a> {
    base: *mut u8,
    life: PhantomData<&'a AtomicU64>,
}

impl<'a> Directory<'a> {
    /// # Safety
    ///
    /// [`DIRECTORY_BYTES`] from `base` on stay mapped for `'a`, are aligned to 8, and no reference
    /// into them is made but by values of this type. What they hold may be anything.
    pub(crate) unsafe fn new(base: *mut u8) -> Self {
        Self { base, life: PhantomData }
    }

    /// The first slots.
    pub(crate) fn first(self) -> Page<'a> {
        // SAFETY: inside the directory.
        let base = unsafe { self.base.add(INDEX_BYTES) };
        // SAFETY: the rest of the directory, by the contract of `new`.
        unsafe { Page::new(base, 0) }
    }

    fn word(self, page: usize, index: usize) -> &'a AtomicU64 {
        assert!((1..PAGES).contains(&page) && index < PLACE_WORDS, "a word of the index");
        // SAFETY: inside the index, by the assertion.
        let at = unsafe { self.base.add(((page - 1) * PLACE_WORDS + index) * 8) };
        // SAFETY: mapped and aligned, by the contract of `new`.
        unsafe { atomic::word(at) }
    }

    /// Owner: there is a page of zeroes, and that is how to map it. To say so again changes
    /// nothing.
    pub(crate) fn add(self, page: usize, descriptor: &Descriptor) {
        let words = words(descriptor).into_iter().enumerate();
        words.for_each(|(i, word)| self.word(page, i + 1).store(word, Relaxed));
        // pairs with the Acquire load in `added`: the descriptor, and the page.
        self.word(page, 0).store(1, Release);
    }

    /// How to map a page, if its owner has added it.
    pub(crate) fn added(self, page: usize) -> Option<Descriptor> {
        // pairs with the Release in `add`.
        let there = page < PAGES && self.word(page, 0).load(Acquire) == 1;
        let word = |i| self.word(page, i + 1).load(Relaxed);
        there.then(|| descriptor(core::array::from_fn(word)))
    }
}

/// A descriptor as words of a directory.
pub(crate) fn words(descriptor: &Descriptor) -> [u64; WORDS] {
    let (words, _) = descriptor.0.as_chunks::<8>();
    core::array::from_fn(|i| u64::from_ne_bytes(words[i]))
}

/// A descriptor from words of a directory.
pub(crate) fn descriptor(words: [u64; WORDS]) -> Descriptor {
    let mut descriptor = [0; Descriptor::LEN];
    for (bytes, word) in descriptor.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_ne_bytes());
    }
    Descriptor(descriptor)
}

/// Outstanding that are mapped for `'a`.
#[derive(Clone, Copy)]
pub(crate) struct Page<'a> {
    base: *mut u8,
    page: usize,
    life: PhantomData<&'a AtomicU64>,
}

impl<'a> Page<'a> {
    /// # Safety
    ///
    /// As of [`Directory::new`], with [`page_bytes`] of that page.
    pub(crate) unsafe fn new(base: *mut u8, page: usize) -> Self {
        Self { base, page, life: PhantomData }
    }

    /// A slot, by its number in the directory, if it is in this page.
    pub(crate) fn slot(self, slot: usize) -> Option<DirectorySlot<'a>> {
        let index = slot.checked_sub(slots_before(self.page))?;
        if index >= page_slots(self.page) {
            return None;
        }
        // SAFETY: inside the page, by the comparison.
        let base = unsafe { self.base.add(index * SLOT_BYTES) };
        Some(DirectorySlot { base, life: PhantomData })
    }
}

/// A slot that is mapped for `'a`.
#[derive(Clone, Copy)]
pub(crate) struct DirectorySlot<'a> {
    base: *mut u8,
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

impl<'a> DirectorySlot<'a> {
    fn word(self, index: usize) -> &'a AtomicU64 {
        assert!(index < SLOT_WORDS, "a word of a slot");
        // SAFETY: inside the slot, by the assertion.
        let at = unsafe { self.base.add(index * 8) };
        // SAFETY: mapped and aligned, by the contract of `Page::new`.
        unsafe { atomic::word(at) }
    }

    fn state(self) -> &'a AtomicU64 {
        self.word(0)
    }

    /// Owner: describes a region in a slot that is free.
    pub(crate) fn publish(self, entry: &Entry) {
        self.describe(entry);
        // pairs with the Acquire in `pinned`: the entry, and the region's contents.
        self.state().fetch_or(LIVE, Release);
    }

    /// Owner: describes what follows the extents before, in a slot that is free and stays so; the
    /// region, which names it, is published later.
    pub(crate) fn describe(self, entry: &Entry) {
        let links = u64::from(entry.next) << 32 | u64::from(entry.extents);
        let words = [entry.start, entry.len, links].into_iter().chain(entry.descriptor);
        words.enumerate().for_each(|(i, word)| self.word(i + 1).store(word, Relaxed));
    }

    /// What the slot of a further extent says, while its region is pinned.
    pub(crate) fn described(self) -> Entry {
        let word = |i| self.word(i + 1).load(Relaxed);
        let [start, len, links] = core::array::from_fn(word);
        let (extents, next) = (links as u32, (links >> 32) as u32);
        let descriptor = core::array::from_fn(|i| word(i + 3));
        Entry { start, len, extents, next, descriptor }
    }

    /// Owner: the slot describes no region any more. Those that use it go on: wait for
    /// [`is_unused`](Self::is_unused).
    pub(crate) fn withdraw(self) {
        // A pin comes before this, and is counted, or after it, and sees it: it is one word.
        self.state().fetch_and(!LIVE, Relaxed);
    }

    /// Owner: whether no rank uses the region that was withdrawn.
    pub(crate) fn is_unused(self) -> bool {
        // pairs with the Release in `Pin`'s drop.
        self.state().load(Acquire) & (LIVE - 1) == 0
    }

    /// The region that the slot describes, if any, and what keeps it attached.
    pub(crate) fn read(self) -> Option<(Entry, Pin<'a>)> {
        // Pinned, so that the entry does not change meanwhile.
        let pin = self.pinned()?;
        Some((self.described(), pin))
    }

    /// Whether the slot seems to describe a region with `len` bytes at `address`: at a glance,
    /// while it may be changing. [`read`](Self::read) says.
    pub(crate) fn may_hold(self, address: u64, len: u64) -> bool {
        let word = |i| self.word(i).load(Relaxed);
        word(0) & LIVE != 0 && holds((word(1), word(2)), address, len)
    }

    /// Whether the slot describes the region that begins at `start`, at a glance.
    pub(crate) fn may_be(self, start: u64) -> bool {
        self.state().load(Relaxed) & LIVE != 0 && self.word(1).load(Relaxed) == start
    }

    /// Keeps the region attached that begins at `start`, if it still is, in that slot.
    pub(crate) fn pin(self, start: u64) -> Option<Pin<'a>> {
        let pin = self.pinned()?;
        // Pinned, so that it stays what it is.
        (self.word(1).load(Relaxed) == start).then_some(pin)
    }

    /// Keeps what a slot describes attached, if it describes anything.
    fn pinned(self) -> Option<Pin<'a>> {
        let word = self.state();
        // Most slots are free, and looking costs less than counting.
        if word.load(Relaxed) & LIVE == 0 {
            return None;
        }
        // pairs with the Release in `publish`.
        let state = word.fetch_add(1, Acquire);
        let pin = Pin(word);
        (state & LIVE != 0).then_some(pin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_slots(test: impl FnOnce(Page<'_>)) {
        let mut memory = [0u64; page_bytes(0) / 8];
        // SAFETY: zeroed, aligned, and borrowed by nothing else until `test` has returned.
        test(unsafe { Page::new(memory.as_mut_ptr().cast(), 0) });
    }

    fn entry(start: u64) -> Entry {
        Entry { start, len: 64, extents: 3, next: 7, descriptor: [1, 2, 3, 4, 5, 6] }
    }

    fn said(slot: DirectorySlot<'_>) -> Option<Entry> {
        slot.read().map(|(entry, _)| entry)
    }

    #[test]
    fn a_slot_tells_what_was_published() {
        with_slots(|page| {
            let slot = page.slot(1).unwrap();
            assert!(said(slot).is_none() && !slot.may_hold(4096, 1));
            slot.publish(&entry(4096));
            assert_eq!(said(slot), Some(entry(4096)));
            assert!(said(page.slot(0).unwrap()).is_none());
            for (address, len, holds) in [
                (4096, 64, true),
                (4159, 1, true),
                (4160, 0, true),
                (4160, 1, false),
                (4095, 1, false),
                (4097, u64::MAX, false),
            ] {
                assert_eq!(slot.may_hold(address, len), holds, "{address} {len}");
                assert_eq!(entry(4096).holds(address, len), holds);
            }
            assert!(slot.may_be(4096) && !slot.may_be(0));
        });
    }

    #[test]
    fn a_slot_of_a_further_extent_describes_no_region() {
        with_slots(|page| {
            let slot = page.slot(1).unwrap();
            let further = Entry { extents: u32::MAX, next: u32::MAX - 1, ..entry(4096) };
            slot.describe(&further);
            assert_eq!((slot.described(), said(slot)), (further, None));
            assert!(!slot.may_hold(4096, 1) && !slot.may_be(4096) && slot.pin(4096).is_none());
            assert!(slot.is_unused());
        });
    }

    #[test]
    fn a_withdrawn_region_is_not_pinned_and_its_successor_is_another() {
        with_slots(|page| {
            let slot = page.slot(2).unwrap();
            slot.publish(&entry(0));
            let (pin, other) = (slot.pin(0).unwrap(), slot.pin(0));
            slot.withdraw();
            slot.withdraw();
            assert!(said(slot).is_none(), "withdrawn once");
            assert!(!slot.is_unused(), "still pinned, by two");
            drop(other);
            assert!(slot.pin(0).is_none());
            assert!(!slot.is_unused(), "a refusal takes its own pin back only");
            drop(pin);
            assert!(slot.is_unused());
            slot.publish(&entry(8));
            assert!(slot.pin(0).is_none(), "the slot's earlier life");
            assert_eq!(said(slot), Some(entry(8)));
            assert!(slot.pin(8).is_some());
        });
    }

    #[test]
    fn taking_away_waits_for_users_on_other_threads() {
        with_slots(|page| {
            struct Shared<'a>(DirectorySlot<'a>);
            // SAFETY: a directory is made to be shared, by processes too.
            unsafe impl Sync for Shared<'_> {}
            let (shared, region) = (Shared(page.slot(0).unwrap()), AtomicU64::new(0));
            shared.0.publish(&entry(0));
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    let (shared, region) = (&shared, &region);
                    scope.spawn(move || {
                        while let Some(_pin) = shared.0.pin(0) {
                            assert_eq!(region.load(Relaxed), 0, "taken away under a pin");
                        }
                    });
                }
                shared.0.withdraw();
                while !shared.0.is_unused() {
                    std::thread::yield_now();
                }
                region.store(1, Relaxed);
            });
        });
    }

    /// Every slot is in one page, and pages follow each other.
    #[test]
    fn pages_divide_the_slots() {
        assert_eq!((0..PAGES).map(page_slots).sum::<usize>(), SLOTS_MAX);
        for page in 0..PAGES {
            let first = slots_before(page);
            let last = first + page_slots(page) - 1;
            assert_eq!((page_of(first), page_of(last)), (page, page));
            assert_eq!(slots_before(page + 1), last + 1);
        }
        with_slots(|page| {
            assert!(page.slot(FIRST_SLOTS - 1).is_some() && page.slot(FIRST_SLOTS).is_none());
        });
        let mut memory = vec![0u64; page_bytes(2) / 8];
        // SAFETY: as in `with_slots`.
        let page = unsafe { Page::new(memory.as_mut_ptr().cast(), 2) };
        let (before, end) = (slots_before(2), slots_before(3));
        assert!(page.slot(before - 1).is_none() && page.slot(end).is_none());
        page.slot(end - 1).unwrap().publish(&entry(1));
        assert!(page.slot(before).unwrap().pin(1).is_none());
    }

    #[test]
    fn an_index_tells_what_was_added() {
        let mut memory = [0u64; DIRECTORY_BYTES / 8];
        // SAFETY: as in `with_slots`.
        let directory = unsafe { Directory::new(memory.as_mut_ptr().cast()) };
        let named = Descriptor(core::array::from_fn(|i| i as u8));
        for page in 1..PAGES {
            assert!(directory.added(page).is_none());
            directory.add(page, &named);
            directory.add(page, &named);
            assert_eq!(directory.added(page).unwrap().0, named.0);
        }
        assert!(directory.added(PAGES).is_none(), "no such page");
        assert!(said(directory.first().slot(0).unwrap()).is_none());
        directory.first().slot(FIRST_SLOTS - 1).unwrap().publish(&entry(1));
    }
}
