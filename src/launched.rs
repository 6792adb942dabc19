//! A rank that a launcher has started: it hears of what ends a rank.
#![allow(unsafe_code)]

use rma_core::transport::{Bulletin, Members, Outcome, Parts, PeerState, Transport, WorldRank};
use rma_launcher::Client;
use std::sync::Arc;

/// What is known of the members of a job, whose launcher is told which leave.
struct Launched {
    members: Arc<dyn Members>,
    launcher: Client,
}

/// The transport of a rank of that launcher.
pub(crate) fn tell(launcher: Client, transport: Transport) -> Transport {
    let parts = transport.into_parts();
    let members = Arc::new(Launched { members: parts.members, launcher });
    // SAFETY: those of one transport, which is no more, but for the members, which are its own.
    unsafe { Transport::from_parts(Parts { members, ..parts }) }
}

// SAFETY: `is_fork` is forwarded.
unsafe impl Members for Launched {
    fn peer_state(&self, peer: WorldRank) -> PeerState {
        self.members.peer_state(peer)
    }

    fn told(&self, peer: WorldRank) -> PeerState {
        self.members.told(peer)
    }

    fn failed(&self) -> Option<WorldRank> {
        self.members.failed()
    }

    fn missed(&self, peer: WorldRank) {
        self.launcher.missed(peer.0);
    }

    fn note(&self, text: &str) {
        self.launcher.note(text);
    }

    fn bulletin(&self) -> Option<Bulletin> {
        self.launcher.bulletin().map(Bulletin::new)
    }

    fn is_fork(&self) -> bool {
        self.members.is_fork()
    }

    fn depart(&self, outcome: Outcome) {
        // First, so that the launcher blames this rank and not one that fails because of it.
        self.launcher.leave(outcome == Outcome::Failed);
        self.members.depart(outcome);
    }
}
