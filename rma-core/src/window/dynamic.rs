//! Dynamic windows: memory is attached and detached by its owner alone (MPI 4.1, section 12.2.4).
//!
//! A region has an address in its rank's part of the window, which no other region ever gets: so
//! whoever holds a stale address is told, and touches nothing. Neighbours find regions in the
//! owner's directory; others send messages, which the owner looks up in its own table.
//! S-L1 S-L2 S-L3 S-L5 S-L6 S-L7 S-J4
#![allow(unsafe_code)]

use super::memory::Memory;
use super::near::Held;
use super::user::{Contents, WindowMemory};
use super::{Part, View, Window, WindowId};
use crate::completion::Wait;
use crate::error::RmaError;
use crate::memory::block::STRIPES;
use crate::memory::directory::{Directory, Entry, directory_bytes};
use crate::memory::stripe::STRIPE;
use crate::memory::target::Span;
use crate::transport::{Descriptor, Transport};
use core::fmt;
use core::marker::PhantomData;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

const PAGE: u64 = 4096;
/// Addresses of regions are multiples of this, so that a byte has the same stripe whether it is
/// named by address or counted from the beginning of its region.
const ALIGN: u64 = STRIPE * STRIPES as u64;
/// Address of the first region; 0 is no address of a region.
const FIRST: u64 = ALIGN;
const _: () = assert!(FIRST > 0 && FIRST.is_multiple_of(ALIGN));
/// All addresses are below.
pub(super) const ADDRESSES: u64 = i64::MAX as u64;
/// How often a rank that detaches looks whether the last user is done: nobody rings for that.
const RECHECK: Duration = Duration::from_micros(200);

/// What this rank has attached.
pub(super) struct Regions<T: Transport> {
    table: Mutex<Table<T>>,
    slots: usize,
}

struct Table<T: Transport> {
    next: u64,
    by_start: BTreeMap<u64, Region<T>>,
    free: Vec<usize>,
}

struct Region<T: Transport> {
    len: u64,
    slot: usize,
    memory: Memory<T>,
}

/// A region that this rank has attached; from [`Window::attach`].
///
/// Peers name its bytes by [`address`](Self::address), which is plain data to be sent to them.
/// Dropping it leaves the region attached until the window is freed.
#[derive(Debug)]
#[must_use = "detach gives the memory back"]
pub struct Attached<M> {
    window: WindowId,
    start: u64,
    len: u64,
    memory: PhantomData<fn() -> M>,
}

impl<M> Attached<M> {
    /// The displacement of its first byte; those of the others follow one by one.
    pub fn address(&self) -> u64 {
        self.start
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// What was not attached or detached, given back, and why.
pub struct NotDone<V> {
    /// What the call was given.
    pub value: V,
    /// Why.
    pub error: RmaError,
}

impl<V> fmt::Debug for NotDone<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NotDone").field(&self.error).finish()
    }
}

impl<V> fmt::Display for NotDone<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<V> core::error::Error for NotDone<V> {}

impl<V> From<NotDone<V>> for RmaError {
    fn from(not_done: NotDone<V>) -> Self {
        not_done.error
    }
}

impl<T: Transport> Regions<T> {
    pub(super) fn new(slots: usize) -> Self {
        let free = (0..slots).rev().collect();
        let table = Table { next: FIRST, by_start: BTreeMap::new(), free };
        Self { table: Mutex::new(table), slots }
    }

    /// Bytes of the directory.
    pub(super) fn bytes(slots: usize) -> usize {
        directory_bytes(slots)
    }

    fn table(&self) -> MutexGuard<'_, Table<T>> {
        // Every change is one call.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The region that holds `len` bytes at `address`, if one does: its slot and its first byte,
    /// how many it has, and where in it they lie.
    fn find(&self, address: u64, len: usize) -> Option<(usize, *mut u8, u64, u64)> {
        let table = self.table();
        let (start, region) = table.by_start.range(..=address).next_back()?;
        let offset = address - start;
        if len as u64 > region.len.checked_sub(offset)? {
            return None;
        }
        Some((region.slot, region.memory.mapping().base, region.len, offset))
    }

    /// No rank can reach the regions any more.
    pub(super) fn set_freed(&self) {
        self.table().by_start.values().for_each(|region| region.memory.set_freed());
    }

    /// Regions that can be attached at once.
    pub(super) fn slots(&self) -> usize {
        self.slots
    }
}

impl<T: Transport> Part<T> {
    /// Bytes of attached memory of this rank.
    pub(super) fn attached(&self, address: u64, len: usize) -> Option<Held<'_>> {
        let (slot, base, size, offset) = self.regions.as_ref()?.find(address, len)?;
        let pin = self.directory()?.pin_own(slot)?;
        // SAFETY: the region stays attached while it is pinned. Nobody has a reference into it: its
        // owner gave it away.
        let span = unsafe { Span::of_part(base, size, offset, len) }?;
        Some(Held::new(span, Some(pin)))
    }

    /// Whether `len` bytes at `offset` can be operated on.
    pub(super) fn holds(&self, offset: u64, len: u64) -> bool {
        match &self.regions {
            Some(regions) => {
                usize::try_from(len).is_ok_and(|len| regions.find(offset, len).is_some())
            }
            None => offset.checked_add(len).is_some_and(|end| end <= self.size),
        }
    }

    /// Offsets below this may lie in the part.
    pub(super) fn reach(&self) -> u64 {
        if self.regions.is_some() { ADDRESSES } else { self.size }
    }

    /// This rank's directory.
    pub(super) fn directory(&self) -> Option<Directory<'_>> {
        let slots = self.regions.as_ref()?.slots;
        let mapping = self.memory.mapping();
        // SAFETY: creation made the part's memory a directory of so many slots, zeroed and aligned;
        // it is mapped as long as `self`, and used as a directory only, here and by peers.
        Some(unsafe { Directory::new(mapping.base, slots) })
    }
}

impl<T: Transport> Window<T> {
    /// Makes memory part of a dynamic window, reachable by the ranks that learn its
    /// [address](Attached::address). Local: no other rank takes part.
    ///
    /// A vector or boxed slice moves into the window, and comes back from
    /// [`detach`](Self::detach) as it is then (MPI 4.1, section 12.2.4).
    ///
    /// # Errors
    ///
    /// [`RmaError::WrongFlavor`] if the window is not dynamic, [`RmaError::TooManyRegions`],
    /// [`RmaError::NoMemory`], [`RmaError::AttachedTwice`] for a [`RawPart`](crate::RawPart) that
    /// overlaps one that is attached. The memory comes back with it.
    ///
    /// ```text
    /// let attached = window.attach(vec![0u64; 100])?;
    /// world.send_somehow(attached.address());
    /// ```
    pub fn attach<M: WindowMemory>(&self, memory: M) -> Result<Attached<M>, NotDone<M>> {
        match self.attach_contents(memory.contents()) {
            Ok((start, len)) => Ok(Attached { window: self.id(), start, len, memory: PhantomData }),
            Err(error) => Err(NotDone { value: memory, error }),
        }
    }

    fn attach_contents(&self, contents: Contents<'_>) -> Result<(u64, u64), RmaError> {
        let window = self.id();
        let regions = self.regions("attach")?;
        let transport = &self.process().transport;
        let (memory, len, raw) = match contents {
            Contents::Bytes(bytes) => {
                let no_memory = |error| RmaError::NoMemory { window, error };
                let align = if bytes.len() >= PAGE as usize { PAGE as usize } else { 64 };
                let region = transport.allocate(bytes.len(), align).map_err(no_memory)?;
                let memory = Memory::own(&self.part.comm.inner.process, region);
                memory.fill(bytes);
                (memory, bytes.len() as u64, 0)
            }
            Contents::At(part) => (Memory::Raw(part), part.len() as u64, part.address()),
        };
        let descriptor = memory.export(transport).unwrap_or(Descriptor([0; Descriptor::LEN]));
        let mut table = regions.table();
        if raw != 0 && table.holds_raw(raw, len) {
            return Err(RmaError::AttachedTwice { window });
        }
        let limit = regions.slots as u32;
        let slot = table.free.pop().ok_or(RmaError::TooManyRegions { window, limit })?;
        let start = table.next;
        table.next = (start + len.max(1)).next_multiple_of(ALIGN) + ALIGN;
        table.by_start.insert(start, Region { len, slot, memory });
        // Neighbours may look from here on.
        let directory = self.part.directory().expect("a dynamic window has a directory");
        directory.publish(slot, &Entry { start, len, raw, descriptor: words(descriptor) });
        Ok((start, len))
    }

    /// Takes a region out of the window, and gives its memory back as it is now. Local.
    ///
    /// Waits until operations that are under way there are done; later ones fail at their origin
    /// with [`RmaError::NotAttached`] (MPI 4.1, section 12.2.4).
    ///
    /// # Errors
    ///
    /// [`RmaError::WrongFlavor`], [`RmaError::NotAttached`] if it is of another window; a peer
    /// failed in the middle of an operation there. The region stays attached.
    pub fn detach<M: WindowMemory>(
        &self,
        attached: Attached<M>,
    ) -> Result<M, NotDone<Attached<M>>> {
        match self.detach_at(attached.window, attached.start) {
            Ok(memory) => Ok(memory),
            Err(error) => Err(NotDone { value: attached, error }),
        }
    }

    fn detach_at<M: WindowMemory>(&self, of: WindowId, start: u64) -> Result<M, RmaError> {
        let (window, target) = (self.id(), self.rank());
        let regions = self.regions("detach")?;
        let not_attached = RmaError::NotAttached { window, target, range: Some((start, 0)) };
        let slot = regions.table().by_start.get(&start).map(|region| region.slot);
        let slot = slot.filter(|_| of == window).ok_or(not_attached)?;
        let directory = self.part.directory().expect("a dynamic window has a directory");
        directory.withdraw(slot);
        let wait = Wait { what: "a detach", peer: None, recheck: Some(RECHECK) };
        let unused = || directory.is_unused(slot).then_some(());
        self.process().wait_until(wait, unused).map_err(|error| self.wait_failed(error))?;
        let region = regions.table().by_start.remove(&start).ok_or(not_attached)?;
        regions.table().free.push(slot);
        region.memory.set_freed();
        region.memory.rebuild(0, region.len as usize).ok_or(not_attached)
    }

    /// A region of this rank, to be loaded and stored; its displacements count from 0, in bytes.
    ///
    /// # Errors
    ///
    /// [`RmaError::NotAttached`] if it is of another window.
    pub fn region<'w, M>(&'w self, attached: &'w Attached<M>) -> Result<View<'w, T>, RmaError> {
        let (start, len) = (attached.start, attached.len);
        let (window, target) = (self.id(), self.rank());
        let regions = self.regions("region")?;
        let found = regions.find(start, len as usize).filter(|_| attached.window == window);
        let (_, base, ..) =
            found.ok_or(RmaError::NotAttached { window, target, range: Some((start, len)) })?;
        // Attached as long as the handle is borrowed: `detach` takes it by value.
        Ok(View::of_region(self, base, start, len))
    }

    fn regions(&self, asked: &'static str) -> Result<&Regions<T>, RmaError> {
        let flavor = RmaError::WrongFlavor { window: self.id(), asked, needed: "a dynamic window" };
        self.part.regions.as_ref().ok_or(flavor)
    }
}

impl<T: Transport> Table<T> {
    fn holds_raw(&self, raw: u64, len: u64) -> bool {
        let overlaps = |region: &Region<T>| match &region.memory {
            Memory::Raw(part) => {
                let other = part.address();
                raw < other.saturating_add(region.len) && other < raw.saturating_add(len)
            }
            _ => false,
        };
        self.by_start.values().any(overlaps)
    }
}

fn words(descriptor: Descriptor) -> [u64; Descriptor::LEN / 8] {
    let (words, _) = descriptor.0.as_chunks::<8>();
    core::array::from_fn(|i| u64::from_ne_bytes(words[i]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::universe::Config;
    use crate::window::accumulate_tests::with_universe;

    /// Whoever counts from the beginning of a region takes the same locks. S-H4
    #[test]
    fn regions_begin_with_the_first_stripe() {
        with_universe(Config::default(), |universe| {
            let window = universe.world().window(0, 1).create_dynamic().unwrap();
            for len in [1, 0, STRIPE as usize, 100] {
                let address = window.attach(vec![0u8; len]).unwrap().address();
                assert!(address > 0 && address.is_multiple_of(STRIPE * STRIPES as u64));
            }
            window.free().unwrap();
        });
    }
}
