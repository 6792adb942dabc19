//! Which ranks left, and which know it: news of a departure travels like a message.

use std::collections::{BTreeMap, BTreeSet};

use rma_core::transport::{Outcome, PeerState};

/// One rank's part: what it did and what it heard.
#[derive(Debug, Default)]
struct Member {
    left: Option<Outcome>,
    heard: BTreeMap<u32, Outcome>,
    /// It knows that some rank failed, and then also which one was the first.
    knows_failure: bool,
    /// Its code ended: it hears nothing more.
    ended: bool,
}

/// Departures of all ranks.
#[derive(Debug)]
pub(crate) struct Membership {
    members: Vec<Member>,
    /// News on its way: when it arrives, at which rank, and of which.
    news: BTreeSet<(u64, u32, u32)>,
    /// The first rank that failed, heard of or not.
    failed: Option<u32>,
    /// The run is lost, and every rank knows the truth.
    revealed: bool,
}

const fn state(left: Option<Outcome>) -> PeerState {
    match left {
        None => PeerState::Alive,
        Some(Outcome::Departed) => PeerState::Departed,
        Some(Outcome::Holding) => PeerState::Holding,
        Some(Outcome::Failed) => PeerState::Failed,
    }
}

impl Membership {
    pub(crate) fn new(ranks: u32) -> Self {
        let members = (0..ranks).map(|_| Member::default()).collect();
        Self { members, news: BTreeSet::new(), failed: None, revealed: false }
    }

    fn member(&mut self, rank: u32) -> &mut Member {
        &mut self.members[rank as usize]
    }

    /// Whether that is news of a rank: it left, or with locks, as was not known when it left.
    pub(crate) fn may_leave(&self, rank: u32, outcome: Outcome) -> bool {
        match self.members[rank as usize].left {
            None => true,
            Some(left) => left == Outcome::Departed && outcome == Outcome::Holding,
        }
    }

    /// How a rank left, whichever ranks have heard of it.
    pub(crate) fn left(&self, rank: u32) -> Option<Outcome> {
        self.members[rank as usize].left
    }

    /// `me` leaves; `due` says when the news arrives at a rank.
    pub(crate) fn depart(&mut self, me: u32, outcome: Outcome, mut due: impl FnMut(u32) -> u64) {
        self.member(me).left = Some(outcome);
        if outcome == Outcome::Failed {
            self.failed.get_or_insert(me);
            self.learn_failure(me);
        }
        for (rank, member) in (0..).zip(&self.members) {
            if rank != me && !member.ended {
                self.news.insert((due(rank), rank, me));
            }
        }
    }

    /// When the next news arrives.
    pub(crate) fn next_due(&self) -> Option<u64> {
        self.news.first().map(|&(due, ..)| due)
    }

    /// Lets one piece of news arrive that is due at `clock`, and returns the rank that heard it.
    pub(crate) fn land(&mut self, clock: u64) -> Option<u32> {
        let &(due, rank, of) = self.news.first()?;
        if due > clock {
            return None;
        }
        self.news.pop_first();
        let outcome = self.member(of).left?;
        self.member(rank).heard.insert(of, outcome);
        if outcome == Outcome::Failed {
            self.learn_failure(rank);
        }
        Some(rank)
    }

    /// News of a failure names the first one of the job: transports promise to.
    fn learn_failure(&mut self, rank: u32) {
        let first = self.failed;
        let member = self.member(rank);
        member.knows_failure = true;
        member.heard.extend(first.map(|first| (first, Outcome::Failed)));
    }

    /// What `me` knows of `peer`; a rank that does not exist has failed.
    pub(crate) fn peer_state(&self, me: u32, peer: u32) -> PeerState {
        let Some(other) = self.members.get(peer as usize) else { return PeerState::Failed };
        let member = &self.members[me as usize];
        if self.revealed || member.ended || me == peer {
            return state(other.left);
        }
        state(member.heard.get(&peer).copied())
    }

    /// The first failure of the job, once `me` knows of any.
    pub(crate) fn failed(&self, me: u32) -> Option<u32> {
        let knows = self.revealed || self.members[me as usize].knows_failure;
        if knows { self.failed } else { None }
    }

    /// `me` needs no more news.
    pub(crate) fn end(&mut self, me: u32) {
        self.member(me).ended = true;
    }

    /// All that have not left fail, and every rank knows at once.
    pub(crate) fn give_up(&mut self) {
        self.revealed = true;
        self.news.clear();
        for (rank, member) in (0..).zip(&mut self.members) {
            if member.left.is_none() {
                member.left = Some(Outcome::Failed);
                self.failed.get_or_insert(rank);
            }
        }
    }
}
