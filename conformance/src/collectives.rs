//! Collectives that move elements (FEATURES A8), against what a sequential program would say.
use crate::help::{lengths, times, words};
use bytemuck::{Pod, Zeroable};
use rma_core::{Communicator, Op, Rank, Universe};

/// What `rank` contributes.
fn block(rank: Rank, len: usize) -> Vec<u64> {
    (0..len as u64).map(|i| u64::from(rank) * 1_000_003 + i).collect()
}

/// A length for each rank, some of them 0.
fn uneven(rank: Rank, len: usize) -> usize {
    len * (rank.0 as usize % 3)
}

/// Every rank in a barrier, many times.
pub fn barrier(universe: &Universe) {
    for _ in 0..times(universe, 200) {
        universe.world().barrier().unwrap();
    }
}

/// What was done before a barrier is seen after it.
pub fn barrier_orders(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    for round in 1..=times(universe, 100) {
        let epoch = window.lock_all().unwrap();
        epoch.fetch_and_op(Rank(0), 0, Op::Sum, 1u64).unwrap();
        epoch.unlock().unwrap();
        world.barrier().unwrap();
        if world.rank() == Rank(0) {
            let sum: u64 = window.local().load(0).unwrap();
            assert_eq!(sum, round * u64::from(world.size()));
        }
        world.barrier().unwrap();
    }
    window.free().unwrap();
}

/// Every root, every length.
pub fn bcast(universe: &Universe) {
    let world = universe.world();
    for len in lengths() {
        for root in world.ranks() {
            let mut buffer =
                if world.rank() == root { block(root, *len) } else { vec![u64::MAX; *len] };
            world.bcast(&mut buffer, root).unwrap();
            assert_eq!(buffer, block(root, *len));
        }
    }
}

/// Every root, every length.
pub fn gather(universe: &Universe) {
    let world = universe.world();
    for len in lengths() {
        let expected: Vec<u64> = world.ranks().flat_map(|rank| block(rank, *len)).collect();
        for root in world.ranks() {
            let all = world.gather(&block(world.rank(), *len), root).unwrap();
            assert_eq!(all.as_ref(), (world.rank() == root).then_some(&expected));
        }
    }
}

/// Lengths of each rank's own, some 0.
pub fn gatherv(universe: &Universe) {
    let world = universe.world();
    for len in lengths() {
        let of = |rank| block(rank, uneven(rank, *len));
        let expected: Vec<Vec<u64>> = world.ranks().map(of).collect();
        for root in world.ranks() {
            let all = world.gatherv(&of(world.rank()), root).unwrap();
            assert_eq!(all.as_ref(), (world.rank() == root).then_some(&expected));
        }
    }
}

/// Every root, every length. Others than the root say nothing, or something else.
pub fn scatter(universe: &Universe) {
    let world = universe.world();
    for len in lengths() {
        let all: Vec<u64> = world.ranks().flat_map(|rank| block(rank, *len)).collect();
        for root in world.ranks() {
            let mine = if world.rank() == root { &all[..] } else { &[7][..usize::from(root) % 2] };
            assert_eq!(world.scatter(mine, root).unwrap(), block(world.rank(), *len));
        }
    }
}

/// Lengths of each rank's own, some 0.
pub fn scatterv(universe: &Universe) {
    let world = universe.world();
    for len in lengths() {
        let of = |rank| block(rank, uneven(rank, *len));
        let all: Vec<Vec<u64>> = world.ranks().map(of).collect();
        for root in world.ranks() {
            let mine = if world.rank() == root { &all[..] } else { &[] };
            assert_eq!(world.scatterv(mine, root).unwrap(), of(world.rank()));
        }
    }
}

/// Every root; elements of basic types and of the user's own.
pub fn bcast_value(universe: &Universe) {
    let world = universe.world();
    for root in world.ranks() {
        let of = |rank: Rank| u64::from(rank) * 3 + 1;
        assert_eq!(world.bcast_value(of(world.rank()), root).unwrap(), of(root));
        let mine = particle(world.rank(), 5);
        assert_eq!(world.bcast_value(mine, root).unwrap(), particle(root, 5));
    }
}

/// Every length.
pub fn allgather(universe: &Universe) {
    let world = universe.world();
    for len in lengths() {
        let expected: Vec<u64> = world.ranks().flat_map(|rank| block(rank, *len)).collect();
        assert_eq!(world.allgather(&block(world.rank(), *len)).unwrap(), expected);
    }
}

/// Lengths of each rank's own, some 0.
pub fn allgatherv(universe: &Universe) {
    let world = universe.world();
    for len in lengths() {
        let of = |rank| block(rank, uneven(rank, *len));
        let expected: Vec<Vec<u64>> = world.ranks().map(of).collect();
        assert_eq!(world.allgatherv(&of(world.rank())).unwrap(), expected);
    }
}

/// No rank, or one only, has something to say.
pub fn allgatherv_of_nothing(universe: &Universe) {
    let world = universe.world();
    let nothing: Vec<Vec<u64>> = vec![Vec::new(); world.size() as usize];
    assert_eq!(world.allgatherv::<u64>(&[]).unwrap(), nothing);
    for speaker in world.ranks() {
        let mine = if world.rank() == speaker { block(speaker, 5) } else { Vec::new() };
        let mut expected = nothing.clone();
        expected[usize::from(speaker)] = block(speaker, 5);
        assert_eq!(world.allgatherv(&mine).unwrap(), expected);
    }
}

/// What `from` sends to `to`.
fn parcel(from: Rank, to: Rank, len: usize) -> Vec<u64> {
    (0..len as u64).map(|i| u64::from(from) << 40 | u64::from(to) << 20 | i).collect()
}

/// Every length.
pub fn alltoall(universe: &Universe) {
    let world = universe.world();
    let me = world.rank();
    for len in lengths() {
        let len = len / 4;
        let mine: Vec<u64> = world.ranks().flat_map(|to| parcel(me, to, len)).collect();
        let expected: Vec<u64> = world.ranks().flat_map(|from| parcel(from, me, len)).collect();
        assert_eq!(world.alltoall(&mine).unwrap(), expected);
    }
}

/// A length for each pair, some 0.
pub fn alltoallv(universe: &Universe) {
    let world = universe.world();
    let me = world.rank();
    for len in lengths() {
        let of = |from: Rank, to: Rank| {
            parcel(from, to, len / 4 * ((from.0 as usize + 2 * to.0 as usize) % 3))
        };
        let mine: Vec<Vec<u64>> = world.ranks().map(|to| of(me, to)).collect();
        let expected: Vec<Vec<u64>> = world.ranks().map(|from| of(from, me)).collect();
        assert_eq!(world.alltoallv(&mine).unwrap(), expected);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct Particle {
    at: [f32; 3],
    id: u32,
    mass: f64,
}

fn particle(rank: Rank, i: u32) -> Particle {
    let id = rank.0 * 100 + i;
    Particle { at: [id as f32, 0.5, -1.0], id, mass: f64::from(id) / 3.0 }
}

/// Elements of the user's own, and single bytes.
pub fn structs(universe: &Universe) {
    let world = universe.world();
    let mine: Vec<Particle> = (0..7).map(|i| particle(world.rank(), i)).collect();
    let expected: Vec<Particle> =
        world.ranks().flat_map(|rank| (0..7).map(move |i| particle(rank, i))).collect();
    assert_eq!(world.allgather(&mine).unwrap(), expected);
    let mut buffer = mine.clone();
    world.bcast(&mut buffer, Rank(1)).unwrap();
    assert_eq!(buffer, expected[7..14]);
    let lists = world.allgatherv(&mine[..world.rank().0 as usize]).unwrap();
    for rank in world.ranks() {
        let start = usize::from(rank) * 7;
        assert_eq!(lists[usize::from(rank)], expected[start..start + usize::from(rank)]);
    }
    assert_eq!(world.scatter(&expected, Rank(1)).unwrap(), mine);
    let bytes = world.allgather(&[world.rank().0 as u8; 3]).unwrap();
    assert_eq!(bytes, [0, 0, 0, 1, 1, 1, 2, 2, 2]);
}

/// Operations in a row: enough to run far ahead, on every transport.
fn row(universe: &Universe) -> u64 {
    times(universe, 2_000).max(if cfg!(miri) { 2 } else { 200 })
}

/// Some work that takes a while and that the compiler cannot know.
fn dawdle(rounds: u64) -> u64 {
    (0..rounds).fold(1, |sum, i| std::hint::black_box(sum ^ i).wrapping_mul(0x9e37_79b9))
}

/// A root that never waits for anything cannot run far ahead of a slow receiver, and nothing is
/// lost or mixed up.
pub fn run_ahead_is_bounded(universe: &Universe) {
    const AHEAD: u64 = 64;
    let world = universe.world();
    let window = words(world, world.size() as usize);
    let epoch = window.lock_all().unwrap();
    let slow = world.rank().0 + 1 == world.size();
    for round in 0..row(universe) {
        let mut value = [if world.rank() == Rank(0) { round } else { 0 }];
        world.bcast(&mut value, Rank(0)).unwrap();
        assert_eq!(value, [round]);
        if world.rank() != Rank(0) {
            dawdle(if slow { 2_000 } else { 0 });
            epoch.fetch_and_op(Rank(0), u64::from(world.rank()), Op::Sum, 1u64).unwrap();
            continue;
        }
        for rank in world.ranks().skip(1) {
            let received: u64 = window.local().load(u64::from(rank)).unwrap();
            assert!(round - received.min(round) <= AHEAD, "{rank} is at {received} of {round}");
        }
    }
    epoch.unlock().unwrap();
    window.free().unwrap();
}

/// Senders that never wait for anything, with a slow root.
pub fn gathers_in_a_row(universe: &Universe) {
    let world = universe.world();
    let root = Rank(world.size() - 1);
    for round in 0..row(universe) {
        let all = world.gather(&[round * 10 + u64::from(world.rank())], root).unwrap();
        if let Some(all) = all {
            dawdle(2_000);
            let expected = world.ranks().map(|rank| round * 10 + u64::from(rank));
            assert_eq!(all, expected.collect::<Vec<_>>());
        }
    }
}

/// One round of everything, with another root each time.
fn everything(world: &Communicator, round: u64) {
    let root = Rank((round % u64::from(world.size())) as u32);
    let (me, size) = (u64::from(world.rank()), u64::from(world.size()));
    let mut value = [round * (u64::from(world.rank() == root))];
    world.bcast(&mut value, root).unwrap();
    assert_eq!(value, [round]);
    assert_eq!(world.allreduce(&[me + round], Op::Max).unwrap(), [size - 1 + round]);
    let total = world.reduce(&[me], Op::Sum, root).unwrap();
    assert_eq!(total, (world.rank() == root).then(|| vec![size * (size - 1) / 2]));
    assert_eq!(world.exscan(&[1u64], Op::Sum).unwrap().map_or(0, |sum| sum[0]), me);
    world.gatherv(&vec![me; me as usize], root).unwrap();
    assert_eq!(world.scan(&[1u64], Op::Sum).unwrap(), [me + 1]);
    let all: Vec<u64> = (0..size).collect();
    assert_eq!(world.scatter(&all, root).unwrap(), [me]);
    let mut sum = [me];
    world.allreduce_in_place(&mut sum, Op::Sum).unwrap();
    assert_eq!(world.bcast_value(sum[0] + me, root).unwrap(), sum[0] + u64::from(root));
}

/// All kinds after one another, without a barrier between.
pub fn mixed_in_a_row(universe: &Universe) {
    for round in 0..times(universe, 200) {
        everything(universe.world(), round);
    }
}
