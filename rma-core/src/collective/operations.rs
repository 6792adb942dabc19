//! The collective operations of a communicator (MPI 4.1, chapter 6).
use super::exchange::Exchange;
use super::node::{Node, TreeOrder};
use super::reduction::Reduction;
use super::tree::elements;
use crate::collective::Communicator;
use crate::element::Element;
use crate::error::CollectiveError;
use crate::rank::Rank;
use bytemuck::{bytes_of, cast_slice, cast_slice_mut};

/// What ranks tell each other at a mere meeting; other kinds are those of what is made there.
const MEET: u64 = 129;

type Result<T> = core::result::Result<T, CollectiveError>;

impl Communicator {
    /// Returns when every rank has called it. **Collective.**
    ///
    /// ```text
    /// world.barrier()?;
    /// ```
    ///
    /// # Errors
    ///
    /// [`CollectiveError::Timeout`], [`CollectiveError::PeerFailed`] and their like. Others may
    /// have passed the barrier all the same, or may pass it later, because this rank had come: so
    /// it cannot be repeated. From then on, collective operations of this communicator fail at this
    /// rank, with [`CollectiveError::OutOfStep`] if no better reason is known. The same goes for
    /// every other operation that ends with one of these errors. [`dup`](Self::dup) makes another
    /// communicator of the same ranks, that starts anew.
    pub fn barrier(&self) -> Result<()> {
        Exchange::start_barrier(self, "barrier")?.barrier()
    }

    /// Copies `buffer` of `root` into `buffer` of every rank. **Collective.**
    ///
    /// `buffer` has the same length everywhere. It is yours again on return.
    pub fn bcast<E: Element>(&self, buffer: &mut [E], root: Rank) -> Result<()> {
        let exchange = Exchange::start(self, "bcast")?;
        check_root(&exchange, root)?;
        let bytes: &mut [u8] = cast_slice_mut(buffer);
        exchange.broadcast(TreeOrder::From(root), bytes)
    }

    /// Collects `mine` of every rank at `root`, in rank order; others get `None`. **Collective.**
    ///
    /// `mine` has the same length everywhere.
    pub fn gather<E: Element>(&self, mine: &[E], root: Rank) -> Result<Option<Vec<E>>> {
        let exchange = Exchange::start(self, "gather")?;
        check_root(&exchange, root)?;
        let bytes: &[u8] = cast_slice(mine);
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

    /// Collects `mine` of every rank, in rank order, at every rank. **Collective.**
    ///
    /// `mine` has the same length everywhere.
    pub fn allgather<E: Element>(&self, mine: &[E]) -> Result<Vec<E>> {
        let exchange = Exchange::start(self, "allgather")?;
        let bytes = cast_slice(mine);
        let all = bruck(&exchange, bytes, 0, |_| bytes.len())?;
        Ok(elements(&all))
    }

    /// What the ranks of this node contribute, in rank order: one small element each, whose size is
    /// a multiple of 8. `kind` tells what is shared. **Collective.**
    pub(crate) fn share_near<E: Element>(&self, kind: u64, mine: E) -> Result<Vec<E>> {
        if let Some(near) = self.board() {
            return Exchange::start_barrier(self, "allgather")?.share(near, kind, &mine);
        }
        let runtime = self.runtime();
        match &runtime.inner.node {
            Node::Apart => Ok(vec![mine]),
            Node::Whole => runtime.allgather(&[mine]),
            Node::One(node) => {
                let exchange = Exchange::start(&runtime, "allgather")?;
                let mut all = exchange.gather(node.order(), bytes_of(&mine))?;
                all.resize(node.members().len() * size_of::<E>(), 0);
                exchange.broadcast(node.order(), &mut all)?;
                Ok(elements(&all))
            }
        }
    }

    /// Waits for all ranks, between such steps. **Collective.**
    pub(crate) fn meet(&self) -> Result<()> {
        match self.board() {
            Some(near) => {
                let exchange = Exchange::start_barrier(self, "barrier")?;
                exchange.share(near, MEET, &0u64).map(drop)
            }
            None => self.runtime().barrier(),
        }
    }

    /// Combines such elements of all ranks, in any order. **Collective.**
    pub(crate) fn agree<E: Element>(
        &self,
        kind: u64,
        mine: E,
        combine: fn(E, E) -> E,
    ) -> Result<E> {
        if let Some(near) = self.board() {
            let all = Exchange::start_barrier(self, "allreduce")?.share(near, kind, &mine)?;
            return Ok(all.into_iter().reduce(combine).unwrap_or(mine));
        }
        let runtime = self.runtime();
        let Some(node) = runtime.inner.node.neighbours() else {
            return Ok(runtime.allreduce(&[mine], combine)?[0]);
        };
        let exchange = Exchange::start(&runtime, "allreduce")?;
        let mut total = exchange.reduce(node.order(), &[mine], &combine)?;
        if let Some(leaders) = node.leaders() {
            total = exchange.reduce(leaders, &total, &combine)?;
            exchange.broadcast(leaders, cast_slice_mut(&mut total))?;
        }
        exchange.broadcast(node.order(), cast_slice_mut(&mut total))?;
        Ok(total[0])
    }

    /// As [`allgather`](Self::allgather), with a length of each rank's own. **Collective.**
    pub fn allgatherv<E: Element>(&self, mine: &[E]) -> Result<Vec<Vec<E>>> {
        let exchange = Exchange::start(self, "allgatherv")?;
        let bytes: &[u8] = cast_slice(mine);
        let lengths = bruck(&exchange, &(bytes.len() as u64).to_le_bytes(), 0, |_| 8)?;
        let lengths: Vec<u64> = elements(&lengths);
        let length = |rank: Rank| lengths[usize::from(rank)] as usize;
        let all = bruck(&exchange, bytes, 32, length)?;
        let mut rest = &all[..];
        let of = |rank| {
            let (block, after) = rest.split_at(length(rank));
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
        let exchange = Exchange::start(self, "reduce")?;
        check_root(&exchange, root)?;
        check_defined(&exchange, &reduction)?;
        // The tree ends at rank 0, so that ranks combine in order whatever the root.
        let total = exchange.reduce(TreeOrder::From(Rank(0)), mine, &reduction)?;
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
        let exchange = Exchange::start(self, "allreduce")?;
        check_defined(&exchange, &reduction)?;
        let mut total = exchange.reduce(TreeOrder::From(Rank(0)), mine, &reduction)?;
        exchange.broadcast(TreeOrder::From(Rank(0)), cast_slice_mut(&mut total))?;
        Ok(total)
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
        let total = exchange.reduce(TreeOrder::From(Rank(0)), mine, &reduction)?;
        let own = counts[usize::from(self.rank())];
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
        let (what, ranks) = ("alltoall", self.size());
        let exchange = Exchange::start(self, what)?;
        if !mine.len().is_multiple_of(ranks as usize) {
            let (got, rule) = (mine.len() as u64, "a multiple of the number of ranks");
            return Err(exchange.fails(CollectiveError::WrongCount { what, got, ranks, rule }));
        }
        let block = mine.len() / ranks as usize;
        let mut all = mine.to_vec();
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

    /// Combines `mine` of all lower ranks; `None` at rank 0. **Collective.**
    pub fn exscan<E: Element>(
        &self,
        mine: &[E],
        reduction: impl Reduction<E>,
    ) -> Result<Option<Vec<E>>> {
        let exchange = Exchange::start(self, "exscan")?;
        check_defined(&exchange, &reduction)?;
        let bytes = size_of_val(mine);
        // `all` covers the ranks from `rank - distance + 1` to this one, `lower` those below it.
        let (mut all, mut lower) = (mine.to_vec(), None::<Vec<E>>);
        let mut distance = 1;
        let mut round = 0;
        while distance < self.size() {
            let from = self.rank().0.checked_sub(distance).map(Rank);
            if let Some(from) = from {
                exchange.expect(from, round);
            }
            if let Some(to) = self.rank().0.checked_add(distance).filter(|to| *to < self.size()) {
                exchange.send(Rank(to), round, cast_slice(&all))?;
            }
            if let Some(from) = from {
                let got = elements(&exchange.receive_exactly(from, round, bytes)?);
                all = exchange.combine(&reduction, got.clone(), &all);
                lower = Some(match lower {
                    Some(lower) => exchange.combine(&reduction, got, &lower),
                    None => got,
                });
            }
            distance *= 2;
            round += 1;
        }
        Ok(lower)
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

/// Partners of each round of an exchange of all with all: whom to send to, whom to hear from.
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

fn check_defined<E: Element>(exchange: &Exchange<'_>, reduction: &impl Reduction<E>) -> Result<()> {
    let what = exchange.what();
    let wrong = |(op, element)| exchange.fails(CollectiveError::WrongOp { what, op, element });
    reduction.undefined().map_or(Ok(()), |undefined| Err(wrong(undefined)))
}

/// Bruck's all-gather: blocks of all ranks in rank order after log2 rounds, numbered from `round`.
fn bruck(
    exchange: &Exchange<'_>,
    mine: &[u8],
    mut round: u32,
    length: impl Fn(Rank) -> usize,
) -> Result<Vec<u8>> {
    let comm = exchange.comm();
    let (rank, size) = (comm.rank(), comm.size());
    let bytes = |first: Rank, count: u32| -> usize {
        (0..i64::from(count)).map(|step| length(first.on_ring(step, size))).sum()
    };
    let mut blocks = mine.to_vec();
    let mut have = 1;
    while have < size {
        let count = have.min(size - have);
        let to = rank.on_ring(-i64::from(have), size);
        let from = rank.on_ring(i64::from(have), size);
        let expected = bytes(from, count);
        let mine = &blocks[..bytes(rank, count)];
        let theirs = exchange.swap_exactly(to, mine, from, round, expected)?;
        blocks.extend(theirs);
        have += count;
        round += 1;
    }
    // The first block is this rank's own, the next that of the next, …
    blocks.rotate_right(bytes(Rank(0), rank.0));
    Ok(blocks)
}
