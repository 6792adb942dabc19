//! The objects of a transport that is made with a port.
#![allow(unsafe_code)]

use crate::port::{Leave, MESSAGE_MAX, Port, lock};
use crate::watcher::{Bell, watch};
use rma_core::transport::{
    Limits, Members, Messages, Outcome, PeerState, Sleep, SubmitError, Ticket, WorldRank,
};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Messages by a port. When it is dropped, what has been sent is out, and its watcher ends.
pub(crate) struct Line {
    port: Arc<Port>,
    watcher: Option<JoinHandle<()>>,
    /// What `explain` says first.
    what: String,
}

impl Line {
    pub(crate) fn open(port: Arc<Port>, what: String, is_crowded: bool) -> std::io::Result<Self> {
        let its = port.clone();
        let name = format!("ofi {}", port.rank.0);
        let watcher = Builder::new().name(name).spawn(move || watch(&its, is_crowded))?;
        Ok(Self { port, watcher: Some(watcher), what })
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let watcher = self.watcher.take();
        if self.port.members.is_fork() {
            // The thread is the parent's, and so is the endpoint.
            return std::mem::forget((watcher, self.port.clone()));
        }
        self.port.bell.end();
        // A panic there has been printed.
        _ = watcher.map(JoinHandle::join);
    }
}

// SAFETY: `send` is the core's alone; of what arrives, only what has a tag of the job, whose key
// its ranks alone know, is handed out, each message once; a slot comes out of the inbox once.
unsafe impl Messages for Line {
    fn explain(&self) -> String {
        format!("{}{}", self.what, self.port.troubles())
    }

    fn limits(&self) -> Limits {
        Limits { message_max: MESSAGE_MAX }
    }

    unsafe fn send(&self, to: WorldRank, head: &[u8], body: &[u8]) -> Result<(), SubmitError> {
        self.port.send(to, head, body)
    }

    fn poll(&self, sink: &mut dyn FnMut(WorldRank, &[u8])) -> usize {
        self.port.poll(sink)
    }

    fn arrived(&self) -> u64 {
        self.port.arrived()
    }

    fn is_handled(&self, mark: u64) -> bool {
        self.port.is_handled(mark)
    }

    fn refused(&self) -> u64 {
        self.port.refused()
    }
}

/// What is known of all ranks of the job: what is said of them beside the network, and which
/// were lost there. A rank that leaves in order is said to have left when its last message has
/// arrived.
pub(crate) struct Membership(pub(crate) Arc<Port>);

impl Membership {
    fn or_lost(&self, peer: WorldRank, state: PeerState) -> PeerState {
        match state {
            PeerState::Alive if self.0.is_lost(peer) => PeerState::Failed,
            state => state,
        }
    }
}

// SAFETY: `is_fork` is forwarded.
unsafe impl Members for Membership {
    fn peer_state(&self, peer: WorldRank) -> PeerState {
        self.or_lost(peer, self.0.members.peer_state(peer))
    }

    fn told(&self, peer: WorldRank) -> PeerState {
        self.or_lost(peer, self.0.members.told(peer))
    }

    fn failed(&self) -> Option<WorldRank> {
        self.0.members.failed().or_else(|| self.0.lost())
    }

    fn missed(&self, peer: WorldRank) {
        self.0.members.missed(peer);
    }

    fn gave_up(&self, is_late: bool) {
        self.0.note_unreached(is_late);
    }

    fn note(&self, text: &str) {
        self.0.members.note(text);
    }

    fn is_fork(&self) -> bool {
        self.0.members.is_fork()
    }

    fn depart(&self, outcome: Outcome) {
        let Port { members, leave, bell, .. } = &*self.0;
        if members.is_fork() {
            return;
        }
        self.0.note_lost();
        let mut leave = lock(leave);
        match (&*leave, outcome) {
            (Leave::Stays, Outcome::Failed) => *leave = Leave::Left { in_order: false },
            (Leave::Stays | Leave::Leaving(_), Outcome::Holding) | (Leave::Stays, _) => {
                *leave = Leave::Leaving(outcome);
                drop(leave);
                return bell.ring();
            }
            (Leave::Leaving(_), _) => return,
            // The watcher has told that it failed.
            (Leave::Left { in_order: false }, _) => return,
            (Leave::Left { in_order: true }, _) => {}
        }
        drop(leave);
        members.depart(outcome);
    }
}

/// Rounds of a wait that are passed awake also on a CPU that others want: once the thread sleeps,
/// the watcher looks there in its place, and each of the two has to wake the other. A round asks
/// the provider, and takes most of a microsecond.
const ROUNDS: u32 = 256;

/// Tells the watcher which threads sleep.
pub(crate) struct Doze {
    pub(crate) sleep: Arc<dyn Sleep>,
    pub(crate) bell: Arc<Bell>,
}

impl Sleep for Doze {
    fn ring(&self, peer: WorldRank) {
        self.sleep.ring(peer);
    }

    fn arm(&self) -> Ticket {
        let ticket = self.sleep.arm();
        self.bell.park();
        ticket
    }

    fn disarm(&self, ticket: Ticket) {
        self.bell.unpark();
        self.sleep.disarm(ticket);
    }

    fn park(&self, ticket: Ticket, timeout: Option<Duration>) {
        self.sleep.park(ticket, timeout);
        self.bell.unpark();
    }

    fn is_crowded(&self) -> bool {
        self.sleep.is_crowded()
    }

    fn relax(&self, round: u32) -> bool {
        self.sleep.relax(round) || round < ROUNDS && !self.is_crowded()
    }

    fn now(&self) -> Duration {
        self.sleep.now()
    }
}
