//! Regions of this rank in a dynamic window.
#![allow(unsafe_code)]

use super::{Memory, Part};
use crate::config::PathHint;
use crate::engine::Engine;
use crate::memory::control_block::STRIPES;
use crate::memory::directory::{Directory, DirectorySlot, PAGES, Page, Pin, page_bytes, page_of};
use crate::memory::stripe::STRIPE;
use crate::memory::target::Span;
use crate::protocol::message::Card;
use crate::transport::{AllocateError, Descriptor, RegisterError, Registration};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Addresses of regions are multiples of this, so that a byte has the same stripe whether it is
/// named by address or counted from the beginning of its region.
const ALIGN: u64 = STRIPE * STRIPES as u64;
/// Address of the first region; 0 is no address of a region.
const FIRST: u64 = ALIGN;
const _: () = assert!(FIRST > 0 && FIRST.is_multiple_of(ALIGN));
/// All addresses are below.
pub(crate) const ADDRESSES: u64 = i64::MAX as u64;

/// What this rank has attached.
pub(crate) struct Regions {
    table: Mutex<RegionTable>,
    /// Of the directory, behind the first.
    pages: [OnceLock<OwnPage>; PAGES - 1],
}

/// A page of the directory.
struct OwnPage {
    memory: Memory,
    /// How neighbours map it, if there are any.
    descriptor: Option<Descriptor>,
}

/// Any number of regions, whatever the order in which they come and go. S-L1
pub(crate) struct RegionTable {
    next: u64,
    pub(crate) by_start: BTreeMap<u64, OwnRegion>,
    /// Where regions of at least a byte lie in this process, from the first byte to behind the
    /// last. They do not overlap.
    by_place: BTreeMap<usize, usize>,
    /// Outstanding of the directory that were given back.
    free: Vec<usize>,
    /// The first slot that no region had.
    unused: usize,
}

pub(crate) struct OwnRegion {
    // Before the memory, which the device does not reach any more when that is dropped.
    pub(crate) registered: Option<Result<Box<dyn Registration>, RegisterError>>,
    pub(crate) len: u64,
    /// Of the directory: its own, then those of further extents.
    pub(crate) slots: Vec<usize>,
    pub(crate) memory: Arc<Memory>,
    /// How neighbours map it, each extent in a slot; none if they ask where it lies, and copy.
    pub(crate) descriptors: Vec<Descriptor>,
    /// They could map its extents, if there were slots for all.
    pub(crate) crowded: bool,
    pub(crate) token: Arc<Token>,
}

impl OwnRegion {
    /// Where the directory describes it.
    pub(crate) fn slot(&self) -> usize {
        self.slots[0]
    }
}

/// What a region and its handle have in common, and with nothing else in the process: addresses and
/// window ids are the same on all ranks and in every job, and handles travel between threads.
#[derive(Debug)]
pub(crate) struct Token(
    #[expect(dead_code, reason = "two values of no size may have one address")] pub(crate) u8,
);

impl Regions {
    pub(crate) fn new() -> Self {
        let (by_start, by_place) = (BTreeMap::new(), BTreeMap::new());
        let table = RegionTable { next: FIRST, by_start, by_place, free: Vec::new(), unused: 0 };
        Self { table: Mutex::new(table), pages: [const { OnceLock::new() }; PAGES - 1] }
    }

    /// The pages that there are, behind the first.
    fn added(&self) -> impl Iterator<Item = &OwnPage> {
        self.pages.iter().filter_map(OnceLock::get)
    }

    pub(crate) fn table(&self) -> MutexGuard<'_, RegionTable> {
        // Every change is one call.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether `len` bytes at `address` are of one region.
    fn holds(&self, address: u64, len: u64) -> bool {
        self.table().find(address, len).is_some()
    }

    /// Where the region lies that is attached at `start`, and its bytes, if neighbours cannot map
    /// it. Those that copy to and from it ask: every rank could write in the directory.
    pub(crate) fn raw_at(&self, start: u64) -> Option<(u64, u64)> {
        let table = self.table();
        let region = table.by_start.get(&start).filter(|region| region.descriptors.is_empty())?;
        Some((region.memory.mapping().base.expose_provenance() as u64, region.len))
    }

    /// What origins ask that have a device, of the region with the byte at `address`.
    pub(crate) fn card(&self, address: u64) -> Option<Card> {
        let table = self.table();
        let (offset, region) = table.find(address, 1)?;
        let base = region.memory.mapping().base.expose_provenance() as u64;
        let key = region.registered.as_ref().and_then(|registered| registered.as_ref().ok());
        let key = key.map(|registration| registration.key());
        Some(Card::new((address - offset, region.len), 1, base, key))
    }

    /// From now on no device reaches what is attached.
    pub(crate) fn deregister(&self) {
        let taken = |region: &mut OwnRegion| region.registered.take();
        let all: Vec<_> = self.table().by_start.values_mut().filter_map(taken).collect();
        drop(all);
    }

    /// How many regions the device reaches, how many it could not register, and why the first.
    pub(crate) fn registered(&self) -> (usize, usize, Option<RegisterError>) {
        let table = self.table();
        let all = table.by_start.values().filter_map(|region| region.registered.as_ref());
        let (taken, refused): (Vec<_>, Vec<_>) = all.partition(|registered| registered.is_ok());
        let why = refused.iter().find_map(|refused| refused.as_ref().err().copied());
        (taken.len(), refused.len(), why)
    }

    /// How many regions neighbours could map, if there were slots for their extents.
    pub(crate) fn crowded(&self) -> usize {
        self.table().by_start.values().filter(|region| region.crowded).count()
    }

    /// Where regions begin whose memory outlives the job, and their bytes.
    pub(crate) fn durable(&self) -> Vec<(u64, u64)> {
        let table = self.table();
        let durable = table.by_start.iter().filter(|(_, region)| region.memory.is_durable());
        durable.map(|(start, region)| (*start, region.len)).collect()
    }

    /// No rank can reach the regions any more.
    pub(crate) fn set_freed(&self) {
        self.table().by_start.values().for_each(|region| region.memory.set_freed());
        self.added().for_each(|page| page.memory.set_freed());
    }
}

impl Part {
    /// Memory of this rank that `len` bytes at `address` are of, where in it they begin, and what
    /// keeps it attached: `detach` waits for that, and then has the memory alone.
    pub(crate) fn attached_memory(
        &self,
        address: u64,
        len: u64,
    ) -> Option<(Arc<Memory>, u64, Pin<'_>)> {
        let regions = self.regions.as_ref()?;
        let table = regions.table();
        let (offset, region) = table.find(address, len)?;
        // While the table is locked, as in `attached`.
        let pin = self.slot(region.slot())?.pin(address - offset)?;
        Some((region.memory.clone(), offset, pin))
    }

    /// Bytes of attached memory of this rank, and what keeps them attached.
    pub(crate) fn attached(&self, address: u64, len: usize) -> Option<(Span<'_>, Pin<'_>)> {
        let regions = self.regions.as_ref()?;
        let table = regions.table();
        let (offset, region) = table.find(address, len as u64)?;
        // While the table is locked, so that the slot is still this region's: `detach` takes it
        // out of the table before it withdraws the slot.
        let pin = self.slot(region.slot())?.pin(address - offset)?;
        let (base, size) = (region.memory.mapping().base, region.len);
        // SAFETY: the region has `size` bytes from `base` on, and stays attached, and so mapped,
        // while it is pinned. No reference into it exists: its owner gave it away.
        let span = unsafe { Span::of_part(base, size, offset, len) }?;
        Some((span, pin))
    }

    /// Whether `len` bytes at `offset` can be operated on.
    pub(crate) fn holds(&self, offset: u64, len: u64) -> bool {
        match &self.regions {
            Some(regions) => regions.holds(offset, len),
            None => offset.checked_add(len).is_some_and(|end| end <= self.size),
        }
    }

    /// Offsets below this may lie in the part.
    pub(crate) fn reach(&self) -> u64 {
        if self.regions.is_some() { ADDRESSES } else { self.size }
    }

    /// This rank's directory, of a dynamic window.
    fn directory(&self) -> Option<Directory<'_>> {
        self.regions.as_ref()?;
        let mapping = self.memory.mapping();
        // SAFETY: creation made the part's memory a directory, aligned; it is mapped as long as
        // `self`, and used as a directory only.
        Some(unsafe { Directory::new(mapping.base) })
    }

    /// A page of this rank's directory, if there is one.
    pub(crate) fn page(&self, page: usize) -> Option<Page<'_>> {
        let (directory, regions) = (self.directory()?, self.regions.as_ref()?);
        let Some(place) = page.checked_sub(1) else { return Some(directory.first()) };
        let base = regions.pages.get(place)?.get()?.memory.mapping().base;
        // SAFETY: `add_page` allocated it, aligned and as long as that page; it is mapped as long
        // as `self`, and used as a page only.
        Some(unsafe { Page::new(base, page) })
    }

    /// A slot of this rank's directory, if it is in a page that there is.
    pub(crate) fn slot(&self, slot: usize) -> Option<DirectorySlot<'_>> {
        self.page(page_of(slot))?.slot(slot)
    }

    /// Sees to it that a slot is in a page, and neighbours know of that.
    pub(crate) fn add_page(&self, slot: usize, engine: &Arc<Engine>) -> Result<(), AllocateError> {
        let (Some(regions), Some(directory)) = (&self.regions, self.directory()) else {
            return Ok(());
        };
        // Those before it, too, which other threads may be about to add: peers look for a page up
        // to the first that there is not.
        for (place, page) in regions.pages.iter().zip(1..=page_of(slot)) {
            let added = match place.get() {
                Some(added) => added,
                None => {
                    let memory = Memory::allocate(engine, page_bytes(page), PathHint::Auto)?;
                    let described = memory.descriptors(engine);
                    let described = described.inspect_err(|_| memory.set_freed())?;
                    let new = OwnPage { memory, descriptor: described.into_iter().next() };
                    if let Err(other) = place.set(new) {
                        // Another thread was faster; no peer knows of this one.
                        other.memory.set_freed();
                    }
                    place.get().expect("it was set")
                }
            };
            // Also by a thread that was slower: its own region is published after this.
            if let Some(descriptor) = &added.descriptor {
                directory.add(page, descriptor);
            }
        }
        Ok(())
    }
}

impl RegionTable {
    /// The region that holds `len` bytes at `address`, and where in it they begin. S-L6
    fn find(&self, address: u64, len: u64) -> Option<(u64, &OwnRegion)> {
        let (start, region) = self.by_start.range(..=address).next_back()?;
        let offset = address - start;
        (len <= region.len.checked_sub(offset)?).then_some((offset, region))
    }

    /// The region of a handle. S-L6
    pub(crate) fn named(&self, start: u64, token: &Arc<Token>) -> Option<&OwnRegion> {
        self.by_start.get(&start).filter(|region| Arc::ptr_eq(&region.token, token))
    }

    /// An address for a region of so many bytes, which no other gets; `None` if there is none left.
    pub(crate) fn new_start(&mut self, len: u64) -> Option<u64> {
        let start = self.next;
        let end = start.checked_add(len.max(1)).filter(|end| *end <= ADDRESSES - 2 * ALIGN)?;
        self.next = end.next_multiple_of(ALIGN) + ALIGN;
        Some(start)
    }

    #[cfg(test)]
    pub(crate) fn set_next_start(&mut self, next: u64) {
        self.next = next;
    }

    /// Slots that no region has, so that at most `most` are in use: `count` of them, or one if
    /// there are not as many; none if there is none.
    pub(crate) fn take_slots(&mut self, count: usize, most: usize) -> Vec<usize> {
        let mut slots: Vec<usize> = (0..count).map_while(|_| self.take_slot(most)).collect();
        if slots.len() < count {
            slots.drain(1.min(slots.len())..).for_each(|slot| self.free.push(slot));
        }
        slots
    }

    fn take_slot(&mut self, most: usize) -> Option<usize> {
        if self.unused - self.free.len() >= most {
            return None;
        }
        let new = self.unused;
        Some(self.free.pop().unwrap_or_else(|| {
            self.unused += 1;
            new
        }))
    }

    pub(crate) fn give_slots_back(&mut self, slots: &[usize]) {
        self.free.extend(slots.iter().rev());
    }

    /// Notes where memory lies that is to be attached; false if it overlaps some that is. S-L6
    pub(crate) fn occupy(&mut self, memory: &Memory) -> bool {
        let (base, end) = place_of(memory);
        // Those that are attached do not overlap: the last that begins before the end reaches
        // furthest.
        let last = self.by_place.range(..end).next_back();
        let free = base == end || last.is_none_or(|(_, other_end)| *other_end <= base);
        if free && base < end {
            self.by_place.insert(base, end);
        }
        free
    }

    /// Memory is not attached any more that was [noted](Self::occupy).
    pub(crate) fn leave(&mut self, memory: &Memory) {
        let (base, end) = place_of(memory);
        if base < end {
            self.by_place.remove(&base);
        }
    }
}

/// Where memory lies: its first byte, and behind its last.
fn place_of(memory: &Memory) -> (usize, usize) {
    let mapping = memory.mapping();
    (mapping.base.addr(), mapping.base.addr().saturating_add(mapping.len))
}
