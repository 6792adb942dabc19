//! Regions of this rank in a dynamic window.
#![allow(unsafe_code)]

use super::{Memory, Part};
use crate::memory::block::STRIPES;
use crate::memory::directory::{Directory, Pin, directory_bytes};
use crate::memory::stripe::STRIPE;
use crate::memory::target::Span;
use crate::transport::Descriptor;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    slots: usize,
}

pub(crate) struct RegionTable {
    next: u64,
    pub(crate) by_start: BTreeMap<u64, OwnRegion>,
    /// Slots of the directory.
    pub(crate) free: Vec<usize>,
}

pub(crate) struct OwnRegion {
    pub(crate) len: u64,
    pub(crate) slot: usize,
    pub(crate) memory: Arc<Memory>,
    /// How neighbours map it; `None` if they ask where it lies, and copy.
    pub(crate) descriptor: Option<Descriptor>,
    pub(crate) token: Arc<Token>,
}

/// What a region and its handle have in common, and with nothing else in the process: addresses and
/// window ids are the same on all ranks and in every job, and handles travel between threads.
#[derive(Debug)]
pub(crate) struct Token(
    #[expect(dead_code, reason = "two values of no size may have one address")] pub(crate) u8,
);

impl Regions {
    pub(crate) fn new(slots: usize) -> Self {
        let free = (0..slots).rev().collect();
        let table = RegionTable { next: FIRST, by_start: BTreeMap::new(), free };
        Self { table: Mutex::new(table), slots }
    }

    /// Bytes of the directory.
    pub(crate) fn bytes(slots: usize) -> usize {
        directory_bytes(slots)
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
        let region = table.by_start.get(&start).filter(|region| region.descriptor.is_none())?;
        Some((region.memory.mapping().base.expose_provenance() as u64, region.len))
    }

    /// The memory of the region that holds `len` bytes at `address`, and where in it they begin.
    pub(crate) fn memory_at(&self, address: u64, len: u64) -> Option<(Arc<Memory>, u64)> {
        let table = self.table();
        let (offset, region) = table.find(address, len)?;
        Some((region.memory.clone(), offset))
    }

    /// No rank can reach the regions any more.
    pub(crate) fn set_freed(&self) {
        self.table().by_start.values().for_each(|region| region.memory.set_freed());
    }

    /// Regions that can be attached at once.
    pub(crate) fn slots(&self) -> usize {
        self.slots
    }
}

impl Part {
    /// Bytes of attached memory of this rank, and what keeps them attached.
    pub(crate) fn attached(&self, address: u64, len: usize) -> Option<(Span<'_>, Pin<'_>)> {
        let regions = self.regions.as_ref()?;
        let table = regions.table();
        let (offset, region) = table.find(address, len as u64)?;
        // While the table is locked, so that the slot is still this region's: `detach` takes it
        // out of the table before it withdraws the slot.
        let pin = self.directory()?.pin(region.slot, address - offset)?;
        let (base, size) = (region.memory.mapping().base, region.len);
        // SAFETY: the region has `size` bytes from `base` on, and stays attached, and so mapped,
        // while it is pinned. Nobody has a reference into it: its owner gave it away.
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

    /// This rank's directory.
    pub(crate) fn directory(&self) -> Option<Directory<'_>> {
        let slots = self.regions.as_ref()?.slots;
        let mapping = self.memory.mapping();
        // SAFETY: creation made the part's memory a directory of so many slots, zeroed and aligned;
        // it is mapped as long as `self`, and used as a directory only, here and by peers.
        Some(unsafe { Directory::new(mapping.base, slots) })
    }
}

impl RegionTable {
    /// The region that holds `len` bytes at `address`, and where in it they begin.
    fn find(&self, address: u64, len: u64) -> Option<(u64, &OwnRegion)> {
        let (start, region) = self.by_start.range(..=address).next_back()?;
        let offset = address - start;
        (len <= region.len.checked_sub(offset)?).then_some((offset, region))
    }

    /// The region of a handle.
    pub(crate) fn named(&self, start: u64, token: &Arc<Token>) -> Option<&OwnRegion> {
        self.by_start.get(&start).filter(|region| Arc::ptr_eq(&region.token, token))
    }

    /// An address for a region of so many bytes, which no other gets.
    pub(crate) fn new_start(&mut self, len: u64) -> u64 {
        let start = self.next;
        self.next = (start + len.max(1)).next_multiple_of(ALIGN) + ALIGN;
        start
    }

    /// Whether memory overlaps some that is attached: what the library allocated never does.
    pub(crate) fn overlaps(&self, memory: &Memory) -> bool {
        let range = |memory: &Memory| (memory.mapping().base.addr(), memory.mapping().len);
        let (at, len) = range(memory);
        let overlaps = |(other, other_len): (usize, usize)| {
            at < other.saturating_add(other_len) && other < at.saturating_add(len)
        };
        self.by_start.values().any(|region| overlaps(range(&region.memory)))
    }
}
