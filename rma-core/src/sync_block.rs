//! Blocks of shared words that this rank owns: one for each communicator and window.
//!
//! A peer may still write into a block of a communicator that was dropped here, if the program
//! drops it on one rank and uses it on another. Blocks are therefore recycled only as blocks: a
//! stale write can disturb a later barrier or lock of that wrong program, but never data.
#![allow(unsafe_code)]

use crate::memory::block::{BLOCK_BYTES, Block, SIGNAL_WORDS, STRIPES, WORDS};
use crate::transport::{AllocateError, Descriptor, ImportError, Mapped, Transport, WorldRank};
use crate::universe::Process;
use core::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

/// Blocks of this rank that are not in use.
pub(crate) struct SyncPool<T: Transport>(Mutex<Vec<T::Region>>);

impl<T: Transport> Default for SyncPool<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

/// A zeroed block of this rank; goes back to the pool when dropped.
pub(crate) struct SyncBlock<T: Transport> {
    process: Arc<Process<T>>,
    // `Some` until drop.
    region: Option<T::Region>,
    descriptor: Descriptor,
}

impl<T: Transport> SyncBlock<T> {
    pub(crate) fn new(process: &Arc<Process<T>>) -> Result<Self, AllocateError> {
        let recycled = process.sync_blocks.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let region = match recycled {
            Some(region) => region,
            None => process.transport.allocate(BLOCK_BYTES, 64)?,
        };
        let descriptor = process.transport.export(&region);
        let block = Self { process: process.clone(), region: Some(region), descriptor };
        (0..WORDS).for_each(|word| block.get().word(word).store(0, Relaxed));
        (0..SIGNAL_WORDS).for_each(|word| block.get().signals(word).store(0, Relaxed));
        (0..STRIPES).for_each(|stripe| block.get().stripe(stripe).store(0, Relaxed));
        Ok(block)
    }

    /// The words.
    pub(crate) fn get(&self) -> Block<'_> {
        let region = self.region.as_ref().expect("taken by drop only");
        // SAFETY: the region has `BLOCK_BYTES`, aligned as asked for in `new`, lives as long as
        // `self`, and is used as a block only, here and by peers.
        unsafe { Block::new(region.mapping().base) }
    }

    /// What a peer passes to [`PeerBlock::import`].
    pub(crate) fn descriptor(&self) -> Descriptor {
        self.descriptor
    }
}

impl<T: Transport> Drop for SyncBlock<T> {
    fn drop(&mut self) {
        let mut pool = self.process.sync_blocks.0.lock().unwrap_or_else(PoisonError::into_inner);
        pool.extend(self.region.take());
    }
}

/// A block of a near peer.
pub(crate) struct PeerBlock<T: Transport>(T::Import);

impl<T: Transport> PeerBlock<T> {
    pub(crate) fn import(
        transport: &T,
        owner: WorldRank,
        descriptor: &Descriptor,
    ) -> Result<Self, ImportError> {
        let import = transport.import(owner, descriptor)?;
        let mapping = import.mapping();
        if mapping.len < BLOCK_BYTES || !mapping.base.addr().is_multiple_of(64) {
            return Err(ImportError::Malformed(owner));
        }
        Ok(Self(import))
    }

    /// The words.
    pub(crate) fn get(&self) -> Block<'_> {
        // SAFETY: long enough and aligned, as `import` checked; mapped while `self` lives; the
        // owner exported it from a `SyncBlock`, so all use it as a block only.
        unsafe { Block::new(self.0.mapping().base) }
    }
}
