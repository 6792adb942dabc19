//! The transport of one simulated rank.
#![allow(unsafe_code)] // implements an unsafe trait; holds no unsafe block

use core::time::Duration;
use std::sync::Arc;
use std::thread;

use rma_core::transport::{
    self, Agent, AgentBody, AgentError, AllocateError, DescribeError, Descriptor, ImportError, Job,
    Limits, Mapped, Members, Messages, Moment, Outcome, Parts, PeerState, Remote, Sleep,
    SubmitError, Ticket, Touch, Transport, Views, WorldRank,
};

use rma_core::{Extent, Place};

use crate::net::{Seat, Shared};
use crate::region::{LIMIT, Region};

/// One rank's view of a simulated network; works on the rank's own thread, and its agent's.
#[derive(Debug, Clone)]
pub struct Sim {
    shared: Arc<Shared>,
    rank: u32,
}

impl Sim {
    pub(crate) const fn new(shared: Arc<Shared>, rank: u32) -> Self {
        Self { shared, rank }
    }

    /// This process.
    pub fn rank(&self) -> WorldRank {
        WorldRank(self.rank)
    }

    /// Processes of the job.
    pub fn size(&self) -> u32 {
        self.shared.config().ranks
    }

    /// How often this rank's device was told so of memory.
    pub fn advised(&self, moment: Moment) -> u64 {
        self.shared.settle(self.rank, |schedule, _| schedule.advised(self.rank, moment))
    }

    pub(crate) const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Makes the calling thread this rank: waits until every rank of the network has entered and
    /// this one is chosen to run. [`run`](crate::run) does it for its threads.
    ///
    /// # Panics
    ///
    /// When this rank has entered before.
    pub fn enter(&self) -> Seat {
        self.try_enter().expect("only `run` cancels a start")
    }

    /// `None` when the run was cancelled because not all threads could start.
    pub(crate) fn try_enter(&self) -> Option<Seat> {
        let runs = self.shared.enter(self.rank);
        let seat = Seat::new(Arc::clone(&self.shared), self.rank);
        runs.then_some(seat)
    }
}

/// Ends a poll on every way out.
struct Polling<'a>(&'a Sim);

impl Drop for Polling<'_> {
    fn drop(&mut self) {
        self.0.shared.act(self.0.rank, |schedule| schedule.poll_end(self.0.rank));
    }
}

/// All that it can do.
impl From<Sim> for Transport {
    fn from(sim: Sim) -> Self {
        let size = sim.shared.config().ranks;
        let job = Job { name: "sim", rank: WorldRank(sim.rank), size };
        let device = sim.shared.config().device;
        let sim = Arc::new(sim);
        let remote = device.map(|_| Arc::clone(&sim) as Arc<dyn Remote>);
        let parts = Parts {
            job,
            messages: sim.clone(),
            sleep: sim.clone(),
            members: sim.clone(),
            shared: sim.clone(),
            cma: None,
            remote,
            agent: Some(sim.clone()),
            views: Some(sim),
        };
        // SAFETY: of one rank, which gives itself away.
        unsafe { Self::from_parts(parts) }
    }
}

// SAFETY: messages are values of a queue that `send` alone fills, and `poll` empties.
unsafe impl Messages for Sim {
    fn explain(&self) -> String {
        let config = self.shared.config();
        format!(
            "sim: {} ranks as threads of one process, one at a time, order and delay from seed \
             {}; {} up to {} bytes, up to {} us on their way{}, {} per receiver; virtual time, \
             never spins",
            config.ranks,
            config.seed,
            match config.nodes {
                None => "messages only,".to_owned(),
                Some(nodes) => format!("load and store inside each of {nodes} nodes, messages"),
            },
            config.message_max,
            config.delay_max,
            if config.in_order { " and in order" } else { "" },
            config.queue_max
        )
    }

    fn limits(&self) -> Limits {
        Limits { message_max: self.shared.config().message_max }
    }

    /// A peer that departed is as unreachable as one that failed.
    ///
    /// # Panics
    ///
    /// When the message is longer than `limits().message_max`.
    unsafe fn send(&self, to: WorldRank, head: &[u8], body: &[u8]) -> Result<(), SubmitError> {
        let (len, limit) = (head.len() + body.len(), self.shared.config().message_max);
        assert!(
            len <= limit,
            "rank {} sends {len} bytes in one message, {limit} are allowed",
            self.rank
        );
        self.shared.yield_then(self.rank, |schedule| schedule.send(self.rank, to.0, head, body))
    }

    fn keeps_order(&self, _to: WorldRank) -> bool {
        self.shared.config().in_order
    }

    fn poll(&self, sink: &mut dyn FnMut(WorldRank, &[u8])) -> usize {
        let arrived = self.shared.look_then(self.rank, |schedule| schedule.poll(self.rank));
        let Some(arrived) = arrived else {
            return 0;
        };
        let _polling = Polling(self);
        for count in 0..arrived {
            let message = self.shared.act(self.rank, |schedule| schedule.take(self.rank));
            // The rank may have ended while its agent polls.
            let Some(message) = message else { return count };
            sink(WorldRank(message.from), message.bytes());
        }
        arrived
    }

    fn arrived(&self) -> u64 {
        self.shared.read(self.rank, |schedule| schedule.arrived(self.rank))
    }

    fn is_handled(&self, mark: u64) -> bool {
        self.shared.read(self.rank, |schedule| schedule.is_handled(self.rank, mark))
    }
}

impl Sleep for Sim {
    fn ring(&self, peer: WorldRank) {
        self.shared.yield_after(self.rank, |schedule| schedule.ring(self.rank, peer.0));
    }

    fn arm(&self) -> Ticket {
        Ticket(self.shared.act(self.rank, |schedule| schedule.arm()))
    }

    fn disarm(&self, _ticket: Ticket) {
        self.shared.read(self.rank, |_| {});
    }

    fn park(&self, ticket: Ticket, timeout: Option<Duration>) {
        let unwinding = thread::panicking();
        self.shared.yield_after(self.rank, |schedule| {
            schedule.park(ticket.0, timeout, unwinding);
        });
    }

    fn is_crowded(&self) -> bool {
        true
    }

    fn relax(&self, round: u32) -> bool {
        self.shared.yield_then(self.rank, |schedule| schedule.relax(round))
    }

    fn now(&self) -> Duration {
        self.shared.now(self.rank)
    }
}

// SAFETY: nothing is said to be a fork.
unsafe impl Members for Sim {
    /// A rank that does not exist has failed.
    fn peer_state(&self, peer: WorldRank) -> PeerState {
        self.shared.read(self.rank, |schedule| schedule.peer_state(self.rank, peer.0))
    }

    fn failed(&self) -> Option<WorldRank> {
        self.shared.read(self.rank, |schedule| schedule.failed(self.rank).map(WorldRank))
    }

    fn depart(&self, outcome: Outcome) {
        self.shared.act_if_seated(self.rank, |schedule| schedule.depart(self.rank, outcome));
    }
}

// SAFETY: `Region::allocate` gives out zeroed memory of an allocation of its own, so regions do
// not overlap; this transport touches it for transfers alone. What is imported is the allocation
// that its owner has under the number in the descriptor.
unsafe impl transport::Shared for Sim {
    fn allocate(
        &self,
        len: usize,
        align: usize,
    ) -> Result<Box<dyn transport::Region>, AllocateError> {
        let memory = (self.shared.budget(), self.shared.regions());
        Ok(Box::new(Region::allocate(memory, self.rank, len, align)?))
    }

    fn available(&self) -> (u64, &'static str) {
        (self.shared.budget().available(), LIMIT)
    }

    fn is_near(&self, peer: WorldRank) -> bool {
        self.shared.config().are_near(self.rank, peer.0)
    }

    /// One region as a whole.
    unsafe fn describe(&self, extent: &Extent, start: u64) -> Result<Descriptor, DescribeError> {
        match extent.place {
            Place::Region(descriptor) if start == 0 => Ok(descriptor),
            _ => Err(DescribeError::Unsupported),
        }
    }

    fn import(
        &self,
        owner: WorldRank,
        descriptors: &[Descriptor],
    ) -> Result<Box<dyn Mapped>, ImportError> {
        let &[descriptor] = descriptors else {
            let why = "regions of a simulated rank lie apart";
            return Err(ImportError::Extents { owner, why });
        };
        if !self.shared.config().are_near(self.rank, owner.0) {
            return Err(ImportError::Malformed(owner));
        }
        match self.shared.regions().find(owner.0, &descriptor) {
            Some(imported) => Ok(Box::new(imported)),
            None => Err(ImportError::PeerGone(owner)),
        }
    }

    fn fences_near(&self) -> bool {
        true
    }

    /// One thread runs at a time, and sees what those before it did.
    fn fence_near(&self) -> Result<(), ImportError> {
        Ok(())
    }
}

impl Views for Sim {
    fn touches(&self, touch: Touch) {
        self.shared.touch(self.rank, touch);
    }
}

/// The agent takes turns with the ranks. The thread that sleeps and is rung, the rank's or the
/// agent's, is the one that calls.
impl Agent for Sim {
    fn start(&self, body: AgentBody) -> Result<(), AgentError> {
        self.shared.start_agent(self.rank, body)
    }

    fn join(&self) {
        self.shared.join_agent(self.rank);
    }

    fn attend(&self) {
        self.shared.act(self.rank, |schedule| schedule.attend(self.rank));
    }

    fn leave(&self) -> bool {
        self.shared.act(self.rank, |schedule| schedule.leave_attendance(self.rank))
    }

    fn has_messages(&self) -> bool {
        self.shared.act(self.rank, |schedule| schedule.has_messages(self.rank))
    }

    fn ring(&self) {
        self.shared.act(self.rank, |schedule| schedule.ring_agent(self.rank));
    }

    fn arm(&self) -> Ticket {
        Sleep::arm(self)
    }

    fn disarm(&self, ticket: Ticket) {
        Sleep::disarm(self, ticket);
    }

    fn park(&self, ticket: Ticket, timeout: Option<Duration>) {
        Sleep::park(self, ticket, timeout);
    }
}
