//! Shared words that this rank owns, or maps from a peer: a block for each communicator and window,
//! a collective block for each communicator.
//!
//! A peer may still write into words of a communicator that was dropped here, if the program
//! drops it on one rank and uses it on another. They are therefore recycled only as what they were:
//! a stale write can disturb a later barrier or lock of that wrong program, but never data. The
//! same goes for [lanes](super::lane), where it can spoil a payload of that wrong program, and
//! nothing that is not a lane.
#![allow(unsafe_code)]

use crate::memory::control_block::{
    BLOCK_BYTES, CollectiveBlock, ControlBlock, SLOT_USES, SlotUse,
};
use crate::memory::lane::{LaneGeometry, LaneMemory};
use crate::rank::WorldRank;
use crate::transport::{AllocateError, Descriptor, ImportError, Mapped, Region, Transport};
use bytemuck::{Pod, Zeroable};
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use core::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What shared words are used as, in all of their lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    ControlBlock,
    /// Of so many ranks.
    CollectiveBlock(u32),
}

impl Use {
    fn bytes(self) -> usize {
        match self {
            Self::ControlBlock => BLOCK_BYTES,
            Self::CollectiveBlock(ranks) => CollectiveBlock::bytes(ranks),
        }
    }
}

/// Shared words of this rank that are not in use.
pub(crate) struct SyncPool(Mutex<Pool>);

struct Pool {
    idle: Vec<Idle>,
    /// Peers may still come to barriers there: no other communicator gets them.
    kept: Vec<Idle>,
    idle_lanes: Vec<LaneMemory>,
    /// Lanes that peers may still read: no communicator gets them.
    kept_lanes: Vec<LaneMemory>,
}

struct Idle {
    used_as: Use,
    region: Box<dyn Region>,
    /// Of a collective block, how often it will have been read once no rank reads it any more.
    reads: AtomicU64,
}

impl Idle {
    fn is_left(&self) -> bool {
        match self.used_as {
            Use::ControlBlock => true,
            Use::CollectiveBlock(ranks) => {
                // SAFETY: the region has been such a collective block, and still is.
                let collective_block =
                    unsafe { CollectiveBlock::new(self.region.mapping().base, ranks) };
                // pairs with the Release additions of the ranks that have read.
                collective_block.reads().load(Acquire) == self.reads.load(Relaxed)
            }
        }
    }
}

impl Default for SyncPool {
    fn default() -> Self {
        let (idle, kept) = (Vec::new(), Vec::new());
        Self(Mutex::new(Pool { idle, kept, idle_lanes: Vec::new(), kept_lanes: Vec::new() }))
    }
}

impl SyncPool {
    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A lane of that geometry that no communicator has or reads.
    pub(crate) fn take_lane(&self, geometry: LaneGeometry) -> Option<LaneMemory> {
        let mut pool = self.pool();
        let fits = |lane: &LaneMemory| lane.geometry() == geometry && lane.is_read();
        let found = pool.idle_lanes.iter().rposition(fits);
        found.map(|found| pool.idle_lanes.swap_remove(found))
    }

    /// Bytes of lanes that no communicator gets, now or any more.
    pub(crate) fn kept_lanes(&self) -> u64 {
        let Pool { idle_lanes, kept_lanes, .. } = &*self.pool();
        let unread = idle_lanes.iter().filter(|lane| !lane.is_read());
        kept_lanes.iter().chain(unread).map(|lane| lane.geometry().bytes() as u64).sum()
    }

    /// Another communicator may have that lane if it is idle, once all is read; nothing but a
    /// communicator has it, as long as this rank is there.
    pub(crate) fn keep_lane(&self, lane: LaneMemory, is_idle: bool) {
        let Pool { idle_lanes, kept_lanes, .. } = &mut *self.pool();
        if is_idle { idle_lanes } else { kept_lanes }.push(lane);
    }
}

/// Words of this rank; go back to the pool when dropped.
struct Own {
    pool: Arc<SyncPool>,
    // `Some` until drop.
    idle: Option<Idle>,
    /// Whether every peer that came there has left.
    left: AtomicBool,
    descriptor: Descriptor,
}

impl Own {
    fn new(
        pool: &Arc<SyncPool>,
        transport: &Transport,
        used_as: Use,
    ) -> Result<Self, AllocateError> {
        let recycled = {
            let mut pool = pool.pool();
            let fits = |idle: &Idle| idle.used_as == used_as && idle.is_left();
            let found = pool.idle.iter().rposition(fits);
            found.map(|found| pool.idle.swap_remove(found))
        };
        let idle = match recycled {
            Some(idle) => idle,
            None => {
                let region = transport.shared.allocate(used_as.bytes(), 64)?;
                Idle { used_as, region, reads: AtomicU64::new(0) }
            }
        };
        let descriptor = idle.region.descriptor();
        let left = AtomicBool::new(false);
        Ok(Self { pool: pool.clone(), idle: Some(idle), left, descriptor })
    }

    fn base(&self) -> *mut u8 {
        self.idle.as_ref().expect("taken by drop only").region.mapping().base
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let Pool { idle, kept, .. } = &mut *self.pool.pool();
        if *self.left.get_mut() { idle } else { kept }.extend(self.idle.take());
    }
}

/// Maps words of a near peer.
fn import(
    transport: &Transport,
    owner: WorldRank,
    descriptor: &Descriptor,
    used_as: Use,
) -> Result<Box<dyn Mapped>, ImportError> {
    let import = transport.shared.import(owner, &[*descriptor])?;
    let mapping = import.mapping();
    if mapping.len < used_as.bytes() || !mapping.base.addr().is_multiple_of(64) {
        return Err(ImportError::Malformed(owner));
    }
    Ok(import)
}

/// A block of this rank.
pub(crate) struct SyncBlock(Own);

impl SyncBlock {
    pub(crate) fn new(pool: &Arc<SyncPool>, transport: &Transport) -> Result<Self, AllocateError> {
        let block = Self(Own::new(pool, transport, Use::ControlBlock)?);
        block.get().clear();
        Ok(block)
    }

    /// The words.
    pub(crate) fn get(&self) -> ControlBlock<'_> {
        // SAFETY: the region has `BLOCK_BYTES`, aligned as asked for in `Own::new`, lives as long
        // as `self`, and is used as a block only, here and by peers.
        unsafe { ControlBlock::new(self.0.base()) }
    }

    /// What a peer passes to [`PeerBlock::import`].
    pub(crate) fn descriptor(&self) -> Descriptor {
        self.0.descriptor
    }

    /// Whether no peer can come to a barrier there any more that matters: others may have the words
    /// when this is dropped.
    pub(crate) fn set_left(&self, left: bool) {
        self.0.left.store(left, Relaxed);
    }
}

/// A block of a near peer.
pub(crate) struct PeerBlock(Box<dyn Mapped>);

impl PeerBlock {
    pub(crate) fn import(
        transport: &Transport,
        owner: WorldRank,
        descriptor: &Descriptor,
    ) -> Result<Self, ImportError> {
        import(transport, owner, descriptor, Use::ControlBlock).map(Self)
    }

    /// The words.
    pub(crate) fn get(&self) -> ControlBlock<'_> {
        // SAFETY: long enough and aligned, as `import` checked; mapped while `self` lives; the
        // owner exported it from a `SyncBlock`, so all use it as a block only.
        unsafe { ControlBlock::new(self.0.mapping().base) }
    }
}

/// The collective block of a communicator: rank 0 owns it, the others map it.
pub(crate) struct SharedCollectiveBlock {
    ranks: u32,
    before: Before,
    words: Words,
}

/// What was counted before the first barrier of a communicator.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Before {
    /// [`CollectiveBlock::arrivals`].
    pub(crate) arrivals: u64,
    /// [`CollectiveBlock::writes`], by use.
    pub(crate) writes: [u64; SLOT_USES],
}

enum Words {
    Own(Own),
    Peer(Box<dyn Mapped>),
}

impl SharedCollectiveBlock {
    /// And how a peer [finds](Self::import) it.
    pub(crate) fn new(
        pool: &Arc<SyncPool>,
        transport: &Transport,
        ranks: u32,
    ) -> Result<(Self, Invitation), AllocateError> {
        let own = Own::new(pool, transport, Use::CollectiveBlock(ranks))?;
        let descriptor = own.descriptor.0;
        let mut collective_block = Self { ranks, before: Before::zeroed(), words: Words::Own(own) };
        let words = collective_block.get();
        let arrivals = words.arrivals().load(Relaxed);
        let writes =
            [SlotUse::Told, SlotUse::Offers].map(|slots| words.writes(slots).load(Relaxed));
        collective_block.before = Before { arrivals, writes };
        let invitation = Invitation { descriptor, before: collective_block.before };
        Ok((collective_block, invitation))
    }

    /// `invitation` is the owner's.
    pub(crate) fn import(
        transport: &Transport,
        owner: WorldRank,
        invitation: &Invitation,
        ranks: u32,
    ) -> Result<Self, ImportError> {
        let descriptor = Descriptor(invitation.descriptor);
        let words = import(transport, owner, &descriptor, Use::CollectiveBlock(ranks))?;
        Ok(Self { ranks, before: invitation.before, words: Words::Peer(words) })
    }

    /// The words.
    pub(crate) fn get(&self) -> CollectiveBlock<'_> {
        let base = match &self.words {
            Words::Own(own) => own.base(),
            Words::Peer(import) => import.mapping().base,
        };
        // SAFETY: long enough and aligned, as asked for in `Own::new` or checked by `import`;
        // mapped while `self` lives; used as a collective block of so many ranks only, here and by
        // peers.
        unsafe { CollectiveBlock::new(base, self.ranks) }
    }

    pub(crate) fn before(&self) -> Before {
        self.before
    }

    /// Whether no peer can come to a barrier there but those that do so at the same time as this
    /// rank: others may have the collective block when this is dropped.
    pub(crate) fn set_left(&self, left: bool) {
        if let Words::Own(own) = &self.words {
            own.left.store(left, Relaxed);
        }
    }

    /// Every rank is about to read all slots.
    pub(crate) fn expect_reads(&self) {
        if let Words::Own(Own { idle: Some(idle), .. }) = &self.words {
            idle.reads.fetch_add(u64::from(self.ranks), Relaxed);
        }
    }
}

/// How a peer finds a collective block.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Invitation {
    descriptor: [u8; Descriptor::LEN],
    before: Before,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::memory::control_block::Agreement;
    use crate::window::accumulate_tests::with_universe;

    #[test]
    fn a_block_is_used_again_once_all_have_read_it() {
        with_universe(Config::default(), |universe| {
            let engine = &universe.world().inner.engine;
            let collective_block = |readers| {
                let (collective_block, _) =
                    SharedCollectiveBlock::new(&engine.sync_blocks, &engine.transport, 2).unwrap();
                collective_block.set_left(true);
                collective_block.expect_reads();
                collective_block.get().reads().fetch_add(readers, Relaxed);
                core::ptr::from_ref(collective_block.get().reads())
            };
            let first = collective_block(1);
            let second = collective_block(2);
            assert_ne!(first, second, "a rank reads the first");
            assert_eq!(collective_block(2), second);
        });
    }

    #[test]
    fn arrivals_are_counted_on() {
        with_universe(Config::default(), |universe| {
            let engine = &universe.world().inner.engine;
            let block = || SyncBlock::new(&engine.sync_blocks, &engine.transport).unwrap();
            let first = block();
            first.get().arrivals().store(5, Relaxed);
            first.get().agreements(Agreement::Free).store(6, Relaxed);
            first.get().agreements(Agreement::Seal).store(9, Relaxed);
            first.set_left(true);
            drop(first);
            let second = block();
            assert_eq!(second.get().arrivals().load(Relaxed), 5);
            let counted = |on| second.get().agreements(on).load(Relaxed);
            assert_eq!([Agreement::Free, Agreement::Seal].map(counted), [6, 9]);
            let (collective_block, _) =
                SharedCollectiveBlock::new(&engine.sync_blocks, &engine.transport, 2).unwrap();
            collective_block.get().arrivals().store(7, Relaxed);
            collective_block.get().writes(SlotUse::Told).store(8, Relaxed);
            collective_block.get().writes(SlotUse::Offers).store(9, Relaxed);
            collective_block.set_left(true);
            drop(collective_block);
            let (_, Invitation { before, .. }) =
                SharedCollectiveBlock::new(&engine.sync_blocks, &engine.transport, 2).unwrap();
            assert_eq!((before.arrivals, before.writes), (7, [8, 9]));
        });
    }

    #[test]
    fn words_that_a_rank_may_still_come_to_are_kept() {
        with_universe(Config::default(), |universe| {
            let engine = &universe.world().inner.engine;
            let block = || {
                core::ptr::from_ref(
                    SyncBlock::new(&engine.sync_blocks, &engine.transport).unwrap().get().word(0),
                )
            };
            assert_ne!(block(), block());
            let collective_block = |failed: bool| {
                let (collective_block, _) =
                    SharedCollectiveBlock::new(&engine.sync_blocks, &engine.transport, 2).unwrap();
                collective_block.set_left(true);
                collective_block.set_left(!failed);
                core::ptr::from_ref(collective_block.get().reads())
            };
            let failed = collective_block(true);
            let sound = collective_block(false);
            assert_ne!(failed, sound);
            assert_eq!(collective_block(false), sound);
        });
    }
}
