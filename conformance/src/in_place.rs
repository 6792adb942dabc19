//! Collectives whose result takes the place of what a rank contributes, against those whose result
//! is a vector (FEATURES A8).
use crate::help::lengths;
use rma_core::{Communicator, Op, Rank, Universe};

fn block(rank: Rank, len: usize) -> Vec<u64> {
    (0..len as u64).map(|i| u64::from(rank) * 1_000_003 + i * i).collect()
}

/// `mine`, after an operation in place.
fn after(mine: &[u64], form: impl FnOnce(&mut [u64])) -> Vec<u64> {
    let mut buffer = mine.to_vec();
    form(&mut buffer);
    buffer
}

/// Plays a case with blocks of every length.
fn all_lengths(universe: &Universe, case: impl Fn(&Communicator, &[u64])) {
    let world = universe.world();
    for len in lengths() {
        case(world, &block(world.rank(), *len));
    }
}

/// What other blocks hold before is overwritten.
pub fn allgather(universe: &Universe) {
    all_lengths(universe, |world, mine| {
        let mut all = vec![u64::MAX; mine.len() * world.size() as usize];
        all[usize::from(world.rank()) * mine.len()..][..mine.len()].copy_from_slice(mine);
        world.allgather_in_place(&mut all).unwrap();
        assert_eq!(all, world.allgather(mine).unwrap());
    });
}

/// Every length, up to several parts of a payload.
pub fn alltoall(universe: &Universe) {
    all_lengths(universe, |world, mine| {
        let mine: Vec<u64> = mine.repeat(world.size() as usize);
        let mine: Vec<u64> = mine.iter().zip(0..).map(|(value, i)| value ^ (i << 40)).collect();
        let all = after(&mine, |all| world.alltoall_in_place(all).unwrap());
        assert_eq!(all, world.alltoall(&mine).unwrap());
    });
}

/// Every root; the buffers of others stay as they are.
pub fn reduce(universe: &Universe) {
    all_lengths(universe, |world, mine| {
        for root in world.ranks() {
            let total = after(mine, |all| world.reduce_in_place(all, Op::Sum, root).unwrap());
            let expected = world.reduce(mine, Op::Sum, root).unwrap();
            assert_eq!(total, expected.unwrap_or_else(|| mine.to_vec()));
        }
    });
}

/// Every length.
pub fn allreduce(universe: &Universe) {
    all_lengths(universe, |world, mine| {
        let total = after(mine, |all| world.allreduce_in_place(all, Op::Sum).unwrap());
        assert_eq!(total, world.allreduce(mine, Op::Sum).unwrap());
    });
}

/// Every length.
pub fn scan(universe: &Universe) {
    all_lengths(universe, |world, mine| {
        let upto = after(mine, |all| world.scan_in_place(all, Op::Sum).unwrap());
        assert_eq!(upto, world.scan(mine, Op::Sum).unwrap());
    });
}

/// Every length; that of rank 0 stays as it is.
pub fn exscan(universe: &Universe) {
    all_lengths(universe, |world, mine| {
        let lower = after(mine, |all| world.exscan_in_place(all, Op::Sum).unwrap());
        let expected = world.exscan(mine, Op::Sum).unwrap();
        assert_eq!(lower, expected.unwrap_or_else(|| mine.to_vec()));
    });
}
