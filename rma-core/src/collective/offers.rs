//! Offers that all ranks make each other at once, on the collective block of their communicator:
//! one meeting takes the place of a message from each to each.
//!
//! Ranks whose calls differ may wait elsewhere: a rank that has offered what it has sends nothing.
//! So one that waits here looks for messages of the same operation, and one that waits for a
//! message looks for an offer of its sender; either gives the operation up for all. A rank that
//! comes here wakes those that are not here yet.
//!
//! A rank may come late to an operation that another has given up, and meet those that have heard
//! of it and are at a later one. All read the same offers, so all know which of them were late:
//! their operation fails, and the others offer again.
use super::abandon::{By, is_before};
use super::barrier::Meeting;
use super::exchange::Exchange;
use super::lanes::{InLane, LaneOffer, OfferKind};
use super::near::Near;
use super::operations::Result;
use crate::collective::Inner;
use crate::error::CollectiveError;
use crate::protocol::wire::{U32, U64};
use crate::rank::{Rank, WorldRank};
use bytemuck::{Pod, Zeroable};
use core::sync::atomic::Ordering::Relaxed;

/// A wait looks so often before it sleeps, at least. Most have come by then.
const LOOKS: u32 = 2;

/// What a rank says of a payload that it offers to all.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct SharedOffer {
    bytes: U64,
    tag: U32,
    lane: LaneOffer,
}

/// The ranks that offer something in an operation, seen from one of them.
struct Offering<'a> {
    exchange: &'a Exchange<'a>,
    near: &'a Near,
    bytes: u64,
}

impl Offering<'_> {
    fn inner(&self) -> &Inner {
        &self.exchange.comm().inner
    }

    /// Has ranks that sleep in something else look at what is offered here.
    fn ring_absent(&self) {
        let absent = |rank: &Rank| self.exchange.offered(self.near, *rank).is_none();
        let absent = self.exchange.comm().ranks().filter(absent);
        absent.for_each(|rank| self.inner().ring(rank));
    }

    /// A member that takes part in something else.
    fn differing(&self) -> Option<(WorldRank, u64)> {
        self.inner().contributions.sender_of(self.inner().id, self.exchange.tag)
    }
}

impl Meeting for Offering<'_> {
    type Error = CollectiveError;

    fn rank(&self) -> Rank {
        self.inner().rank
    }

    fn size(&self) -> u32 {
        self.inner().group.size()
    }

    fn ring(&self, rank: Rank) {
        self.inner().ring(rank);
    }

    fn wait(&self, peer: Rank, come: impl Fn() -> bool) -> Result<()> {
        Ok(self.inner().wait(peer, come)?)
    }

    fn wait_for_all(&self, come: impl Fn() -> bool) -> Result<()> {
        let (inner, what) = (self.inner(), self.exchange.what());
        if inner.engine.comes_at_once(&come) {
            return Ok(());
        }
        let mut looks = 0;
        let look = || {
            if come() {
                return Some(None);
            }
            looks += 1;
            if looks == LOOKS {
                self.ring_absent();
            }
            self.differing().map(Some)
        };
        let looked = inner.attempt(what, (None, By::Messages), |wait| {
            // wait: offers
            inner.engine.wait_until(wait, look)
        });
        // That rank has sent a message instead, of a payload of so many bytes.
        let Some((world, got)) = looked? else { return Ok(()) };
        let from = inner.group.rank_of(world).unwrap_or(inner.rank);
        Err(match self.bytes {
            expected if got != expected => {
                CollectiveError::LengthMismatch { what, from, expected, got }
            }
            _ => CollectiveError::Malformed { what, from },
        })
    }
}

impl Exchange<'_> {
    /// Offers all others a payload, which begins with the piece of that number, and answers with
    /// what all offer, in rank order.
    pub(super) fn share_lanes(
        &self,
        near: &Near,
        kind: OfferKind,
        bytes: usize,
        first: u64,
    ) -> Result<Vec<SharedOffer>> {
        self.check_payload(bytes as u64)?;
        let (inner, bytes) = (&*self.comm().inner, bytes as u64);
        let lane = self.lane_offer(kind, bytes as usize, first);
        let mine = SharedOffer { bytes: bytes.into(), tag: self.tag.into(), lane };
        let meeting = Offering { exchange: self, near, bytes };
        loop {
            let shared = near.share_offers(&meeting, &self.turn.offers, inner, &mine);
            let all: Vec<SharedOffer> = shared.map_err(|error| self.not_shared(error))?;
            let other = |from: &Rank| all[usize::from(*from)].tag.get() != self.tag;
            let Some(from) = self.comm().ranks().find(other) else {
                // Ranks that have met in one operation are not ahead of each other.
                self.turn.one_sided.store(0, Relaxed);
                return Ok(all);
            };
            let is_late = all.iter().any(|offer| !is_before(offer.tag.get(), self.tag));
            if is_late {
                return Err(self.went_on(from));
            }
        }
    }

    /// Why `from` has gone on without this rank: a rank that gives an operation up tells that
    /// before it offers something else.
    fn went_on(&self, from: Rank) -> CollectiveError {
        let (inner, what) = (&*self.comm().inner, self.what());
        let heard = inner.attempt(what, (None, By::Messages), |wait| {
            // A rank that comes last to a meeting has waited for nothing, and handled no message.
            inner.engine.handle_arrived(wait)?;
            let cause = inner.engine.trouble(wait);
            cause.map_or(Ok(()), |cause| Err(inner.engine.given_up(wait, cause)))
        });
        match heard {
            Err(error) => self.not_shared(error.into()),
            Ok(()) => self.not_shared(CollectiveError::Malformed { what, from }),
        }
    }

    fn not_shared(&self, error: CollectiveError) -> CollectiveError {
        match error {
            CollectiveError::LengthMismatch { .. } | CollectiveError::Malformed { .. } => {
                return self.fails(error);
            }
            CollectiveError::GaveUp { .. } => {}
            // Others may have gone on.
            _ => self.comm().inner.lose_step(self.what()),
        }
        error
    }

    /// What a rank has offered in a meeting that is not over, if it is of this operation.
    pub(super) fn offered(&self, near: &Near, rank: Rank) -> Option<SharedOffer> {
        let offer = near.offer_of(&self.comm().inner, &self.turn.offers, rank);
        offer.filter(|offer: &SharedOffer| offer.tag.get() == self.tag)
    }

    /// One of those ranks that offers something to all, which this rank does not.
    pub(super) fn offered_by(&self, whom: &[Rank]) -> Option<Rank> {
        let near = self.comm().collective_block()?;
        whom.iter().copied().find(|rank| self.offered(near, *rank).is_some())
    }

    /// What `from` offers to all of that length; `None` if it has no lane.
    pub(super) fn accept_shared(
        &self,
        from: Rank,
        offer: &SharedOffer,
        bytes: usize,
    ) -> Result<Option<InLane>> {
        self.check_length(from, bytes, offer.bytes.get())?;
        self.accept_offer((from, OfferKind::Flat), &offer.lane, offer.bytes.get())
    }
}
