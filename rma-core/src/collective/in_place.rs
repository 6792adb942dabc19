//! Operations whose result takes the place of what the rank contributes (`MPI_IN_PLACE`).
//!
//! There is one for each operation that gives a rank as much as it takes. The others have a result
//! of another length, which is a vector of its own.
use super::exchange::Exchange;
use super::operations::{Result, allgather_in, check_blocks};
use super::reduction::Reduction;
use crate::collective::Communicator;
use crate::element::Element;
use crate::rank::Rank;
use bytemuck::cast_slice_mut;

impl Communicator {
    /// As [`allgather`](Self::allgather), where `all` has the block of this rank in its place, and
    /// all others are overwritten. **Collective.**
    ///
    /// `all` has the same length everywhere, a multiple of the number of ranks. It is yours again
    /// on return; after an error, what it holds is not defined.
    ///
    /// # Errors
    ///
    /// [`WrongCount`](crate::CollectiveError::WrongCount) where the length is no multiple, and
    /// [`GaveUp`](crate::CollectiveError::GaveUp) at the others; otherwise as
    /// [`allgather`](Self::allgather).
    ///
    /// MPI 4.1, sections 6.2.1 and 6.7.
    pub fn allgather_in_place<E: Element>(&self, all: &mut [E]) -> Result<()> {
        let exchange = Exchange::start(self, "allgather_in_place")?;
        let block = check_blocks(&exchange, all.len())?;
        if exchange.allgather_flat(cast_slice_mut(all))? {
            return Ok(());
        }
        let mine = &all[usize::from(self.rank()) * block..][..block];
        let gathered = allgather_in(&exchange, mine)?;
        all.copy_from_slice(&gathered);
        Ok(())
    }

    /// As [`alltoall`](Self::alltoall), where the block that rank `r` sends here takes the place of
    /// the one that is sent there. **Collective.**
    ///
    /// `all` has the same length everywhere, a multiple of the number of ranks. It is yours again
    /// on return; after an error, what it holds is not defined.
    ///
    /// # Errors
    ///
    /// As [`alltoall`](Self::alltoall).
    ///
    /// MPI 4.1, sections 6.2.1 and 6.8.
    pub fn alltoall_in_place<E: Element>(&self, all: &mut [E]) -> Result<()> {
        let exchange = Exchange::start(self, "alltoall_in_place")?;
        let block = check_blocks(&exchange, all.len())?;
        if exchange.alltoall_flat(None, cast_slice_mut(all))? {
            return Ok(());
        }
        for partner in partners(self) {
            let theirs = &mut all[usize::from(partner) * block..][..block];
            exchange.trade_places(partner, 0, cast_slice_mut(theirs))?;
        }
        Ok(())
    }

    /// As [`reduce`](Self::reduce), where the result takes the place of `mine` at `root`; at other
    /// ranks `mine` stays as it is. **Collective.**
    ///
    /// `mine` has the same length everywhere. It is yours again on return; after an error, it is
    /// what it was.
    ///
    /// # Errors
    ///
    /// As [`reduce`](Self::reduce).
    ///
    /// MPI 4.1, sections 6.2.1 and 6.9.1.
    pub fn reduce_in_place<E: Element>(
        &self,
        mine: &mut [E],
        reduction: impl Reduction<E>,
        root: Rank,
    ) -> Result<()> {
        if let Some(total) = self.reduce_as("reduce_in_place", mine, &reduction, root)? {
            mine.copy_from_slice(&total);
        }
        Ok(())
    }

    /// As [`allreduce`](Self::allreduce), where the result takes the place of `mine`.
    /// **Collective.**
    ///
    /// `mine` has the same length everywhere. It is yours again on return; after an error, what
    /// it holds is not defined.
    ///
    /// # Errors
    ///
    /// As [`allreduce`](Self::allreduce).
    ///
    /// MPI 4.1, sections 6.2.1 and 6.9.6.
    pub fn allreduce_in_place<E: Element>(
        &self,
        mine: &mut [E],
        reduction: impl Reduction<E>,
    ) -> Result<()> {
        self.allreduce_as("allreduce_in_place", mine, &reduction)
    }

    /// As [`scan`](Self::scan), where the result takes the place of `mine`. **Collective.**
    ///
    /// `mine` has the same length everywhere. It is yours again on return; after an error, what
    /// it holds is not defined.
    ///
    /// # Errors
    ///
    /// As [`scan`](Self::scan).
    ///
    /// MPI 4.1, sections 6.2.1 and 6.11.1.
    pub fn scan_in_place<E: Element>(
        &self,
        mine: &mut [E],
        reduction: impl Reduction<E>,
    ) -> Result<()> {
        self.scan_as("scan_in_place", mine, &reduction)
    }

    /// As [`exscan`](Self::exscan), where the result takes the place of `mine`; at rank 0, which
    /// has none, `mine` stays as it is. **Collective.**
    ///
    /// `mine` has the same length everywhere. It is yours again on return; after an error, it is
    /// what it was.
    ///
    /// # Errors
    ///
    /// As [`scan`](Self::scan).
    ///
    /// MPI 4.1, sections 6.2.1 and 6.11.2.
    pub fn exscan_in_place<E: Element>(
        &self,
        mine: &mut [E],
        reduction: impl Reduction<E>,
    ) -> Result<()> {
        if let Some(lower) = self.exscan_as("exscan_in_place", mine, &reduction)? {
            mine.copy_from_slice(&lower);
        }
        Ok(())
    }
}

/// Partners of each round of an exchange in pairs.
fn partners(comm: &Communicator) -> impl Iterator<Item = Rank> + use<> {
    let (rank, size) = (comm.rank(), comm.size());
    (0..size).map(move |round| partner(round, rank, size)).filter(move |partner| *partner != rank)
}

/// Partners are each other's. A rank may be its own.
fn partner(round: u32, rank: Rank, size: u32) -> Rank {
    Rank(round).on_ring(-i64::from(rank.0), size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_two_ranks_are_partners_once() {
        for size in 1..20 {
            for rank in (0..size).map(Rank) {
                let of = |round| partner(round, rank, size);
                assert!((0..size).all(|round| partner(round, of(round), size) == rank));
                let mut partners: Vec<Rank> = (0..size).map(of).collect();
                partners.sort_unstable();
                assert_eq!(partners, (0..size).map(Rank).collect::<Vec<_>>());
            }
        }
    }
}
