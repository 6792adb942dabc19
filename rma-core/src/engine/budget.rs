//! What bounds the messages that wait for an answer: slots of this rank, and credit at each peer.
//! Threads take and give both without waiting for each other.
use crate::protocol::credit::CREDIT_MAX;
use crate::rank::WorldRank;
use crate::word::{AtomicU64, AtomicUsize, fence};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::OnceLock;

/// Slots are numbered; which are free is a bit of each. A thread that takes one sees what those
/// before did with it.
pub(super) struct Budget {
    free: Box<[AtomicU64]>,
    /// How many there are.
    slots: usize,
    /// Messages that one peer may leave unanswered.
    limit: usize,
    /// How many each peer does, that was sent some: a chain of peers in each place.
    used: [OnceLock<Box<Used>>; CHAINS],
}

/// Of one peer.
struct Used {
    peer: WorldRank,
    count: AtomicUsize,
    next: OnceLock<Box<Self>>,
}

/// Neighbours have chains of their own.
const CHAINS: usize = 64;

impl Budget {
    pub(super) fn new(slots: usize, limit: usize) -> Self {
        let bits = |word: usize| match slots - word * 64 {
            rest @ ..64 => (1 << rest) - 1,
            _ => u64::MAX,
        };
        let free = (0..slots.div_ceil(64)).map(|word| AtomicU64::new(bits(word))).collect();
        let limit = limit.clamp(1, CREDIT_MAX);
        Self { free, slots, limit, used: [const { OnceLock::new() }; CHAINS] }
    }

    /// What counts the messages to a peer. It stays.
    fn used(&self, peer: WorldRank) -> &AtomicUsize {
        let mut place = &self.used[peer.0 as usize % CHAINS];
        loop {
            let new = || Box::new(Used { peer, count: AtomicUsize::new(0), next: OnceLock::new() });
            let used = place.get_or_init(new);
            if used.peer == peer {
                return &used.count;
            }
            place = &used.next;
        }
    }

    /// Whether no slot is free.
    pub(super) fn is_used_up(&self) -> bool {
        self.free.iter().all(|word| word.load(Relaxed) == 0)
    }

    /// How many slots there are, and how much credit of each peer.
    pub(super) fn limits(&self) -> (usize, usize) {
        (self.slots, self.limit)
    }

    pub(super) fn free_slots(&self) -> usize {
        self.free.iter().map(|word| word.load(Relaxed).count_ones() as usize).sum()
    }

    /// How many slots are free, and how much credit of `peer`.
    pub(super) fn free(&self, peer: WorldRank) -> (usize, usize) {
        (self.free_slots(), self.limit - self.used(peer).load(Relaxed).min(self.limit))
    }

    /// Takes credit of `peer` and a slot; `None` if one of them is used up.
    pub(super) fn take(&self, peer: WorldRank) -> Option<usize> {
        while !self.is_used_up() {
            if !self.take_credit(peer) {
                return None;
            }
            if let Some(slot) = self.take_slot(peer) {
                return Some(slot);
            }
            self.give_credit(peer);
            // Others may have found this credit taken just now, and sleep. Pairs with the fences of
            // `Sleep::arm` and `Sleep::ring`: if a slot came meanwhile, this thread sees it, or the
            // one that gave it back sees them.
            fence(SeqCst);
        }
        None
    }

    /// Gives back what was [taken](Self::take).
    pub(super) fn give_back(&self, peer: WorldRank, slot: usize) {
        self.give_credit(peer);
        // pairs with the Acquire in `take_slot`.
        self.free[slot / 64].fetch_or(1 << (slot % 64), Release);
    }

    /// Whether nothing is taken.
    #[cfg(test)]
    pub(super) fn is_unused(&self) -> bool {
        fn is_unused(used: &Used) -> bool {
            used.count.load(Relaxed) == 0 && used.next.get().is_none_or(|next| is_unused(next))
        }
        self.used.iter().filter_map(OnceLock::get).all(|used| is_unused(used))
    }

    fn take_credit(&self, peer: WorldRank) -> bool {
        let more = |used| (used < self.limit).then_some(used + 1);
        self.used(peer).fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    fn give_credit(&self, peer: WorldRank) {
        self.used(peer).fetch_sub(1, Relaxed);
    }

    /// The lowest of a word that is another for other peers: so threads meet less often.
    fn take_slot(&self, peer: WorldRank) -> Option<usize> {
        let (words, first) = (self.free.len(), peer.0 as usize);
        (0..words).map(|i| (first + i) % words).find_map(|place| {
            let take = |bits: u64| (bits != 0).then(|| bits & (bits - 1));
            // pairs with the Release in `give_back`.
            let bits = self.free[place].fetch_update(Acquire, Relaxed, take).ok()?;
            Some(place * 64 + bits.trailing_zeros() as usize)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn every_slot_is_taken_once() {
        for slots in [1, 63, 64, 65, 130] {
            let budget = Budget::new(slots, CREDIT_MAX);
            let mut taken: Vec<_> = (0..slots).filter_map(|_| budget.take(WorldRank(1))).collect();
            assert!(budget.is_used_up() && budget.take(WorldRank(2)).is_none());
            taken.sort_unstable();
            assert!(taken.into_iter().eq(0..slots), "{slots}");
        }
    }

    #[test]
    fn what_is_free_is_told() {
        let (budget, peer) = (Budget::new(70, 2), WorldRank(3));
        assert_eq!((budget.limits(), budget.free(peer)), ((70, 2), (70, 2)));
        let slot = budget.take(peer).unwrap();
        assert_eq!((budget.free(peer), budget.free(WorldRank(4))), ((69, 1), (69, 2)));
        budget.give_back(peer, slot);
        assert_eq!(budget.free(peer), (70, 2));
    }

    #[test]
    fn limits_are_sane() {
        assert!(Budget::new(1, 0).take(WorldRank(1)).is_some());
        let budget = Budget::new(2 * CREDIT_MAX, usize::MAX);
        let taken = (0..2 * CREDIT_MAX).filter_map(|_| budget.take(WorldRank(1)));
        assert_eq!(taken.count(), CREDIT_MAX);
    }

    #[test]
    fn peers_do_not_share() {
        let budget = Budget::new(1000, 1);
        let far = CHAINS as u32;
        // Some of them in the same chain.
        for peer in [3, 4, 3 + far, 3 + 2 * far] {
            let slot = budget.take(WorldRank(peer)).unwrap();
            assert!(budget.take(WorldRank(peer)).is_none(), "{peer}");
            budget.give_back(WorldRank(peer), slot);
            assert!(budget.take(WorldRank(peer)).is_some(), "{peer}");
        }
    }

    /// Two threads never have the same slot, or more of a peer than its credit; nothing is lost.
    #[test]
    fn threads_share_it() {
        const TURNS: usize = if cfg!(miri) { 40 } else { 20_000 };
        const SLOTS: usize = 3;
        let budget = Budget::new(SLOTS, 2);
        let busy = [const { AtomicBool::new(false) }; SLOTS];
        let of_peer = [AtomicUsize::new(0), AtomicUsize::new(0)];
        std::thread::scope(|scope| {
            for thread in 0..4usize {
                let (budget, busy, of_peer) = (&budget, &busy, &of_peer);
                scope.spawn(move || {
                    let (peer, mut done) = (thread % 2, 0);
                    while done < TURNS {
                        let Some(slot) = budget.take(WorldRank(peer as u32)) else {
                            std::thread::yield_now();
                            continue;
                        };
                        assert!(!busy[slot].swap(true, Relaxed), "another thread has it");
                        assert!(of_peer[peer].fetch_add(1, Relaxed) < 2, "more than its credit");
                        of_peer[peer].fetch_sub(1, Relaxed);
                        busy[slot].store(false, Relaxed);
                        budget.give_back(WorldRank(peer as u32), slot);
                        done += 1;
                    }
                });
            }
        });
        let all: Vec<_> = [0, 0, 1].into_iter().map(|peer| budget.take(WorldRank(peer))).collect();
        assert!(all.iter().all(Option::is_some), "{all:?}");
    }
}
