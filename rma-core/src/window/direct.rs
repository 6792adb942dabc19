//! Targets that are reached neither through the table nor by messages: memory that stays where its
//! user put it, and regions of a dynamic window.
#![allow(unsafe_code)]

use super::Window;
use super::choice::Path;
use super::memory::Memory;
use super::serve::query;
use crate::error::RmaError;
use crate::memory::directory::{Directory, Entry, Generation, Pin};
use crate::memory::target::{Span, held};
use crate::protocol::message::{Head, Kind};
use crate::rank::Rank;
use crate::transport::{Cma, CrossError, Descriptor, ImportError, WorldRank};
use core::sync::atomic::{AtomicU32, Ordering::Release, Ordering::SeqCst};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Regions of peers that this rank has used, by target and address.
#[derive(Default)]
pub(super) struct Known(Mutex<HashMap<Rank, Regions>>);

type Regions = BTreeMap<u64, KnownRegion>;

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

struct KnownRegion {
    slot: usize,
    generation: Generation,
    len: u64,
    at: At,
}

/// Where a region lies.
enum At {
    /// Mapped, all of it.
    Here(Arc<Memory>),
    /// At that address of its owner, who lets others read and write there.
    There(u64),
}

impl Clone for KnownRegion {
    fn clone(&self) -> Self {
        Self { at: self.at.clone(), ..*self }
    }
}

impl Clone for At {
    fn clone(&self) -> Self {
        match self {
            Self::Here(memory) => Self::Here(memory.clone()),
            Self::There(address) => Self::There(*address),
        }
    }
}

/// Bytes of a mapped region, which stays attached until this is dropped.
pub(super) struct Region<'w> {
    memory: Arc<Memory>,
    /// `offset + len` lies inside the memory.
    offset: u64,
    len: usize,
    _pin: PeerPin<'w>,
}

impl Region<'_> {
    /// Where in the region they begin.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    pub(super) fn span(&self) -> Span<'_> {
        self.bytes(self.offset, self.len)
    }

    /// From the beginning of the region to the last of the bytes.
    pub(super) fn up_to_end(&self) -> Span<'_> {
        self.bytes(0, self.offset as usize + self.len)
    }

    fn bytes(&self, offset: u64, len: usize) -> Span<'_> {
        let mapping = self.memory.mapping();
        // SAFETY: mapped as long as `memory`, which is borrowed; its owner gave it away, so there
        // is no reference into it.
        let span = unsafe { Span::of_part(mapping.base, mapping.len as u64, offset, len) };
        span.expect("a region is as long as it says")
    }
}

/// Bytes of a target that can be copied to and from without its help, until this is dropped.
pub(super) struct Direct<'w> {
    window: &'w Window,
    target: Rank,
    way: Way<'w>,
}

enum Way<'w> {
    Mapped(Region<'w>),
    /// At that address of the owner. Pinned, if it can be detached.
    Crossed {
        cma: &'w dyn Cma,
        owner: WorldRank,
        address: u64,
        _pin: Option<PeerPin<'w>>,
    },
}

impl Known {
    fn lock(&self) -> MutexGuard<'_, HashMap<Rank, Regions>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Direct<'_> {
    /// Copies `origin` there, as many bytes as were asked for.
    pub(super) fn write(&self, origin: &[u8]) -> Result<(), RmaError> {
        match &self.way {
            Way::Mapped(region) => {
                region.span().write(origin);
                Ok(())
            }
            Way::Crossed { cma, owner, address, .. } => {
                // SAFETY: the owner vouched for its part (`RawPart::new`) or allocated it: others
                // may write there as long as it is part of the window; and only as many bytes are
                // written as were checked to lie inside.
                let copied = unsafe { cma.copy_to(*owner, *address, origin) };
                copied.map_err(|error| self.failed(error))
            }
        }
    }

    /// Fills `origin`, as many bytes as were asked for.
    pub(super) fn read(&self, origin: &mut [u8]) -> Result<(), RmaError> {
        match &self.way {
            Way::Mapped(region) => {
                region.span().read(origin);
                Ok(())
            }
            Way::Crossed { cma, owner, address, .. } => {
                let copied = cma.copy_from(*owner, *address, origin);
                copied.map_err(|error| self.failed(error))
            }
        }
    }

    fn failed(&self, error: CrossError) -> RmaError {
        RmaError::Cross { window: self.window.id(), target: self.target, error }
    }
}

impl Window {
    /// `len` bytes at `offset` of a target's part, if they can be copied to and from without a
    /// message. For targets that are not reached through the table.
    ///
    /// In a dynamic window the offset is an address, and it is an error if nothing is attached
    /// there.
    pub(super) fn direct(
        &self,
        target: Rank,
        owner: WorldRank,
        offset: u64,
        len: usize,
    ) -> Result<Option<Direct<'_>>, RmaError> {
        if self.targets.is_empty() {
            return Ok(None);
        }
        let (owner, at, pin) = if self.part.regions.is_some() {
            let (at, offset, pin) = self.pin(target, offset, len)?;
            match at {
                At::Here(memory) => {
                    self.counts.add(Path::LoadStore);
                    let way = Way::Mapped(Region { memory, offset, len, _pin: pin });
                    return Ok(Some(Direct { window: self, target, way }));
                }
                At::There(address) => (owner, address + offset, Some(pin)),
            }
        } else {
            // A part may lie in memory of another rank.
            let peer = &self.peers[usize::from(target)];
            (self.part.comm.world_rank(peer.owner), peer.address + offset, None)
        };
        let Some(cma) = self.process().transport.cma_with(owner) else { return Ok(None) };
        self.counts.add(Path::Cross);
        let way = Way::Crossed { cma, owner, address: at, _pin: pin };
        Ok(Some(Direct { window: self, target, way }))
    }

    /// `len` bytes at `address` of a dynamic window, if load and store reach them.
    pub(super) fn reach_region<const LAZY: bool>(
        &self,
        target: Rank,
        address: u64,
        len: usize,
    ) -> Result<Option<Region<'_>>, RmaError> {
        if self.part.regions.is_none() || self.targets.get(target).is_none() {
            return Ok(None);
        }
        if LAZY && self.held(target) == held::NOT {
            self.admit_cold(target)?;
        }
        let (at, offset, pin) = self.pin(target, address, len)?;
        Ok(match at {
            At::Here(memory) => {
                self.counts.add(Path::LoadStore);
                Some(Region { memory, offset, len, _pin: pin })
            }
            At::There(_) => None,
        })
    }

    /// Where `len` bytes at `address` are, and what keeps them there.
    fn pin(
        &self,
        target: Rank,
        address: u64,
        len: usize,
    ) -> Result<(At, u64, PeerPin<'_>), RmaError> {
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
        let (window, range) = (self.id(), Some((address, len as u64)));
        let (at, offset, pin) = found.ok_or(RmaError::NotAttached { window, target, range })?;
        Ok((at, offset, PeerPin { _pin: pin, _inside: inside }))
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
        regions: &Regions,
        directory: Directory<'w>,
        address: u64,
        len: usize,
    ) -> Option<(At, u64, Pin<'w>)> {
        let (start, region) = regions.range(..=address).next_back()?;
        let offset = address - start;
        if len as u64 > region.len.checked_sub(offset)? {
            return None;
        }
        let pin = directory.pin(region.slot, region.generation)?;
        Some((region.at.clone(), offset, pin))
    }

    /// What the directory of `target` says.
    fn learn(&self, directory: Directory<'_>, target: Rank) -> Result<Regions, RmaError> {
        let mut regions = Regions::new();
        let mut old = self.known.lock().get(&target).cloned().unwrap_or_default();
        for slot in 0..directory.slots() {
            let Some((generation, entry)) = directory.read(slot) else { continue };
            let same = |known: &KnownRegion| (known.slot, known.generation) == (slot, generation);
            let region = match old.remove(&entry.start).filter(same) {
                Some(region) => region,
                None => {
                    let found = if entry.raw {
                        self.ask_for_raw(target, entry.start)?
                    } else {
                        let at = self.import_region(directory, slot, generation, target, &entry);
                        let at = at.map_err(|error| self.import_failed(error))?;
                        at.map(|at| (entry.len, at))
                    };
                    // `None` if it was detached meanwhile.
                    let Some((len, at)) = found else { continue };
                    KnownRegion { slot, generation, len, at }
                }
            };
            regions.insert(entry.start, region);
        }
        Ok(regions)
    }

    /// Bytes of the raw part that a rank has attached at `start`, and where they lie. Nobody but
    /// that rank is believed: the answer says where in its memory this one writes.
    fn ask_for_raw(&self, target: Rank, start: u64) -> Result<Option<(u64, At)>, RmaError> {
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
        Ok(base.zip(len).map(|(base, len)| (len, At::There(base))))
    }

    fn import_region(
        &self,
        directory: Directory<'_>,
        slot: usize,
        generation: Generation,
        target: Rank,
        entry: &Entry,
    ) -> Result<Option<At>, ImportError> {
        let Some(_pin) = directory.pin(slot, generation) else { return Ok(None) };
        let owner = self.part.comm.world_rank(target);
        let mut descriptor = [0; Descriptor::LEN];
        for (bytes, word) in descriptor.chunks_exact_mut(8).zip(entry.descriptor) {
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        let import = self.process().transport.shared.import(owner, &Descriptor(descriptor))?;
        if (import.mapping().len as u64) < entry.len {
            return Err(ImportError::Malformed(owner));
        }
        Ok(Some(At::Here(Arc::new(Memory::Imported(import)))))
    }

    fn directory_of(&self, target: Rank) -> Result<Directory<'_>, RmaError> {
        let base = self.map_data(target).map_err(|error| self.import_failed(error))?;
        let slots = self.part.regions.as_ref().map_or(0, |regions| regions.slots());
        // SAFETY: `map_data` gives the target's part, which in a dynamic window is a directory,
        // mapped as long as the window; it has as many slots as this rank's (`Peer::size`).
        Ok(unsafe { Directory::new(base, slots) })
    }
}
