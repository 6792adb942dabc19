//! The control segment of a rank: header and message ring.
#![allow(unsafe_code)] // room: views a mapped segment as the structures below

use core::mem::size_of;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};

use rma_core::transport::WorldRank;

use crate::card::MAGIC;
use crate::ring::Ring;
use crate::segment::Span;

/// Messages the message ring holds, if none is longer than a slot.
pub(crate) const SLOTS: usize = 128;
/// Bytes of a message in a slot, which is 512 with its header.
pub(crate) const SLOT_BYTES: usize = 496;
/// Bytes of the longest message: 4 KiB of payload, and its header.
pub(crate) const MESSAGE_MAX: usize = 9 * SLOT_BYTES;

/// Written by the owner before any other rank knows the segment.
#[repr(C, align(128))]
struct Header {
    magic: AtomicU64,
    rank: AtomicU32,
    ranks: AtomicU32,
}

/// The shared structure.
#[repr(C)]
pub(crate) struct Control {
    header: Header,
    pub(crate) ring: Ring<SLOTS, SLOT_BYTES, MESSAGE_MAX>,
}

/// Bytes of [`header_bytes`].
pub(crate) const HEADER_LEN: usize = 16;

/// How the control segment of a rank begins.
pub(crate) fn header_bytes(rank: u32, ranks: u32) -> [u8; HEADER_LEN] {
    let mut bytes = [0; HEADER_LEN];
    bytes[..8].copy_from_slice(&MAGIC.to_ne_bytes());
    bytes[8..12].copy_from_slice(&rank.to_ne_bytes());
    bytes[12..].copy_from_slice(&ranks.to_ne_bytes());
    bytes
}

/// A mapped control segment of this rank or a neighbour.
pub(crate) struct ControlSegment {
    span: Span,
}

/// Bytes of a control segment, a whole number of pages.
pub(crate) fn control_len() -> usize {
    size_of::<Control>().next_multiple_of(rustix::param::page_size())
}

impl ControlSegment {
    /// Writes the header of a fresh segment, which is zero otherwise: every part's initial state.
    pub(crate) fn create(span: Span, rank: WorldRank, ranks: u32) -> Option<Self> {
        let this = Self::view(span)?;
        this.header.rank.store(rank.0, Relaxed);
        this.header.ranks.store(ranks, Relaxed);
        // Ordered before every reader by the exchange that tells them of the segment.
        this.header.magic.store(MAGIC, Relaxed);
        Some(this)
    }

    /// A neighbour's segment, if its header is what it should be.
    pub(crate) fn import(span: Span, rank: WorldRank, ranks: u32) -> Option<Self> {
        let this = Self::view(span)?;
        let header = &this.header;
        let right = header.magic.load(Relaxed) == MAGIC
            && header.rank.load(Relaxed) == rank.0
            && header.ranks.load(Relaxed) == ranks;
        right.then_some(this)
    }

    fn view(span: Span) -> Option<Self> {
        (span.len() == control_len()).then_some(Self { span })
    }
}

impl core::ops::Deref for ControlSegment {
    type Target = Control;

    #[inline]
    fn deref(&self) -> &Control {
        // SAFETY: `view` checked that the mapping holds a `Control`; a mapping is aligned to a
        // page, so to 128 bytes, and lives as long as `self`. Other processes change it, but it is
        // made of atomics and `UnsafeCell`s, for which a shared reference promises nothing about
        // the bytes, and every bit pattern is a value of theirs.
        unsafe { &*self.span.base().cast::<Control>() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory_limits::MemoryLimits;
    use crate::segment::Segment;
    use core::mem::offset_of;

    fn segment(len: usize) -> Segment {
        Segment::create("rma-test", len, len as u64, &MemoryLimits::discover(), true).unwrap()
    }

    fn import_of(own: &Segment) -> Span {
        let me = rustix::process::getpid();
        crate::segment::import(me, own.descriptor(), own.identity, true).unwrap()
    }

    #[test]
    fn the_message_ring_has_lines_of_its_own() {
        assert!(offset_of!(Control, ring) >= 128);
        assert_eq!(size_of::<Ring<SLOTS, SLOT_BYTES, MESSAGE_MAX>>(), 3 * 128 + SLOTS * 512);
    }

    #[test]
    fn a_neighbour_knows_whose_segment_it_is() {
        let own = segment(control_len());
        let imports = [(); 3].map(|()| import_of(&own));
        let owner = ControlSegment::create(own.span, WorldRank(3), 70).unwrap();
        // SAFETY: mapped, aligned to a page, and only read by now.
        let header = unsafe { owner.span.base().cast::<[u8; HEADER_LEN]>().read() };
        assert_eq!(header, header_bytes(3, 70));
        let [right, of_another, of_another_job] = imports;
        assert!(ControlSegment::import(right, WorldRank(3), 70).is_some());
        assert!(ControlSegment::import(of_another, WorldRank(2), 70).is_none());
        assert!(ControlSegment::import(of_another_job, WorldRank(3), 71).is_none());
    }

    #[test]
    fn a_blank_or_short_segment_is_refused() {
        let (blank, short) = (segment(control_len()), segment(4096));
        assert!(ControlSegment::import(import_of(&blank), WorldRank(0), 4).is_none());
        assert!(ControlSegment::import(import_of(&short), WorldRank(0), 4).is_none());
    }
}
