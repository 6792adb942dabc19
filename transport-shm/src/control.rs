//! The control segment of a rank: header, doorbell, state, mailbox, and what its neighbours told
//! it about themselves.
#![allow(unsafe_code)] // room: views a mapped segment as the structures below

use core::mem::size_of;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use rma_core::transport::{Outcome, PeerState, WorldRank};

use crate::card::MAGIC;
use crate::doorbell::Doorbell;
use crate::ring::Ring;
use crate::segment::Span;

/// Messages the mailbox holds, if none is longer than a slot.
pub(crate) const SLOTS: usize = 128;
/// Bytes of a message in a slot, which is 512 with its header.
pub(crate) const SLOT_BYTES: usize = 496;
/// Bytes of the longest message: 4 KiB of payload, and its header.
pub(crate) const MESSAGE_MAX: usize = 9 * SLOT_BYTES;

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

/// The code of how a rank left, if that is news of one known to be in `state`.
fn news(state: PeerState, outcome: Outcome) -> Option<u8> {
    match (state, outcome) {
        (PeerState::Alive, _) | (PeerState::Departed, Outcome::Holding) => Some(to_code(outcome)),
        _ => None,
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

    /// The owner leaves; false if that is nothing new. The first word stands, as in
    /// [`tell`](Self::tell).
    pub(crate) fn leave(&self, outcome: Outcome) -> bool {
        let next = |code: u32| news(from_code(code), outcome);
        // Release pairs with the Acquire in `left`.
        self.status.left.fetch_update(AcqRel, Acquire, |code| next(code).map(u32::from)).is_ok()
    }

    /// What the owner was told of `rank`, by itself or by who missed it. Who is told here that a
    /// rank failed finds [`failed`](Self::failed) set.
    #[inline]
    pub(crate) fn told_by(&self, rank: WorldRank) -> PeerState {
        // Acquire pairs with the Release in `tell`.
        let code = self.told().get(rank.0 as usize).map_or(0, |code| code.load(Acquire));
        let state = from_code(code.into());
        if state == PeerState::Failed {
            // Who told may have come no further. After this exchange, whoever wins it, the word is
            // not 0 for this thread, and never becomes 0 again.
            self.set_failed(rank);
        }
        state
    }

    /// Tells the owner that `rank` left; false if that is nothing new. The first word stands,
    /// but who left in order may find out later that it holds locks.
    ///
    /// The byte of `rank` decides: it leaves `Alive` once, and `Failed` is an end. Only who has
    /// seen `Failed` there sets the word `failed`. So that word names nobody who left in order.
    pub(crate) fn tell(&self, rank: WorldRank, outcome: Outcome) -> bool {
        let Some(told) = self.told().get(rank.0 as usize) else { return false };
        let next = |code: u8| news(from_code(code.into()), outcome);
        // Release pairs with the Acquire in `told_by`.
        let is_news = told.fetch_update(AcqRel, Acquire, next).is_ok();
        // Sets the word `failed`, if that is what the byte says, before anybody is told more.
        self.told_by(rank);
        is_news
    }

    /// The first rank that failed.
    #[inline]
    pub(crate) fn failed(&self) -> Option<WorldRank> {
        // Acquire pairs with the Release in `set_failed`.
        let word = self.status.failed.load(Acquire);
        word.checked_sub(1).filter(|&rank| rank < self.ranks).map(WorldRank)
    }

    /// Records that `rank` failed, if it is the first one.
    #[cold]
    fn set_failed(&self, rank: WorldRank) {
        // Release pairs with the Acquire in `failed`.
        _ = self.status.failed.compare_exchange(0, rank.0 + 1, AcqRel, Relaxed);
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

    fn segment(ranks: u32) -> Segment {
        let len = control_len(ranks).unwrap();
        Segment::create("rma-test", len, len as u64, &MemoryLimits::discover(), true).unwrap()
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
        assert_eq!(size_of::<Ring<SLOTS, SLOT_BYTES, MESSAGE_MAX>>(), 3 * 128 + SLOTS * 512);
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
        assert!(peer.tell(WorldRank(1), Outcome::Failed));
        assert_eq!(owner.failed(), Some(WorldRank(69)), "only the first one counts");
        owner.status.failed.store(71, Relaxed);
        assert_eq!(owner.failed(), None, "there is no rank 70");
        assert!(ControlSegment::import(two, WorldRank(2), 70).is_none(), "another rank's");
    }

    /// Of two threads of a rank that leaves, each tells what it changed, and nothing else.
    #[test]
    fn a_rank_leaves_once_and_may_add_that_it_holds_locks() {
        use Outcome::{Departed, Failed, Holding};
        for (outcomes, changes, end) in [
            ([Departed, Holding], [true, true], PeerState::Holding),
            ([Holding, Departed], [true, false], PeerState::Holding),
            ([Holding, Failed], [true, false], PeerState::Holding),
            ([Departed, Departed], [true, false], PeerState::Departed),
            ([Departed, Failed], [true, false], PeerState::Departed),
            ([Failed, Departed], [true, false], PeerState::Failed),
            ([Failed, Holding], [true, false], PeerState::Failed),
        ] {
            let own = segment(8);
            let owner = ControlSegment::create(own.span, WorldRank(3), 8).unwrap();
            assert_eq!(outcomes.map(|outcome| owner.leave(outcome)), changes, "{outcomes:?}");
            assert_eq!(owner.left(), end, "{outcomes:?}");
        }
    }

    /// Who finds a process gone, and was not told why, accuses nobody who left in order.
    #[test]
    fn nobody_fails_after_leaving_in_order() {
        let own = segment(8);
        let owner = ControlSegment::create(own.span, WorldRank(3), 8).unwrap();
        for (rank, outcome, state) in
            [(5, Outcome::Departed, PeerState::Departed), (6, Outcome::Holding, PeerState::Holding)]
        {
            assert!(owner.tell(WorldRank(rank), outcome));
            assert!(!owner.tell(WorldRank(rank), Outcome::Failed));
            assert_eq!((owner.told_by(WorldRank(rank)), owner.failed()), (state, None));
        }
        // It left while it held a lock, and not before that was known.
        assert!(owner.tell(WorldRank(5), Outcome::Holding));
        assert_eq!(owner.told_by(WorldRank(5)), PeerState::Holding);
        assert!(!owner.tell(WorldRank(5), Outcome::Departed), "older than what is known");
        assert_eq!(owner.told_by(WorldRank(5)), PeerState::Holding);
    }

    /// A rank is accused while it tells that it leaves in order: whichever word is first, the owner
    /// hears one story.
    #[test]
    fn who_left_in_order_and_who_failed_are_never_the_same() {
        let own = segment(2_000);
        let peer = ControlSegment::view(import_of(&own), 2_000).unwrap();
        let owner = ControlSegment::create(own.span, WorldRank(0), 2_000).unwrap();
        let meet = std::sync::Barrier::new(2);
        for rank in (1..2_000).map(WorldRank) {
            let (left, accused) = std::thread::scope(|scope| {
                let leaver = scope.spawn(|| {
                    meet.wait();
                    peer.tell(rank, Outcome::Departed)
                });
                meet.wait();
                let accused = owner.tell(rank, Outcome::Failed);
                (leaver.join().unwrap(), accused)
            });
            assert!(left != accused, "one of them was first");
            let told = if left { PeerState::Departed } else { PeerState::Failed };
            assert_eq!(owner.told_by(rank), told);
            assert_eq!(owner.failed(), accused.then_some(rank));
            owner.status.failed.store(0, Relaxed);
        }
    }

    /// Who told it was killed in between.
    #[test]
    fn who_is_told_that_a_rank_left_knows_whether_it_failed() {
        let own = segment(8);
        let owner = ControlSegment::create(own.span, WorldRank(3), 8).unwrap();
        owner.told()[5].store(to_code(Outcome::Failed), Relaxed);
        assert_eq!(owner.failed(), None);
        assert_eq!(owner.told_by(WorldRank(5)), PeerState::Failed);
        assert_eq!(owner.failed(), Some(WorldRank(5)));
        assert!(!owner.tell(WorldRank(5), Outcome::Departed), "it failed");
        assert!(!owner.tell(WorldRank(5), Outcome::Failed), "that is known");
        assert_eq!(owner.told_by(WorldRank(5)), PeerState::Failed);
    }

    #[test]
    fn a_blank_or_short_segment_is_refused() {
        let own = segment(4);
        assert!(ControlSegment::import(import_of(&own), WorldRank(0), 4).is_none());
        assert!(ControlSegment::import(import_of(&own), WorldRank(0), 1 << 20).is_none());
    }
}
