//! How many of something each peer may have: flow control without I/O.
//!
//! An origin counts the messages that a target has not answered; more wait until answers come. So
//! what a target keeps for an origin, in its transport's queues and in its own, is at most this
//! many messages, whatever the transport does against congestion. A target counts the same way
//! what it keeps for each peer, and refuses what an honest one cannot send.
use crate::rank::WorldRank;
use rustc_hash::FxHashMap;

/// Largest credit: no peer may have more messages unanswered, and a target keeps no more for one.
pub(crate) const CREDIT_MAX: usize = 256;

/// Counts per peer, up to a limit. Holds an entry for each peer that has taken something.
#[derive(Debug)]
pub(crate) struct Credit {
    limit: usize,
    used: FxHashMap<WorldRank, usize>,
}

impl Default for Credit {
    /// What a target keeps.
    fn default() -> Self {
        Self::new(CREDIT_MAX)
    }
}

impl Credit {
    /// At least one, so that everything goes on.
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit: limit.clamp(1, CREDIT_MAX), used: FxHashMap::default() }
    }

    /// Takes one for `peer`; false if it has as many as it may.
    pub(crate) fn take(&mut self, peer: WorldRank) -> bool {
        let used = self.used.entry(peer).or_insert(0);
        let free = *used < self.limit;
        *used += usize::from(free);
        free
    }

    /// Whether `peer` may take another.
    pub(crate) fn has_room(&self, peer: WorldRank) -> bool {
        self.used.get(&peer).is_none_or(|used| *used < self.limit)
    }

    /// Gives back one that was taken.
    pub(crate) fn give_back(&mut self, peer: WorldRank) {
        if let Some(used) = self.used.get_mut(&peer) {
            *used = used.saturating_sub(1);
        }
    }

    /// Whether nothing was taken.
    #[cfg(test)]
    pub(crate) fn is_unused(&self) -> bool {
        self.used.values().all(|used| *used == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: WorldRank = WorldRank(1);
    const B: WorldRank = WorldRank(2);

    #[test]
    fn peers_do_not_share() {
        let mut credit = Credit::new(2);
        assert!(credit.take(A) && credit.take(A));
        assert!(!credit.take(A), "the limit");
        assert!(credit.take(B));
        credit.give_back(A);
        assert!(credit.take(A));
        for peer in [A, A, B] {
            credit.give_back(peer);
        }
        assert!(credit.is_unused());
        credit.give_back(A);
        assert!(credit.is_unused(), "more than was taken is not given");
    }

    #[test]
    fn limits_are_sane() {
        assert!(Credit::new(0).take(A));
        let mut credit = Credit::new(usize::MAX);
        assert_eq!((0..1000).filter(|_| credit.take(A)).count(), CREDIT_MAX);
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 4 } else { 256 },
            failure_persistence: None,
            ..ProptestConfig::default()
        })]
        /// Never more than the limit, never refused below it.
        #[test]
        fn agrees_with_counting(
            limit in 1usize..5,
            calls in proptest::collection::vec((0u32..3, any::<bool>()), 0..100),
        ) {
            let mut credit = Credit::new(limit);
            let mut counts = [0; 3];
            for (peer, take) in calls {
                let count: &mut usize = &mut counts[peer as usize];
                if take {
                    prop_assert_eq!(credit.has_room(WorldRank(peer)), *count < limit);
                    prop_assert_eq!(credit.take(WorldRank(peer)), *count < limit);
                    *count = limit.min(*count + 1);
                } else {
                    credit.give_back(WorldRank(peer));
                    *count = count.saturating_sub(1);
                }
                let users = counts.iter().filter(|count| **count > 0).count();
                prop_assert_eq!(credit.used.values().filter(|used| **used > 0).count(), users);
            }
        }
    }
}
