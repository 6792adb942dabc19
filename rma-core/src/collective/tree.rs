//! What collective operations are made of: trees, and dissemination, over the ranks of an order.
use super::barrier::{distance, rounds};
use super::binomial;
use super::contributions::{PART, PayloadPart};
use super::exchange::{Exchange, parts};
use super::lanes::{FlatKind, FlatPlan, InLane, OfferKind};
use super::node::TreeOrder;
use super::reduction::{ReduceBytes, Reduction};
use crate::element::Element;
use crate::error::CollectiveError;
use crate::rank::Rank;
use bytemuck::allocation::pod_collect_to_vec;

// Two ranks that meet in two orders of one operation do so in one of these only.
const GATHER: u32 = 0;
const SCATTER: u32 = 0;
const REDUCE: u32 = 0;
pub(super) const BROADCAST: u32 = 2;

pub(super) fn elements<E: Element>(bytes: &[u8]) -> Vec<E> {
    // How many others there are is not known.
    const { assert!(size_of::<E>() > 0, "what collective operations pass on has bytes") };
    pod_collect_to_vec(bytes)
}

/// A rank in the tree of an order.
struct TreePlace {
    /// `None` at the first.
    parent: Option<Rank>,
    /// The farthest first; of each, how many ranks it and those behind it are.
    children: Vec<(Rank, usize)>,
}

impl Exchange<'_> {
    fn place_in(&self, order: TreeOrder<'_>) -> TreePlace {
        let (size, place) = (order.size(self.comm()), order.place(self.comm()));
        let (parent, children) = binomial(place, size);
        let child = |distance: u32| {
            let behind = distance.min(size - place - distance);
            (order.at(self.comm(), place + distance), behind as usize)
        };
        let parent = parent.map(|parent| order.at(self.comm(), parent));
        TreePlace { parent, children: children.map(child).collect() }
    }

    /// Waits until all ranks of an order, of which this is one, have come here.
    pub(super) fn disseminate(&self, order: TreeOrder<'_>) -> Result<(), CollectiveError> {
        let (size, place) = (order.size(self.comm()), Rank(order.place(self.comm())));
        let partner = |distance| order.at(self.comm(), place.on_ring(distance, size).0);
        for round in 0..rounds(size) {
            self.send(partner(distance(round)), round, &[])?;
            self.receive_exactly(partner(-distance(round)), round, 0)?;
        }
        Ok(())
    }

    /// Collects `mine` of all ranks of an order at the first, as many bytes of each: the answer is
    /// that of this rank and those behind it in the tree.
    pub(crate) fn gather(
        &self,
        order: TreeOrder<'_>,
        mine: &[u8],
    ) -> Result<Vec<u8>, CollectiveError> {
        let TreePlace { parent, children } = self.place_in(order);
        let mut run = mine.to_vec();
        for (child, ranks) in children.into_iter().rev() {
            run.extend(self.receive_exactly(child, GATHER, ranks * mine.len())?);
        }
        if let Some(parent) = parent {
            self.send(parent, GATHER, &run)?;
        }
        Ok(run)
    }

    /// Deals `run` of the first rank of an order, in equal blocks and in that order: the answer is
    /// the block of this rank. What others pass is not looked at.
    pub(super) fn scatter(
        &self,
        order: TreeOrder<'_>,
        run: Vec<u8>,
    ) -> Result<Vec<u8>, CollectiveError> {
        let TreePlace { parent, children } = self.place_in(order);
        self.plan.set(FlatPlan::around(FlatKind::Scatter, order.at(self.comm(), 0)));
        let ranks = 1 + children.iter().map(|(_, behind)| behind).sum::<usize>();
        let mut run = match parent {
            Some(parent) => {
                self.expect(parent, SCATTER);
                let (first, lane) = self.first_part(order, parent, SCATTER, None)?;
                if let Some(lane) = lane {
                    let mut block = vec![0; lane.bytes as usize];
                    self.get_stream(&lane, &mut block)?;
                    return Ok(block);
                }
                self.receive_from(parent, SCATTER, first)?
            }
            None if self.scatter_flat(&run, SCATTER)? => {
                let mut run = run;
                run.truncate(run.len() / ranks);
                return Ok(run);
            }
            None => run,
        };
        if let Some(from) = parent.filter(|_| !run.len().is_multiple_of(ranks)) {
            return Err(self.fails(CollectiveError::Malformed { what: self.what(), from }));
        }
        let block = run.len() / ranks;
        // The blocks of the farthest are the last.
        for (child, behind) in children {
            let theirs = run.split_off(run.len() - behind * block);
            self.send(child, SCATTER, &theirs)?;
        }
        Ok(run)
    }

    /// Combines `total` of all ranks of an order, in that order, towards the first: then it is that
    /// of this rank and those behind it in the tree.
    pub(super) fn reduce_into(
        &self,
        order: TreeOrder<'_>,
        total: &mut [u8],
        reduction: &dyn ReduceBytes,
    ) -> Result<(), CollectiveError> {
        let whole = PART.is_multiple_of(reduction.width() as u64);
        if matches!(order, TreeOrder::Leaders(..)) && whole {
            return self.reduce_parts(order, total, reduction);
        }
        let TreePlace { parent, children } = self.place_in(order);
        for (child, _) in children.into_iter().rev() {
            let got = self.receive_exactly(child, REDUCE, total.len())?;
            self.combine_bytes(reduction, total, &got);
        }
        if let Some(parent) = parent {
            self.send(parent, REDUCE, total)?;
        }
        Ok(())
    }

    /// As [`reduce_into`](Self::reduce_into), by messages: each part goes on at once, while the
    /// next one comes. Parts hold whole elements.
    fn reduce_parts(
        &self,
        order: TreeOrder<'_>,
        total: &mut [u8],
        reduction: &dyn ReduceBytes,
    ) -> Result<(), CollectiveError> {
        let TreePlace { parent, children } = self.place_in(order);
        let (whole, each) = (total.len(), PART as usize);
        let mut heard = vec![0; if children.is_empty() { 0 } else { whole.min(each) }];
        for number in 0..parts(whole) {
            let first = number as usize * each;
            let range = first..whole.min(first + each);
            for (child, _) in children.iter().rev() {
                self.expect(*child, REDUCE);
                let part = self.take(*child, REDUCE, number)?;
                let heard = &mut heard[..range.len()];
                self.copy_part(*child, &part, whole - first, heard)?;
                self.combine_bytes(reduction, &mut total[range.clone()], heard);
            }
            if let Some(parent) = parent {
                self.send_part(parent, REDUCE, total, number)?;
            }
        }
        Ok(())
    }

    /// Copies the bytes of the first rank of an order to all others of it.
    pub(crate) fn broadcast(
        &self,
        order: TreeOrder<'_>,
        bytes: &mut [u8],
    ) -> Result<(), CollectiveError> {
        self.broadcast_on(order, bytes, |_, _| Ok(()))
    }

    /// As [`broadcast`](Self::broadcast). Now and then, and when all have come, `hand_on` is called
    /// with the bytes, and how many of them have come.
    pub(super) fn broadcast_on(
        &self,
        order: TreeOrder<'_>,
        bytes: &mut [u8],
        mut hand_on: impl FnMut(&[u8], usize) -> Result<(), CollectiveError>,
    ) -> Result<(), CollectiveError> {
        let TreePlace { parent, children } = self.place_in(order);
        self.plan.set(FlatPlan::around(FlatKind::Broadcast, order.at(self.comm(), 0)));
        let flat = self.flat(order, bytes.len());
        let first = match (parent, flat) {
            (None, Some(others)) if self.opens() => {
                self.broadcast_flat(others, bytes)?;
                return hand_on(bytes, bytes.len());
            }
            (None, _) => None,
            (Some(parent), _) => {
                self.expect(parent, BROADCAST);
                let (first, done) = self.first_part(order, parent, BROADCAST, Some(bytes.len()))?;
                if let Some(lane) = done {
                    self.get_more(&lane, bytes, &mut hand_on)?;
                    return hand_on(bytes, bytes.len());
                }
                Some(first)
            }
        };
        // Each part goes on at once, while the next one comes.
        for number in 0..parts(bytes.len()) {
            match (parent, &first) {
                (Some(parent), Some(first)) if number == 0 => {
                    self.place_part(parent, first, bytes, number)?;
                }
                (Some(parent), _) => self.receive_part(parent, BROADCAST, bytes, number)?,
                (None, _) => {}
            }
            for (child, _) in &children {
                self.send_part(*child, BROADCAST, bytes, number)?;
            }
            hand_on(bytes, bytes.len().min(((number + 1) * PART) as usize))?;
        }
        Ok(())
    }

    /// The first part of what comes from the parent, or the lane where the first of the order
    /// writes for all.
    ///
    /// The parent is waited for. In a tree it is the one that sends, and the first of the order may
    /// have left by then. In a lane, it leaves when it has read, which is after the offers to those
    /// that come after it in the order.
    fn first_part(
        &self,
        order: TreeOrder<'_>,
        parent: Rank,
        round: u32,
        expected: Option<usize>,
    ) -> Result<(PayloadPart, Option<InLane>), CollectiveError> {
        let root = order.at(self.comm(), 0);
        let (from, first) = self.take_any(&[parent, root], round, 0)?;
        // A parent may have a lane for what it passes on, or for all.
        if from == root && first.is_offer && self.is_flat_offer(&first) {
            let lane = self.accept(from, &first, OfferKind::Flat, expected)?;
            return Ok((first, lane));
        }
        if from != parent {
            return Err(self.fails(CollectiveError::Malformed { what: self.what(), from }));
        }
        Ok((first, None))
    }

    /// The parent of this rank in the tree of an order, and its children, the farthest first.
    pub(super) fn relatives(
        &self,
        order: TreeOrder<'_>,
    ) -> (Option<Rank>, impl Iterator<Item = Rank>) {
        let TreePlace { parent, children } = self.place_in(order);
        (parent, children.into_iter().map(|(child, _)| child))
    }

    /// Combines what ranks contributed into `earlier`, by code that may be the user's.
    pub(super) fn combine<E: Element>(
        &self,
        reduction: &impl Reduction<E>,
        earlier: &mut [E],
        later: &[E],
    ) {
        let _calls = self.comm().inner.calls_user();
        reduction.combine_all(earlier, later);
    }

    /// As [`combine`](Self::combine), of elements' bytes.
    pub(super) fn combine_bytes(
        &self,
        reduction: &dyn ReduceBytes,
        earlier: &mut [u8],
        later: &[u8],
    ) {
        let _calls = self.comm().inner.calls_user();
        reduction.combine(earlier, later);
    }
}
