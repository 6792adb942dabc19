//! Shared words, here or at a peer. The [`ControlBlock`] of a communicator or window: lock words,
//! queue nodes, barrier flags, signals of post and complete, the bias, stripes. The
//! [`CollectiveBlock`] of a communicator: how many ranks came to a barrier, and what the ranks tell
//! each other there.
#![allow(unsafe_code)]

use super::atomic;
use crate::protocol::lock::CONTROL_BYTES;
use crate::protocol::pscw::Signal;
use crate::rank::Rank;
use bytemuck::Pod;
use core::marker::PhantomData;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};

/// Words of a block.
pub(crate) const WORDS: u16 = AGREEMENTS_AT + 2;
/// Barrier flags of a block; they take the second cache line.
pub(crate) const FLAGS: usize = 16;
const FLAGS_AT: usize = 64;
/// Behind the words of the locks. Which rank refuses what, and of which window: for each
/// [`Agreement`], for those of even and of odd number. Then how many came to barriers and to
/// agreements, which is counted on through all windows that have the block.
const REFUSALS_AT: u16 = CONTROL_BYTES as u16 / 8;
const REFUSED_OF_AT: u16 = REFUSALS_AT + 4;
const ARRIVALS_AT: u16 = REFUSED_OF_AT + 4;
const AGREEMENTS_AT: u16 = ARRIVALS_AT + 1;
/// Ranks whose signals have a bit in a block.
pub(crate) const SIGNAL_RANKS: u32 = 512;
/// Words of the two signals: a cache line each.
pub(crate) const SIGNAL_WORDS: usize = 2 * SIGNAL_RANKS as usize / 64;
const SIGNALS_AT: usize = (WORDS as usize * 8).next_multiple_of(64);
/// The line of the bias: who combines alone, whether that thread is at it, and what arrays have
/// earned. Between the signals and the stripes.
const BIAS_AT: usize = SIGNALS_AT + SIGNAL_WORDS * 8;
const BUSY_AT: usize = BIAS_AT + 8;
const EARNED_AT: usize = BUSY_AT + 8;
const BIAS_BYTES: usize = 64;
/// Stripes of a block: locks of what accumulates combine, see [`stripe`](super::stripe).
pub(crate) const STRIPES: usize = 8;
/// A cache line each.
const STRIPE_BYTES: usize = 64;
/// Bytes of a block: the words (the flags are among them), the signals, the bias, the stripes.
pub(crate) const BLOCK_BYTES: usize = BIAS_AT + BIAS_BYTES + STRIPES * STRIPE_BYTES;

/// What the ranks of a window agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Agreement {
    Free,
    /// Or to open it again.
    Seal,
}

impl Agreement {
    /// The call that comes to it, as errors name it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Seal => "seal",
        }
    }
}

/// What a word of refusals says of an agreement: the low half of its number is in the high half,
/// one more than the rank in the low half.
fn refused_by(seen: u64, number: u64) -> Option<Rank> {
    let rank = (seen as u32).checked_sub(1).map(Rank);
    rank.filter(|_| seen >> 32 == number & u64::from(u32::MAX))
}

/// A mapped block; its words are accessed atomically only.
#[derive(Clone, Copy)]
pub(crate) struct ControlBlock<'a> {
    base: *mut u8,
    life: PhantomData<&'a AtomicU64>,
}

impl<'a> ControlBlock<'a> {
    /// # Safety
    ///
    /// [`BLOCK_BYTES`] from `base` on stay mapped for `'a`, are aligned to 64, and are accessed
    /// through values of this type only, in every process.
    pub(crate) unsafe fn new(base: *mut u8) -> Self {
        Self { base, life: PhantomData }
    }

    /// Makes all words zero but those at which ranks may still wait that are late to leave an
    /// earlier window.
    pub(crate) fn clear(self) {
        (0..ARRIVALS_AT).for_each(|word| self.word(word).store(0, Relaxed));
        (0..SIGNAL_WORDS).for_each(|word| self.signals(word).store(0, Relaxed));
        [self.bias(), self.busy(), self.earned()].iter().for_each(|word| word.store(0, Relaxed));
        (0..STRIPES).for_each(|stripe| self.stripe(stripe).store(0, Relaxed));
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

    /// How many ranks have come to barriers, of all windows that had this block.
    #[inline]
    pub(crate) fn arrivals(self) -> &'a AtomicU64 {
        self.word(ARRIVALS_AT)
    }

    /// As [`arrivals`](Self::arrivals), to agreements on that: a rank that comes to one has given
    /// its window to it, so nothing else is ever taken for one.
    pub(crate) fn agreements(self, on: Agreement) -> &'a AtomicU64 {
        self.word(AGREEMENTS_AT + on as u16)
    }

    /// Before an agreement of a window: `rank` refuses.
    pub(crate) fn refuse(self, window: u64, on: Agreement, number: u64, rank: Rank) {
        let (refusal, of) = self.refusal(on, number);
        of.store(window, Relaxed);
        let mine = number << 32 | (u64::from(rank.0) + 1);
        let lowest = |seen| refused_by(seen, number).is_none_or(|by| by > rank).then_some(mine);
        // pairs with the Acquire load in `refused`.
        _ = refusal.fetch_update(Release, Relaxed, lowest);
    }

    /// After that agreement: the lowest rank that refused. The block may be another window's by
    /// now, if none did.
    pub(crate) fn refused(self, window: u64, on: Agreement, number: u64) -> Option<Rank> {
        let (refusal, of) = self.refusal(on, number);
        // pairs with the Release in `refuse`: a rank that sees a refusal sees its window.
        let by = refused_by(refusal.load(Acquire), number)?;
        (of.load(Relaxed) == window).then_some(by)
    }

    fn refusal(self, on: Agreement, number: u64) -> (&'a AtomicU64, &'a AtomicU64) {
        let which = on as u16 * 2 + (number % 2) as u16;
        (self.word(REFUSALS_AT + which), self.word(REFUSED_OF_AT + which))
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

    /// The word and the bit for a signal of the rank at `place`, below [`SIGNAL_RANKS`].
    #[inline]
    pub(crate) fn signal(self, signal: Signal, place: u32) -> (&'a AtomicU64, u64) {
        assert!(place < SIGNAL_RANKS, "a block has signals of {SIGNAL_RANKS} ranks");
        let line = signal as usize * SIGNAL_WORDS / 2;
        (self.signals(line + place as usize / 64), 1 << (place % 64))
    }

    /// Who combines elements of the part alone, see [`bias`](super::bias).
    #[inline]
    pub(crate) fn bias(self) -> &'a AtomicU64 {
        // SAFETY: inside the block, between signals and stripes.
        let at = unsafe { self.base.add(BIAS_AT) };
        // SAFETY: mapped and aligned, by the contract of `new`.
        unsafe { atomic::word(at) }
    }

    /// Whether that thread is at it.
    #[inline]
    pub(crate) fn busy(self) -> &'a AtomicU64 {
        // SAFETY: inside the block, behind the word of the bias, in its line.
        let at = unsafe { self.base.add(BUSY_AT) };
        // SAFETY: mapped and aligned, by the contract of `new`.
        unsafe { atomic::word(at) }
    }

    /// What arrays have earned by locks, see [`bias`](super::bias).
    #[inline]
    pub(crate) fn earned(self) -> &'a AtomicU64 {
        // SAFETY: inside the block, behind the words above, in their line.
        let at = unsafe { self.base.add(EARNED_AT) };
        // SAFETY: mapped and aligned, by the contract of `new`.
        unsafe { atomic::word(at) }
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

/// Ranks of a communicator that have slots on its collective block.
const SLOT_RANKS: u32 = 256;
/// Words of a slot: what it holds, then what a rank tells all others at once.
const SLOT_WORDS: usize = 32;
const HEAD_WORDS: usize = 2;
const SLOT_BYTES: usize = SLOT_WORDS * 8;
/// Behind the word of the arrivals, those of exchanges of each [`SlotUse`]. The line of the reads,
/// behind that; then the slots.
const WRITES_AT: usize = 8;
const READS_AT: usize = 64;
const SLOTS_AT: usize = 128;

/// What exchanges by slots are for. Each use has slots and a count of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlotUse {
    /// What ranks agree on.
    Told,
    /// Where payloads lie.
    Offers,
}

/// How many uses there are.
pub(crate) const SLOT_USES: usize = 2;

/// The mapped collective block of a communicator; its words are accessed atomically only.
///
/// For each use a rank has two slots, for exchanges of even and odd number: no rank writes for one
/// before all have read what was there for the one before the last. A collective block has several
/// lives, one communicator after the other; what is counted is counted on.
#[derive(Clone, Copy)]
pub(crate) struct CollectiveBlock<'a> {
    base: *mut u8,
    ranks: u32,
    life: PhantomData<&'a AtomicU64>,
}

impl<'a> CollectiveBlock<'a> {
    /// Bytes of the collective block of a communicator of `ranks`.
    pub(crate) fn bytes(ranks: u32) -> usize {
        let slots = if ranks <= SLOT_RANKS { ranks as usize * 2 * SLOT_USES } else { 0 };
        SLOTS_AT + slots * SLOT_BYTES
    }

    /// # Safety
    ///
    /// [`bytes`](Self::bytes) of `ranks` from `base` on stay mapped for `'a`, are aligned to 64,
    /// and are accessed through values of this type only, in every process.
    pub(crate) unsafe fn new(base: *mut u8, ranks: u32) -> Self {
        Self { base, ranks, life: PhantomData }
    }

    /// How many ranks have come to barriers.
    #[inline]
    pub(crate) fn arrivals(self) -> &'a AtomicU64 {
        // SAFETY: mapped and aligned, by the contract of `new`.
        unsafe { atomic::word(self.base) }
    }

    /// How many ranks have written into slots of that use, and come to the barrier of that.
    pub(crate) fn writes(self, slots: SlotUse) -> &'a AtomicU64 {
        // SAFETY: in the first line of the collective block, however many ranks it is for.
        let at = unsafe { self.base.add(WRITES_AT + slots as usize * 8) };
        // SAFETY: mapped and aligned, by the contract of `new`.
        unsafe { atomic::word(at) }
    }

    /// How often a rank has read all slots.
    pub(crate) fn reads(self) -> &'a AtomicU64 {
        // SAFETY: inside the collective block, however many ranks it is for.
        let at = unsafe { self.base.add(READS_AT) };
        // SAFETY: mapped and aligned, by the contract of `new`.
        unsafe { atomic::word(at) }
    }

    /// Whether the ranks have slots.
    pub(crate) fn has_slots(self) -> bool {
        self.ranks <= SLOT_RANKS
    }

    fn slot(self, slots: SlotUse, number: u64, rank: Rank) -> &'a [AtomicU64; SLOT_WORDS] {
        assert!(self.has_slots() && rank.0 < self.ranks, "a slot for each rank");
        let slot = (usize::from(rank) * SLOT_USES + slots as usize) * 2 + (number % 2) as usize;
        // SAFETY: both are in range, so the slot lies inside the collective block.
        let at = unsafe { self.base.add(SLOTS_AT + slot * SLOT_BYTES) };
        // SAFETY: mapped and aligned, and atomics only, by the contract of `new`.
        unsafe { &*at.cast() }
    }

    /// Writes what a rank tells the others in the exchange of that number.
    pub(crate) fn write<S: Pod>(self, head: SlotHead, number: u64, rank: Rank, mine: &S) {
        const { assert!(fits_slot::<S>(), "whole words, of a slot at most") };
        let ([id, what], told) = split(self.slot(head.slots, number, rank));
        let (words, _) = bytemuck::bytes_of(mine).as_chunks();
        for (word, mine) in told.iter().zip(words) {
            word.store(u64::from_ne_bytes(*mine), Relaxed);
        }
        id.store(head.id, Relaxed);
        // pairs with the Acquire load in `read`.
        what.store(head.what(number), Release);
    }

    /// As [`read_into`](Self::read_into); `None` if the rank told something else.
    pub(crate) fn read<S: Pod>(self, head: SlotHead, number: u64, rank: Rank) -> Option<S> {
        let mut theirs = S::zeroed();
        self.read_into(head, number, rank, &mut theirs).then_some(theirs)
    }

    /// Reads what a rank told the others in an exchange; false if it told something else.
    pub(crate) fn read_into<S: Pod>(
        self,
        head: SlotHead,
        number: u64,
        rank: Rank,
        theirs: &mut S,
    ) -> bool {
        const { assert!(fits_slot::<S>(), "whole words, of a slot at most") };
        let ([id, what], told) = split(self.slot(head.slots, number, rank));
        // pairs with the Release store in `write`.
        if what.load(Acquire) != head.what(number) || id.load(Relaxed) != head.id {
            return false;
        }
        let (words, _) = bytemuck::bytes_of_mut(theirs).as_chunks_mut();
        for (word, theirs) in told.iter().zip(words) {
            *theirs = word.load(Relaxed).to_ne_bytes();
        }
        true
    }
}

fn split(slot: &[AtomicU64; SLOT_WORDS]) -> (&[AtomicU64; HEAD_WORDS], &[AtomicU64]) {
    slot.split_first_chunk().expect("a slot is longer than its head")
}

/// What a slot holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlotHead {
    /// Of the communicator.
    pub(crate) id: u64,
    pub(crate) slots: SlotUse,
    /// Tells types apart; below 256.
    pub(crate) kind: u64,
}

impl SlotHead {
    fn what(self, number: u64) -> u64 {
        number << 8 | self.kind
    }
}

const fn fits_slot<S>() -> bool {
    size_of::<S>().is_multiple_of(8) && size_of::<S>() <= (SLOT_WORDS - HEAD_WORDS) * 8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::lock::{NODES, QueueNode};

    /// What is not accessed as the same thing has memory of its own.
    #[test]
    fn words_are_one_thing_each() {
        use Agreement::{Free, Seal};
        let mut memory = vec![0u128; BLOCK_BYTES / 16 + 4];
        let base = memory.as_mut_ptr().cast::<u8>();
        let base = base.wrapping_add(base.align_offset(64));
        // SAFETY: long enough from there on, aligned, and used as a block only.
        let block = unsafe { ControlBlock::new(base) };
        let flags = FLAGS_AT as u16 / 8..FLAGS_AT as u16 / 8 + FLAGS as u16 / 2;
        let locks = 0..=QueueNode::new(0, NODES - 1).unwrap().phase_word();
        let locks = locks.filter(|word| !flags.contains(word));
        let mut words: Vec<&AtomicU64> = locks.map(|word| block.word(word)).collect();
        for (on, number) in [(Free, 0), (Free, 1), (Seal, 0), (Seal, 1)] {
            let (refusal, of) = block.refusal(on, number);
            words.extend([refusal, of]);
        }
        words.extend([block.arrivals(), block.agreements(Free), block.agreements(Seal)]);
        let peers = (0..SIGNAL_RANKS).step_by(64);
        words.extend(peers.clone().map(|peer| block.signal(Signal::Post, peer).0));
        words.extend(peers.map(|peer| block.signal(Signal::Complete, peer).0));
        words.extend([block.bias(), block.busy(), block.earned()]);
        words.extend((0..STRIPES).map(|stripe| block.stripe(stripe)));
        let words = words.iter().map(|word| (word.as_ptr().addr(), 8));
        let flags = (0..FLAGS).map(|round| (block.flag(round).as_ptr().addr(), 4));
        let mut all: Vec<_> = words.chain(flags).collect();
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{all:?}");
        assert!(all[0].0 >= base.addr() && all[all.len() - 1].0 < base.addr() + BLOCK_BYTES);
        // Each rank has one for every window.
        const { assert!(BLOCK_BYTES < 4096) };
    }

    #[test]
    fn a_refusal_is_of_one_window_and_one_agreement() {
        use Agreement::{Free, Seal};
        let mut memory = vec![0u128; BLOCK_BYTES / 16 + 4];
        let base = memory.as_mut_ptr().cast::<u8>();
        let base = base.wrapping_add(base.align_offset(64));
        // SAFETY: long enough from there on, aligned, and used as a block only.
        let block = unsafe { ControlBlock::new(base) };
        block.refuse(9, Free, 4, Rank(2));
        block.refuse(9, Free, 4, Rank(1));
        block.refuse(9, Free, 4, Rank(3));
        assert_eq!(block.refused(9, Free, 4), Some(Rank(1)));
        for other in [3, 5, 6] {
            assert_eq!(block.refused(9, Free, other), None);
        }
        assert_eq!(block.refused(9, Seal, 4), None);
        assert_eq!(block.refused(8, Free, 4), None, "of another window");
        block.clear();
        block.refuse(7, Free, 4, Rank(3));
        assert_eq!(block.refused(7, Free, 4), Some(Rank(3)));
        block.refuse(9, Seal, 5, Rank(0));
        block.refuse(9, Seal, 6, Rank(3));
        let seals = [5, 6].map(|number| block.refused(9, Seal, number));
        assert_eq!(seals, [Some(Rank(0)), Some(Rank(3))]);
        assert_eq!(block.refused(9, Free, 4), None);
    }

    #[test]
    fn a_slot_says_what_it_holds() {
        let mut memory = vec![0u128; CollectiveBlock::bytes(2) / 16 + 4];
        let base = memory.as_mut_ptr().cast::<u8>();
        let base = base.wrapping_add(base.align_offset(64));
        // SAFETY: long enough from there on, aligned, and used as a collective block only.
        let collective_block = unsafe { CollectiveBlock::new(base, 2) };
        let head = SlotHead { id: 5, slots: SlotUse::Told, kind: 1 };
        collective_block.write(head, 3, Rank(1), &[7u64; SLOT_WORDS - HEAD_WORDS]);
        collective_block.write(head, 2, Rank(0), &[8u64; SLOT_WORDS - HEAD_WORDS]);
        assert_eq!(collective_block.read(head, 3, Rank(1)), Some([7u64; SLOT_WORDS - HEAD_WORDS]));
        let reads = |head, number, rank| collective_block.read::<u64>(head, number, rank).is_some();
        assert!(!reads(head, 3, Rank(0)), "of another rank");
        assert!(!reads(head, 5, Rank(1)), "of another number");
        assert!(!reads(SlotHead { id: 6, ..head }, 3, Rank(1)), "of another communicator");
        assert!(!reads(SlotHead { kind: 2, ..head }, 3, Rank(1)), "of another kind");
        let offers = SlotHead { slots: SlotUse::Offers, ..head };
        assert!(!reads(offers, 3, Rank(1)), "of another use");
        collective_block.write(offers, 3, Rank(1), &9u64);
        let found = [head, offers].map(|head| collective_block.read::<u64>(head, 3, Rank(1)));
        assert_eq!(found, [Some(7), Some(9)]);
        let counts = [SlotUse::Told, SlotUse::Offers].map(|slots| collective_block.writes(slots));
        counts[0].store(1, Relaxed);
        counts[1].store(2, Relaxed);
        let words = [collective_block.arrivals(), counts[0], counts[1], collective_block.reads()];
        assert_eq!(words.map(|word| word.load(Relaxed)), [0, 1, 2, 0]);
    }
}
