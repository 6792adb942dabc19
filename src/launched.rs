//! A rank that a launcher has started: it hears of what ends a rank.
#![allow(unsafe_code)]

use rma_core::transport::{Bulletin, Members, Outcome, Parts, PeerState, Transport, WorldRank};
use rma_launcher::{Client, Fate};
use rma_transport_shm::Shm;
use std::sync::Arc;

/// What is known of the members of a job, whose launcher is told how this rank leaves.
struct Launched {
    members: Arc<dyn Members>,
    launcher: Arc<Client>,
    tell: fn(&Client, Outcome),
}

/// A transport whose rank tells its launcher, before its peers, how it leaves.
fn told(launcher: Arc<Client>, transport: Transport, tell: fn(&Client, Outcome)) -> Transport {
    let parts = transport.into_parts();
    let members = Arc::new(Launched { members: parts.members, launcher, tell });
    // SAFETY: those of one transport, which is no more, but for the members, which are its own.
    unsafe { Transport::from_parts(Parts { members, ..parts }) }
}

/// The transport of a rank that knows its host by shared memory. If there are others, they hear of
/// each other through their launcher, and of this rank when what it sent has arrived. What stands
/// on it, if `is_beneath` a network, has notes for the user.
pub(crate) fn across(launcher: &Arc<Client>, shm: Shm, is_beneath: bool) -> Transport {
    if launcher.job().host.is_none() {
        let near = shm.into();
        return if is_beneath { told(launcher.clone(), near, |_, _| {}) } else { near };
    }
    let others = shm.others();
    launcher.on_gone(move |ranks, fate| {
        others.left(
            ranks,
            match fate {
                Fate::Departed => Outcome::Departed,
                Fate::Holding => Outcome::Holding,
                Fate::Failed => Outcome::Failed,
            },
        );
    });
    told(launcher.clone(), shm.into(), |launcher, outcome| {
        launcher.departed(match outcome {
            Outcome::Departed => Fate::Departed,
            Outcome::Holding => Fate::Holding,
            Outcome::Failed => Fate::Failed,
        });
    })
}

/// The transport of a rank of that launcher, which blames this rank then, and not one that fails
/// because of it.
pub(crate) fn tell(launcher: Arc<Client>, transport: Transport) -> Transport {
    told(launcher, transport, |launcher, outcome| launcher.leave(outcome == Outcome::Failed))
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

    fn gave_up(&self, is_late: bool) {
        self.members.gave_up(is_late);
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
        (self.tell)(&self.launcher, outcome);
        self.members.depart(outcome);
    }
}
