//! Collective operations: trees and dissemination over messages, flags where memory is shared.
//!
//! Every operation is a sequence of [`exchange`] sends and receives; what waits, sleeps in
//! `wait_until`. A root or a fast rank may run ahead of the others by a bounded number of
//! operations only ([`AHEAD_MAX`]), so that what arrives early takes bounded memory.
mod abandon;
mod barrier;
mod communicator;
mod contributions;
mod exchange;
mod flat;
mod hierarchy;
mod in_place;
mod lanes;
pub(crate) mod near;
mod node;
mod offers;
mod operations;
mod pieces;
mod prefix;
mod reduction;
mod timed;
mod tree;
mod turn;

pub use communicator::Communicator;
pub(crate) use communicator::Inner;
pub(crate) use contributions::Contributions;
pub(crate) use near::Near;
pub(crate) use node::Node;
pub use reduction::Reduction;
pub(crate) use turn::Turn;

/// Operations that a rank may be ahead of another before all wait for each other.
const AHEAD_MAX: u32 = 16;

/// The parent of `rank` in a binomial tree rooted at 0, and the distances to its children, the
/// farthest first.
fn binomial(rank: u32, size: u32) -> (Option<u32>, impl Iterator<Item = u32>) {
    let span = if rank == 0 { size.next_power_of_two() } else { 1 << rank.trailing_zeros() };
    let parent = (rank != 0).then(|| rank - span);
    let distances = core::iter::successors(Some(span / 2), |distance| Some(distance / 2))
        .take_while(|distance| *distance > 0)
        .filter(move |distance| *distance < size - rank);
    (parent, distances)
}

#[cfg(test)]
mod tests {
    use super::binomial;

    #[test]
    fn the_binomial_tree_reaches_every_rank_once() {
        for size in 1..70 {
            let mut parents = vec![None; size as usize];
            for rank in 0..size {
                let (parent, children) = binomial(rank, size);
                assert_eq!(parent.is_none(), rank == 0);
                for distance in children {
                    assert!(parents[(rank + distance) as usize].replace(rank).is_none());
                }
            }
            for rank in 1..size {
                assert_eq!(parents[rank as usize], binomial(rank, size).0, "{rank} of {size}");
            }
        }
    }
}
