//! Groups of processes, compressed to strided runs: the world is one run at any size.
use crate::rank::{Rank, WorldRank};
use core::fmt;

/// Ranks `first, first + stride, …`, `count` of them; they are the group's ranks from `start` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    start: u32,
    first: u32,
    stride: i32,
    count: u32,
}

impl Run {
    fn at(&self, index: u32) -> u32 {
        // In range by construction: every member is a u32.
        (i64::from(self.first) + i64::from(self.stride) * i64::from(index)) as u32
    }

    fn index_of(&self, member: u32) -> Option<u32> {
        let distance = i64::from(member) - i64::from(self.first);
        if self.stride == 0 {
            return (distance == 0).then_some(0);
        }
        let stride = i64::from(self.stride);
        let index = distance / stride;
        let found = distance % stride == 0 && (0..i64::from(self.count)).contains(&index);
        found.then_some(index as u32)
    }
}

/// Processes of the job: `first, first + stride, …`, `count` of them, the first ones of a group of
/// `size`; which the others are is not told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SomeRanks {
    /// The first.
    pub first: u32,
    /// From one to the next.
    pub stride: i32,
    /// How many.
    pub count: u32,
    /// Processes of the group.
    pub size: u32,
}

impl SomeRanks {
    /// Those that are told, if numbers of them are below `ranks`.
    pub fn members(&self, ranks: u32) -> impl Iterator<Item = u32> {
        let (first, stride) = (i64::from(self.first), i64::from(self.stride));
        let numbers = (0..i64::from(self.count.min(ranks))).map(move |at| first + stride * at);
        numbers.filter_map(|number| u32::try_from(number).ok()).filter(move |rank| *rank < ranks)
    }
}

/// An ordered set of processes of the job.
///
/// Takes memory in proportion to the number of strided runs, not of members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    runs: Box<[Run]>,
    size: u32,
}

impl Group {
    /// The first `size` processes in order.
    pub(crate) fn world(size: u32) -> Self {
        let runs = [Run { start: 0, first: 0, stride: 1, count: size }];
        Self { runs: Box::new(runs), size }
    }

    /// The given processes, in the given order; duplicates are the caller's mistake.
    pub(crate) fn from_members(members: impl IntoIterator<Item = WorldRank>) -> Self {
        let mut runs: Vec<Run> = Vec::new();
        let mut size = 0;
        for WorldRank(member) in members {
            match runs.last_mut() {
                Some(run) if run.count == 1 => {
                    let stride = i64::from(member) - i64::from(run.first);
                    if let Ok(stride) = i32::try_from(stride) {
                        run.stride = stride;
                        run.count = 2;
                    } else {
                        runs.push(Run { start: size, first: member, stride: 0, count: 1 });
                    }
                }
                Some(run)
                    if i64::from(run.first) + i64::from(run.stride) * i64::from(run.count)
                        == i64::from(member) =>
                {
                    run.count += 1;
                }
                _ => runs.push(Run { start: size, first: member, stride: 0, count: 1 }),
            }
            size += 1;
        }
        Self { runs: runs.into(), size }
    }

    /// Number of members.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// The process that is `rank` in this group.
    pub fn world_rank(&self, rank: Rank) -> Option<WorldRank> {
        if rank.0 >= self.size {
            return None;
        }
        let run = &self.runs[self.runs.partition_point(|run| run.start <= rank.0) - 1];
        Some(WorldRank(run.at(rank.0 - run.start)))
    }

    /// The rank that `process` has in this group, if it is a member.
    pub fn rank_of(&self, engine: WorldRank) -> Option<Rank> {
        self.runs.iter().find_map(|run| Some(Rank(run.start + run.index_of(engine.0)?)))
    }

    /// The first of its runs, for a launcher, which is to know roughly.
    pub(crate) fn some(&self) -> SomeRanks {
        let (first, stride, count) =
            self.runs.first().map_or((0, 1, 0), |run| (run.first, run.stride, run.count));
        SomeRanks { first, stride, count, size: self.size }
    }

    /// All members in rank order.
    pub fn members(&self) -> impl Iterator<Item = WorldRank> + '_ {
        self.runs.iter().flat_map(|run| (0..run.count).map(|i| WorldRank(run.at(i))))
    }

    /// As it travels in a message: 12 bytes a run.
    pub(crate) fn to_wire(&self) -> Vec<u8> {
        let fields = |run: &Run| [run.first, run.stride.cast_unsigned(), run.count];
        self.runs.iter().flat_map(fields).flat_map(u32::to_le_bytes).collect()
    }

    /// The inverse of [`to_wire`](Self::to_wire); `None` if a member would lie outside `0..world`.
    pub(crate) fn from_wire(bytes: &[u8], world: u32) -> Option<Self> {
        let (runs, []) = bytes.as_chunks::<12>() else { return None };
        let mut size = 0u32;
        let mut parsed = Vec::with_capacity(runs.len());
        for run in runs {
            let (fields, _) = run.as_chunks::<4>();
            let [first, stride, count] = [0, 1, 2].map(|i| u32::from_le_bytes(fields[i]));
            let stride = stride.cast_signed();
            let last = i64::from(first)
                .checked_add(i64::from(stride).checked_mul(i64::from(count.checked_sub(1)?))?)?;
            if first >= world || !(0..i64::from(world)).contains(&last) {
                return None;
            }
            parsed.push(Run { start: size, first, stride, count });
            size = size.checked_add(count)?;
        }
        Some(Self { runs: parsed.into(), size })
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, run) in self.runs.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            match (run.count, run.stride) {
                (1, _) => write!(f, "{comma}{}", run.first)?,
                (count, 1) => write!(f, "{comma}{}-{}", run.first, run.at(count - 1))?,
                (count, stride) => {
                    write!(f, "{comma}{}-{} by {stride}", run.first, run.at(count - 1))?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn group(members: &[u32]) -> Group {
        Group::from_members(members.iter().copied().map(WorldRank))
    }

    #[test]
    fn regular_groups_stay_small() {
        assert_eq!(Group::world(1 << 20).runs.len(), 1);
        let reversed: Vec<u32> = (0..1000).rev().collect();
        assert_eq!(group(&reversed).runs.len(), 1);
        let even: Vec<u32> = (0..1000).step_by(2).collect();
        assert_eq!(group(&even).runs.len(), 1);
        assert_eq!(group(&even).to_string(), "0-998 by 2");
    }

    #[test]
    fn wire_refuses_members_outside_the_world() {
        let wire = group(&[0, 2, 4]).to_wire();
        assert!(Group::from_wire(&wire, 5).is_some());
        assert_eq!(Group::from_wire(&wire, 4), None);
        assert_eq!(Group::from_wire(&wire[1..], 5), None);
        let zero_count = [0u8; 12];
        assert_eq!(Group::from_wire(&zero_count, 5), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            cases: if cfg!(miri) { 4 } else { 256 },
            ..ProptestConfig::default()
        })]
        #[test]
        fn translates_both_ways(members in proptest::collection::btree_set(0u32..500, 0..60),
                                rotate in 0usize..60) {
            let mut members: Vec<u32> = members.into_iter().collect();
            let by = rotate % members.len().max(1);
            members.rotate_left(by);
            let group = group(&members);
            prop_assert_eq!(group.size() as usize, members.len());
            prop_assert_eq!(Group::from_wire(&group.to_wire(), 500), Some(group.clone()));
            for (rank, member) in members.iter().enumerate() {
                let rank = Rank(rank as u32);
                prop_assert_eq!(group.world_rank(rank), Some(WorldRank(*member)));
                prop_assert_eq!(group.rank_of(WorldRank(*member)), Some(rank));
            }
            prop_assert_eq!(group.world_rank(Rank(group.size())), None);
            prop_assert_eq!(group.rank_of(WorldRank(500)), None);
        }
    }
}
