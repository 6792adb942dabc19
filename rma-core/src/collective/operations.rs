//! The collective operations of a communicator (MPI 4.1, chapter 6).
use super::exchange::Exchange;
use super::flat::Shares;
use super::node::{Node, TreeOrder};
use super::reduction::{Reduction, Typed};
use super::tree::elements;
use super::turn::Turn;
use crate::collective::Communicator;
use crate::element::Element;
use crate::error::CollectiveError;
use crate::rank::Rank;
use bytemuck::{bytes_of, bytes_of_mut, cast_slice, cast_slice_mut};
use core::slice;

/// What ranks tell each other at a mere meeting; other kinds are those of what is made there.
const MEET: u64 = 129;

pub(super) type Result<T> = core::result::Result<T, CollectiveError>;

impl Communicator {
    /// Returns when every rank has called it. **Collective.**
    ///
    /// ```
    /// # fn example(world: &rma_core::Communicator) -> Result<(), rma_core::CollectiveError> {
    /// world.barrier()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`CollectiveError::Timeout`], [`CollectiveError::PeerFailed`] and their like. Others may
    /// have passed the barrier all the same, or may pass it later, because this rank had come: so
    /// it cannot be repeated. From then on, collective operations of this communicator fail at this
    /// rank, with [`CollectiveError::OutOfStep`] if no better reason is known. The same goes for
    /// every other operation that ends with one of these errors. [`dup`](Self::dup) makes another
    /// communicator of the same ranks, that starts anew. A barrier that may be late is
    /// [`barrier_for`](Self::barrier_for).
    ///
    /// MPI 4.1, section 6.3.
    pub fn barrier(&self) -> Result<()> {
        match self.near() {
            Some(near) => self.barrier_near(near),
            None => Exchange::start_barrier(self, "barrier")?.barrier(),
        }
    }

    /// Copies `buffer` of `root` into `buffer` of every rank. **Collective.**
    ///
    /// `buffer` has the same length everywhere. It is yours again on return.
    pub fn bcast<E: Element>(&self, buffer: &mut [E], root: Rank) -> Result<()> {
        self.bcast_as("bcast", buffer, root)
    }

    /// Answers with `value` of `root` at every rank. **Collective.**
    ///
    /// What other ranks pass is not looked at.
    ///
    /// # Errors
    ///
    /// [`CollectiveError::NoSuchRoot`], [`CollectiveError::LengthMismatch`] where the values of a
    /// rank and of `root` have different sizes, and those of [`barrier`](Self::barrier).
    ///
    /// MPI 4.1, section 6.4.
    pub fn bcast_value<E: Element>(&self, mut value: E, root: Rank) -> Result<E> {
        self.bcast_as("bcast_value", slice::from_mut(&mut value), root)?;
        Ok(value)
    }

    fn bcast_as<E: Element>(&self, what: &'static str, buffer: &mut [E], root: Rank) -> Result<()> {
        let exchange = Exchange::start(self, what)?;
        check_root(&exchange, root)?;
        let bytes: &mut [u8] = cast_slice_mut(buffer);
        exchange.broadcast_all(root, bytes)
    }

    /// Collects `mine` of every rank at `root`, in rank order; others get `None`. **Collective.**
    ///
    /// `mine` has the same length everywhere.
    pub fn gather<E: Element>(&self, mine: &[E], root: Rank) -> Result<Option<Vec<E>>> {
        let exchange = Exchange::start(self, "gather")?;
        check_root(&exchange, root)?;
        let bytes: &[u8] = cast_slice(mine);
        let len = if self.rank() == root { mine.len() * self.size() as usize } else { 0 };
        if exchange.is_large(bytes.len()) {
            let mut all = vec![E::zeroed(); len];
            let order = TreeOrder::From(root);
            if exchange.gather_flat(order, bytes, cast_slice_mut(&mut all))? {
                return Ok((self.rank() == root).then_some(all));
            }
        }
        let mut run = exchange.gather(TreeOrder::From(root), bytes)?;
        if self.rank() != root {
            return Ok(None);
        }
        run.rotate_right(root.0 as usize * bytes.len());
        Ok(Some(elements(&run)))
    }

    /// As [`gather`](Self::gather), with a length of each rank's own. **Collective.**
    pub fn gatherv<E: Element>(&self, mine: &[E], root: Rank) -> Result<Option<Vec<Vec<E>>>> {
        let exchange = Exchange::start(self, "gatherv")?;
        check_root(&exchange, root)?;
        if self.rank() != root {
            exchange.send(root, 0, cast_slice(mine))?;
            return Ok(None);
        }
        let of = |rank| {
            if rank == root { Ok(mine.to_vec()) } else { receive_elements(&exchange, rank, 0) }
        };
        self.ranks().map(of).collect::<Result<_>>().map(Some)
    }

    /// Deals `all` of `root` in equal blocks: the `r`-th to rank `r`, which gets it as the answer.
    /// **Collective.**
    ///
    /// At `root`, the length of `all` is a multiple of the number of ranks. What other ranks pass
    /// is not looked at: `&[]` will do. `all` is yours again on return.
    ///
    /// # Errors
    ///
    /// [`CollectiveError::NoSuchRoot`]; at `root`, [`CollectiveError::WrongCount`], and
    /// [`CollectiveError::GaveUp`] elsewhere; [`CollectiveError::LengthMismatch`] where a block is
    /// no whole number of elements; and those of [`barrier`](Self::barrier).
    ///
    /// MPI 4.1, section 6.6.
    pub fn scatter<E: Element>(&self, all: &[E], root: Rank) -> Result<Vec<E>> {
        let exchange = Exchange::start(self, "scatter")?;
        check_root(&exchange, root)?;
        if self.rank() != root {
            let block = exchange.scatter(TreeOrder::From(root), Vec::new())?;
            return whole_elements(&exchange, root, &block);
        }
        let block = check_blocks(&exchange, all.len())?;
        // The tree deals from the root on.
        let (before, after) = all.split_at(block * usize::from(root));
        let run = [cast_slice::<E, u8>(after), cast_slice(before)].concat();
        Ok(elements(&exchange.scatter(TreeOrder::From(root), run)?))
    }

    /// Gives `shares[r]` of `root` to rank `r`, as the answer. **Collective.**
    ///
    /// At `root`, there is one vector for each rank, as long as it likes. What other ranks pass is
    /// not looked at: `&[]` will do. `shares` is yours again on return.
    ///
    /// # Errors
    ///
    /// As [`scatter`](Self::scatter).
    ///
    /// MPI 4.1, section 6.6.
    pub fn scatterv<E: Element>(&self, shares: &[Vec<E>], root: Rank) -> Result<Vec<E>> {
        let (what, ranks) = ("scatterv", self.size());
        let exchange = Exchange::start(self, what)?;
        check_root(&exchange, root)?;
        if self.rank() != root {
            return receive_elements(&exchange, root, 0);
        }
        if shares.len() != ranks as usize {
            let (got, rule) = (shares.len() as u64, "one vector for each rank");
            return Err(exchange.fails(CollectiveError::WrongCount { what, got, ranks, rule }));
        }
        for (rank, share) in self.ranks().zip(shares).filter(|(rank, _)| *rank != root) {
            exchange.send(rank, 0, cast_slice(share))?;
        }
        Ok(shares[usize::from(root)].clone())
    }

    /// Collects `mine` of every rank, in rank order, at every rank. **Collective.**
    ///
    /// `mine` has the same length everywhere.
    pub fn allgather<E: Element>(&self, mine: &[E]) -> Result<Vec<E>> {
        allgather_in(&Exchange::start(self, "allgather")?, mine)
    }

    /// As [`allgather`](Self::allgather), in a turn that this thread has.
    pub(crate) fn allgather_in_turn<E: Element>(
        &self,
        what: &'static str,
        turn: &Turn<'_>,
        mine: &[E],
    ) -> Result<Vec<E>> {
        allgather_in(&Exchange::start_in(self, what, turn)?, mine)
    }

    /// What the ranks of this node contribute, in rank order: one small element each, whose size is
    /// a multiple of 8. `kind` tells what is shared. **Collective.**
    pub(crate) fn share_near<E: Element>(&self, kind: u64, mine: E) -> Result<Vec<E>> {
        // As long as it will be on one node: it does not grow step by step.
        let mut all =
            Vec::with_capacity(self.collective_block().map_or(0, |_| self.size() as usize));
        self.share_near_each(kind, mine, |it| all.push(*it))?;
        Ok(all)
    }

    /// As [`share_near`](Self::share_near), and hands each over; what has come before an error
    /// counts for nothing.
    pub(crate) fn share_near_each<E: Element>(
        &self,
        kind: u64,
        mine: E,
        each: impl FnMut(&E),
    ) -> Result<()> {
        if let Some(near) = self.collective_block() {
            let exchange = Exchange::start_barrier(self, "allgather")?;
            return exchange.share(near, (kind, &mine), each);
        }
        let runtime = self.runtime("allgather")?;
        let all = match &runtime.inner.node {
            Node::Apart => vec![mine],
            Node::Whole => runtime.allgather(&[mine])?,
            Node::One(node) => {
                let exchange = Exchange::start(&runtime, "allgather")?;
                let mut all = exchange.gather(node.order(), bytes_of(&mine))?;
                all.resize(node.members().len() * size_of::<E>(), 0);
                exchange.broadcast(node.order(), &mut all)?;
                elements(&all)
            }
        };
        all.iter().for_each(each);
        Ok(())
    }

    /// Waits for all ranks, between such steps. **Collective.**
    pub(crate) fn meet(&self) -> Result<()> {
        match self.collective_block() {
            Some(near) => {
                let exchange = Exchange::start_barrier(self, "barrier")?;
                exchange.share(near, (MEET, &0u64), |_| ())
            }
            None => self.runtime("barrier")?.barrier(),
        }
    }

    /// Combines such elements of all ranks, in any order. **Collective.**
    pub(crate) fn agree<E: Element>(
        &self,
        kind: u64,
        mine: E,
        combine: fn(E, E) -> E,
    ) -> Result<E> {
        if let Some(near) = self.collective_block() {
            let exchange = Exchange::start_barrier(self, "allreduce")?;
            let mut all = None;
            let each = |it: &E| all = Some(all.map_or(*it, |all| combine(all, *it)));
            exchange.share(near, (kind, &mine), each)?;
            return Ok(all.unwrap_or(mine));
        }
        let runtime = self.runtime("allreduce")?;
        let (exchange, mut total) = (Exchange::start(&runtime, "allreduce")?, [mine]);
        let reduction = Typed::<E, _>::new(&combine);
        exchange.allreduce_all(bytes_of_mut(&mut total), &reduction, true)?;
        Ok(total[0])
    }

    /// As [`allgather`](Self::allgather), with a length of each rank's own. **Collective.**
    pub fn allgatherv<E: Element>(&self, mine: &[E]) -> Result<Vec<Vec<E>>> {
        let exchange = Exchange::start(self, "allgatherv")?;
        let bytes: &[u8] = cast_slice(mine);
        let order = TreeOrder::From(Rank(0));
        let lengths = bruck(&exchange, order, &(bytes.len() as u64).to_le_bytes(), 0, |_| 8)?;
        let lengths: Vec<u64> = elements(&lengths);
        let length = |rank: u32| lengths[rank as usize] as usize;
        let all = bruck(&exchange, order, bytes, 32, length)?;
        let mut rest = &all[..];
        let of = |rank: Rank| {
            let (block, after) = rest.split_at(length(rank.0));
            rest = after;
            whole_elements(&exchange, rank, block)
        };
        self.ranks().map(of).collect()
    }

    /// Combines `mine` of every rank element by element at `root`; others get `None`.
    /// **Collective.**
    pub fn reduce<E: Element>(
        &self,
        mine: &[E],
        reduction: impl Reduction<E>,
        root: Rank,
    ) -> Result<Option<Vec<E>>> {
        self.reduce_as("reduce", mine, &reduction, root)
    }

    pub(super) fn reduce_as<E: Element>(
        &self,
        what: &'static str,
        mine: &[E],
        reduction: &impl Reduction<E>,
        root: Rank,
    ) -> Result<Option<Vec<E>>> {
        let exchange = Exchange::start(self, what)?;
        check_root(&exchange, root)?;
        check_defined(&exchange, reduction)?;
        let (mut total, reduction) = (mine.to_vec(), Typed::new(reduction));
        let (bytes, order) = (cast_slice_mut(&mut total), TreeOrder::From(Rank(0)));
        if exchange.reduce_flat(order, bytes, &reduction, Shares::One(root))? {
            return Ok((self.rank() == root).then_some(total));
        }
        // Ranks combine in order whatever the root, so that rank 0 has the result.
        exchange.reduce_all(bytes, &reduction, false)?;
        match self.rank() {
            Rank(0) if root == Rank(0) => Ok(Some(total)),
            Rank(0) => {
                exchange.send(root, 1, cast_slice(&total))?;
                Ok(None)
            }
            rank if rank == root => {
                let total = exchange.receive_exactly(Rank(0), 1, size_of_val(mine))?;
                Ok(Some(elements(&total)))
            }
            _ => Ok(None),
        }
    }

    /// Combines `mine` of every rank element by element, at every rank. **Collective.**
    pub fn allreduce<E: Element>(
        &self,
        mine: &[E],
        reduction: impl Reduction<E>,
    ) -> Result<Vec<E>> {
        let mut total = mine.to_vec();
        self.allreduce_as("allreduce", &mut total, &reduction)?;
        Ok(total)
    }

    pub(super) fn allreduce_as<E: Element>(
        &self,
        what: &'static str,
        total: &mut [E],
        reduction: &impl Reduction<E>,
    ) -> Result<()> {
        let exchange = Exchange::start(self, what)?;
        check_defined(&exchange, reduction)?;
        let (total, reduction) = (cast_slice_mut(total), Typed::new(reduction));
        if exchange.reduce_flat(TreeOrder::From(Rank(0)), total, &reduction, Shares::All)? {
            return Ok(());
        }
        exchange.allreduce_all(total, &reduction, false)
    }

    /// Combines `mine` of every rank element by element and deals the result: `counts[r]` elements
    /// to rank `r`. **Collective.**
    ///
    /// `counts` is the same everywhere, has one entry for each rank and sums up to `mine.len()`.
    pub fn reduce_scatter<E: Element>(
        &self,
        mine: &[E],
        counts: &[usize],
        reduction: impl Reduction<E>,
    ) -> Result<Vec<E>> {
        let what = "reduce_scatter";
        let exchange = Exchange::start(self, what)?;
        let sum = counts.iter().try_fold(0usize, |sum, count| sum.checked_add(*count));
        if counts.len() != self.size() as usize || sum != Some(mine.len()) {
            let rule = "one count a rank that sum up to the length of the buffer";
            let (got, ranks) = (mine.len() as u64, self.size());
            return Err(exchange.fails(CollectiveError::WrongCount { what, got, ranks, rule }));
        }
        check_defined(&exchange, &reduction)?;
        let own = counts[usize::from(self.rank())];
        let (mut total, order) = (mine.to_vec(), TreeOrder::From(Rank(0)));
        let (bytes, reduction) = (cast_slice_mut(&mut total), Typed::new(&reduction));
        if exchange.reduce_flat(order, bytes, &reduction, Shares::Own(counts))? {
            let before: usize = counts[..usize::from(self.rank())].iter().sum();
            return Ok(total[before..][..own].to_vec());
        }
        exchange.reduce_all(bytes, &reduction, false)?;
        if self.rank() != Rank(0) {
            let share = exchange.receive_exactly(Rank(0), 1, own * size_of::<E>())?;
            return Ok(elements(&share));
        }
        let mut start = own;
        for (rank, count) in self.ranks().zip(counts).skip(1) {
            let range = start..start + count;
            start += count;
            exchange.send(rank, 1, cast_slice(&total[range]))?;
        }
        Ok(total[..own].to_vec())
    }

    /// Sends the `r`-th block of `mine` to rank `r`; returns the blocks received, in rank order.
    /// **Collective.**
    ///
    /// `mine` has the same length everywhere, a multiple of the number of ranks.
    pub fn alltoall<E: Element>(&self, mine: &[E]) -> Result<Vec<E>> {
        let exchange = Exchange::start(self, "alltoall")?;
        let block = check_blocks(&exchange, mine.len())?;
        let mut all = vec![E::zeroed(); mine.len()];
        let own = usize::from(self.rank()) * block..(usize::from(self.rank()) + 1) * block;
        all[own.clone()].copy_from_slice(&mine[own]);
        if exchange.alltoall_flat(Some(cast_slice(mine)), cast_slice_mut(&mut all))? {
            return Ok(all);
        }
        for (to, from) in pairs(self) {
            let share = cast_slice(&mine[usize::from(to) * block..][..block]);
            let bytes = exchange.swap_exactly(to, share, from, 0, block * size_of::<E>())?;
            all[usize::from(from) * block..][..block].copy_from_slice(&elements(&bytes));
        }
        Ok(all)
    }

    /// Sends `mine[r]` to rank `r`; returns what each rank sent here. **Collective.**
    pub fn alltoallv<E: Element>(&self, mine: &[Vec<E>]) -> Result<Vec<Vec<E>>> {
        let (what, ranks) = ("alltoallv", self.size());
        let exchange = Exchange::start(self, what)?;
        if mine.len() != ranks as usize {
            let (got, rule) = (mine.len() as u64, "one vector for each rank");
            return Err(exchange.fails(CollectiveError::WrongCount { what, got, ranks, rule }));
        }
        let mut all: Vec<Vec<E>> = vec![Vec::new(); mine.len()];
        all[usize::from(self.rank())].clone_from(&mine[usize::from(self.rank())]);
        for (to, from) in pairs(self) {
            let bytes = exchange.swap(to, cast_slice(&mine[usize::from(to)]), from, 0)?;
            all[usize::from(from)] = whole_elements(&exchange, from, &bytes)?;
        }
        Ok(all)
    }

    /// Gives `shares[r]` of rank 0 to rank `r`.
    pub(crate) fn scatter_bytes(
        &self,
        what: &'static str,
        shares: Option<Vec<Vec<u8>>>,
    ) -> Result<Vec<u8>> {
        let exchange = Exchange::start(self, what)?;
        let Some(mut shares) = shares else { return exchange.receive(Rank(0), 0) };
        for (rank, share) in self.ranks().zip(&shares).skip(1) {
            exchange.send(rank, 0, share)?;
        }
        Ok(shares.swap_remove(0))
    }
}

/// Partners of each round of an exchange of all with all: one to send to, one to hear from.
fn pairs(comm: &Communicator) -> impl Iterator<Item = (Rank, Rank)> {
    let (rank, size) = (comm.rank(), comm.size());
    (1..i64::from(size)).map(move |step| (rank.on_ring(step, size), rank.on_ring(-step, size)))
}

fn receive_elements<E: Element>(exchange: &Exchange<'_>, from: Rank, round: u32) -> Result<Vec<E>> {
    whole_elements(exchange, from, &exchange.receive(from, round)?)
}

fn whole_elements<E: Element>(exchange: &Exchange<'_>, from: Rank, bytes: &[u8]) -> Result<Vec<E>> {
    let unit = size_of::<E>().max(1);
    if !bytes.len().is_multiple_of(unit) {
        let (expected, got) = (bytes.len().next_multiple_of(unit) as u64, bytes.len() as u64);
        let what = exchange.what();
        let wrong = CollectiveError::LengthMismatch { what, from, expected, got };
        return Err(exchange.fails(wrong));
    }
    Ok(elements(bytes))
}

// Arguments are checked when the operation has begun, so that others hear of one that is refused.

fn check_root(exchange: &Exchange<'_>, root: Rank) -> Result<()> {
    let (what, last) = (exchange.what(), Rank(exchange.comm().size() - 1));
    let wrong = || exchange.fails(CollectiveError::NoSuchRoot { what, root, last });
    if root > last { Err(wrong()) } else { Ok(()) }
}

/// Elements of a block, if so many can be dealt to all ranks alike.
pub(super) fn check_blocks(exchange: &Exchange<'_>, len: usize) -> Result<usize> {
    let (what, ranks) = (exchange.what(), exchange.comm().size());
    if !len.is_multiple_of(ranks as usize) {
        let (got, rule) = (len as u64, "a multiple of the number of ranks");
        return Err(exchange.fails(CollectiveError::WrongCount { what, got, ranks, rule }));
    }
    Ok(len / ranks as usize)
}

pub(super) fn check_defined<E: Element>(
    exchange: &Exchange<'_>,
    reduction: &impl Reduction<E>,
) -> Result<()> {
    let what = exchange.what();
    let wrong = |(op, element)| exchange.fails(CollectiveError::WrongOp { what, op, element });
    reduction.undefined().map_or(Ok(()), |undefined| Err(wrong(undefined)))
}

/// `mine` of every rank, in rank order.
pub(super) fn allgather_in<E: Element>(exchange: &Exchange<'_>, mine: &[E]) -> Result<Vec<E>> {
    let (comm, bytes) = (exchange.comm(), cast_slice(mine));
    let mut all = vec![E::zeroed(); mine.len() * comm.size() as usize];
    if exchange.is_large(bytes.len()) {
        all[usize::from(comm.rank()) * mine.len()..][..mine.len()].copy_from_slice(mine);
        if exchange.allgather_flat(cast_slice_mut(&mut all))? {
            return Ok(all);
        }
    }
    if exchange.allgather_all(bytes, cast_slice_mut(&mut all))? {
        return Ok(all);
    }
    let all = bruck(exchange, TreeOrder::From(Rank(0)), bytes, 0, |_| bytes.len())?;
    Ok(elements(&all))
}

/// Bruck's all-gather: blocks of all ranks of an order, in that order, after log2 rounds, numbered
/// from `round`. Places have blocks of those lengths.
pub(super) fn bruck(
    exchange: &Exchange<'_>,
    order: TreeOrder<'_>,
    mine: &[u8],
    mut round: u32,
    length: impl Fn(u32) -> usize,
) -> Result<Vec<u8>> {
    let comm = exchange.comm();
    let (own, size) = (Rank(order.place(comm)), order.size(comm));
    let bytes = |first: Rank, count: u32| -> usize {
        (0..i64::from(count)).map(|step| length(first.on_ring(step, size).0)).sum()
    };
    let mut blocks = mine.to_vec();
    let mut have = 1;
    while have < size {
        let count = have.min(size - have);
        let [to, from] = [-1, 1].map(|side| own.on_ring(side * i64::from(have), size));
        let expected = bytes(from, count);
        let mine = &blocks[..bytes(own, count)];
        let [to, from] = [to, from].map(|place| order.at(comm, place.0));
        let theirs = exchange.swap_exactly(to, mine, from, round, expected)?;
        blocks.extend(theirs);
        have += count;
        round += 1;
    }
    // The first block is this rank's own, the next that of the next, …
    blocks.rotate_right(bytes(Rank(0), own.0));
    Ok(blocks)
}
