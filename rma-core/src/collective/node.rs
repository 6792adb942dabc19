//! Which members of a communicator share memory, and in which order they meet: first those of a
//! node, then one of each.
use super::barrier::rounds;
use crate::collective::{Communicator, Inner};
use crate::error::CollectiveError;
use crate::group::Group;
use crate::memory::control_block::FLAGS;
use crate::rank::Rank;
use std::sync::Arc;

/// The members of a communicator whose memory one of them reaches by load and store.
#[derive(Clone)]
pub(crate) enum Node {
    /// None, and so it is with all members.
    Apart,
    /// All.
    Whole,
    /// Some. Members of other nodes are reached by messages.
    One(Arc<Neighbours>),
}

/// The members of a communicator on the node of this rank.
pub(crate) struct Neighbours {
    /// In rank order, this one among them. The first leads them.
    members: Box<[Rank]>,
    /// This rank's place among them.
    place: u32,
    /// The leaders of all nodes, in rank order; known to each of them.
    leaders: Option<Group>,
}

/// Ranks of a node whose tables may have holes of this size, whatever else.
const SPAN: u32 = 64;

/// So many times as many entries as ranks may be in such a table.
const SPARSE: u32 = 4;

impl Node {
    /// As far as this rank knows by itself: no leaders. All members of a node say the same.
    pub(crate) fn near(comm: &Inner) -> Self {
        let shared = &comm.engine.transport.shared;
        if !shared.is_near(comm.engine.transport.job.rank) {
            return Self::Apart;
        }
        let near = (0..).map(Rank).zip(comm.group.members());
        let near: Vec<Rank> =
            near.filter(|(_, peer)| shared.is_near(*peer)).map(|of| of.0).collect();
        let size = comm.group.size();
        if near.len() == size as usize && rounds(size) as usize <= FLAGS {
            return Self::Whole;
        }
        let members = together(near, comm.rank);
        let place = members.iter().position(|rank| *rank == comm.rank).unwrap_or(0) as u32;
        Self::One(Arc::new(Neighbours { members, place, leaders: None }))
    }

    /// Finds the leaders. **Collective**, if there are several nodes.
    pub(crate) fn with_leaders(self, comm: &Communicator) -> Result<Self, CollectiveError> {
        let Self::One(node) = self else { return Ok(self) };
        let leads = node.place == 0;
        let all = comm.gather(&[u8::from(leads)], Rank(0))?;
        let leaders = all.map(|all| {
            let leaders = comm.ranks().zip(all).filter(|(_, leads)| *leads == 1);
            Group::from_members(leaders.map(|(rank, _)| comm.world_rank(rank))).to_wire()
        });
        let mut bytes = [leaders.as_ref().map_or(0, Vec::len) as u64];
        comm.bcast(&mut bytes, Rank(0))?;
        let mut wire = leaders.unwrap_or_else(|| vec![0; bytes[0] as usize]);
        comm.bcast(&mut wire, Rank(0))?;
        let own = comm.world_rank(comm.rank());
        let leaders = Group::from_wire(&wire, comm.inner.engine.transport.job.size)
            .filter(|leaders| leaders.rank_of(own).is_some() == leads)
            .ok_or(CollectiveError::Malformed { what: "finding nodes", from: Rank(0) })?;
        let Neighbours { members, place, .. } = &*node;
        let (members, place, leaders) = (members.clone(), *place, leads.then_some(leaders));
        Ok(Self::One(Arc::new(Neighbours { members, place, leaders })))
    }

    /// The other ranks of the node, if there are several nodes.
    pub(crate) fn neighbours(&self) -> Option<&Neighbours> {
        match self {
            Self::One(node) => Some(node),
            Self::Apart | Self::Whole => None,
        }
    }
}

impl Neighbours {
    /// In rank order.
    pub(crate) fn members(&self) -> &[Rank] {
        &self.members
    }
}

/// Those of the ranks of a node, given in order, that have tables of each other with `own`: tables
/// have an entry for each rank from the first to the last, and shall not have many more than are
/// of use.
fn together(near: Vec<Rank>, own: Rank) -> Box<[Rank]> {
    let ends = near.first().zip(near.last());
    let span = ends.map_or(0, |(first, last)| last.0 - first.0 + 1);
    if span <= SPAN || u64::from(span) <= u64::from(SPARSE) * near.len() as u64 {
        return near.into();
    }
    let runs = near.chunk_by(|a, b| a.0 + 1 == b.0);
    runs.into_iter().find(|run| run.contains(&own)).unwrap_or_default().into()
}

/// Members of a communicator in the order of a tree, whose root comes first.
#[derive(Clone, Copy)]
pub(super) enum TreeOrder<'a> {
    /// All, from that rank on.
    From(Rank),
    /// Those of this node.
    Node(&'a Neighbours),
    /// One of each node.
    Leaders(&'a Group),
}

impl TreeOrder<'_> {
    pub(super) fn size(self, comm: &Communicator) -> u32 {
        match self {
            Self::From(_) => comm.size(),
            Self::Node(node) => node.members.len() as u32,
            Self::Leaders(leaders) => leaders.size(),
        }
    }

    /// This rank's place.
    pub(super) fn place(self, comm: &Communicator) -> u32 {
        match self {
            Self::From(root) => comm.rank().on_ring(-i64::from(root.0), comm.size()).0,
            Self::Node(node) => node.place,
            Self::Leaders(leaders) => {
                leaders.rank_of(comm.world_rank(comm.rank())).map_or(0, |place| place.0)
            }
        }
    }

    /// The member at a place, below the size.
    pub(super) fn at(self, comm: &Communicator, place: u32) -> Rank {
        match self {
            Self::From(root) => Rank(place).on_ring(i64::from(root.0), comm.size()),
            Self::Node(node) => node.members[place as usize],
            Self::Leaders(leaders) => {
                let world = leaders.world_rank(Rank(place));
                world.and_then(|world| comm.group().rank_of(world)).unwrap_or(Rank::NULL)
            }
        }
    }
}

impl<'a> Neighbours {
    pub(super) fn order(&'a self) -> TreeOrder<'a> {
        TreeOrder::Node(self)
    }

    /// If this rank is one of them.
    pub(super) fn leaders(&'a self) -> Option<TreeOrder<'a>> {
        self.leaders.as_ref().map(TreeOrder::Leaders)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ranks of a node agree on which of them a table holds, and tables are of a bounded size.
    #[test]
    fn tables_have_few_holes() {
        let near = |ranks: &[u32]| -> Vec<Rank> { ranks.iter().copied().map(Rank).collect() };
        let of = |ranks: &[u32], own| together(near(ranks), Rank(own)).into_vec();
        let cyclic: Vec<u32> = (0..100).map(|i| i * SPARSE).collect();
        assert_eq!(of(&cyclic, 8), near(&cyclic));
        assert_eq!(of(&[0, SPAN - 1], 0), near(&[0, SPAN - 1]));
        let apart = [3, 4, 5, SPAN + 9, SPAN + 10];
        for own in apart {
            let run = if own < 6 { near(&apart[..3]) } else { near(&apart[3..]) };
            assert_eq!(of(&apart, own), run);
        }
    }
}
