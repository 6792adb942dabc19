//! Maps targets whose memory load and store reach.
#![allow(unsafe_code)]

use crate::config::PathHint;
use crate::error::RmaError;
use crate::memory::control_block::ControlBlock;
use crate::memory::pool::PeerBlock;
use crate::memory::target::{Span, Target};
use crate::rank::Rank;
use crate::transport::ImportError;
use crate::window::{PeerPart, Window};

impl Window {
    /// Whether the table shows the way to it: nothing counts, and the transport is not told of
    /// accesses.
    pub(crate) fn loads_at_once(&self, target: Rank) -> bool {
        let told = self.engine().transport.views.is_some();
        self.loads(target) && !self.counts_all && !told
    }

    /// Whether operations on `target` go by load and store.
    pub(crate) fn loads(&self, target: Rank) -> bool {
        let stays = self.peers.get(target).is_none_or(|peer| peer.stays());
        let mapped = !stays || target == self.rank();
        let near = self.targets.near(target).is_some();
        mapped && near && self.part.regions.is_none() && self.path != PathHint::Cma
    }

    /// All of the part of a target that is mapped and reached by load and store. S-M1
    pub(crate) fn loaded_part(&self, target: Rank, size: u64) -> Result<Span<'_>, RmaError> {
        let loadable = self.targets.get(target).filter(|entry| entry.is_loadable());
        if let Some(part) = loadable.and_then(|entry| entry.part()) {
            return Ok(part);
        }
        let base = self.map_data(target).map_err(|error| self.import_failed(error))?;
        // SAFETY: `map_data` gives the part, which has as many bytes as creation entered in the
        // table too, and stays mapped as long as the window. As for references, see `map`.
        let part = unsafe { Span::of_part(base, size, 0, size as usize) };
        part.ok_or_else(|| self.no_such_rank(target))
    }

    /// The entry of a near target, mapped.
    pub(crate) fn reach(&self, target: Rank) -> Result<&Target, RmaError> {
        let entry = self.targets.near(target).ok_or_else(|| self.no_such_rank(target))?;
        self.map_if_needed(target, entry).map_err(|error| self.import_failed(error))?;
        Ok(entry)
    }

    /// As [`reach`](Self::reach), of a rank of the window that may be far: nothing is mapped then.
    pub(crate) fn reach_if_near(&self, target: Rank) -> Result<(), RmaError> {
        if target.0 < self.ranks() && self.targets.near(target).is_none() {
            return Ok(());
        }
        self.reach(target).map(drop)
    }

    fn map_if_needed(&self, target: Rank, entry: &Target) -> Result<(), ImportError> {
        if entry.is_mapped() { Ok(()) } else { self.map(target, entry) }
    }

    #[cold]
    fn map(&self, target: Rank, entry: &Target) -> Result<(), ImportError> {
        let size = self.peer(target)?.size;
        let part = match self.loads_at_once(target) {
            true => Some((self.map_data(target)?, size)),
            false => None,
        };
        let block = self.map_block(target)?;
        // SAFETY: data and block live in `self.peers` or `self.part`, as long as the table; `block`
        // is aligned and long enough (`PeerBlock`), and so is the data, the same at every call
        // (`map_data`). Peers make references into their part only while the window is sealed on
        // all ranks, this one included.
        unsafe { entry.map(part, block.as_ptr()) };
        Ok(())
    }

    /// Maps the part of a rank that shares memory; its first byte, with as many behind it as its
    /// `PeerPart` says, as long as the window lives.
    pub(crate) fn map_data(&self, target: Rank) -> Result<*mut u8, ImportError> {
        let peer = self.peer(target)?;
        let owner = self.part.comm.world_rank(peer.owner);
        if peer.stays() && target != self.rank() {
            return Err(ImportError::Malformed(owner));
        }
        let mapped = &peer.mapped().data;
        let data = match mapped.get() {
            Some(data) => data,
            None => {
                let import = || self.engine().transport.shared.import(owner, peer.data.as_slice());
                // Parts in this rank's own region lie beside its own: no second mapping of it.
                let own = peer.owner == self.rank();
                let data = if own { None } else { Some(import()?) };
                // If another thread was faster, its mapping is the one that is used.
                mapped.get_or_init(|| data)
            }
        };
        let own = || self.part.memory.mapping();
        let data = data.as_ref().map_or_else(own, |data| data.mapping());
        if peer.offset.checked_add(peer.size).is_none_or(|end| end > data.len as u64) {
            return Err(ImportError::Malformed(owner));
        }
        // SAFETY: `offset + size` lies inside the mapping.
        Ok(unsafe { data.base.add(peer.offset as usize) })
    }

    fn peer(&self, target: Rank) -> Result<&PeerPart, ImportError> {
        let far = || ImportError::Malformed(self.part.comm.world_rank(target));
        self.peers.get(target).ok_or_else(far)
    }

    /// Maps the control words of a rank that shares memory.
    pub(crate) fn map_block(&self, target: Rank) -> Result<ControlBlock<'_>, ImportError> {
        let peer = self.peer(target)?;
        let mapped = &peer.mapped().block;
        if let Some(block) = mapped.get() {
            return Ok(block.get());
        }
        let (transport, owner) = (&self.engine().transport, self.part.comm.world_rank(target));
        let block = PeerBlock::import(transport, owner, &peer.block)?;
        Ok(mapped.get_or_init(|| block).get())
    }

    /// Enters this rank's own part into the table, if it has one.
    pub(crate) fn map_own(&self) {
        let Some(entry) = self.targets.get(self.rank()) else { return };
        let loads = self.loads_at_once(self.rank());
        let part = loads.then(|| (self.part.base(), self.part.size));
        // SAFETY: part and block live in `self.part`, as long as the table; creation sized them.
        unsafe { entry.map(part, self.part.block.get().as_ptr()) };
    }

    /// The block with the stripes of a part that this rank reaches.
    pub(crate) fn block_of(&self, target: Rank) -> Result<ControlBlock<'_>, RmaError> {
        if let Some(block) = self.targets.get(target).and_then(|entry| entry.block()) {
            return Ok(block);
        }
        if target == self.rank() {
            return Ok(self.part.block.get());
        }
        self.map_block(target).map_err(|error| self.import_failed(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::accumulate_tests::with_near;

    /// Where a part begins, and how long it is, is what peers said: it is held against the memory.
    #[test]
    fn a_part_lies_inside_of_its_memory() {
        with_near(|universe| {
            let mut window = universe.world().window(8, 8).allocate().unwrap();
            let base = window.part.base();
            for (offset, size) in [(0, 64), (8, 56), (64, 0)] {
                set(&mut window, offset, size);
                let at = window.map_data(Rank(0)).unwrap();
                assert_eq!(at.addr() - base.addr(), offset as usize);
            }
            for (offset, size) in [(0, 65), (8, 64), (65, 0), (1 << 40, 8), (u64::MAX, 1)] {
                set(&mut window, offset, size);
                let error = window.map_data(Rank(0)).unwrap_err();
                assert!(matches!(error, ImportError::Malformed(_)), "{offset} {size}: {error}");
            }
            set(&mut window, 0, 64);
            window.free().unwrap();
        });
    }

    fn set(window: &mut Window, offset: u64, size: u64) {
        let peer = window.peers.all[0].as_mut().unwrap();
        (peer.offset, peer.size) = (offset, size);
    }
}
