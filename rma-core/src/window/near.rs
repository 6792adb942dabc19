//! Targets whose memory load and store reach. S-G1 S-G8 S-G10 S-M1
#![allow(unsafe_code)]

use super::choice::Path;
use super::door::Entered;
use super::memory::Memory;
use super::{Part, Window};
use crate::error::RmaError;
use crate::memory::block::Block;
use crate::memory::directory::Pin;
use crate::memory::target::{Span, Target, held};
use crate::rank::Rank;
use crate::sync_block::PeerBlock;
use crate::transport::ImportError;
use core::ptr::null_mut;

impl Part {
    /// First byte of this rank's own part.
    pub(super) fn base(&self) -> *mut u8 {
        // SAFETY: creation checked that `offset..offset + size` lies inside the memory.
        unsafe { self.memory.mapping().base.add(self.offset as usize) }
    }

    /// `len` bytes at `offset` of this rank's own part; in a dynamic window, at an address.
    pub(super) fn span(&self, offset: u64, len: usize) -> Option<Held<'_>> {
        let entered = self.door.enter()?;
        if self.regions.is_some() {
            let (span, pin) = self.attached(offset, len)?;
            return Some(Held { span, _pin: Some(pin), _entered: entered });
        }
        // SAFETY: the part is mapped while `self` lives. A reference into it exists, or its user
        // has it back, only while the door is shut and nobody is inside.
        let span = unsafe { Span::of_part(self.base(), self.size, offset, len) };
        span.map(|span| Held { span, _pin: None, _entered: entered })
    }
}

/// Bytes of this rank's own part, which stay what they are until this is dropped.
pub(super) struct Held<'w> {
    span: Span<'w>,
    _pin: Option<Pin<'w>>,
    _entered: Entered<'w>,
}

impl Held<'_> {
    pub(super) fn get(&self) -> Span<'_> {
        self.span
    }
}

impl Window {
    /// The hot path of every operation: the span, if nothing stands in the way. Otherwise
    /// [`near_cold`](Self::near_cold) finds out what does.
    ///
    /// `LAZY`: the first operation to a target waits for its post.
    #[inline(always)]
    pub(crate) fn near_hot<const LAZY: bool>(
        &self,
        target: Rank,
        disp: u64,
        len: usize,
    ) -> Option<Span<'_>> {
        let entry = self.targets.get(target)?;
        if LAZY { entry.held_span(disp, len) } else { entry.span(disp, len) }
    }

    /// The span, after waiting for the post and mapping the target where that is still to be done;
    /// `Ok(None)` if operations on the target do not go by load and store.
    #[cold]
    #[inline(never)]
    pub(crate) fn near_cold<const LAZY: bool>(
        &self,
        target: Rank,
        disp: u64,
        len: usize,
    ) -> Result<Option<Span<'_>>, RmaError> {
        let Some(entry) = self.targets.get(target) else { return Ok(None) };
        if LAZY && entry.held() == held::NOT {
            self.admit_cold(target)?;
        }
        let entry = self.reach(target)?;
        if !self.loads(target) {
            return Ok(None);
        }
        self.counts.add(Path::LoadStore);
        let span = self.loaded_span(target, entry, disp, len)?.ok_or(RmaError::OutOfRange {
            window: self.id(),
            target,
            disp,
            disp_unit: entry.disp_unit(),
            len: len as u64,
            size: entry.size(),
        })?;
        Ok(Some(span))
    }

    /// The bytes of a target that is mapped and reached by load and store; `None` if they lie
    /// outside its part.
    pub(super) fn loaded_span(
        &self,
        target: Rank,
        entry: &Target,
        disp: u64,
        len: usize,
    ) -> Result<Option<Span<'_>>, RmaError> {
        if entry.is_loadable() {
            return Ok(self.targets.get(target).and_then(|entry| entry.span(disp, len)));
        }
        let base = self.map_data(target).map_err(|error| self.import_failed(error))?;
        let offset = disp.checked_mul(u64::from(entry.disp_unit()));
        // SAFETY: `map_data` gives the part, which has as many bytes as creation entered in the
        // table too, and stays mapped as long as the window. As for references, see `map`.
        let span = |offset| unsafe { Span::of_part(base, entry.size(), offset, len) };
        Ok(offset.and_then(span))
    }

    /// Both, for callers that are not as hot.
    #[inline]
    pub(crate) fn near<const LAZY: bool>(
        &self,
        target: Rank,
        disp: u64,
        len: usize,
    ) -> Result<Option<Span<'_>>, RmaError> {
        match self.near_hot::<LAZY>(target, disp, len) {
            Some(span) => Ok(Some(span)),
            None => self.near_cold::<LAZY>(target, disp, len),
        }
    }

    /// The entry of a near target, mapped.
    pub(crate) fn reach(&self, target: Rank) -> Result<&Target, RmaError> {
        let entry = self.targets.get(target).ok_or_else(|| self.no_such_rank(target))?;
        self.map_if_needed(target, entry).map_err(|error| self.import_failed(error))?;
        Ok(entry)
    }

    pub(super) fn map_if_needed(&self, target: Rank, entry: &Target) -> Result<(), ImportError> {
        if entry.is_mapped() { Ok(()) } else { self.map(target, entry) }
    }

    #[cold]
    fn map(&self, target: Rank, entry: &Target) -> Result<(), ImportError> {
        let base = if self.loads_at_once(target) { self.map_data(target)? } else { null_mut() };
        let block = self.map_block(target)?;
        // SAFETY: data and block live in `self.peers` or `self.part`, as long as the table; `block`
        // is aligned and long enough (`PeerBlock`), and so is the data (`map_data`; creation made
        // table and `peers` of the same sizes). Peers make references into their part only while
        // the window is sealed on all ranks, this one included.
        unsafe { entry.map(base, block.as_ptr()) };
        Ok(())
    }

    /// Maps the part of a rank that shares memory; its first byte, with as many behind it as its
    /// `Peer` says, as long as the window lives.
    pub(super) fn map_data(&self, target: Rank) -> Result<*mut u8, ImportError> {
        let peer = &self.peers[usize::from(target)];
        let owner = self.part.comm.world_rank(peer.owner);
        if peer.stays && target != self.rank() {
            return Err(ImportError::Malformed(owner));
        }
        let data = match peer.mapped_data.get() {
            Some(data) => data,
            None => {
                let import = || self.process().transport.shared.import(owner, &peer.data);
                // Parts in this rank's own region lie beside its own: no second mapping of it.
                let own = peer.owner == self.rank();
                let data = if own { None } else { Some(Memory::Imported(import()?)) };
                // If another thread was faster, its mapping is the one that is used.
                peer.mapped_data.get_or_init(|| data)
            }
        };
        let data = data.as_ref().unwrap_or(&self.part.memory).mapping();
        if peer.offset.checked_add(peer.size).is_none_or(|end| end > data.len as u64) {
            return Err(ImportError::Malformed(owner));
        }
        // SAFETY: `offset + size` lies inside the mapping.
        Ok(unsafe { data.base.add(peer.offset as usize) })
    }

    /// Maps the control words of a rank that shares memory.
    pub(super) fn map_block(&self, target: Rank) -> Result<Block<'_>, ImportError> {
        let peer = &self.peers[usize::from(target)];
        if let Some(block) = peer.mapped_block.get() {
            return Ok(block.get());
        }
        let (transport, owner) = (&self.process().transport, self.part.comm.world_rank(target));
        let block = PeerBlock::import(transport, owner, &peer.block)?;
        Ok(peer.mapped_block.get_or_init(|| block).get())
    }

    /// Enters this rank's own part into the table, if it has one.
    pub(super) fn map_own(&self) {
        let Some(entry) = self.targets.get(self.rank()) else { return };
        let base = if self.loads_at_once(self.rank()) { self.part.base() } else { null_mut() };
        // SAFETY: part and block live in `self.part`, as long as the table; creation sized them.
        unsafe { entry.map(base, self.part.block.get().as_ptr()) };
    }

    pub(crate) fn no_such_rank(&self, target: Rank) -> RmaError {
        let last = Rank(self.ranks().saturating_sub(1));
        RmaError::NoSuchRank { window: self.id(), target, last }
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn misaligned_cold(&self, target: Rank, disp: u64, width: usize) -> RmaError {
        RmaError::Misaligned { window: self.id(), target, disp, width: width as u32 }
    }
}
