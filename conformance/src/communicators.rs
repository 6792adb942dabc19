//! Ranks, groups, split and dup (FEATURES A8).
use crate::help::{reaches, times};
use rma_core::transport::WorldRank;
use rma_core::{Communicator, Rank, Universe};

/// The processes of the job behind the ranks of a communicator, asked of themselves.
fn members(universe: &Universe, comm: &Communicator) -> Vec<u32> {
    comm.allgather(&[universe.world().rank().0]).unwrap()
}

/// Fails unless `comm` consists of these ranks of the world, in this order.
fn expect_members(universe: &Universe, comm: &Communicator, expected: &[u32]) {
    assert_eq!(comm.size() as usize, expected.len());
    let mine = expected.iter().position(|world| *world == universe.world().rank().0);
    assert_eq!(mine, Some(usize::from(comm.rank())));
    assert_eq!(members(universe, comm), expected);
    let group: Vec<u32> = comm.group().members().map(|world| world.0).collect();
    assert_eq!(group, expected);
    comm.barrier().unwrap();
}

fn all(universe: &Universe) -> impl DoubleEndedIterator<Item = u32> {
    0..universe.world().size()
}

/// Rank, size and ranks of the world.
pub fn world(universe: &Universe) {
    let world = universe.world();
    assert_eq!(world.size(), universe.transport().size());
    assert_eq!(world.rank().0, universe.transport().rank().0);
    let ranks: Vec<Rank> = world.ranks().collect();
    assert_eq!(ranks, all(universe).map(Rank).collect::<Vec<_>>());
    expect_members(universe, world, &all(universe).collect::<Vec<_>>());
    assert!(universe.explain().contains(universe.transport().name()));
    let clone = world.clone();
    assert_eq!((clone.rank(), clone.size()), (world.rank(), world.size()));
}

/// Two colours.
pub fn split_by_parity(universe: &Universe) {
    let me = universe.world().rank().0;
    let half = universe.world().split(Some(me % 2), 0).unwrap().unwrap();
    let expected: Vec<u32> = all(universe).filter(|rank| rank % 2 == me % 2).collect();
    expect_members(universe, &half, &expected);
}

/// Keys turn the order around; they may be negative. S-A6
pub fn split_reversed(universe: &Universe) {
    let world = universe.world();
    let reversed = world.split(Some(7), -i64::from(world.rank().0)).unwrap().unwrap();
    assert_eq!(reversed.rank().0, world.size() - 1 - world.rank().0);
    expect_members(universe, &reversed, &all(universe).rev().collect::<Vec<_>>());
}

/// Equal keys keep the order of ranks.
pub fn split_with_equal_keys(universe: &Universe) {
    let same = universe.world().split(Some(u32::MAX), 5).unwrap().unwrap();
    expect_members(universe, &same, &all(universe).collect::<Vec<_>>());
    // The last half goes first, in order.
    let world = universe.world();
    let key = i64::from(world.rank().0 < world.size() / 2);
    let turned = world.split(Some(0), key).unwrap().unwrap();
    let half = world.size() / 2;
    let expected: Vec<u32> = (half..world.size()).chain(0..half).collect();
    expect_members(universe, &turned, &expected);
}

/// Keys at the ends of their range sort as numbers do.
pub fn split_with_extreme_keys(universe: &Universe) {
    let key = [i64::MAX, i64::MIN, 0][universe.world().rank().0 as usize % 3];
    let comm = universe.world().split(Some(0), key).unwrap().unwrap();
    expect_members(universe, &comm, &[1, 2, 0]);
}

/// A rank without colour gets nothing, the others a communicator.
pub fn split_without_color(universe: &Universe) {
    let me = universe.world().rank().0;
    let color = me.is_multiple_of(2).then_some(3);
    let even = universe.world().split(color, 0).unwrap();
    assert_eq!(even.is_some(), me.is_multiple_of(2));
    if let Some(even) = even {
        let expected: Vec<u32> = all(universe).filter(|rank| rank % 2 == 0).collect();
        expect_members(universe, &even, &expected);
    }
    universe.world().barrier().unwrap();
}

/// No rank gives a colour.
pub fn split_without_any_color(universe: &Universe) {
    assert!(universe.world().split(None, 1).unwrap().is_none());
    universe.world().barrier().unwrap();
}

/// Splits of splits, all alive and used at once. S-A6
pub fn split_of_split(universe: &Universe) {
    let me = universe.world().rank().0;
    let half = universe.world().split(Some(me % 2), -i64::from(me)).unwrap().unwrap();
    let mut expected: Vec<u32> = all(universe).rev().filter(|rank| rank % 2 == me % 2).collect();
    expect_members(universe, &half, &expected);
    // The first of each half goes alone.
    let first = half.rank() == Rank(0);
    let part = half.split(Some(u32::from(first)), 0).unwrap().unwrap();
    let rest = expected.split_off(1);
    expect_members(universe, &part, if first { &expected } else { &rest });
    let again = part.dup().unwrap();
    expect_members(universe, &again, if first { &expected } else { &rest });
    assert_eq!(half.allgather(&[me]).unwrap().len(), expected.len() + rest.len());
}

/// A communicator of one rank works.
pub fn split_alone(universe: &Universe) {
    let me = universe.world().rank().0;
    let alone = universe.world().split(Some(me), 0).unwrap().unwrap();
    expect_members(universe, &alone, &[me]);
    assert_eq!(alone.allreduce(&[me], |a: u32, b: u32| a + b).unwrap(), [me]);
    assert_eq!(alone.exscan(&[me], |a: u32, b: u32| a + b).unwrap(), None);
}

/// Ranks that share memory end up together, the others alone.
pub fn split_by_node(universe: &Universe) {
    let me = universe.world().rank().0;
    let node = universe.world().split_by_node(0).unwrap();
    let together = |peer: &u32| *peer == me || reaches(universe, Rank(*peer));
    expect_members(universe, &node, &all(universe).filter(together).collect::<Vec<_>>());
}

/// Keys order the ranks of a node.
pub fn split_by_node_reversed(universe: &Universe) {
    let me = universe.world().rank().0;
    let node = universe.world().split_by_node(-i64::from(me)).unwrap();
    let together = |peer: &u32| *peer == me || reaches(universe, Rank(*peer));
    expect_members(universe, &node, &all(universe).rev().filter(together).collect::<Vec<_>>());
}

/// What one communicator carries never reaches another of the same ranks.
pub fn dup_is_independent(universe: &Universe) {
    let world = universe.world();
    let dup = world.dup().unwrap();
    expect_members(universe, &dup, &all(universe).collect::<Vec<_>>());
    // The root sends in one order, the others take in the other.
    let (mut first, mut second) = ([0u32], [0u32]);
    if world.rank() == Rank(0) {
        (first, second) = ([1], [2]);
        world.bcast(&mut first, Rank(0)).unwrap();
        dup.bcast(&mut second, Rank(0)).unwrap();
    } else {
        dup.bcast(&mut second, Rank(0)).unwrap();
        world.bcast(&mut first, Rank(0)).unwrap();
    }
    assert_eq!((first, second), ([1], [2]));
    dup.barrier().unwrap();
}

/// A communicator needs nothing of the one it was made of. S-A7
pub fn dup_outlives_its_parent(universe: &Universe) {
    let parent = universe.world().split(Some(0), 0).unwrap().unwrap();
    let dup = parent.dup().unwrap();
    drop(parent);
    expect_members(universe, &dup, &all(universe).collect::<Vec<_>>());
}

/// Communicators come and go.
pub fn many_dups(universe: &Universe) {
    let mut kept = vec![universe.world().clone()];
    for round in 0..times(universe, 40) {
        let dup = kept.last().unwrap().dup().unwrap();
        assert_eq!(dup.allreduce(&[round], |a: u64, _| a).unwrap(), [round]);
        kept.push(dup);
        if kept.len() > 4 {
            kept.remove(1);
        }
    }
    for comm in &kept {
        comm.barrier().unwrap();
    }
}

/// Groups translate ranks both ways.
pub fn groups_translate(universe: &Universe) {
    let world = universe.world();
    let me = world.rank().0;
    let comm = world.split(Some(me % 2), -i64::from(me)).unwrap().unwrap();
    let group = comm.group();
    assert_eq!(group.size(), comm.size());
    for rank in comm.ranks() {
        let member = group.world_rank(rank).unwrap();
        assert_eq!(member.0 % 2, me % 2);
        assert_eq!(group.rank_of(member), Some(rank));
    }
    assert_eq!(group.world_rank(Rank(comm.size())), None);
    assert_eq!(group.world_rank(Rank::NULL), None);
    let other = WorldRank((me + 1) % world.size());
    let in_other = other.0 % 2 != me % 2;
    assert_eq!(group.rank_of(other).is_none(), in_other);
    assert_eq!(group.rank_of(WorldRank(world.size())), None);
    assert_eq!(world.dup().unwrap().group(), world.group());
}
