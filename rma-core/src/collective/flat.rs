//! Operations of ranks that share memory, without a tree: each rank reads from the lanes of those
//! that have what it wants, and so each byte is written to shared memory once.
//!
//! # No rank waits for ever
//!
//! Where all read what all write, the steps of all ranks are the same, and each is some writes and
//! then the reads of just these pieces. A writer waits for the reads of pieces of earlier steps
//! only, as a step has no more pieces than a lane; so a rank in the earliest step goes on. What is
//! written in the first step is there before ranks hear of it.
//!
//! Ranks choose this way by lengths, which are the same everywhere in a program that is right. In
//! one that is not, some may take this way and others a tree. Each that takes this one offers what
//! it has, of what length, to the ranks that would hear from it in a tree, or to all at
//! [one meeting](super::offers); so a rank sees the difference, and gives the operation up for all.
//! What ranks do here depends on more than lengths: the operation, its root, the size of what is
//! combined, and how many elements each has of it. That is the [plan](FlatPlan) of an offer, and a
//! rank that finds another than its own gives up, before it reads a piece of all with all.
use super::exchange::Exchange;
use super::lanes::{FlatKind, FlatPlan, HALF, InLane, OfferKind};
use super::near::Near;
use super::node::TreeOrder;
use super::operations::Result;
use super::pieces::Readers;
use super::reduction::ReduceBytes;
use super::tree::BROADCAST;
use crate::collective::Communicator;
use crate::error::CollectiveError;
use crate::memory::lane::PIECES;
use crate::rank::Rank;
use core::cmp::Ordering;
use core::ops::{Deref, Range};
use std::sync::Arc;

/// What ranks offer each other first, which they do in a tree, too.
pub(super) const OFFERS: u32 = 0;
/// The messages of a rank that has no lane.
const INSTEAD: u32 = 1;

/// Which rank combines what of a payload, and which has the result.
#[derive(Clone, Copy)]
pub(super) enum Shares<'a> {
    /// As much each; all have all of it.
    All,
    /// As much each; that rank has all of it.
    One(Rank),
    /// So many elements each, which this rank has.
    Own(&'a [usize]),
}

impl Shares<'_> {
    /// What tells them apart.
    fn numbers(&self) -> impl Iterator<Item = u64> {
        let (kind, root, counts): (_, _, &[usize]) = match *self {
            Self::All => (0, 0, &[]),
            Self::One(root) => (1, root.into(), &[]),
            Self::Own(counts) => (2, 0, counts),
        };
        [kind, root].into_iter().chain(counts.iter().map(|count| *count as u64))
    }
}

/// How the elements of a reduction are dealt to the ranks that combine them, a segment in each
/// turn.
struct Dealt<'a> {
    shares: Shares<'a>,
    ranks: usize,
    elements: usize,
    /// Of a segment, at most.
    segment: usize,
    turns: usize,
}

impl<'a> Dealt<'a> {
    fn new(shares: Shares<'a>, ranks: usize, elements: usize, most: usize) -> Self {
        let (segment, turns) = match shares {
            Shares::All | Shares::One(_) => {
                let turns = elements.div_ceil(ranks * most).max(1);
                (elements.div_ceil(turns * ranks), turns)
            }
            Shares::Own(counts) => {
                (most, counts.iter().map(|count| count.div_ceil(most)).max().unwrap_or(0))
            }
        };
        Self { shares, ranks, elements, segment, turns }
    }

    /// What the rank at that place combines in a turn.
    fn range(&self, turn: usize, owner: usize) -> Range<usize> {
        let (first, end) = match self.shares {
            Shares::All | Shares::One(_) => {
                ((turn * self.ranks + owner) * self.segment, self.elements)
            }
            Shares::Own(counts) => {
                let before: usize = counts[..owner].iter().sum();
                (before + turn * self.segment, before + counts[owner])
            }
        };
        first.min(end)..(first + self.segment).min(end)
    }
}

/// Where the bytes of elements that were dealt are.
struct DealtBytes<'a> {
    dealt: Dealt<'a>,
    /// Of an element.
    width: usize,
}

impl<'a> Deref for DealtBytes<'a> {
    type Target = Dealt<'a>;

    fn deref(&self) -> &Dealt<'a> {
        &self.dealt
    }
}

impl DealtBytes<'_> {
    /// Of what the rank at that place combines in a turn.
    fn range(&self, turn: usize, owner: usize) -> Range<usize> {
        let Range { start, end } = self.dealt.range(turn, owner);
        start * self.width..end * self.width
    }
}

/// What is combined of one segment.
struct Partial {
    /// Of this rank and those below it, down to the last that was heard.
    low: Vec<u8>,
    /// Of the highest rank, down to the last that was heard, if there is any.
    high: Vec<u8>,
    has_high: bool,
    heard: Vec<u8>,
}

impl Partial {
    fn new(len: usize) -> Self {
        let zeros = || vec![0; len];
        Self { low: zeros(), high: zeros(), has_high: false, heard: zeros() }
    }
}

/// A piece of a payload.
fn piece(payload: &[u8], unit: usize, number: u64) -> &[u8] {
    let rest = &payload[number as usize * unit..];
    &rest[..rest.len().min(unit)]
}

fn piece_mut(payload: &mut [u8], unit: usize, number: u64) -> &mut [u8] {
    let rest = &mut payload[number as usize * unit..];
    let len = rest.len().min(unit);
    &mut rest[..len]
}

/// The ranks of an order on a ring.
#[derive(Clone, Copy)]
struct Ring<'a> {
    comm: &'a Communicator,
    order: TreeOrder<'a>,
    size: u32,
    /// This rank's place.
    own: Rank,
}

/// A rank on a ring.
#[derive(Clone, Copy)]
struct Partner {
    rank: Rank,
    place: usize,
}

impl Ring<'_> {
    fn others(&self) -> u64 {
        u64::from(self.size) - 1
    }

    fn at(&self, steps: i64) -> Partner {
        let place = self.own.on_ring(steps, self.size);
        Partner { rank: self.order.at(self.comm, place.0), place: usize::from(place) }
    }

    /// The partner of each step around the ring, from the next rank on.
    fn after(&self, step: u64) -> Partner {
        self.at(step as i64)
    }

    fn before(&self, step: u64) -> Partner {
        self.at(-(step as i64))
    }
}

impl Exchange<'_> {
    fn ring<'r>(&'r self, order: TreeOrder<'r>) -> Ring<'r> {
        let comm = self.comm();
        Ring { comm, order, size: order.size(comm), own: Rank(order.place(comm)) }
    }

    /// Offers all other ranks a payload, which begins with that piece, and hears what they offer,
    /// in the order of the ranks before this one. `None` if a rank has no lane: all do something
    /// else then, in other rounds, and no rank reads what was written.
    fn offer_all(&self, ring: Ring<'_>, bytes: usize, first: u64) -> Result<Option<Vec<InLane>>> {
        let kind = if self.opens() { OfferKind::Flat } else { OfferKind::NoLane };
        let all = match (ring.order, self.comm().collective_block()) {
            (TreeOrder::From(_), Some(near)) => self.share_offers(near, ring, (kind, bytes, first)),
            _ => self.send_offers(ring, (kind, bytes, first)),
        }?;
        let unit = self.unit(bytes);
        if let Some(other) = all.iter().flatten().find(|lane| lane.unit() != unit) {
            let from = other.from();
            return Err(self.fails(CollectiveError::Malformed { what: self.what(), from }));
        }
        let all: Option<Vec<InLane>> = all.into_iter().collect();
        let all = all.filter(|_| kind == OfferKind::Flat);
        if all.is_none() {
            self.recall(first);
            self.leave_lane()?;
            self.set_other_rounds();
        }
        Ok(all)
    }

    /// What ranks of an order of some offer, by messages.
    fn send_offers(
        &self,
        ring: Ring<'_>,
        (kind, bytes, first): (OfferKind, usize, u64),
    ) -> Result<Vec<Option<InLane>>> {
        let steps = 1..=ring.others();
        for step in steps.clone() {
            self.offer((ring.after(step).rank, OFFERS), kind, bytes, first)?;
        }
        let partners: Vec<Rank> = steps.map(|step| ring.before(step).rank).collect();
        let mut outstanding = partners.clone();
        let mut all: Vec<Option<InLane>> = partners.iter().map(|_| None).collect();
        // Whichever comes: of ranks that took another way, only some send to this one, and may wait
        // for it, or for others that do.
        // A rank that takes part in something else may send what needs room: that is an error.
        self.expect_any(&outstanding, OFFERS);
        while !outstanding.is_empty() {
            let (from, part) = self.take_any(&outstanding, OFFERS, 0)?;
            outstanding.retain(|rank| *rank != from);
            let lane = self.accept(from, &part, OfferKind::Flat, Some(bytes))?;
            let of_it = partners.iter().zip(&mut all).find(|(rank, _)| **rank == from);
            if let Some((_, place)) = of_it {
                *place = lane;
            }
        }
        Ok(all)
    }

    /// What all ranks offer, by the collective block.
    fn share_offers(
        &self,
        near: &Near,
        ring: Ring<'_>,
        (kind, bytes, first): (OfferKind, usize, u64),
    ) -> Result<Vec<Option<InLane>>> {
        let all = self.share_lanes(near, kind, bytes, first)?;
        (1..=ring.others())
            .map(|step| {
                let from = ring.before(step).rank;
                self.accept_shared(from, &all[usize::from(from)], bytes)
            })
            .collect()
    }

    /// Offers the others of an order what this rank, the first of it, broadcasts: from that piece
    /// on. The last one first: parents in a tree are before their children, which wait for a parent
    /// unless they have an offer, and a parent that has one may read and leave.
    pub(super) fn offer_broadcast(&self, others: &[Rank], bytes: usize, first: u64) -> Result<()> {
        self.plan.set(FlatPlan::around(FlatKind::Broadcast, self.comm().rank()));
        others
            .iter()
            .rev()
            .try_for_each(|to| self.offer((*to, BROADCAST), OfferKind::Flat, bytes, first))
    }

    /// Copies the bytes of this rank to all others, which wait for them or for a tree.
    pub(super) fn broadcast_flat(&self, others: Arc<[Rank]>, bytes: &[u8]) -> Result<()> {
        let (first, unit) = (self.next_piece(), self.unit(bytes.len()));
        let (readers, early) =
            (Readers::All(others.clone()), bytes.len().min(unit * HALF as usize));
        // An offer wakes the reader that waits for it, which shall find something to read.
        for piece in bytes[..early].chunks(unit) {
            self.put_piece(readers.clone(), piece, false)?;
        }
        self.offer_broadcast(&others, bytes.len(), first)?;
        self.put_more(&readers, bytes, bytes.len(), &mut { early })?;
        self.leave_lane()
    }

    /// Fills the blocks of all others, where that of this rank is in its place; false if that has
    /// to be done in another way.
    pub(super) fn allgather_flat(&self, all: &mut [u8]) -> Result<bool> {
        let comm = self.comm();
        let block = all.len() / comm.size() as usize;
        let Some(others) = self.flat(TreeOrder::From(Rank(0)), block) else { return Ok(false) };
        self.plan.set(FlatPlan::new(FlatKind::Allgather, []));
        let (ring, unit) = (self.ring(TreeOrder::From(Rank(0))), self.unit(block));
        let own = usize::from(comm.rank()) * block;
        let pieces = block.div_ceil(unit) as u64;
        let put = |all: &[u8], numbers: Range<u64>, rings: bool| {
            numbers.clone().try_for_each(|number| {
                let mine = piece(&all[own..][..block], unit, number);
                let rings = rings && number + 1 == numbers.end;
                self.put_piece(Readers::All(others.clone()), mine, rings)
            })
        };
        let start = self.first_piece();
        // A rank that hears of the offer finds them there.
        put(all, 0..pieces.min(HALF), false)?;
        let Some(lanes) = self.offer_all(ring, block, start)? else { return Ok(false) };
        for first in (0..pieces).step_by(HALF as usize) {
            let numbers = first..pieces.min(first + HALF);
            if first > 0 {
                put(all, numbers.clone(), true)?;
            }
            for (step, lane) in (1..).zip(&lanes) {
                let from = ring.before(step).place * block;
                for number in numbers.clone() {
                    let theirs = piece_mut(&mut all[from..][..block], unit, number);
                    self.get_piece(lane, number, theirs, number + 1 == numbers.end)?;
                }
            }
        }
        self.leave_lane()?;
        Ok(true)
    }

    /// Sends each other rank its block of `mine`, and receives into `all`; without `mine`, what is
    /// received takes the place of what is sent. False as in
    /// [`allgather_flat`](Self::allgather_flat), or if `all` would be overwritten too soon.
    pub(super) fn alltoall_flat(&self, mine: Option<&[u8]>, all: &mut [u8]) -> Result<bool> {
        let comm = self.comm();
        let ring = self.ring(TreeOrder::From(Rank(0)));
        let (block, others) = (all.len() / comm.size() as usize, ring.others());
        if self.flat(TreeOrder::From(Rank(0)), block).is_none() {
            return Ok(false);
        }
        // In place, all are written before one is read.
        let at_once = if mine.is_some() { HALF } else { PIECES.into() };
        let pieces = |unit: usize| block.div_ceil(unit) as u64 * others;
        if mine.is_none() && pieces(self.unit(block)) > at_once {
            return Ok(false);
        }
        self.plan.set(FlatPlan::new(FlatKind::Alltoall, []));
        // One piece of each block after the other.
        let (unit, pieces) = (self.unit(block), pieces(self.unit(block)));
        let put = |all: &[u8], numbers: Range<u64>, rings: bool| {
            numbers.clone().try_for_each(|number| {
                let to = ring.after(number % others + 1);
                let block = &all[to.place * block..][..block];
                let rings = rings && number + others >= numbers.end;
                self.put_piece(Readers::One(to.rank), piece(block, unit, number / others), rings)
            })
        };
        let start = self.first_piece();
        // A rank that hears of the offer finds them there.
        put(mine.unwrap_or(all), 0..pieces.min(at_once), false)?;
        let Some(lanes) = self.offer_all(ring, block, start)? else { return Ok(false) };
        for first in (0..pieces).step_by(at_once as usize) {
            let numbers = first..pieces.min(first + at_once);
            if first > 0 {
                put(mine.unwrap_or(all), numbers.clone(), true)?;
            }
            for number in numbers.clone() {
                let from = ring.before(number % others + 1);
                let block = &mut all[from.place * block..][..block];
                let theirs = piece_mut(block, unit, number / others);
                let lane = &lanes[(number % others) as usize];
                self.get_piece(lane, number, theirs, number + others >= numbers.end)?;
            }
        }
        self.leave_lane()?;
        Ok(true)
    }

    /// Collects blocks of the ranks of an order at the first, where `all` has room for those of all
    /// ranks; false as in [`allgather_flat`](Self::allgather_flat).
    pub(super) fn gather_flat(
        &self,
        order: TreeOrder<'_>,
        mine: &[u8],
        all: &mut [u8],
    ) -> Result<bool> {
        if self.flat(order, mine.len()).is_none() {
            return Ok(false);
        }
        let (ring, root) = (self.ring(order), order.at(self.comm(), 0));
        self.plan.set(FlatPlan::around(FlatKind::Gather, root));
        if self.comm().rank() != root {
            self.give_flat(order, mine)?;
            return Ok(true);
        }
        let place = |rank| usize::from(rank) * mine.len()..(usize::from(rank) + 1) * mine.len();
        all[place(root)].copy_from_slice(mine);
        for step in 1..=ring.others() {
            let from = ring.after(step).rank;
            let (part, block) = (self.take(from, OFFERS, 0)?, &mut all[place(from)]);
            match self.accept(from, &part, OfferKind::Flat, Some(mine.len()))? {
                Some(lane) => self.get_stream(&lane, block)?,
                None => self.receive_into(from, INSTEAD, block)?,
            }
        }
        Ok(true)
    }

    fn give_flat(&self, order: TreeOrder<'_>, mine: &[u8]) -> Result<()> {
        let (has_lane, root) = (self.opens(), order.at(self.comm(), 0));
        let kind = if has_lane { OfferKind::Flat } else { OfferKind::NoLane };
        self.offer((root, OFFERS), kind, mine.len(), self.next_piece())?;
        let (parent, children) = self.relatives(order);
        if let Some(parent) = parent.filter(|parent| *parent != root) {
            self.offer((parent, OFFERS), OfferKind::Length, mine.len(), 0)?;
        }
        for child in children {
            let part = self.take(child, OFFERS, 0)?;
            self.accept(child, &part, OfferKind::Length, Some(mine.len()))?;
        }
        if !has_lane {
            return self.send(root, INSTEAD, mine);
        }
        self.put_stream(&Readers::One(root), mine)?;
        self.leave_lane()
    }

    /// Deals `run` of this rank, in equal blocks and in the order of the ranks from this one on, to
    /// all others, which wait for that or for a tree; false if it takes a tree.
    pub(super) fn scatter_flat(&self, run: &[u8], round: u32) -> Result<bool> {
        let (comm, order) = (self.comm(), TreeOrder::From(self.comm().rank()));
        let ring = self.ring(order);
        let block = run.len() / comm.size() as usize;
        if self.flat(order, block).is_none() || !self.opens() {
            return Ok(false);
        }
        let unit = self.unit(block);
        let (first, pieces) = (self.next_piece(), block.div_ceil(unit) as u64);
        for step in 1..=ring.others() {
            let at = first + (step - 1) * pieces;
            self.offer((ring.after(step).rank, round), OfferKind::Flat, block, at)?;
        }
        for (step, block) in (0..).zip(run.chunks(block)).skip(1) {
            self.put_stream(&Readers::One(ring.after(step).rank), block)?;
        }
        self.leave_lane()?;
        Ok(true)
    }

    /// Combines `total` of all ranks of an order, in that order, into that of the ranks that are to
    /// have it; false as in [`allgather_flat`](Self::allgather_flat).
    pub(super) fn reduce_flat(
        &self,
        order: TreeOrder<'_>,
        total: &mut [u8],
        reduction: &dyn ReduceBytes,
        shares: Shares<'_>,
    ) -> Result<bool> {
        let (comm, ring, width) = (self.comm(), self.ring(order), reduction.width());
        let Some(others) = self.flat(order, total.len()) else {
            return Ok(false);
        };
        let most = self.unit_elements(width, total.len());
        if most == 0 {
            return Ok(false);
        }
        let how = core::iter::once(width as u64).chain(shares.numbers());
        self.plan.set(FlatPlan::new(FlatKind::Reduce, how));
        let dealt = Dealt::new(shares, ring.size as usize, total.len() / width, most);
        let dealt = DealtBytes { dealt, width };
        // All pieces of so many turns have a place.
        let at_once = (PIECES / ring.size).max(1) as usize;
        let start = self.first_piece();
        // A rank that hears of the offer finds them there.
        let turns = 0..dealt.turns.min(at_once);
        let early = (turns.len() as u64 * ring.others()).min(PIECES.into());
        self.put_parts((ring, &dealt, turns), 0..early, total, false)?;
        let offers = self.offer_all(ring, total.len(), start)?;
        let Some(lanes) = offers else { return Ok(false) };
        let readers = match shares {
            Shares::All => Readers::All(others),
            Shares::One(root) if root != comm.rank() => Readers::One(root),
            Shares::One(_) | Shares::Own(_) => Readers::None,
        };
        let mut partial = Partial::new(dealt.segment * width);
        let mut number = 0;
        for first in (0..dealt.turns).step_by(at_once) {
            let turns = first..dealt.turns.min(first + at_once);
            let of = (ring, &lanes[..], &dealt, turns);
            number = self.reduce_turns(of, number, total, reduction, &mut partial, &readers)?;
        }
        self.leave_lane()?;
        Ok(true)
    }

    /// Writes some of the parts that others combine in those turns.
    fn put_parts(
        &self,
        (ring, dealt, turns): (Ring<'_>, &DealtBytes<'_>, Range<usize>),
        parts: Range<u64>,
        total: &[u8],
        rings: bool,
    ) -> Result<()> {
        let others = ring.others();
        parts.clone().try_for_each(|part| {
            let (turn, to) =
                (turns.start + (part / others) as usize, ring.after(part % others + 1));
            let theirs = &total[dealt.range(turn, to.place)];
            let rings = rings && part + others >= parts.end;
            self.put_piece(Readers::One(to.rank), theirs, rings)
        })
    }

    /// Some turns of a reduction, from that piece on; the piece behind them. The first parts of the
    /// first turn are written.
    fn reduce_turns(
        &self,
        (ring, lanes, dealt, turns): (Ring<'_>, &[InLane], &DealtBytes<'_>, Range<usize>),
        number: u64,
        total: &mut [u8],
        reduction: &dyn ReduceBytes,
        partial: &mut Partial,
        readers: &Readers,
    ) -> Result<u64> {
        let (others, place) = (ring.others(), usize::from(ring.own));
        let of = |part: u64| (turns.start + (part / others) as usize, part % others + 1);
        let parts = turns.len() as u64 * others;
        for first in (0..parts).step_by(PIECES as usize) {
            let some = first..parts.min(first + u64::from(PIECES));
            if number + first > 0 {
                self.put_parts((ring, dealt, turns.clone()), some.clone(), total, true)?;
            }
            for part in some.clone() {
                let (turn, step) = of(part);
                let own = dealt.range(turn, place);
                let lane = &lanes[step as usize - 1];
                let theirs = &mut partial.heard[..own.len()];
                self.get_piece(lane, number + part, theirs, part + others >= some.end)?;
                self.hear((ring, step), &mut total[own], reduction, partial);
            }
        }
        let results = number + parts;
        if matches!(dealt.shares, Shares::Own(_)) {
            return Ok(results);
        }
        for turn in turns.clone() {
            let own = &total[dealt.range(turn, place)];
            self.put_piece(readers.clone(), own, turn + 1 == turns.end)?;
        }
        let reads = match dealt.shares {
            Shares::One(root) => root == self.comm().rank(),
            Shares::All | Shares::Own(_) => true,
        };
        for (step, lane) in (1..).zip(lanes).filter(|_| reads) {
            for (number, turn) in (results..).zip(turns.clone()) {
                let theirs = &mut total[dealt.range(turn, ring.before(step).place)];
                self.get_piece(lane, number, theirs, turn + 1 == turns.end)?;
            }
        }
        Ok(results + turns.len() as u64)
    }

    /// Combines a segment of this rank with what was heard for it from another; with the last one,
    /// it is done.
    fn hear(
        &self,
        (ring, step): (Ring<'_>, u64),
        own: &mut [u8],
        reduction: &dyn ReduceBytes,
        partial: &mut Partial,
    ) {
        let (from, place, len) = (ring.before(step).place, usize::from(ring.own), own.len());
        let Partial { low, high, has_high, heard } = partial;
        if step == 1 {
            low[..len].copy_from_slice(own);
            *has_high = false;
        }
        // Each is the next lower one, around the ring: it comes before what was heard so far.
        match from.cmp(&place) {
            Ordering::Less => {
                self.combine_bytes(reduction, &mut heard[..len], &low[..len]);
                core::mem::swap(heard, low);
            }
            _ => {
                if *has_high {
                    self.combine_bytes(reduction, &mut heard[..len], &high[..len]);
                }
                core::mem::swap(heard, high);
                *has_high = true;
            }
        }
        if step == ring.others() {
            if *has_high {
                self.combine_bytes(reduction, &mut low[..len], &high[..len]);
            }
            own.copy_from_slice(&low[..len]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every element is in one segment, of one owner.
    #[test]
    fn all_elements_are_dealt_once() {
        for (ranks, elements, most) in
            [(2, 1, 8), (3, 24, 8), (3, 25, 8), (4, 1000, 7), (5, 3, 100), (1, 9, 2)]
        {
            let counts: Vec<usize> = (0..ranks).map(|rank| if rank == 0 { 0 } else { 9 }).collect();
            let own: usize = counts.iter().sum();
            for (shares, elements) in [(Shares::All, elements), (Shares::Own(&counts), own)] {
                let dealt = Dealt::new(shares, ranks, elements, most);
                let mut seen = vec![0; elements];
                for (turn, owner) in
                    (0..dealt.turns).flat_map(|turn| (0..ranks).map(move |r| (turn, r)))
                {
                    let range = dealt.range(turn, owner);
                    assert!(range.len() <= most);
                    seen[range].iter_mut().for_each(|seen| *seen += 1);
                }
                assert!(seen.iter().all(|seen| *seen == 1), "{ranks} {elements} {most}");
            }
        }
    }
}
