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
    /// Not known while a communicator is made.
    nodes: Option<Nodes>,
}

/// What a rank knows of all nodes.
#[derive(Clone)]
struct Nodes {
    /// The leaders of all, in rank order; known to each of them.
    leaders: Option<Group>,
    /// Whether the ranks of each node follow each other: then what nodes have, in the order of
    /// their leaders, is in rank order.
    in_order: bool,
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
        Self::One(Arc::new(Neighbours { members, place, nodes: None }))
    }

    /// Finds the leaders. **Collective**, if there are several nodes.
    pub(crate) fn with_leaders(self, comm: &Communicator) -> Result<Self, CollectiveError> {
        let Self::One(node) = self else { return Ok(self) };
        let leads = node.place == 0;
        let all = comm.gather(&[node.members[0].0], Rank(0))?;
        let in_order = all.as_ref().is_some_and(|all| all.is_sorted());
        let leaders = all.map(|all| {
            let leaders = comm.ranks().zip(all).filter(|(rank, leader)| rank.0 == *leader);
            Group::from_members(leaders.map(|(rank, _)| comm.world_rank(rank))).to_wire()
        });
        let mut head = [leaders.as_ref().map_or(0, Vec::len) as u64, u64::from(in_order)];
        comm.bcast(&mut head, Rank(0))?;
        let [bytes, in_order] = head;
        let mut wire = leaders.unwrap_or_else(|| vec![0; bytes as usize]);
        comm.bcast(&mut wire, Rank(0))?;
        let own = comm.world_rank(comm.rank());
        let leaders = Group::from_wire(&wire, comm.inner.engine.transport.job.size)
            .filter(|leaders| leaders.rank_of(own).is_some() == leads)
            .ok_or(CollectiveError::Malformed { what: "finding nodes", from: Rank(0) })?;
        let nodes = Nodes { leaders: leads.then_some(leaders), in_order: in_order == 1 };
        let (members, place) = (node.members.clone(), node.place);
        Ok(Self::One(Arc::new(Neighbours { members, place, nodes: Some(nodes) })))
    }

    /// The ranks of the node, if there are several nodes, and it is known which lead them.
    pub(crate) fn neighbours(&self) -> Option<&Neighbours> {
        match self {
            Self::One(node) => Some(&**node).filter(|node| node.nodes.is_some()),
            Self::Apart | Self::Whole => None,
        }
    }
}

impl Neighbours {
    /// In rank order.
    pub(crate) fn members(&self) -> &[Rank] {
        &self.members
    }

    /// Its place among them, if a rank is one of them.
    pub(super) fn place_of(&self, rank: Rank) -> Option<u32> {
        self.members.binary_search(&rank).ok().map(|place| place as u32)
    }

    /// Whether what nodes have, in the order of their leaders, is in rank order.
    pub(super) fn is_in_order(&self) -> bool {
        self.nodes.as_ref().is_some_and(|nodes| nodes.in_order)
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
    /// Those of this node, from that place on.
    Node(&'a Neighbours, u32),
    /// One of each node, from that place on.
    Leaders(&'a Group, u32),
}

impl TreeOrder<'_> {
    pub(super) fn size(self, comm: &Communicator) -> u32 {
        match self {
            Self::From(_) => comm.size(),
            Self::Node(node, _) => node.members.len() as u32,
            Self::Leaders(leaders, _) => leaders.size(),
        }
    }

    /// The place of the first, where there is an order without it.
    fn first(self) -> i64 {
        match self {
            Self::From(Rank(first)) | Self::Node(_, first) | Self::Leaders(_, first) => {
                i64::from(first)
            }
        }
    }

    /// This rank's place.
    pub(super) fn place(self, comm: &Communicator) -> u32 {
        let place = match self {
            Self::From(_) => comm.rank(),
            Self::Node(node, _) => Rank(node.place),
            Self::Leaders(leaders, _) => {
                leaders.rank_of(comm.world_rank(comm.rank())).unwrap_or(Rank(0))
            }
        };
        place.on_ring(-self.first(), self.size(comm)).0
    }

    /// The member at a place, below the size.
    pub(super) fn at(self, comm: &Communicator, place: u32) -> Rank {
        let place = Rank(place).on_ring(self.first(), self.size(comm));
        match self {
            Self::From(_) => place,
            Self::Node(node, _) => node.members[usize::from(place)],
            Self::Leaders(leaders, _) => {
                let world = leaders.world_rank(place);
                world.and_then(|world| comm.group().rank_of(world)).unwrap_or(Rank::NULL)
            }
        }
    }
}

impl<'a> Neighbours {
    pub(super) fn order(&'a self) -> TreeOrder<'a> {
        TreeOrder::Node(self, 0)
    }

    /// From `root` on, or from the leader if that is on another node.
    pub(super) fn order_from(&'a self, root: Rank) -> TreeOrder<'a> {
        TreeOrder::Node(self, self.place_of(root).unwrap_or(0))
    }

    /// If this rank is one of them.
    pub(super) fn leaders(&'a self) -> Option<TreeOrder<'a>> {
        let leaders = self.nodes.as_ref()?.leaders.as_ref()?;
        Some(TreeOrder::Leaders(leaders, 0))
    }

    /// As [`leaders`](Self::leaders), from the one of the node of `root` on, where nodes are
    /// [in order](Self::is_in_order).
    pub(super) fn leaders_from(&'a self, comm: &Communicator, root: Rank) -> Option<TreeOrder<'a>> {
        let leaders = self.nodes.as_ref()?.leaders.as_ref()?;
        let all = TreeOrder::Leaders(leaders, 0);
        // The last that is not above the root.
        let (mut from, mut to) = (0, leaders.size());
        while to - from > 1 {
            let middle = from.midpoint(to);
            if all.at(comm, middle) <= root {
                from = middle;
            } else {
                to = middle;
            }
        }
        Some(TreeOrder::Leaders(leaders, from))
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
