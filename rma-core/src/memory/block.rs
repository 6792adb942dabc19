//! A block of shared words, here or at a peer: lock words, queue nodes, barrier flags.
#![allow(unsafe_code)]

use super::atomic;
use crate::protocol::lock::CONTROL_BYTES;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU32, AtomicU64};

/// Words of a block.
pub(crate) const WORDS: u16 = (CONTROL_BYTES / 8) as u16;
/// Barrier flags of a block; they take the second cache line.
pub(crate) const FLAGS: usize = 16;
const FLAGS_AT: usize = 64;

/// A mapped block; its words are accessed atomically only.
#[derive(Clone, Copy)]
pub(crate) struct Block<'a> {
    base: *mut u8,
    life: PhantomData<&'a AtomicU64>,
}

impl<'a> Block<'a> {
    /// # Safety
    ///
    /// `CONTROL_BYTES` from `base` on stay mapped for `'a`, are aligned to 64, and are accessed
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
}
