//! The collective operations of a communicator (MPI 4.1, chapter 6).
use super::binomial;
use super::exchange::{Exchange, parts};
use super::reduction::Reduction;
use crate::communicator::Communicator;
use crate::element::Element;
use crate::error::CollectiveError;
use crate::rank::Rank;
use bytemuck::allocation::{pod_collect_to_vec, zeroed_vec};
use bytemuck::{cast_slice, cast_slice_mut};

type Result<T> = core::result::Result<T, CollectiveError>;

fn elements<E: Element>(bytes: &[u8]) -> Vec<E> {
    // Of others nobody can say how many there are.
    const { assert!(size_of::<E>() > 0, "what collective operations pass on has bytes") };
    pod_collect_to_vec(bytes)
}

impl Communicator {
    /// Returns when every rank has called it. **Collective.**
    ///
    /// ```text
    /// world.barrier()?;
    /// ```
    pub fn barrier(&self) -> Result<()> {
        Exchange::start_barrier(self, "barrier")?.barrier()
    }

    /// Copies `buffer` of `root` into `buffer` of every rank. **Collective.**
    ///
    /// `buffer` has the same length everywhere. It is yours again on return.
    pub fn bcast<E: Element>(&self, buffer: &mut [E], root: Rank) -> Result<()> {
        let exchange = Exchange::start(self, "bcast")?;
        exchange.check_root(root)?;
        let bytes: &mut [u8] = cast_slice_mut(buffer);
        tree_bcast(&exchange, bytes, root)
    }

    /// Collects `mine` of every rank at `root`, in rank order; others get `None`. **Collective.**
    ///
    /// `mine` has the same length everywhere.
    pub fn gather<E: Element>(&self, mine: &[E], root: Rank) -> Result<Option<Vec<E>>> {
        let exchange = Exchange::start(self, "gather")?;
        exchange.check_root(root)?;
        let size = self.size();
        let bytes: &[u8] = cast_slice(mine);
        // A binomial tree: each node hands up one run of consecutive relative ranks.
        let relative = self.rank().on_ring(-i64::from(root.0), size).0;
        let absolute = |relative: u32| Rank(relative).on_ring(i64::from(root.0), size);
        let (parent, children) = binomial(relative, size);
        let mut children: Vec<u32> = children.collect();
        children.reverse();
        let mut run = bytes.to_vec();
        for distance in children {
            let members = distance.min(size - relative - distance) as usize;
            let child = absolute(relative + distance);
            run.extend(exchange.receive_exactly(child, 0, members * bytes.len())?);
        }
        if let Some(parent) = parent {
            exchange.send(absolute(parent), 0, &run)?;
            return Ok(None);
        }
        run.rotate_right(root.0 as usize * bytes.len());
        Ok(Some(elements(&run)))
    }

    /// As [`gather`](Self::gather), with a length of each rank's own. **Collective.**
    pub fn gatherv<E: Element>(&self, mine: &[E], root: Rank) -> Result<Option<Vec<Vec<E>>>> {
        let exchange = Exchange::start(self, "gatherv")?;
        exchange.check_root(root)?;
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

    /// As [`allgather`](Self::allgather) of one small element whose size is a multiple of 8.
    /// `kind` tells what is shared.
    pub(crate) fn share<E: Element>(&self, kind: u64, mine: E) -> Result<Vec<E>> {
        match Exchange::start_barrier(self, "allgather")?.share(kind, &mine)? {
            Some(all) => Ok(all),
            None => self.allgather(&[mine]),
        }
    }

    /// As [`allreduce`](Self::allreduce) of such an element.
    pub(crate) fn agree<E: Element>(
        &self,
        kind: u64,
        mine: E,
        combine: fn(E, E) -> E,
    ) -> Result<E> {
        let shared = Exchange::start_barrier(self, "allreduce")?.share(kind, &mine)?;
        match shared.and_then(|all| all.into_iter().reduce(combine)) {
            Some(all) => Ok(all),
            None => Ok(self.allreduce(&[mine], combine)?[0]),
        }
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
        exchange.check_root(root)?;
        check_defined(&exchange, &reduction)?;
        let total = tree_reduce(&exchange, mine, &reduction)?;
        // The tree ends at rank 0, so that ranks combine in order whatever the root.
        match (total, root) {
            (total, Rank(0)) => Ok(total),
            (Some(total), root) => {
                exchange.send(root, 1, cast_slice(&total))?;
                Ok(None)
            }
            (None, root) if root == self.rank() => {
                let total = exchange.receive_exactly(Rank(0), 1, size_of_val(mine))?;
                Ok(Some(elements(&total)))
            }
            (None, _) => Ok(None),
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
        let mut total = tree_reduce(&exchange, mine, &reduction)?
            .unwrap_or_else(|| zeroed_vec::<E>(mine.len()));
        tree_bcast(&exchange, cast_slice_mut(&mut total), Rank(0))?;
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
        let sum = counts.iter().try_fold(0usize, |sum, count| sum.checked_add(*count));
        if counts.len() != self.size() as usize || sum != Some(mine.len()) {
            let rule = "one count a rank that sum up to the length of the buffer";
            let got = mine.len() as u64;
            return Err(CollectiveError::WrongCount { what, got, ranks: self.size(), rule });
        }
        let exchange = Exchange::start(self, what)?;
        check_defined(&exchange, &reduction)?;
        let total = tree_reduce(&exchange, mine, &reduction)?;
        let mut start = 0;
        let mut share = None;
        for (rank, count) in self.ranks().zip(counts) {
            let range = start..start + count;
            start += count;
            match &total {
                Some(total) if rank == Rank(0) => share = Some(total[range].to_vec()),
                Some(total) => exchange.send(rank, 1, cast_slice(&total[range]))?,
                None => {}
            }
        }
        match share {
            Some(share) => Ok(share),
            None => {
                let bytes = counts[usize::from(self.rank())] * size_of::<E>();
                Ok(elements(&exchange.receive_exactly(Rank(0), 1, bytes)?))
            }
        }
    }

    /// Sends the `r`-th block of `mine` to rank `r`; returns the blocks received, in rank order.
    /// **Collective.**
    ///
    /// `mine` has the same length everywhere, a multiple of the number of ranks.
    pub fn alltoall<E: Element>(&self, mine: &[E]) -> Result<Vec<E>> {
        let (what, ranks) = ("alltoall", self.size());
        if !mine.len().is_multiple_of(ranks as usize) {
            let (got, rule) = (mine.len() as u64, "a multiple of the number of ranks");
            return Err(CollectiveError::WrongCount { what, got, ranks, rule });
        }
        let block = mine.len() / ranks as usize;
        let exchange = Exchange::start(self, what)?;
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
        if mine.len() != ranks as usize {
            let (got, rule) = (mine.len() as u64, "one vector for each rank");
            return Err(CollectiveError::WrongCount { what, got, ranks, rule });
        }
        let exchange = Exchange::start(self, what)?;
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
                all = combine(&exchange, &reduction, got.clone(), &all);
                lower = Some(match lower {
                    Some(lower) => combine(&exchange, &reduction, got, &lower),
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

fn check_defined<E: Element>(exchange: &Exchange<'_>, reduction: &impl Reduction<E>) -> Result<()> {
    let wrong = |(op, element)| CollectiveError::WrongOp { what: exchange.what(), op, element };
    reduction.undefined().map_or(Ok(()), |undefined| Err(wrong(undefined)))
}

fn combine<E: Element>(
    exchange: &Exchange<'_>,
    reduction: &impl Reduction<E>,
    mut earlier: Vec<E>,
    later: &[E],
) -> Vec<E> {
    let _calls = exchange.comm().inner.calls_user();
    reduction.combine_all(&mut earlier, later);
    earlier
}

fn tree_bcast(exchange: &Exchange<'_>, bytes: &mut [u8], root: Rank) -> Result<()> {
    let comm = exchange.comm();
    let size = comm.size();
    let relative = comm.rank().on_ring(-i64::from(root.0), size).0;
    let absolute = |relative: u32| Rank(relative).on_ring(i64::from(root.0), size);
    let (parent, children) = binomial(relative, size);
    let (parent, children) = (parent.map(absolute), children.collect::<Vec<u32>>());
    if let Some(parent) = parent {
        exchange.expect(parent, 2);
    }
    // Each part goes on at once, while the next one comes.
    for number in 0..parts(bytes.len()) {
        if let Some(parent) = parent {
            exchange.receive_part(parent, 2, bytes, number)?;
        }
        for distance in &children {
            exchange.send_part(absolute(relative + distance), 2, bytes, number)?;
        }
    }
    Ok(())
}

/// Combines in rank order towards rank 0, which gets the result.
fn tree_reduce<E: Element>(
    exchange: &Exchange<'_>,
    mine: &[E],
    reduction: &impl Reduction<E>,
) -> Result<Option<Vec<E>>> {
    let comm = exchange.comm();
    let (parent, children) = binomial(comm.rank().0, comm.size());
    let mut children: Vec<u32> = children.collect();
    children.reverse();
    let mut total = mine.to_vec();
    for distance in children {
        let child = Rank(comm.rank().0 + distance);
        let got = exchange.receive_exactly(child, 0, size_of_val(mine))?;
        total = combine(exchange, reduction, total, &elements(&got));
    }
    match parent {
        None => Ok(Some(total)),
        Some(parent) => {
            exchange.send(Rank(parent), 0, cast_slice(&total))?;
            Ok(None)
        }
    }
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
