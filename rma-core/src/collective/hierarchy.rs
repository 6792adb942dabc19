//! Operations of ranks on several nodes: what a node has passes between nodes once, from one leader
//! to another, and inside of each through the memory that its ranks share.
use super::contributions::PART;
use super::exchange::{Exchange, parts};
use super::flat::Shares;
use super::node::TreeOrder;
use super::operations::{Result, bruck};
use super::pieces::Readers;
use super::reduction::ReduceBytes;
use super::tree::BROADCAST;
use crate::rank::Rank;

/// To the first rank, from a root whose leader others do not know.
const BRING: u32 = 1;

impl Exchange<'_> {
    /// Copies the bytes of `root` to all ranks.
    pub(super) fn broadcast_all(&self, root: Rank, bytes: &mut [u8]) -> Result<()> {
        let comm = self.comm();
        let Some(node) = comm.inner.node.neighbours() else {
            return self.broadcast(TreeOrder::From(root), bytes);
        };
        // The leader of the root is found by its rank, or it is the first of all.
        let first = if node.is_in_order() { root } else { Rank(0) };
        if first != root && comm.rank() == root {
            self.send(first, BRING, bytes)?;
        }
        if first != root && comm.rank() == first {
            self.receive_into(root, BRING, bytes)?;
        }
        let order = node.order_from(first);
        let Some(leaders) = node.leaders_from(comm, first) else {
            return self.broadcast(order, bytes);
        };
        if order.place(comm) > 0 {
            return self.broadcast_out(order, leaders, bytes);
        }
        self.broadcast_in(leaders, order, bytes)
    }

    /// Takes what a neighbour has, and passes it on to other nodes.
    fn broadcast_out(
        &self,
        node: TreeOrder<'_>,
        leaders: TreeOrder<'_>,
        bytes: &mut [u8],
    ) -> Result<()> {
        let children: Vec<Rank> = self.relatives(leaders).1.collect();
        let mut number = 0;
        self.broadcast_on(node, bytes, |bytes, come| {
            let end = |number: u64| bytes.len().min(((number + 1) * PART) as usize);
            while number < parts(bytes.len()) && end(number) <= come {
                for child in &children {
                    self.send_part(*child, BROADCAST, bytes, number)?;
                }
                number += 1;
            }
            Ok(())
        })
    }

    /// Takes what comes from another node, or has it, and passes it on to other nodes and to its
    /// own.
    fn broadcast_in(
        &self,
        leaders: TreeOrder<'_>,
        node: TreeOrder<'_>,
        bytes: &mut [u8],
    ) -> Result<()> {
        let Some(others) = self.flat(node, bytes.len()).filter(|_| self.opens()) else {
            self.broadcast(leaders, bytes)?;
            return self.broadcast(node, bytes);
        };
        let (readers, mut put) = (Readers::All(others.clone()), None);
        self.broadcast_on(leaders, bytes, |bytes, come| {
            if put.is_none() {
                self.offer_broadcast(&others, bytes.len(), self.next_piece())?;
            }
            self.put_more(&readers, bytes, come, put.get_or_insert(0))
        })?;
        self.leave_lane()
    }

    /// Combines `total` of all ranks towards the first, where nodes may do so one by one: if that
    /// is in their order, or if any order will do. Otherwise in a tree of all.
    pub(super) fn reduce_all(
        &self,
        total: &mut [u8],
        reduction: &dyn ReduceBytes,
        any_order: bool,
    ) -> Result<()> {
        let node = self.comm().inner.node.neighbours();
        let Some(node) = node.filter(|node| any_order || node.is_in_order()) else {
            return self.reduce_into(TreeOrder::From(Rank(0)), total, reduction);
        };
        let (order, leader) = (node.order(), Shares::One(node.members()[0]));
        if !self.reduce_flat(order, total, reduction, leader)? {
            self.reduce_into(order, total, reduction)?;
        }
        let leaders = node.leaders();
        leaders.map_or(Ok(()), |leaders| self.reduce_into(leaders, total, reduction))
    }

    /// Combines `total` of all ranks, for all.
    pub(super) fn allreduce_all(
        &self,
        total: &mut [u8],
        reduction: &dyn ReduceBytes,
        any_order: bool,
    ) -> Result<()> {
        self.reduce_all(total, reduction, any_order)?;
        self.broadcast_all(Rank(0), total)
    }

    /// Collects `mine` of all ranks, where nodes may do so one by one; otherwise `false`.
    pub(super) fn allgather_all(&self, mine: &[u8], all: &mut [u8]) -> Result<bool> {
        let (comm, len) = (self.comm(), mine.len());
        let node = comm.inner.node.neighbours();
        let Some(node) = node.filter(|node| node.is_in_order()) else { return Ok(false) };
        let order = node.order();
        if !self.gather_flat(order, mine, all)? {
            let run = self.gather(order, mine)?;
            all[usize::from(comm.rank()) * len..][..run.len()].copy_from_slice(&run);
        }
        if let Some(leaders) = node.leaders() {
            let run = &all[usize::from(comm.rank()) * len..][..node.members().len() * len];
            let gathered =
                bruck(self, leaders, run, 0, |place| self.node_size(leaders, place) * len)?;
            all.copy_from_slice(&gathered);
        }
        self.broadcast(order, all)?;
        Ok(true)
    }

    /// How many ranks follow a leader, and itself, where nodes are in order.
    fn node_size(&self, leaders: TreeOrder<'_>, place: u32) -> usize {
        let comm = self.comm();
        let next = place + 1;
        let end = if next < leaders.size(comm) { leaders.at(comm, next).0 } else { comm.size() };
        (end - leaders.at(comm, place).0) as usize
    }
}
