//! What collective operations are made of: trees, and dissemination, over the ranks of an order.
use super::barrier::{distance, rounds};
use super::binomial;
use super::exchange::{Exchange, parts};
use super::node::TreeOrder;
use super::reduction::Reduction;
use crate::element::Element;
use crate::error::CollectiveError;
use crate::rank::Rank;
use bytemuck::allocation::pod_collect_to_vec;
use bytemuck::cast_slice;

// Two ranks that meet in two orders of one operation do so in one of these only.
const GATHER: u32 = 0;
const REDUCE: u32 = 0;
const BROADCAST: u32 = 2;

pub(super) fn elements<E: Element>(bytes: &[u8]) -> Vec<E> {
    // Of others nobody can say how many there are.
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

    /// Combines `mine` of all ranks of an order, in that order, towards the first: the answer is
    /// that of this rank and those behind it in the tree.
    pub(crate) fn reduce<E: Element>(
        &self,
        order: TreeOrder<'_>,
        mine: &[E],
        reduction: &impl Reduction<E>,
    ) -> Result<Vec<E>, CollectiveError> {
        let TreePlace { parent, children } = self.place_in(order);
        let mut total = mine.to_vec();
        for (child, _) in children.into_iter().rev() {
            let got = self.receive_exactly(child, REDUCE, size_of_val(mine))?;
            total = self.combine(reduction, total, &elements(&got));
        }
        if let Some(parent) = parent {
            self.send(parent, REDUCE, cast_slice(&total))?;
        }
        Ok(total)
    }

    /// Copies the bytes of the first rank of an order to all others of it.
    pub(crate) fn broadcast(
        &self,
        order: TreeOrder<'_>,
        bytes: &mut [u8],
    ) -> Result<(), CollectiveError> {
        let TreePlace { parent, children } = self.place_in(order);
        if let Some(parent) = parent {
            self.expect(parent, BROADCAST);
        }
        // Each part goes on at once, while the next one comes.
        for number in 0..parts(bytes.len()) {
            if let Some(parent) = parent {
                self.receive_part(parent, BROADCAST, bytes, number)?;
            }
            for (child, _) in &children {
                self.send_part(*child, BROADCAST, bytes, number)?;
            }
        }
        Ok(())
    }

    /// Combines what ranks contributed, by code that may be the user's.
    pub(crate) fn combine<E: Element>(
        &self,
        reduction: &impl Reduction<E>,
        mut earlier: Vec<E>,
        later: &[E],
    ) -> Vec<E> {
        let _calls = self.comm().inner.calls_user();
        reduction.combine_all(&mut earlier, later);
        earlier
    }
}
