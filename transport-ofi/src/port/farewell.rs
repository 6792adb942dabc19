//! How ranks leave: each tells those that it has had to do with how much it has sent them, and
//! hears from them that all has come (ADR 36).

use super::{Leave, Missing, Peer, Port, lock};
use crate::frame::Kind;
use rma_core::transport::{PeerState, WorldRank};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

impl Peer {
    /// Whether neither has sent the other a message of the core.
    fn is_strange(&self) -> bool {
        self.sent.load(Acquire) == 0 && self.came.load(Acquire) == 0
    }

    /// Whether it has said farewell: it leaves, and word of how follows.
    pub(super) fn leaves(&self) -> bool {
        self.of_all.load(Acquire) != u64::MAX
    }
}

impl Port {
    /// Tells peers that this rank leaves how many messages it sent them; also those that have only
    /// sent it some, and may have more under way, which will not arrive. Says whether all have
    /// heard, or are gone.
    pub(crate) fn say_farewell(&self) -> bool {
        let mut all = true;
        for (rank, peer) in self.known() {
            if peer.is_strange() || peer.heard.load(Acquire) {
                continue;
            }
            let is_gone = self.is_gone(rank);
            if is_gone && !self.lingers(rank) {
                continue;
            }
            all &= is_gone;
            if !peer.told.load(Acquire) {
                let sent = peer.sent.load(Acquire);
                let number = match self.number(rank, &peer) {
                    Ok(number) => number,
                    // A launcher that answers no more does not say either how this rank leaves.
                    Err(Missing::Unknown(_)) if sent == 0 => {
                        peer.heard.store(true, Release);
                        continue;
                    }
                    Err(_) => continue,
                };
                // Its own address goes along: the peer that answers may have left its launcher.
                let parts = [&sent.to_le_bytes()[..], self.endpoint.address()];
                match self.submit((rank, number), &peer, Kind::Farewell, parts) {
                    Ok(said) => peer.told.store(said, Release),
                    Err(failure) => self.lose(rank, failure),
                }
            }
        }
        all
    }

    /// Whether a peer that is there has not said that all has come which this rank sent it.
    pub(crate) fn is_owed(&self) -> bool {
        self.known().into_iter().any(|(rank, peer)| {
            let is_sent = peer.sent.load(Acquire) > 0;
            is_sent && !peer.heard.load(Acquire) && !self.is_gone(rank)
        })
    }

    /// False if it is to be tried again: a peer that cannot be told waits until it has enough.
    pub(super) fn say_heard(&self, rank: WorldRank, peer: &Peer) -> bool {
        let said = match self.number(rank, peer) {
            Ok(number) => self.submit((rank, number), peer, Kind::Heard, [&[], &[]]).ok(),
            Err(Missing::Awaited) => Some(false),
            Err(Missing::Unknown(_)) => None,
        };
        said.unwrap_or_else(|| {
            self.untold.fetch_add(1, Relaxed);
            true
        })
    }

    /// Whether a peer that has left in order may still wait to hear of this rank: its endpoint is
    /// closed when neither has anything to say.
    fn lingers(&self, rank: WorldRank) -> bool {
        let has_left = || match self.members.peer_state(rank) {
            PeerState::Departed | PeerState::Holding => true,
            PeerState::Alive | PeerState::Failed => false,
        };
        self.endpoint.is_delicate && !self.is_lost(rank) && has_left()
    }

    /// Answers peers that leave, all of whose messages have arrived; those that are gone already
    /// ask no more. Says whether all were.
    pub(crate) fn answer_farewells(&self) -> bool {
        let mut all = true;
        for (rank, peer) in self.known() {
            let of_all = peer.of_all.load(Acquire);
            if of_all == u64::MAX || peer.answered.load(Acquire) {
                continue;
            }
            let is_gone = self.is_gone(rank);
            let is_all_here = peer.came.load(Acquire) >= of_all;
            let is_answered =
                is_gone && !self.lingers(rank) || is_all_here && self.say_heard(rank, &peer);
            if is_answered {
                peer.answered.store(true, Release);
            }
            all &= is_answered || is_gone;
        }
        all
    }

    /// Whether the endpoint may be closed, where no message may come meanwhile: all ranks have
    /// left, and this one and each that it has had to do with have heard that of each other. `None`
    /// if it never may: a peer has failed, or this rank, and says nothing.
    pub(crate) fn may_close(&self) -> Option<bool> {
        if !self.endpoint.is_delicate {
            return Some(true);
        }
        if !matches!(*lock(&self.leave), Leave::Left { in_order: true }) {
            return None;
        }
        // Also to those that have left meanwhile: they wait for that.
        self.say_farewell();
        self.answer_farewells();
        let mut may_close = true;
        for rank in (0..self.size()).map(WorldRank).filter(|rank| *rank != self.rank) {
            match self.members.peer_state(rank) {
                _ if self.is_lost(rank) => return None,
                PeerState::Failed => return None,
                // It may send its first message.
                PeerState::Alive => may_close = false,
                PeerState::Departed | PeerState::Holding => {}
            }
        }
        for (_, peer) in self.known() {
            let has_left = peer.came.load(Acquire) == 0 || peer.answered.load(Acquire);
            let has_heard = peer.is_strange() || peer.heard.load(Acquire);
            may_close &= has_left && has_heard;
        }
        Some(may_close)
    }
}
