//! The roster of a job on this machine: one segment that all ranks map when they join. It tells how
//! each rank left and where its own segments are, and has its doorbell; so a rank that leaves
//! tells and wakes all without opening anything, and knows none it has nothing to do with.
#![allow(unsafe_code)] // room: views a mapped segment as the tables below

use core::mem::size_of;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use rma_core::transport::{Outcome, PeerState, WorldRank};

use crate::card::{CARD_WORDS, Card, MAGIC};
use crate::doorbell::Doorbell;
use crate::segment::Span;

/// Written by rank 0 before any other rank knows the segment, but for `failed` and `unfenced`.
#[repr(C, align(128))]
struct Head {
    magic: AtomicU64,
    ranks: AtomicU32,
    /// 1 + the first rank that failed.
    failed: AtomicU32,
    /// Not 0 if the system has no fence for all ranks here, as one of them found when it joined.
    unfenced: AtomicU32,
}

type CardSlot = [AtomicU64; CARD_WORDS];

/// The mapped roster. Behind its head: a doorbell for each rank, a card for each, and a byte for
/// each, which says how it left.
pub(crate) struct Roster {
    span: Span,
    places: Places,
}

/// Where its tables begin.
#[derive(Clone, Copy)]
struct Places {
    ranks: usize,
    bells: usize,
    cards: usize,
    states: usize,
    end: usize,
}

impl Places {
    fn new(ranks: u32) -> Option<Self> {
        let ranks = usize::try_from(ranks).ok()?;
        let bells = size_of::<Head>();
        let cards = size_of::<Doorbell>().checked_mul(ranks)?.checked_add(bells)?;
        let states = size_of::<CardSlot>().checked_mul(ranks)?.checked_add(cards)?;
        let end = states.checked_add(ranks)?;
        Some(Self { ranks, bells, cards, states, end })
    }
}

/// Bytes of the roster of a job, a whole number of pages.
pub(crate) fn roster_len(ranks: u32) -> Option<usize> {
    Places::new(ranks)?.end.checked_next_multiple_of(rustix::param::page_size())
}

fn to_code(outcome: Outcome) -> u8 {
    match outcome {
        Outcome::Departed => 1,
        Outcome::Failed => 2,
        Outcome::Holding => 3,
    }
}

fn from_code(code: u8) -> PeerState {
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

impl Roster {
    /// Writes the head of a fresh segment, which is zero otherwise: every part's initial state.
    pub(crate) fn create(span: Span, ranks: u32) -> Option<Self> {
        let this = Self::view(span, ranks)?;
        this.head().ranks.store(ranks, Relaxed);
        // Ordered before every reader by the exchange that tells them of the segment.
        this.head().magic.store(MAGIC, Relaxed);
        Some(this)
    }

    /// That of rank 0, if its head is what it should be.
    pub(crate) fn import(span: Span, ranks: u32) -> Option<Self> {
        let this = Self::view(span, ranks)?;
        let head = this.head();
        let right = head.magic.load(Relaxed) == MAGIC && head.ranks.load(Relaxed) == ranks;
        right.then_some(this)
    }

    fn view(span: Span, ranks: u32) -> Option<Self> {
        let places = Places::new(ranks)?;
        (Some(span.len()) == roster_len(ranks)).then_some(Self { span, places })
    }

    #[inline]
    pub(crate) fn ranks(&self) -> u32 {
        // It was one, in `view`.
        self.places.ranks as u32
    }

    #[inline]
    fn head(&self) -> &Head {
        // SAFETY: `view` checked that the mapping, which is aligned to a page and lives as long as
        // `self`, begins with a `Head`: atomics, of which every bit pattern is a value and which
        // others may change behind a shared reference.
        unsafe { &*self.span.base().cast::<Head>() }
    }

    #[inline]
    fn bells(&self) -> &[Doorbell] {
        let first = self.span.base().wrapping_add(self.places.bells).cast::<Doorbell>();
        // SAFETY: `view` checked that the mapping, which lives as long as `self`, holds what
        // `Places` lists: so many bells behind the head. Both have sizes that are multiples of
        // their alignment of 128, and a page is aligned to that. A bell is made of atomics, of
        // which every bit pattern is a value and which others may change behind a shared reference.
        unsafe { core::slice::from_raw_parts(first, self.places.ranks) }
    }

    fn cards(&self) -> &[CardSlot] {
        let first = self.span.base().wrapping_add(self.places.cards).cast::<CardSlot>();
        // SAFETY: as above; they begin where the bells end, at a multiple of 128, which 8 divides.
        unsafe { core::slice::from_raw_parts(first, self.places.ranks) }
    }

    #[inline]
    fn states(&self) -> &[AtomicU8] {
        let first = self.span.base().wrapping_add(self.places.states).cast::<AtomicU8>();
        // SAFETY: as above; they begin where the cards end, and a byte has no alignment.
        unsafe { core::slice::from_raw_parts(first, self.places.ranks) }
    }

    /// Where a rank sleeps; `None` if there is no such rank.
    #[inline]
    pub(crate) fn bell(&self, rank: WorldRank) -> Option<&Doorbell> {
        self.bells().get(rank.0 as usize)
    }

    /// Wakes every rank: something is known that any wait may end for.
    pub(crate) fn ring_all(&self) {
        self.bells().iter().for_each(Doorbell::ring_for_work);
    }

    /// Says where the segments of a rank are. Each does that for itself, once.
    pub(crate) fn introduce(&self, rank: WorldRank, card: &Card) {
        let Some(slot) = self.cards().get(rank.0 as usize) else { return };
        // Ordered before every reader by the exchange at which all have done this.
        slot.iter().zip(card.to_words()).for_each(|(word, value)| word.store(value, Relaxed));
    }

    /// Where the segments of a rank are; `None` if what stands there is no card.
    pub(crate) fn card(&self, rank: WorldRank) -> Option<Card> {
        let slot = self.cards().get(rank.0 as usize)?;
        Card::from_words(slot.each_ref().map(|word| word.load(Relaxed)), rank.0, self.ranks())
    }

    /// A rank that joins says that the system refuses it the fence for all ranks here.
    pub(crate) fn set_unfenced(&self) {
        // Ordered before every reader as in `introduce`.
        self.head().unfenced.store(1, Relaxed);
    }

    /// Whether none has said so; asked when all have joined.
    pub(crate) fn is_fenced(&self) -> bool {
        self.head().unfenced.load(Relaxed) == 0
    }

    /// How a rank left. A thread that sees here that one failed finds [`failed`](Self::failed) set.
    #[inline]
    pub(crate) fn state(&self, rank: WorldRank) -> PeerState {
        // Acquire pairs with the Release in `tell`: what the rank did before it left is visible.
        let code = self.states().get(rank.0 as usize).map_or(0, |code| code.load(Acquire));
        let state = from_code(code);
        if state == PeerState::Failed {
            // The teller may have come no further. After this exchange, whichever wins, the word is
            // not 0 for this thread, and never becomes 0 again.
            self.set_failed(rank);
        }
        state
    }

    /// Tells all how a rank left, itself or as a rank that missed it found out; false if that is
    /// nothing new. The first word stands, but one that left in order may find out later that it
    /// holds locks.
    ///
    /// The byte of `rank` decides: it leaves `Alive` once, and `Failed` is an end. Only a thread
    /// that has seen `Failed` there sets the word `failed`. So that word names no rank that left in
    /// order.
    pub(crate) fn tell(&self, rank: WorldRank, outcome: Outcome) -> bool {
        let Some(state) = self.states().get(rank.0 as usize) else { return false };
        // Release pairs with the Acquire in `state`.
        let is_news =
            state.fetch_update(AcqRel, Acquire, |code| news(from_code(code), outcome)).is_ok();
        // Sets the word `failed`, if that is what the byte says, before any rank is woken.
        self.state(rank);
        is_news
    }

    /// The first rank that failed.
    #[inline]
    pub(crate) fn failed(&self) -> Option<WorldRank> {
        // Acquire pairs with the Release in `set_failed`.
        let word = self.head().failed.load(Acquire);
        word.checked_sub(1).filter(|&rank| rank < self.ranks()).map(WorldRank)
    }

    /// Records that `rank` failed, if it is the first one.
    #[cold]
    fn set_failed(&self, rank: WorldRank) {
        // Release pairs with the Acquire in `failed`.
        _ = self.head().failed.compare_exchange(0, rank.0 + 1, AcqRel, Relaxed);
    }
}

#[cfg(test)]
#[path = "roster_tests.rs"]
mod tests;
