//! Which half is asked what, and that nothing of the network is left lying.
#![allow(unsafe_code)]
use super::*;
use crate::transport::{
    AllocateError, DescribeError, Descriptor, Extent, ImportError, Mapped, Region,
};
use std::sync::MutexGuard;

/// A half that remembers what it was asked.
#[derive(Default)]
struct Half {
    name: &'static str,
    message_max: usize,
    /// Ranks below are near.
    near: u32,
    calls: Mutex<Vec<String>>,
    /// What a poll gives.
    inbox: Mutex<Vec<u8>>,
    handled: Mutex<u64>,
    arrived: Mutex<u64>,
    failed: Mutex<Option<WorldRank>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Half {
    fn new(name: &'static str, message_max: usize) -> Arc<Self> {
        Arc::new(Self { name, message_max, near: 2, ..Self::default() })
    }

    fn note(&self, call: String) {
        lock(&self.calls).push(call);
    }

    fn calls(&self) -> Vec<String> {
        core::mem::take(&mut *lock(&self.calls))
    }
}

// SAFETY: no core receives anything.
unsafe impl Messages for Half {
    fn explain(&self) -> String {
        self.name.to_owned()
    }
    fn limits(&self) -> Limits {
        Limits { message_max: self.message_max }
    }
    unsafe fn send(&self, to: WorldRank, _: &[u8], _: &[u8]) -> Result<(), SubmitError> {
        self.note(format!("send {to}"));
        Ok(())
    }
    fn poll(&self, sink: &mut dyn FnMut(WorldRank, &[u8])) -> usize {
        let inbox = core::mem::take(&mut *lock(&self.inbox));
        inbox.iter().for_each(|byte| sink(WorldRank(0), &[*byte]));
        inbox.len()
    }
    fn arrived(&self) -> u64 {
        *lock(&self.arrived)
    }
    fn is_handled(&self, mark: u64) -> bool {
        *lock(&self.handled) >= mark
    }
}

impl Sleep for Half {
    fn ring(&self, peer: WorldRank) {
        self.note(format!("ring {peer}"));
    }
    fn arm(&self) -> Ticket {
        Ticket(7)
    }
    fn disarm(&self, ticket: Ticket) {
        self.note(format!("disarm {}", ticket.0));
    }
    fn park(&self, ticket: Ticket, timeout: Option<Duration>) {
        self.note(format!("park {} {timeout:?}", ticket.0));
    }
    fn is_crowded(&self) -> bool {
        self.near == 2
    }
    fn relax(&self, round: u32) -> bool {
        round < 3
    }
    fn now(&self) -> Duration {
        Duration::from_secs(5)
    }
}

// SAFETY: nothing is said to be a fork, but by a test that has no universe.
unsafe impl Members for Half {
    fn peer_state(&self, peer: WorldRank) -> PeerState {
        self.note(format!("state {peer}"));
        PeerState::Alive
    }
    fn told(&self, peer: WorldRank) -> PeerState {
        self.note(format!("told {peer}"));
        PeerState::Departed
    }
    fn failed(&self) -> Option<WorldRank> {
        *lock(&self.failed)
    }
    fn missed(&self, peer: WorldRank) {
        self.note(format!("missed {peer}"));
    }
    fn is_fork(&self) -> bool {
        self.name == "memory"
    }
    fn depart(&self, outcome: Outcome) {
        self.note(format!("depart {outcome:?}"));
    }
}

// SAFETY: gives no memory.
unsafe impl Shared for Half {
    fn allocate(&self, _: usize, _: usize) -> Result<Box<dyn Region>, AllocateError> {
        Err(AllocateError::Shortage { requested: 1, available: 0, limit: "a test" })
    }
    fn available(&self) -> (u64, &'static str) {
        (0, "a test")
    }
    fn is_near(&self, peer: WorldRank) -> bool {
        peer.0 < self.near
    }
    unsafe fn describe(&self, _: &Extent, _: u64) -> Result<Descriptor, DescribeError> {
        Err(DescribeError::Unsupported)
    }
    fn import(&self, owner: WorldRank, _: &[Descriptor]) -> Result<Box<dyn Mapped>, ImportError> {
        Err(ImportError::Malformed(owner))
    }
    fn fences_near(&self) -> bool {
        false
    }
    fn fence_near(&self) -> Result<(), ImportError> {
        Ok(())
    }
}

impl Agent for Half {
    fn start(&self, _: AgentBody) -> Result<(), AgentError> {
        Err(AgentError { errno: 11 })
    }
    fn join(&self) {
        self.note("join".to_owned());
    }
    fn attend(&self) {
        self.note("attend".to_owned());
    }
    fn leave(&self) -> bool {
        true
    }
    fn has_messages(&self) -> bool {
        !lock(&self.inbox).is_empty()
    }
    fn ring(&self) {
        self.note("ring the agent".to_owned());
    }
    fn arm(&self) -> Ticket {
        Ticket(8)
    }
    fn disarm(&self, ticket: Ticket) {
        Sleep::disarm(self, ticket);
    }
    fn park(&self, ticket: Ticket, timeout: Option<Duration>) {
        Sleep::park(self, ticket, timeout);
    }
}

/// Rank 1 of 4, which is near 0 and itself.
fn memory(half: &Arc<Half>, agent: bool) -> Transport {
    let parts = Parts {
        job: Job { name: half.name, rank: WorldRank(1), size: 4 },
        messages: half.clone(),
        sleep: half.clone(),
        members: half.clone(),
        shared: half.clone(),
        cma: None,
        remote: None,
        agent: agent.then(|| half.clone() as Arc<dyn Agent>),
        views: None,
    };
    // SAFETY: no universe is made with them.
    unsafe { Transport::from_parts(parts) }
}

struct Composed {
    memory: Arc<Half>,
    network: Arc<Half>,
    waker: Waker,
    pair: Transport,
}

fn compose() -> Composed {
    let (near, far) = (Half::new("memory", 300), Half::new("network", 200));
    let mut kept = None;
    let make = |waker| {
        kept = Some(waker);
        let (messages, members) = (far.clone(), far.clone());
        Ok::<_, ()>(Network { name: "both", messages, members, remote: None })
    };
    // SAFETY: no universe is made with them.
    let pair = unsafe { memory(&near, true).beside(make) }.unwrap();
    Composed { memory: near, network: far, waker: kept.unwrap(), pair }
}

#[test]
fn each_rank_is_reached_by_its_half() {
    let Composed { memory, network, pair, .. } = compose();
    for rank in 0..4 {
        pair.send(WorldRank(rank), &[], &[]).unwrap();
    }
    assert_eq!(memory.calls(), ["send 0", "send 1"]);
    assert_eq!(network.calls(), ["send 2", "send 3"]);
    for rank in [1, 3] {
        let (sleep, members) = (&pair.sleep, &pair.members);
        sleep.ring(WorldRank(rank));
        assert_eq!(members.peer_state(WorldRank(rank)), PeerState::Alive);
        assert_eq!(members.told(WorldRank(rank)), PeerState::Departed);
        members.missed(WorldRank(rank));
    }
    assert_eq!(memory.calls(), ["ring 1", "state 1", "told 1", "missed 1"]);
    assert_eq!(network.calls(), ["state 3", "told 3", "missed 3"]);
    pair.members.depart(Outcome::Holding);
    assert_eq!([memory.calls(), network.calls()], [["depart Holding"], ["depart Holding"]]);
    assert_eq!((pair.job.name, pair.job.rank, pair.job.size), ("both", WorldRank(1), 4));
    assert_eq!(pair.messages.limits().message_max, 200);
    let line = pair.messages.explain();
    assert_eq!(line, "both: memory; other nodes by network");
}

/// The first rank that fails is told of, by whichever half.
#[test]
fn failures_of_both_halves_are_known() {
    let Composed { memory, network, pair, .. } = compose();
    assert_eq!(pair.members.failed(), None);
    *lock(&network.failed) = Some(WorldRank(3));
    assert_eq!(pair.members.failed(), Some(WorldRank(3)));
    *lock(&memory.failed) = Some(WorldRank(0));
    assert_eq!(pair.members.failed(), Some(WorldRank(0)));
    assert!(pair.members.is_fork());
}

/// Threads sleep at the bell of the node, and the network rings it.
#[test]
fn the_network_wakes_a_rank_that_sleeps() {
    let Composed { memory, network, waker, pair } = compose();
    let (sleep, agent) = (&pair.sleep, pair.agent.as_ref().unwrap());
    sleep.park(sleep.arm(), None);
    sleep.disarm(sleep.arm());
    agent.park(agent.arm(), Some(Duration::ZERO));
    agent.disarm(agent.arm());
    agent.attend();
    agent.join();
    assert!(agent.leave() && agent.start(Box::new(|| ())).is_err());
    assert!(sleep.is_crowded() && sleep.relax(2) && !sleep.relax(3));
    assert_eq!(sleep.now(), Duration::from_secs(5));
    let calls = ["park 7 None", "disarm 7", "park 8 Some(0ns)", "disarm 8", "attend", "join"];
    assert_eq!(memory.calls(), calls);
    waker.wake();
    agent.ring();
    assert_eq!(memory.calls(), ["ring 1", "ring the agent", "ring the agent"]);
    assert!(agent.has_messages());
    assert_eq!(pair.messages.poll(&mut |_, _| unreachable!("nothing has come")), 0);
    memory.calls();
    network.calls();
    waker.wake_threads();
    assert_eq!(memory.calls(), ["ring 1"], "the agent sleeps on");
    assert!(!agent.has_messages() && network.calls().is_empty());
}

/// A thread that leaves looks whether there are messages of the network that no poll has taken.
#[test]
fn messages_of_both_halves_are_seen() {
    let Composed { memory, network, waker, pair } = compose();
    let agent = pair.agent.as_ref().unwrap();
    let poll = || {
        let mut got = Vec::new();
        let count = pair.messages.poll(&mut |_, bytes| got.push(bytes[0]));
        assert_eq!(count, got.len());
        got
    };
    assert!(!agent.has_messages() && poll().is_empty());
    *lock(&memory.inbox) = vec![1];
    assert!(agent.has_messages());
    *lock(&network.inbox) = vec![2, 3];
    waker.wake();
    assert_eq!(poll(), [1, 2, 3]);
    assert!(!agent.has_messages(), "a poll takes all that there is");
    waker.wake();
    assert!(agent.has_messages() && poll().is_empty() && !agent.has_messages());
}

/// What was sent before is handled when both halves say so.
#[test]
fn marks_are_those_of_both_halves() {
    let Composed { memory, network, pair, .. } = compose();
    let set = |half: &Half, arrived, handled| {
        (*lock(&half.arrived), *lock(&half.handled)) = (arrived, handled);
    };
    set(&memory, 5, 4);
    set(&network, 100, 99);
    let first = pair.messages.arrived();
    assert_eq!(pair.messages.arrived(), first);
    set(&memory, 6, 5);
    assert!(!pair.messages.is_handled(first));
    set(&network, 100, 100);
    assert!(pair.messages.is_handled(first));
    let second = pair.messages.arrived();
    assert!(!pair.messages.is_handled(second) && pair.messages.is_handled(first));
    set(&memory, 6, 6);
    assert!(pair.messages.is_handled(second) && !pair.messages.is_handled(second + 1));
    set(&network, 101, 99);
    assert!(!pair.messages.is_handled(first));
}

#[test]
fn a_network_that_cannot_be_made_is_an_error() {
    let near = Half::new("memory", 300);
    // SAFETY: no universe is made with them.
    let pair = unsafe { memory(&near, true).beside(|_| Err("no cable")) };
    assert_eq!(pair.err(), Some("no cable"));
}

/// Without an agent, messages are served in calls of the rank, of whichever half they are.
#[test]
fn there_is_an_agent_if_the_node_has_one() {
    let (near, far) = (Half::new("memory", 300), Half::new("network", 200));
    let make = |waker: Waker| {
        waker.wake();
        let (messages, members) = (far.clone(), far.clone());
        Ok::<_, ()>(Network { name: "both", messages, members, remote: None })
    };
    // SAFETY: no universe is made with them.
    let pair = unsafe { memory(&near, false).beside(make) }.unwrap();
    assert!(pair.agent.is_none());
    assert_eq!(near.calls(), ["ring 1"]);
}
