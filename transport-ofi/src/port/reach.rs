//! What the user is told of peers that a rank does not get through to, as where a firewall drops
//! its messages: where they are reached, and what to look at.

use super::{Port, RECEIVES, lock};
use crate::sys::Failure;
use rma_core::transport::{PeerState, WorldRank};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const REMEDY: &str = "see whether that host is up, and whether a firewall keeps others from this \
     port (FI_TCP_PORT_LOW_RANGE and FI_TCP_PORT_HIGH_RANGE say which ports tcp takes)";

/// So long the provider may be without room for a message, as while it connects.
const LONG: Duration = Duration::from_secs(1);

/// Since when the provider has had no room for a message to a peer: milliseconds since the peer was
/// first known, and one more; 0 if it had when it was asked last.
pub(super) struct Waits {
    known: Instant,
    since: AtomicU64,
}

impl Default for Waits {
    fn default() -> Self {
        Self { known: Instant::now(), since: AtomicU64::new(0) }
    }
}

impl Waits {
    fn now(&self) -> u64 {
        self.known.elapsed().as_millis() as u64 + 1
    }

    pub(super) fn begin(&self) {
        if self.since.load(Relaxed) == 0 {
            self.since.store(self.now(), Relaxed);
        }
    }

    pub(super) fn end(&self) {
        self.since.store(0, Relaxed);
    }

    fn for_long(&self, now: u64) -> bool {
        let since = self.since.load(Relaxed);
        since != 0 && u128::from(now.saturating_sub(since)) >= LONG.as_millis()
    }
}

impl Port {
    /// A wait has failed, at its deadline if it `is_late`: names the peers to which messages have
    /// waited for long; at a deadline also those that a message is under way to.
    pub(crate) fn note_unreached(&self, is_late: bool) {
        // Of slots that messages are sent from.
        let mut busy = vec![is_late; self.destinations.len()];
        busy[..RECEIVES as usize].fill(false);
        lock(&self.free).iter().for_each(|slot| busy[slot.index()] = false);
        let under_way = self.destinations.iter().zip(busy).filter(|(_, busy)| *busy);
        let under_way: Vec<u32> = under_way.map(|(to, _)| to.load(Relaxed)).collect();
        for (rank, peer) in self.known() {
            let waits = peer.waits.for_long(peer.waits.now()) || under_way.contains(&rank.0);
            if waits && !self.is_gone(rank) {
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

    /// Says where a peer is that is not reached, and why; once.
    pub(super) fn note_unreachable(&self, peer: WorldRank, why: &str) {
        let address = self.book.known(peer).map(|address| self.endpoint.shown(&address));
        let address = address.unwrap_or_else(|_| "an unknown address".to_owned());
        if self.peer(peer).noted.swap(true, Relaxed) {
            return;
        }
        let (here, peer) = (self.rank.0, peer.0);
        self.members.note(&format!("rank {here}: rank {peer} at {address}: {why}; {REMEDY}"));
    }
}

#[cfg(test)]
mod tests {
    use super::Waits;

    #[test]
    fn what_waits_does_so_from_the_first_time_on() {
        let waits = Waits::default();
        let now = waits.now();
        assert!(!waits.for_long(now + 5000), "it never did");
        waits.begin();
        let begun = waits.now();
        assert!(!waits.for_long(now + 999) && waits.for_long(begun + 1000));
        waits.begin();
        assert!(waits.for_long(begun + 1000), "it goes on");
        waits.end();
        assert!(!waits.for_long(begun + 5000));
    }
}
