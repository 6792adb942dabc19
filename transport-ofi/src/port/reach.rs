//! What the user is told of peers that a rank does not get through to, as where a firewall drops
//! its messages: where they are reached, and what to look at.

use super::{Port, lock};
use crate::sys::Failure;
use rma_core::transport::{PeerState, WorldRank};
use std::sync::atomic::Ordering::Relaxed;

const REMEDY: &str = "see whether that host is up, and whether a firewall keeps others from this \
     port (FI_TCP_PORT_LOW_RANGE and FI_TCP_PORT_HIGH_RANGE say which ports tcp takes)";

impl Port {
    /// A wait has failed, at its deadline if it `is_late`: names the peers whose messages the
    /// provider does not get rid of. Before the deadline, and of peers that have left since, only
    /// those that no message ever came from or got to: others may just be busy.
    pub(crate) fn note_unreached(&self, is_late: bool) {
        let mut busy = vec![true; self.destinations.len()];
        lock(&self.free).iter().for_each(|slot| busy[slot.index()] = false);
        let under_way = self.destinations.iter().zip(busy).filter(|(_, busy)| *busy);
        let under_way: Vec<u32> = under_way.map(|(to, _)| to.load(Relaxed)).collect();
        for (rank, peer) in self.known() {
            let waits = peer.waits.load(Relaxed) || under_way.contains(&rank.0);
            let never = peer.sent.load(Relaxed) == 0 && peer.came.load(Relaxed) == 0;
            if waits && ((is_late && !self.is_gone(rank)) || never) {
                self.note_unreachable(rank, "nothing gets through");
            }
        }
    }

    /// This rank leaves: names the peers that it has taken for failed, and no launcher has.
    pub(crate) fn note_lost(&self) {
        for (rank, peer) in self.known() {
            if let Some(failure) = peer.lost.get()
                && self.members.peer_state(rank) == PeerState::Alive
            {
                self.note_undelivered(rank, failure);
            }
        }
    }

    /// Says that messages to a peer are not delivered, and why.
    pub(super) fn note_undelivered(&self, peer: WorldRank, failure: &Failure) {
        let Failure { call, code, reason } = failure;
        let why = format!("no message is delivered ({call}, error {code}) {reason}");
        self.note_unreachable(peer, why.trim_end());
    }

    /// Says where a peer is that is not reached, and why.
    pub(super) fn note_unreachable(&self, peer: WorldRank, why: &str) {
        let address = self.book.known(peer).map(|address| self.endpoint.shown(&address));
        let address = address.unwrap_or_else(|_| "an unknown address".to_owned());
        let (here, peer) = (self.rank.0, peer.0);
        self.members.note(&format!("rank {here}: rank {peer} at {address}: {why}; {REMEDY}"));
    }
}
