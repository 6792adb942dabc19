//! Scans: what a rank and those below it contribute, combined.
use super::exchange::Exchange;
use super::operations::{Result, check_defined};
use super::reduction::Reduction;
use super::tree::elements;
use crate::collective::Communicator;
use crate::element::Element;
use crate::rank::Rank;
use bytemuck::cast_slice;

impl Communicator {
    /// Combines `mine` of this rank and all lower ones, element by element. **Collective.**
    ///
    /// `mine` has the same length everywhere, and is yours again on return.
    ///
    /// # Errors
    ///
    /// [`WrongOp`](crate::CollectiveError::WrongOp) where the elements do not have the reduction,
    /// [`LengthMismatch`](crate::CollectiveError::LengthMismatch) at a rank that hears of another
    /// length, and [`GaveUp`](crate::CollectiveError::GaveUp) at those that wait for it; and those
    /// of [`barrier`](Self::barrier).
    ///
    /// MPI 4.1, section 6.11.1.
    pub fn scan<E: Element>(&self, mine: &[E], reduction: impl Reduction<E>) -> Result<Vec<E>> {
        let mut all = mine.to_vec();
        self.scan_as("scan", &mut all, &reduction)?;
        Ok(all)
    }

    /// Combines `mine` of all lower ranks, element by element; `None` at rank 0. **Collective.**
    ///
    /// `mine` has the same length everywhere, and is yours again on return.
    ///
    /// # Errors
    ///
    /// As [`scan`](Self::scan).
    ///
    /// MPI 4.1, section 6.11.2.
    pub fn exscan<E: Element>(
        &self,
        mine: &[E],
        reduction: impl Reduction<E>,
    ) -> Result<Option<Vec<E>>> {
        self.exscan_as("exscan", mine, &reduction)
    }

    pub(super) fn scan_as<E: Element>(
        &self,
        what: &'static str,
        all: &mut [E],
        reduction: &impl Reduction<E>,
    ) -> Result<()> {
        let exchange = Exchange::start(self, what)?;
        check_defined(&exchange, reduction)?;
        exchange.combine_lower(all, reduction, |_| {})
    }

    pub(super) fn exscan_as<E: Element>(
        &self,
        what: &'static str,
        mine: &[E],
        reduction: &impl Reduction<E>,
    ) -> Result<Option<Vec<E>>> {
        let exchange = Exchange::start(self, what)?;
        check_defined(&exchange, reduction)?;
        let mut lower = None::<Vec<E>>;
        exchange.combine_lower(&mut mine.to_vec(), reduction, |got| {
            let mut got = got.to_vec();
            if let Some(lower) = &lower {
                exchange.combine(reduction, &mut got, lower);
            }
            lower = Some(got);
        })?;
        Ok(lower)
    }
}

impl Exchange<'_> {
    /// Combines, into `all`, what this rank and those below it contribute. What comes from ranks
    /// below is shown to `visit`: of each run of ranks once, the nearest first.
    fn combine_lower<E: Element>(
        &self,
        all: &mut [E],
        reduction: &impl Reduction<E>,
        mut visit: impl FnMut(&[E]),
    ) -> Result<()> {
        let (rank, size) = (self.comm().rank().0, self.comm().size());
        // Before each round, `all` covers the ranks from `rank - distance + 1` to this one.
        let (mut distance, mut round) = (1, 0);
        while distance < size {
            let from = rank.checked_sub(distance).map(Rank);
            let to = rank.checked_add(distance).filter(|to| *to < size).map(Rank);
            let got = self.trade(to, cast_slice(all), from, round)?;
            if let Some(from) = from {
                self.check_length(from, size_of_val(all), got.len() as u64)?;
                let mut got = elements::<E>(&got);
                visit(&got);
                self.combine(reduction, &mut got, all);
                all.copy_from_slice(&got);
            }
            distance *= 2;
            round += 1;
        }
        Ok(())
    }
}
