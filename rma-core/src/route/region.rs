//! RegionsOf of dynamic windows at peers, as their directories tell of them. S-L4
#![allow(unsafe_code)]

use crate::error::RmaError;
use crate::memory::directory::{Directory, Entry, Pin};
use crate::memory::target::Span;
use crate::protocol::message::{Head, Kind, query};
use crate::rank::Rank;
use crate::transport::{Descriptor, ImportError, Mapped};
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

/// A region that is mapped here, which stays attached until this is dropped.
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

impl Window {
    /// What holds `len` bytes at `address`, where that begins, and what keeps it there.
    pub(super) fn pin(
        &self,
        target: Rank,
        address: u64,
        len: u64,
    ) -> Result<(Where, u64, PeerPin<'_>), RmaError> {
        let (directory, inside) = (self.directory_of(target)?, self.inside_peers()?);
        let known = self
            .known
            .lock()
            .get(&target)
            .and_then(|regions| Self::pin_in(regions, directory, address, len));
        let found = if known.is_some() {
            known
        } else {
            let regions = self.learn(directory, target)?;
            // In what this thread has read: another may be about to store what it read before.
            let found = Self::pin_in(&regions, directory, address, len);
            self.known.lock().insert(target, regions);
            found
        };
        let (window, range) = (self.id(), Some((address, len)));
        let (at, start, pin) = found.ok_or(RmaError::NotAttached { window, target, range })?;
        Ok((at, start, PeerPin { _pin: pin, _inside: inside }))
    }

    /// Counts this thread, unless the rank has left, and so would not take its pins back.
    fn inside_peers(&self) -> Result<Inside<'_>, RmaError> {
        // Sequentially consistent, see `EpochState::set_left`.
        self.part.inside_peers.fetch_add(1, SeqCst);
        let inside = Inside(&self.part.inside_peers);
        self.check_left().map(|()| inside)
    }

    /// Pins the region that holds the bytes, if it is one of those and still attached.
    fn pin_in<'w>(
        regions: &RegionsOf,
        directory: Directory<'w>,
        address: u64,
        len: u64,
    ) -> Option<(Where, u64, Pin<'w>)> {
        let (start, region) = regions.range(..=address).next_back()?;
        if len > region.len.checked_sub(address - start)? {
            return None;
        }
        let pin = directory.pin(region.slot, *start)?;
        Some((region.at.clone(), *start, pin))
    }

    /// What the directory of `target` says.
    fn learn(&self, directory: Directory<'_>, target: Rank) -> Result<RegionsOf, RmaError> {
        let mut regions = RegionsOf::new();
        let mut old = self.known.lock().get(&target).cloned().unwrap_or_default();
        for slot in 0..directory.slots() {
            let Some(entry) = directory.read(slot) else { continue };
            let same = |known: &KnownRegion| known.slot == slot;
            let region = match old.remove(&entry.start).filter(same) {
                Some(region) => region,
                None => {
                    let found = if entry.raw {
                        self.ask_for_raw(target, entry.start)?
                    } else {
                        let at = self.import_region(directory, slot, target, &entry);
                        let at = at.map_err(|error| self.import_failed(error))?;
                        at.map(|at| (entry.len, at))
                    };
                    // `None` if it was detached meanwhile.
                    let Some((len, at)) = found else { continue };
                    KnownRegion { slot, len, at }
                }
            };
            regions.insert(entry.start, region);
        }
        Ok(regions)
    }

    /// Bytes of the raw part that a rank has attached at `start`, and where they lie. Nobody but
    /// that rank is believed: the answer says where in its memory this one writes.
    fn ask_for_raw(&self, target: Rank, start: u64) -> Result<Option<(u64, Where)>, RmaError> {
        let world = self.part.comm.world_rank(target);
        let ask = |which: u64| {
            let mut head = Head::new(Kind::Query, self.id().0, 0);
            head.offset = which.into();
            let what = "asking where attached memory lies";
            match self.ask(what, target, world, head, &start.to_le_bytes()) {
                Err(RmaError::NotAttached { .. }) => Ok(None),
                answer => answer.map(Some),
            }
        };
        let (base, len) = (ask(query::RAW_BASE)?, ask(query::RAW_LEN)?);
        Ok(base.zip(len).map(|(base, len)| (len, Where::There(base))))
    }

    fn import_region(
        &self,
        directory: Directory<'_>,
        slot: usize,
        target: Rank,
        entry: &Entry,
    ) -> Result<Option<Where>, ImportError> {
        let Some(_pin) = directory.pin(slot, entry.start) else { return Ok(None) };
        let owner = self.part.comm.world_rank(target);
        let mut descriptor = [0; Descriptor::LEN];
        for (bytes, word) in descriptor.chunks_exact_mut(8).zip(entry.descriptor) {
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        let import = self.engine().transport.shared.import(owner, &[Descriptor(descriptor)])?;
        if (import.mapping().len as u64) < entry.len {
            return Err(ImportError::Malformed(owner));
        }
        Ok(Some(Where::Here(import.into())))
    }

    fn directory_of(&self, target: Rank) -> Result<Directory<'_>, RmaError> {
        let base = self.map_data(target).map_err(|error| self.import_failed(error))?;
        let slots = self.part.regions.as_ref().map_or(0, |regions| regions.slots());
        // SAFETY: `map_data` gives the target's part, which in a dynamic window is a directory,
        // mapped as long as the window; it has as many slots as this rank's (`PeerPart::size`).
        Ok(unsafe { Directory::new(base, slots) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RawPart;
    use crate::window::accumulate_tests::with_near;

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
            let directory = window.part.directory().unwrap();
            for slot in 0..2 {
                let entry = directory.read(slot).unwrap();
                directory.withdraw(slot);
                let descriptor = [u64::MAX; Descriptor::LEN / 8];
                directory.publish(slot, &Entry { len: 1 << 40, raw: true, descriptor, ..entry });
            }
            let (at, start, pin) = window.pin(me, raw, 32).unwrap();
            assert!(matches!(at, Where::There(address) if address == base.addr() as u64));
            assert_eq!(start, raw);
            drop(pin);
            for (address, len) in [(raw, 33), (raw + 32, 1), (mapped, 8)] {
                let error = window.pin(me, address, len).err().unwrap();
                assert!(matches!(error, RmaError::NotAttached { .. }), "{address}: {error}");
            }
            window.free().unwrap();
        });
    }
}
