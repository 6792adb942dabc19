//! The signals of post, start, complete and wait, as a state machine without I/O.
//!
//! Between one target and one origin, two signals take turns: *post* from the target, *complete*
//! from the origin.
//!
//! - An origin sends *complete* only after the target's *post* has come, and takes that post out
//!   first. `NO_CHECK` does not change this: it says that operations need not wait for the post.
//! - A target's next exposure opens only after the one before has ended, so it sends the next
//!   *post* only after the *complete* of every origin of that one has come, this origin's included.
//!
//! So each signal of a pair is sent after the other's was taken: one at most is under way or lies
//! here unused, whatever groups the epochs have and however fast a peer is. No signal can overtake
//! another of its pair, none needs a number, and one bit for each peer and signal holds all there
//! is to know. Signals of different pairs do not depend on their order.
//!
//! An epoch that ends in an error keeps the turns: a start that gave up waiting for a post sends
//! no complete, and the next one to that target uses the post when it comes; an exposure whose
//! wait failed stays open.
use crate::rank::Rank;
use std::collections::BTreeSet;

/// What one side of a pair tells the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Signal {
    /// The sender's part is exposed to the receiver.
    Post = 0,
    /// The sender's operations of this epoch are complete at the receiver.
    Complete = 1,
}

/// What has come for one window on one rank, where it comes by messages. Holds an entry for each
/// peer of an epoch that is open somewhere. S-D2
#[derive(Debug, Default)]
pub(crate) struct Signals {
    /// Targets whose post has come and was not used.
    posted: BTreeSet<Rank>,
    /// Origins of the open exposure that have not completed.
    awaited: BTreeSet<Rank>,
}

impl Signals {
    /// Opens an exposure; before any peer can know of it.
    pub(crate) fn expose(&mut self, origins: &[Rank]) {
        self.awaited.extend(origins);
    }

    /// Takes a signal; false if it is not the peer's turn to send it.
    pub(crate) fn take(&mut self, signal: Signal, from: Rank) -> bool {
        match signal {
            Signal::Post => self.posted.insert(from),
            Signal::Complete => self.awaited.remove(&from),
        }
    }

    /// Whether the signal has come.
    pub(crate) fn has(&self, signal: Signal, from: Rank) -> bool {
        match signal {
            Signal::Post => self.posted.contains(&from),
            Signal::Complete => !self.awaited.contains(&from),
        }
    }

    /// The signal has served: the peer's next one may come.
    pub(crate) fn clear(&mut self, signal: Signal, from: Rank) {
        if signal == Signal::Post {
            self.posted.remove(&from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: Rank = Rank(1);
    const B: Rank = Rank(2);

    #[test]
    fn signals_out_of_turn_are_refused() {
        let mut signals = Signals::default();
        assert!(!signals.take(Signal::Complete, A), "nothing is exposed");
        assert!(signals.take(Signal::Post, A));
        assert!(!signals.take(Signal::Post, A), "the first is not used yet");
        signals.clear(Signal::Post, A);
        assert!(!signals.has(Signal::Post, A));
        assert!(signals.take(Signal::Post, A));

        signals.expose(&[A]);
        assert!(!signals.has(Signal::Complete, A));
        assert!(!signals.take(Signal::Complete, B), "not exposed to that one");
        assert!(signals.take(Signal::Complete, A));
        assert!(!signals.take(Signal::Complete, A), "it has completed");
        assert!(signals.has(Signal::Complete, A));
    }

    /// What a rank does next in a round.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Doing {
        Start,
        Complete,
        Wait,
    }

    /// A rank that posts, starts, completes and waits once in each round.
    struct Actor {
        round: usize,
        doing: Doing,
        signals: Signals,
        /// How often each origin had completed when this rank's wait ended, and must have.
        completes: Vec<usize>,
    }

    type Groups = [BTreeSet<(u32, u32)>];

    fn origins(groups: &Groups, round: usize, me: u32) -> Vec<Rank> {
        groups[round].iter().filter(|(_, t)| *t == me).map(|(o, _)| Rank(*o)).collect()
    }

    fn targets(groups: &Groups, round: usize, me: u32) -> Vec<Rank> {
        groups[round].iter().filter(|(o, _)| *o == me).map(|(_, t)| Rank(*t)).collect()
    }

    /// Whether what the rank waits for is there.
    fn is_ready(groups: &Groups, Actor { round, doing, signals, .. }: &Actor, me: u32) -> bool {
        let all = |signal, ranks: Vec<Rank>| ranks.iter().all(|rank| signals.has(signal, *rank));
        *round < groups.len()
            && match doing {
                Doing::Start => true,
                Doing::Complete => all(Signal::Post, targets(groups, *round, me)),
                Doing::Wait => all(Signal::Complete, origins(groups, *round, me)),
            }
    }

    /// `groups[round]` holds the pairs (origin, target) of that round. Returns once every rank has
    /// been through all rounds; `choose(n)` picks which rank moves or which message arrives.
    fn play(ranks: u32, groups: &Groups, choose: &mut dyn FnMut(usize) -> usize) {
        let mut flying: Vec<(Signal, u32, u32)> = Vec::new();
        let mut actors: Vec<Actor> = Vec::new();
        let post = |actor: &mut Actor, me: u32, flying: &mut Vec<(Signal, u32, u32)>| {
            if actor.round < groups.len() {
                let origins = origins(groups, actor.round, me);
                actor.signals.expose(&origins);
                flying.extend(origins.iter().map(|o| (Signal::Post, me, o.0)));
            }
        };
        for me in 0..ranks {
            let mut actor = Actor {
                round: 0,
                doing: Doing::Start,
                signals: Signals::default(),
                completes: vec![0; ranks as usize],
            };
            post(&mut actor, me, &mut flying);
            actors.push(actor);
        }
        while actors.iter().any(|actor| actor.round < groups.len()) {
            let ready = |me: &u32| is_ready(groups, &actors[*me as usize], *me);
            let moves: Vec<u32> = (0..ranks).filter(ready).collect();
            let choices = moves.len() + flying.len();
            assert!(choices > 0, "stuck");
            let choice = choose(choices);
            if let Some(arriving) = choice.checked_sub(moves.len()) {
                let (signal, from, to) = flying.swap_remove(arriving);
                let to = &mut actors[to as usize];
                assert!(to.signals.take(signal, Rank(from)), "{signal:?} of {from} out of turn");
                to.completes[from as usize] += usize::from(signal == Signal::Complete);
                continue;
            }
            let me = moves[choice];
            let actor = &mut actors[me as usize];
            match actor.doing {
                Doing::Start => actor.doing = Doing::Complete,
                Doing::Complete => {
                    for target in targets(groups, actor.round, me) {
                        actor.signals.clear(Signal::Post, target);
                        flying.push((Signal::Complete, me, target.0));
                    }
                    actor.doing = Doing::Wait;
                }
                Doing::Wait => {
                    for origin in origins(groups, actor.round, me) {
                        actor.signals.clear(Signal::Complete, origin);
                    }
                    for origin in 0..ranks {
                        let names = |round: &usize| groups[*round].contains(&(origin, me));
                        let due = (0..=actor.round).filter(names).count();
                        assert_eq!(actor.completes[origin as usize], due, "of rank {origin}");
                    }
                    (actor.round, actor.doing) = (actor.round + 1, Doing::Start);
                    post(actor, me, &mut flying);
                }
            }
        }
        assert!(flying.is_empty(), "every signal was waited for");
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            cases: if cfg!(miri) { 4 } else { 512 },
            ..ProptestConfig::default()
        })]
        /// Any groups, any order of arrival: no signal is out of turn, and a wait ends with
        /// exactly the completes that belong to its epochs.
        #[test]
        fn no_signal_is_mistaken(
            groups in proptest::collection::vec(
                proptest::collection::btree_set((0u32..4, 0u32..4), 0..9), 1..7),
            mut dice in proptest::num::u64::ANY,
        ) {
            play(4, &groups, &mut |choices| {
                // Knuth's generator: enough to shuffle.
                dice = dice.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (dice >> 33) as usize % choices
            });
        }
    }
}
