//! The control segment of a rank: header, doorbell, state, mailbox, and what its neighbours told
//! it about themselves.
#![allow(unsafe_code)] // room: views a mapped segment as the structures below

use core::mem::size_of;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use rma_core::transport::{Outcome, PeerState, WorldRank};

use crate::card::MAGIC;
use crate::doorbell::Doorbell;
use crate::ring::Ring;
use crate::segment::Span;

/// Messages the mailbox holds.
pub(crate) const SLOTS: usize = 128;
/// Bytes of a message; a slot is 512 with its header.
pub(crate) const MESSAGE_MAX: usize = 496;

/// Written by the owner before anyone else knows the segment.
#[repr(C, align(128))]
struct Header {
    magic: AtomicU64,
    rank: AtomicU32,
    ranks: AtomicU32,
}

/// Words that change once in the life of a rank, on a line that everyone reads.
#[repr(C, align(128))]
struct Status {
    /// How the owner left: a code of [`to_code`], 0 as long as it is there.
    left: AtomicU32,
    /// 1 + the first rank that failed, as far as anybody told the owner.
    failed: AtomicU32,
}

/// The shared structure; one byte for each rank follows it: how that rank told the owner it left.
#[repr(C)]
pub(crate) struct Control {
    header: Header,
    pub(crate) bell: Doorbell,
    status: Status,
    pub(crate) ring: Ring<SLOTS, MESSAGE_MAX>,
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
    ranks: u32,
}

/// Bytes of a control segment, a whole number of pages.
pub(crate) fn control_len(ranks: u32) -> Option<usize> {
    let len = size_of::<Control>().checked_add(usize::try_from(ranks).ok()?)?;
    len.checked_next_multiple_of(rustix::param::page_size())
}

fn to_code(outcome: Outcome) -> u8 {
    match outcome {
        Outcome::Departed => 1,
        Outcome::Failed => 2,
        Outcome::Holding => 3,
    }
}

fn from_code(code: u32) -> PeerState {
    match code {
        0 => PeerState::Alive,
        1 => PeerState::Departed,
        3 => PeerState::Holding,
        _ => PeerState::Failed,
    }
}

impl ControlSegment {
    /// Writes the header of a fresh segment, which is zero otherwise: every part's initial state.
    pub(crate) fn create(span: Span, rank: WorldRank, ranks: u32) -> Option<Self> {
        let this = Self::view(span, ranks)?;
        this.header.rank.store(rank.0, Relaxed);
        this.header.ranks.store(ranks, Relaxed);
        // Ordered before every reader by the exchange that tells them of the segment.
        this.header.magic.store(MAGIC, Relaxed);
        Some(this)
    }

    /// A neighbour's segment, if its header is what it should be.
    pub(crate) fn import(span: Span, rank: WorldRank, ranks: u32) -> Option<Self> {
        let this = Self::view(span, ranks)?;
        let header = &this.header;
        let right = header.magic.load(Relaxed) == MAGIC
            && header.rank.load(Relaxed) == rank.0
            && header.ranks.load(Relaxed) == ranks;
        right.then_some(this)
    }

    fn view(span: Span, ranks: u32) -> Option<Self> {
        (Some(span.len()) == control_len(ranks)).then_some(Self { span, ranks })
    }

    /// How each rank left, as it told the owner.
    fn told(&self) -> &[AtomicU8] {
        let first = self.span.at(size_of::<Control>()).cast::<AtomicU8>();
        // SAFETY: `view` checked that `ranks` bytes follow the structure in the mapping, which
        // lives as long as `self`; an AtomicU8 has every bit pattern, no alignment, and may be
        // changed by others behind a shared reference.
        unsafe { core::slice::from_raw_parts(first, self.ranks as usize) }
    }

    /// How the owner left.
    #[inline]
    pub(crate) fn left(&self) -> PeerState {
        // Acquire pairs with the Release in `leave`: what the owner did before is visible.
        from_code(self.status.left.load(Acquire))
    }

    /// The owner leaves.
    pub(crate) fn leave(&self, outcome: Outcome) {
        // Release pairs with the Acquire in `left`.
        self.status.left.store(to_code(outcome).into(), Release);
    }

    /// What the owner was told of `rank`, by itself or by who missed it.
    #[inline]
    pub(crate) fn told_by(&self, rank: WorldRank) -> PeerState {
        // Acquire pairs with the Release in `tell`.
        let code = self.told().get(rank.0 as usize).map_or(0, |code| code.load(Acquire));
        from_code(code.into())
    }

    /// Tells the owner that `rank` left.
    pub(crate) fn tell(&self, rank: WorldRank, outcome: Outcome) {
        if outcome == Outcome::Failed {
            // Somebody looks for a rank that left in order.
            if matches!(self.told_by(rank), PeerState::Departed | PeerState::Holding) {
                return;
            }
            // First: who is told that a rank left knows whether it failed.
            self.set_failed(rank);
        }
        if let Some(told) = self.told().get(rank.0 as usize) {
            // Release pairs with the Acquire in `told_by`.
            told.store(to_code(outcome), Release);
        }
    }

    /// The first rank that failed.
    #[inline]
    pub(crate) fn failed(&self) -> Option<WorldRank> {
        // Acquire pairs with the Release in `set_failed`.
        let word = self.status.failed.load(Acquire);
        word.checked_sub(1).filter(|&rank| rank < self.ranks).map(WorldRank)
    }

    /// Records that `rank` failed; false if it is not the first one.
    pub(crate) fn set_failed(&self, rank: WorldRank) -> bool {
        // Release pairs with the Acquire in `failed`.
        self.status.failed.compare_exchange(0, rank.0 + 1, AcqRel, Relaxed).is_ok()
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
    use crate::segment::Segment;
    use crate::supply::Supply;
    use core::mem::offset_of;

    fn segment(ranks: u32) -> Segment {
        let len = control_len(ranks).unwrap();
        Segment::create("rma-test", len, len as u64, &Supply::discover(), true).unwrap()
    }

    fn import_of(own: &Segment) -> Span {
        let me = rustix::process::getpid();
        crate::segment::import(me, own.descriptor(), own.identity, true).unwrap()
    }

    #[test]
    fn nothing_shares_the_doorbells_lines() {
        assert_eq!(offset_of!(Control, bell) % 128, 0);
        assert!(offset_of!(Control, status) - offset_of!(Control, bell) >= 128);
        assert!(offset_of!(Control, ring) - offset_of!(Control, status) >= 128);
        assert_eq!(size_of::<Ring<SLOTS, MESSAGE_MAX>>(), 3 * 128 + SLOTS * 512);
    }

    #[test]
    fn a_neighbour_reads_what_the_owner_and_others_say() {
        let own = segment(70);
        let (one, two) = (import_of(&own), import_of(&own));
        let owner = ControlSegment::create(own.span, WorldRank(3), 70).unwrap();
        let peer = ControlSegment::import(one, WorldRank(3), 70).unwrap();
        // SAFETY: mapped, aligned to a page, and only read by now.
        let header = unsafe { owner.span.base().cast::<[u8; HEADER_LEN]>().read() };
        assert_eq!(header, header_bytes(3, 70));
        assert_eq!((peer.left(), owner.failed()), (PeerState::Alive, None));
        owner.leave(Outcome::Departed);
        assert_eq!(peer.left(), PeerState::Departed);
        peer.tell(WorldRank(69), Outcome::Failed);
        peer.tell(WorldRank(5), Outcome::Departed);
        peer.tell(WorldRank(6), Outcome::Holding);
        peer.tell(WorldRank(70), Outcome::Departed);
        assert_eq!(owner.told_by(WorldRank(69)), PeerState::Failed);
        assert_eq!(owner.told_by(WorldRank(5)), PeerState::Departed);
        assert_eq!(owner.told_by(WorldRank(6)), PeerState::Holding);
        assert_eq!(owner.told_by(WorldRank(4)), PeerState::Alive);
        assert_eq!(owner.told_by(WorldRank(70)), PeerState::Alive);
        assert_eq!(owner.failed(), Some(WorldRank(69)));
        assert!(!peer.set_failed(WorldRank(1)), "only the first one counts");
        assert_eq!(owner.failed(), Some(WorldRank(69)));
        owner.status.failed.store(71, Relaxed);
        assert_eq!(owner.failed(), None, "there is no rank 70");
        assert!(ControlSegment::import(two, WorldRank(2), 70).is_none(), "another rank's");
    }

    /// Who finds a process gone, and was not told why, accuses nobody who left in order.
    #[test]
    fn nobody_fails_after_leaving_in_order() {
        let own = segment(8);
        let owner = ControlSegment::create(own.span, WorldRank(3), 8).unwrap();
        for (rank, outcome, state) in
            [(5, Outcome::Departed, PeerState::Departed), (6, Outcome::Holding, PeerState::Holding)]
        {
            owner.tell(WorldRank(rank), outcome);
            owner.tell(WorldRank(rank), Outcome::Failed);
            assert_eq!((owner.told_by(WorldRank(rank)), owner.failed()), (state, None));
        }
        // It left while it held a lock, and not before that was known.
        owner.tell(WorldRank(5), Outcome::Holding);
        assert_eq!(owner.told_by(WorldRank(5)), PeerState::Holding);
    }

    #[test]
    fn a_blank_or_short_segment_is_refused() {
        let own = segment(4);
        assert!(ControlSegment::import(import_of(&own), WorldRank(0), 4).is_none());
        assert!(ControlSegment::import(import_of(&own), WorldRank(0), 1 << 20).is_none());
    }
}
