//! Regions of dynamic windows at peers, as their directories tell of them.
#![allow(unsafe_code)]

use crate::error::RmaError;
use crate::memory::directory::{
    Directory, DirectorySlot, Entry, Page, Pin, descriptor, holds, page_bytes, page_of,
    slots_before,
};
use crate::memory::target::Span;
use crate::protocol::message::{Head, Kind, query};
use crate::rank::Rank;
use crate::transport::{Descriptor, EXTENTS_MAX, ImportError, Mapped, Mapping};
use crate::window::{KnownRegion, RegionsOf, Where, Window};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Release, SeqCst};
use std::sync::Arc;

/// Keeps a region of a peer attached, and says that this rank does.
pub(super) struct PeerPin<'w> {
    _pin: Pin<'w>,
    _inside: Inside<'w>,
}

/// Counts the threads of this rank that are inside regions of peers, or look for them.
struct Inside<'w>(&'w AtomicU32);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        // Release keeps it behind the pin.
        self.0.fetch_sub(1, Release);
    }
}

/// A region that is mapped here, which stays attached until this is dropped. S-L4
pub(crate) struct PinnedRegion<'w> {
    memory: Arc<dyn Mapped>,
    /// Address of its first byte.
    start: u64,
    _pin: PeerPin<'w>,
}

impl<'w> PinnedRegion<'w> {
    pub(super) fn new(memory: Arc<dyn Mapped>, start: u64, pin: PeerPin<'w>) -> Self {
        Self { memory, start, _pin: pin }
    }

    /// Address of its first byte.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// All of it.
    pub(crate) fn span(&self) -> Span<'_> {
        let mapping = self.memory.mapping();
        // SAFETY: mapped as long as `memory`, which is borrowed; its owner gave it away, so there
        // is no reference into it.
        let span = unsafe { Span::of_part(mapping.base, mapping.len as u64, 0, mapping.len) };
        span.expect("all of a mapping lies inside it")
    }
}

/// What was found: where it lies, its address and what keeps it attached.
type Found<'w> = (Where, u64, Pin<'w>);

impl Window {
    /// What holds `len` bytes at `address`, where that begins, and what keeps it there.
    pub(super) fn pin(
        &self,
        target: Rank,
        (address, len): (u64, u64),
        tries: bool,
    ) -> Result<(Where, u64, PeerPin<'_>), RmaError> {
        let inside = self.inside_peers()?;
        let found = match self.pin_known(target, address, len)? {
            Some(found) => Some(found),
            None => self.find_region(target, (address, len), tries)?,
        };
        let (window, range) = (self.id(), Some((address, len)));
        let (at, start, pin) = found.ok_or(RmaError::NotAttached { window, target, range })?;
        Ok((at, start, PeerPin { _pin: pin, _inside: inside }))
    }

    /// Pins the region that holds the bytes, if it is known and still attached.
    fn pin_known(
        &self,
        target: Rank,
        address: u64,
        len: u64,
    ) -> Result<Option<Found<'_>>, RmaError> {
        let mut known = self.known.lock();
        let Some(regions) = known.get_mut(&target) else { return Ok(None) };
        let Some((start, region)) = regions.below(address) else { return Ok(None) };
        if !holds((start, region.len), address, len) {
            return Ok(None);
        }
        let slot = self.slot_of(target, region.slot)?;
        match slot.and_then(|slot| slot.pin(start)) {
            Some(pin) => Ok(Some((region.at.clone(), start, pin))),
            None => {
                regions.forget(start);
                Ok(None)
            }
        }
    }

    /// Looks for the region that holds the bytes in the directory of `target`, and remembers it.
    fn find_region(
        &self,
        target: Rank,
        (address, len): (u64, u64),
        tries: bool,
    ) -> Result<Option<Found<'_>>, RmaError> {
        let mut pages = Vec::new();
        while let Some(page) = self.page_of(target, pages.len())? {
            pages.push(page);
        }
        let slots = slots_before(pages.len());
        // Regions that were attached one after the other mostly have one slot after the other.
        let near = |regions: &RegionsOf| regions.below(address).map(|(_, region)| region.slot);
        let first = self.known.lock().get(&target).and_then(near).unwrap_or(0);
        for number in (first..slots).chain(0..first.min(slots)) {
            let Some(slot) = pages[page_of(number)].slot(number) else { continue };
            if slot.may_hold(address, len)
                && let Some(found) = self.learn(target, (number, slot), (address, len), tries)?
            {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// What a slot describes, if that holds the bytes and is what it says; it is known from then
    /// on.
    fn learn<'w>(
        &'w self,
        target: Rank,
        (number, slot): (usize, DirectorySlot<'w>),
        (address, len): (u64, u64),
        tries: bool,
    ) -> Result<Option<Found<'w>>, RmaError> {
        let Some((entry, pin)) = slot.read() else { return Ok(None) };
        if !entry.holds(address, len) {
            return Ok(None);
        }
        let start = entry.start;
        let (found, pin) = if entry.extents == 0 && tries {
            // A message finds the way without the answer.
            return Ok(Some((Where::Unasked, start, pin)));
        } else if entry.extents == 0 {
            // Its owner need not wait for this rank before it answers.
            drop(pin);
            (self.query_raw(target, start)?, slot.pin(start))
        } else {
            let descriptors = self.extents_of(target, &entry)?;
            let at = self.import_region(target, &entry, &descriptors);
            let at = at.map_err(|error| self.import_failed(error))?;
            (Some((entry.len, at)), Some(pin))
        };
        // `None` if it was detached meanwhile.
        let (Some((size, at)), Some(pin)) = (found, pin) else { return Ok(None) };
        if !holds((start, size), address, len) {
            return Ok(None);
        }
        let region = KnownRegion { slot: number, len: size, at: at.clone() };
        let attached = |number, start| {
            let slot = self.slot_of(target, number).ok().flatten();
            slot.is_some_and(|slot| slot.may_be(start))
        };
        self.known.lock().entry(target).or_default().insert(start, region, attached);
        Ok(Some((at, start, pin)))
    }

    /// Counts this thread, unless the rank has left, and so would not take its pins back.
    fn inside_peers(&self) -> Result<Inside<'_>, RmaError> {
        // Sequentially consistent, see `EpochState::set_left`.
        self.part.inside_peers.fetch_add(1, SeqCst);
        let inside = Inside(&self.part.inside_peers);
        self.check_left().map(|()| inside)
    }

    /// Bytes of the raw part that a rank has attached at `start`, and where they lie. No other rank
    /// is believed: the answer says where in its memory this one writes.
    fn query_raw(&self, target: Rank, start: u64) -> Result<Option<(u64, Where)>, RmaError> {
        let world = self.part.comm.world_rank(target);
        let query = |which: u64| {
            let mut head = Head::new(Kind::Query, self.id().0, 0);
            head.offset = which.into();
            let what = "asking where attached memory lies";
            match self.query(what, target, world, head, &start.to_le_bytes()) {
                Err(RmaError::NotAttached { .. }) => Ok(None),
                answer => answer.map(Some),
            }
        };
        let (base, len) = (query(query::RAW_BASE)?, query(query::RAW_LEN)?);
        Ok(base.zip(len).map(|(base, len)| (len, Where::There(base))))
    }

    /// How to map a region that stays attached meanwhile: of as many extents as any memory has, at
    /// most, each in a slot that says that it is of this region.
    fn extents_of(&self, target: Rank, entry: &Entry) -> Result<Vec<Descriptor>, RmaError> {
        let (mut all, mut before) = (vec![descriptor(entry.descriptor)], *entry);
        let (count, owner) = (entry.extents as usize, self.part.comm.world_rank(target));
        while count <= EXTENTS_MAX && all.len() < count {
            let slot = self.slot_of(target, before.next as usize)?;
            let further = slot.map(DirectorySlot::described);
            let Some(further) = further.filter(|further| further.start == entry.start) else {
                break;
            };
            all.push(descriptor(further.descriptor));
            before = further;
        }
        let whole = all.len() == count;
        whole.then_some(all).ok_or_else(|| self.import_failed(ImportError::Malformed(owner)))
    }

    /// Maps a region that stays attached meanwhile.
    fn import_region(
        &self,
        target: Rank,
        entry: &Entry,
        descriptors: &[Descriptor],
    ) -> Result<Where, ImportError> {
        let owner = self.part.comm.world_rank(target);
        let import = self.engine().transport.shared.import(owner, descriptors)?;
        if (import.mapping().len as u64) < entry.len {
            return Err(ImportError::Malformed(owner));
        }
        Ok(Where::Here(import.into()))
    }

    /// A slot of the directory of `target`, if it is in a page that there is.
    fn slot_of(&self, target: Rank, slot: usize) -> Result<Option<DirectorySlot<'_>>, RmaError> {
        Ok(self.page_of(target, page_of(slot))?.and_then(|page| page.slot(slot)))
    }

    /// A page of the directory of `target`, mapped, if there is one.
    fn page_of(&self, target: Rank, page: usize) -> Result<Option<Page<'_>>, RmaError> {
        if target == self.rank() {
            return Ok(self.part.page(page));
        }
        let base = self.map_data(target).map_err(|error| self.import_failed(error))?;
        // SAFETY: `map_data` gives the target's part, which in a dynamic window is a directory:
        // as long as this rank's (`PeerPart::size`), aligned as all memory of the transport, mapped
        // as long as the window, and used as a directory only.
        let directory = unsafe { Directory::new(base) };
        if page == 0 {
            return Ok(Some(directory.first()));
        }
        let mapped = self.map_page(target, directory, page);
        let mapped = mapped.map_err(|error| self.import_failed(error))?;
        // SAFETY: `map_page` has held length and alignment of the mapping, which lives as long as
        // the window, against those of the page. It is memory that a rank of this library has
        // described there (soundness.md): such as `Part::add_page` allocated, and no window's.
        Ok(mapped.map(|mapped| unsafe { Page::new(mapped.mapping().base, page) }))
    }

    /// A page of the directory of `target` behind the first, if its owner has added it. Whatever
    /// the index says: the mapping is as long as the page and aligned.
    fn map_page(
        &self,
        target: Rank,
        directory: Directory<'_>,
        page: usize,
    ) -> Result<Option<&dyn Mapped>, ImportError> {
        let owner = self.part.comm.world_rank(target);
        let kept = self.peers.get(target).and_then(|peer| peer.mapped().pages.get(page));
        let Some(kept) = kept else { return Ok(None) };
        if let Some(mapped) = kept.get() {
            return Ok(Some(&**mapped));
        }
        let Some(descriptor) = directory.added(page) else { return Ok(None) };
        let import = self.engine().transport.shared.import(owner, &[descriptor])?;
        if !holds_page(import.mapping(), page) {
            return Err(ImportError::Malformed(owner));
        }
        // If another thread was faster, its mapping is the one that is used.
        Ok(Some(&**kept.get_or_init(|| import)))
    }
}

/// Whether a mapping is as long as a page, and aligned as its words.
fn holds_page(mapping: Mapping, page: usize) -> bool {
    mapping.len >= page_bytes(page) && mapping.base.addr().is_multiple_of(8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RawPart;
    use crate::window::accumulate_tests::with_near;

    /// And so can it in the index of a directory: what is mapped is a page, or nothing is.
    #[test]
    fn a_page_is_what_its_number_says() {
        let mapping = |at: usize, len| Mapping { base: core::ptr::without_provenance_mut(at), len };
        for page in [1, 2, 20] {
            let len = page_bytes(page);
            assert!(holds_page(mapping(64, len), page) && holds_page(mapping(8, len + 1), page));
            for (at, len) in [(64, len - 1), (64, 0), (65, len), (68, len)] {
                assert!(!holds_page(mapping(at, len), page), "{page}: {len} bytes at {at}");
            }
        }
        with_near(|universe| {
            let window = universe.world().window(0, 1).create_dynamic().unwrap();
            // SAFETY: this rank's own directory, which lives as long as the window.
            let directory = unsafe { Directory::new(window.map_data(Rank(0)).unwrap()) };
            let map = |page| window.map_page(Rank(0), directory, page);
            assert!([1, 20, 21, usize::MAX].into_iter().all(|page| map(page).unwrap().is_none()));
            directory.add(1, &Descriptor([255; Descriptor::LEN]));
            assert!(matches!(map(1), Err(ImportError::Malformed(_))));
            window.free().unwrap();
        });
    }

    /// A thread whose slot is in a later page may be faster than those that add the ones before.
    #[test]
    fn a_page_comes_with_those_before_it() {
        with_near(|universe| {
            let window = universe.world().window(0, 1).create_dynamic().unwrap();
            let engine = &window.part.comm.inner.engine;
            window.part.add_page(slots_before(3), engine).unwrap();
            // SAFETY: this rank's own directory, which lives as long as the window.
            let directory = unsafe { Directory::new(window.map_data(Rank(0)).unwrap()) };
            let added: Vec<_> = (1..5).map(|page| directory.added(page).is_some()).collect();
            assert_eq!(added, [true, true, true, false]);
            window.free().unwrap();
        });
    }

    /// Every rank of the window can write in a directory: what it says aims no copy. S-L6
    #[test]
    fn a_directory_that_was_rewritten_aims_no_copy() {
        with_near(|universe| {
            let (me, window) = (Rank(0), universe.world().window(0, 1).create_dynamic().unwrap());
            let mut memory = [0u64; 4];
            let base = memory.as_mut_ptr();
            // SAFETY: `memory` is not touched before the window is gone.
            let raw = window.attach(unsafe { RawPart::new(base.cast(), 32) }).unwrap().address();
            let mapped = window.attach(vec![0u64; 4]).unwrap().address();
            for slot in 0..2 {
                let slot = window.part.slot(slot).unwrap();
                let entry = slot.read().unwrap().0;
                slot.withdraw();
                let descriptor = [u64::MAX; Descriptor::LEN / 8];
                slot.publish(&Entry { len: 1 << 40, extents: 0, descriptor, ..entry });
            }
            let (at, start, pin) = window.pin(me, (raw, 32), false).unwrap();
            assert!(matches!(at, Where::There(address) if address == base.addr() as u64));
            assert_eq!(start, raw);
            drop(pin);
            for (address, len) in [(raw, 33), (raw + 32, 1), (mapped, 8)] {
                let error = window.pin(me, (address, len), false).err().unwrap();
                assert!(matches!(error, RmaError::NotAttached { .. }), "{address}: {error}");
            }
            window.free().unwrap();
        });
    }

    /// What it says of extents leads to slots of this region, as many as memory may have, or to
    /// nothing.
    #[test]
    fn extents_are_those_of_the_region() {
        with_near(|universe| {
            let (me, window) = (Rank(0), universe.world().window(0, 1).create_dynamic().unwrap());
            let start = window.attach(vec![0u64; 4]).unwrap().address();
            let slot = |number| window.part.slot(number).unwrap();
            let entry = slot(0).read().unwrap().0;
            assert_eq!((entry.extents, window.extents_of(me, &entry).unwrap().len()), (1, 1));
            let further = Entry { next: 3, ..entry };
            slot(2).describe(&further);
            slot(3).describe(&Entry { next: 2, ..entry });
            slot(4).describe(&Entry { start: start + 1, ..entry });
            let found = |extents: u32, next: u32| {
                let mut asked = entry;
                (asked.extents, asked.next) = (extents, next);
                let all = window.extents_of(me, &asked);
                assert!(matches!(all, Ok(_) | Err(RmaError::Import { .. })), "{all:?}");
                all.ok().map(|all| all.len())
            };
            let most = EXTENTS_MAX as u32;
            assert_eq!([found(3, 2), found(most, 2)], [Some(3), Some(EXTENTS_MAX)]);
            for (extents, next) in
                [(most + 1, 2), (u32::MAX, 2), (2, 4), (2, 63), (2, 64), (2, u32::MAX)]
            {
                assert_eq!(found(extents, next), None, "{extents} from {next} on");
            }
            window.free().unwrap();
        });
    }
}
