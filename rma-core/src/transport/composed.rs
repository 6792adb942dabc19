//! Two transports as one: a rank reaches its node by one of them, and other nodes by a network.
//!
//! Threads of the rank sleep on the doorbell of their node alone. A thread that makes progress on
//! the network while they do, and finds something for this rank, wakes them ([`Waker`]).
#![allow(unsafe_code)] // implements unsafe traits by those of its parts

use super::agent::{Agent, AgentBody, AgentError};
use super::{
    Bulletin, Job, Limits, Members, Messages, Outcome, Parts, PeerState, Remote, Shared, Sleep,
    SubmitError, Ticket, Transport,
};
use crate::rank::WorldRank;
use crate::word::{Word, fence};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use core::time::Duration;
use std::sync::{Arc, Mutex, PoisonError};

/// What reaches the ranks of other nodes: half a transport, used [beside](Transport::beside) one
/// that has memory, sleep and time.
///
/// What its objects promise to ring this rank for, they do by the [`Waker`] that it is made with: a
/// message, room for one or for a transfer after `Again`, a completion, news of a member that has
/// left, and the end of a `poll` that has left messages or turned away another thread. Threads of
/// the rank may all be asleep then, so no thread calls the network: one whose progress is made in
/// its calls has a thread of its own, which waits for events, and wakes.
pub struct Network {
    /// Short name of the transport that it is a half of, as shown by `--explain`.
    pub name: &'static str,
    /// Reaches all ranks that are not near.
    pub messages: Arc<dyn Messages>,
    /// What is known of those. Is told how this rank leaves; what it says of forks is not asked.
    pub members: Arc<dyn Members>,
    /// A device that reaches them, if there is one.
    pub remote: Option<Arc<dyn Remote>>,
}

/// Wakes the threads of one rank that wait for its network. Any thread may, at any time, and does
/// not block.
#[derive(Clone)]
pub struct Waker(Arc<Bell>);

struct Bell {
    rank: WorldRank,
    sleep: Arc<dyn Sleep>,
    agent: Option<Arc<dyn Agent>>,
    inbox: InboxFlag<AtomicU32>,
}

impl Waker {
    /// The network has something for this rank, which a call of its objects shows from now on.
    pub fn wake(&self) {
        let Bell { agent, inbox, .. } = &*self.0;
        inbox.come();
        self.wake_threads();
        if let Some(agent) = agent {
            agent.ring();
        }
    }

    /// As [`wake`](Self::wake), of its device: transfers are complete, or there is room for one.
    /// Threads of the rank wait for that, and its agent, which serves messages, does not.
    pub fn wake_threads(&self) {
        self.0.sleep.ring(self.0.rank);
    }
}

/// Whether the network may have messages that no `poll` has taken.
#[derive(Default)]
struct InboxFlag<W>(W);

impl<W: Word<Value = u32>> InboxFlag<W> {
    /// There may be some, which can be polled.
    fn come(&self) {
        // pairs with the AcqRel in `take`: a thread that takes it polls what came. Read and written
        // as one, as there: what takes it before does not hide it.
        _ = self.0.swap(1, AcqRel);
        // Pairs with the fences of `Agent::leave` and `Agent::arm`: a thread that looks after them
        // sees this, or is seen not to attend, or to sleep.
        fence(SeqCst);
    }

    /// All of it is about to be polled.
    fn take(&self) {
        // Read and written as one: what came before is seen even if some comes just now.
        _ = self.0.compare_exchange(1, 0, AcqRel, Relaxed);
    }

    fn is_there(&self) -> bool {
        // A poll follows, which acquires.
        self.0.load(Acquire) == 1
    }
}

impl Transport {
    /// Reaches ranks that are near by this transport, and all others by the network that `network`
    /// makes. `self` is one of the whole job, in which the others are not near.
    ///
    /// # Errors
    ///
    /// Those of `network`.
    ///
    /// # Safety
    ///
    /// Both are of one rank of one job, and count ranks alike. No other universe is made with any
    /// of them.
    pub unsafe fn beside<E>(
        self,
        network: impl FnOnce(Waker) -> Result<Network, E>,
    ) -> Result<Self, E> {
        let Parts { job, messages, sleep, members, shared, cma, remote, agent, views } =
            self.into_parts();
        let (rank, inbox) = (job.rank, InboxFlag::default());
        let waker =
            Waker(Arc::new(Bell { rank, sleep: sleep.clone(), agent: agent.clone(), inbox }));
        let network = network(waker.clone())?;
        let agent = agent.map(|agent| {
            let waker = waker.clone();
            Arc::new(ComposedAgent { agent, waker }) as Arc<dyn Agent>
        });
        let name = network.name;
        let remote = network.remote.clone().or(remote);
        let near = NodeSide { shared: shared.clone(), messages, sleep, members };
        let composed = Arc::new(Composed { rank, near, network, waker, marks: Mutex::default() });
        let parts = Parts {
            job: Job { name, ..job },
            messages: composed.clone(),
            sleep: composed.clone(),
            members: composed,
            shared,
            cma,
            remote,
            agent,
            views,
        };
        // SAFETY: forwarded to the caller.
        Ok(unsafe { Self::from_parts(parts) })
    }
}

/// The half of the node.
struct NodeSide {
    shared: Arc<dyn Shared>,
    messages: Arc<dyn Messages>,
    sleep: Arc<dyn Sleep>,
    members: Arc<dyn Members>,
}

/// Both halves.
struct Composed {
    rank: WorldRank,
    near: NodeSide,
    network: Network,
    waker: Waker,
    /// Marks of both that were taken together; where they stand here is the mark of both.
    marks: Mutex<Vec<(u64, u64)>>,
}

impl Composed {
    fn is_near(&self, peer: WorldRank) -> bool {
        peer == self.rank || self.near.shared.is_near(peer)
    }

    fn messages_to(&self, peer: WorldRank) -> &dyn Messages {
        if self.is_near(peer) { &*self.near.messages } else { &*self.network.messages }
    }

    fn members_of(&self, peer: WorldRank) -> &dyn Members {
        if self.is_near(peer) { &*self.near.members } else { &*self.network.members }
    }
}

// SAFETY: each message is one of a half, which hands it out once.
unsafe impl Messages for Composed {
    fn explain(&self) -> String {
        let (near, far) = (self.near.messages.explain(), self.network.messages.explain());
        format!("{}: {near}; other nodes by {far}", self.network.name)
    }

    fn limits(&self) -> Limits {
        let halves = [self.near.messages.limits(), self.network.messages.limits()];
        let [near, far] = halves.map(|limits| limits.message_max);
        Limits { message_max: near.min(far) }
    }

    unsafe fn send(&self, to: WorldRank, head: &[u8], body: &[u8]) -> Result<(), SubmitError> {
        // SAFETY: forwarded to the caller.
        unsafe { self.messages_to(to).send(to, head, body) }
    }

    unsafe fn answer(&self, to: WorldRank, head: &[u8], body: &[u8]) -> Result<(), SubmitError> {
        // SAFETY: forwarded to the caller.
        unsafe { self.messages_to(to).answer(to, head, body) }
    }

    fn keeps_order(&self, to: WorldRank) -> bool {
        self.messages_to(to).keeps_order(to)
    }

    fn poll(&self, sink: &mut dyn FnMut(WorldRank, &[u8])) -> usize {
        let near = self.near.messages.poll(sink);
        self.waker.0.inbox.take();
        near + self.network.messages.poll(sink)
    }

    fn arrived(&self) -> u64 {
        let mark = (self.near.messages.arrived(), self.network.messages.arrived());
        let mut marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        if marks.last() != Some(&mark) {
            marks.push(mark);
        }
        marks.len() as u64 - 1
    }

    fn is_handled(&self, mark: u64) -> bool {
        let marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        let mark = usize::try_from(mark).ok().and_then(|mark| marks.get(mark)).copied();
        drop(marks);
        // Every mark stands there.
        let Some((near, far)) = mark else { return false };
        self.near.messages.is_handled(near) && self.network.messages.is_handled(far)
    }

    fn refused(&self) -> u64 {
        self.near.messages.refused() + self.network.messages.refused()
    }
}

impl Sleep for Composed {
    fn ring(&self, peer: WorldRank) {
        // Others wait for what comes by the network, which wakes them.
        if self.is_near(peer) {
            self.near.sleep.ring(peer);
        }
    }

    fn arm(&self) -> Ticket {
        self.near.sleep.arm()
    }

    fn disarm(&self, ticket: Ticket) {
        self.near.sleep.disarm(ticket);
    }

    fn park(&self, ticket: Ticket, timeout: Option<Duration>) {
        self.near.sleep.park(ticket, timeout);
    }

    fn is_crowded(&self) -> bool {
        self.near.sleep.is_crowded()
    }

    fn relax(&self, round: u32) -> bool {
        self.near.sleep.relax(round)
    }

    fn now(&self) -> Duration {
        self.near.sleep.now()
    }
}

// SAFETY: forwarded to the half that this process is of, too.
unsafe impl Members for Composed {
    fn peer_state(&self, peer: WorldRank) -> PeerState {
        self.members_of(peer).peer_state(peer)
    }

    fn told(&self, peer: WorldRank) -> PeerState {
        self.members_of(peer).told(peer)
    }

    fn failed(&self) -> Option<WorldRank> {
        self.near.members.failed().or_else(|| self.network.members.failed())
    }

    fn missed(&self, peer: WorldRank) {
        self.members_of(peer).missed(peer);
    }

    fn gave_up(&self, is_late: bool) {
        self.network.members.gave_up(is_late);
    }

    fn note(&self, text: &str) {
        self.near.members.note(text);
    }

    fn bulletin(&self) -> Option<Bulletin> {
        self.near.members.bulletin()
    }

    fn is_fork(&self) -> bool {
        self.near.members.is_fork()
    }

    fn depart(&self, outcome: Outcome) {
        self.near.members.depart(outcome);
        self.network.members.depart(outcome);
    }
}

/// The agent of the node, which serves what comes by the network, too.
struct ComposedAgent {
    agent: Arc<dyn Agent>,
    waker: Waker,
}

impl Agent for ComposedAgent {
    fn start(&self, body: AgentBody) -> Result<(), AgentError> {
        self.agent.start(body)
    }

    fn join(&self) {
        self.agent.join();
    }

    fn attend(&self) {
        self.agent.attend();
    }

    fn leave(&self) -> bool {
        self.agent.leave()
    }

    fn has_messages(&self) -> bool {
        self.agent.has_messages() || self.waker.0.inbox.is_there()
    }

    fn ring(&self) {
        self.agent.ring();
    }

    fn arm(&self) -> Ticket {
        self.agent.arm()
    }

    fn disarm(&self, ticket: Ticket) {
        self.agent.disarm(ticket);
    }

    fn park(&self, ticket: Ticket, timeout: Option<Duration>) {
        self.agent.park(ticket, timeout);
    }
}

#[cfg(all(test, loom))]
#[path = "composed_loom_tests.rs"]
mod loom_tests;

#[cfg(all(test, not(loom)))]
#[path = "composed_tests.rs"]
mod tests;
