//! A block of shared words, here or at a peer: lock words, queue nodes, barrier flags, signals
//! of post and complete, stripes.
#![allow(unsafe_code)]

use super::atomic;
use crate::protocol::lock::CONTROL_BYTES;
use crate::protocol::pscw::Signal;
use crate::rank::Rank;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU32, AtomicU64};

/// Words of a block.
pub(crate) const WORDS: u16 = (CONTROL_BYTES / 8) as u16;
/// Barrier flags of a block; they take the second cache line.
pub(crate) const FLAGS: usize = 16;
const FLAGS_AT: usize = 64;
/// Ranks whose signals have a bit in a block.
pub(crate) const SIGNAL_RANKS: u32 = 512;
/// Words of the two signals: a cache line each.
pub(crate) const SIGNAL_WORDS: usize = 2 * SIGNAL_RANKS as usize / 64;
const SIGNALS_AT: usize = CONTROL_BYTES.next_multiple_of(64);
/// Stripes of a block: locks of what accumulates combine, see [`stripe`](super::stripe).
pub(crate) const STRIPES: usize = 8;
/// A cache line each.
const STRIPE_BYTES: usize = 64;
/// Bytes of a block: the words (the flags are among them), the signals, the stripes.
pub(crate) const BLOCK_BYTES: usize = SIGNALS_AT + SIGNAL_WORDS * 8 + STRIPES * STRIPE_BYTES;

/// A mapped block; its words are accessed atomically only.
#[derive(Clone, Copy)]
pub(crate) struct Block<'a> {
    base: *mut u8,
    life: PhantomData<&'a AtomicU64>,
}

impl<'a> Block<'a> {
    /// # Safety
    ///
    /// [`BLOCK_BYTES`] from `base` on stay mapped for `'a`, are aligned to 64, and are accessed
    /// through values of this type only, in every process.
    pub(crate) unsafe fn new(base: *mut u8) -> Self {
        Self { base, life: PhantomData }
    }

    /// Its first byte.
    pub(crate) fn as_ptr(self) -> *mut u8 {
        self.base
    }

    /// The word at `index`, which must be below [`WORDS`].
    #[inline]
    pub(crate) fn word(self, index: u16) -> &'a AtomicU64 {
        assert!(index < WORDS, "a block has {WORDS} words");
        // SAFETY: `index < WORDS`, so the word lies inside the block.
        let at = unsafe { self.base.add(usize::from(index) * 8) };
        // SAFETY: mapped and aligned, by the contract of `new`.
        unsafe { atomic::word(at) }
    }

    /// The barrier flag of `round`, which must be below [`FLAGS`].
    #[inline]
    pub(crate) fn flag(self, round: usize) -> &'a AtomicU32 {
        assert!(round < FLAGS, "a block has {FLAGS} flags");
        // SAFETY: `round < FLAGS`, so the flag lies inside the block's second line.
        let at = unsafe { self.base.add(FLAGS_AT + round * 4) };
        // SAFETY: mapped and aligned, by the contract of `new`.
        unsafe { atomic::half(at) }
    }

    /// The word at `index` of the signals, which must be below [`SIGNAL_WORDS`].
    #[inline]
    pub(crate) fn signals(self, index: usize) -> &'a AtomicU64 {
        assert!(index < SIGNAL_WORDS, "a block has {SIGNAL_WORDS} words of signals");
        // SAFETY: `index < SIGNAL_WORDS`, so the word lies inside the block, before the stripes.
        let at = unsafe { self.base.add(SIGNALS_AT + index * 8) };
        // SAFETY: mapped and aligned, by the contract of `new`.
        unsafe { atomic::word(at) }
    }

    /// The word and the bit for a signal of `peer`, which must be below [`SIGNAL_RANKS`].
    #[inline]
    pub(crate) fn signal(self, signal: Signal, peer: Rank) -> (&'a AtomicU64, u64) {
        assert!(peer.0 < SIGNAL_RANKS, "a block has signals of {SIGNAL_RANKS} ranks");
        let line = signal as usize * SIGNAL_WORDS / 2;
        (self.signals(line + usize::from(peer) / 64), 1 << (peer.0 % 64))
    }

    /// The stripe at `index`, which must be below [`STRIPES`].
    #[inline]
    pub(crate) fn stripe(self, index: usize) -> &'a AtomicU64 {
        assert!(index < STRIPES, "a block has {STRIPES} stripes");
        let offset = BLOCK_BYTES - STRIPES * STRIPE_BYTES + index * STRIPE_BYTES;
        // SAFETY: `index < STRIPES`, so the stripe lies inside the block's last lines.
        let at = unsafe { self.base.add(offset) };
        // SAFETY: mapped and aligned, by the contract of `new`.
        unsafe { atomic::word(at) }
    }
}
