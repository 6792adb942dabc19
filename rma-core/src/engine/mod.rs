//! The engine of a rank: what is under way, how messages are sent, the one place that waits, and
//! the agent. What arrives is for a [`Service`] above.
mod agent;
mod budget;
mod counters;
pub(crate) mod grant;
mod outgoing;
mod outstanding;
#[cfg(test)]
mod outstanding_tests;
mod progress;
mod queue;
mod service;
mod wait;
#[cfg(test)]
mod wait_tests;

pub use counters::Counters;
pub(crate) use outgoing::Sent;
pub(crate) use outstanding::{
    Answer, Buffer, Clearance, Expected, Failure, Lost, Next, Pending, SlotId,
};
pub(crate) use queue::{Losses, Queue, UnderWay, What};
pub(crate) use service::Service;
pub(crate) use wait::{Asleep, Cause, On, Wait, WaitError};

use crate::config::Config;
use crate::memory::pool::SyncPool;
use crate::object;
use crate::protocol::message::Head;
use crate::rank::WorldRank;
use crate::transport::{Bulletin, Count, Outcome, Transport};
use agent::AgentState;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use outgoing::Outgoing;
use outstanding::OutstandingTable;
use progress::Rounds;
use queue::Queues;
use std::sync::{Arc, Weak};
use wait::LeftMarks;

/// What all handles of one rank share. Several ranks may live in one process.
pub(crate) struct Engine {
    /// Itself.
    me: Weak<Self>,
    pub(crate) transport: Transport,
    pub(crate) config: Config,
    pub(crate) counters: Counters,
    /// Where the launcher reads what this rank waits for.
    pub(crate) bulletin: Option<Bulletin>,
    pub(crate) outstanding: OutstandingTable,
    pub(crate) queues: Queues,
    pub(crate) sync_blocks: Arc<SyncPool>,
    pub(crate) outgoing: Outgoing,
    service: Box<dyn Service>,
    marks: LeftMarks,
    agent: AgentState,
    /// A window was dropped while this rank held locks of it.
    holding: AtomicBool,
    /// It has left, or is about to.
    left: AtomicBool,
    next_object: AtomicU64,
    /// Where calls that do not wait go on to look which peers are gone.
    looks: AtomicUsize,
    /// Waits that looked at a word first.
    glanced: AtomicU32,
    rounds: Rounds,
}

impl Engine {
    pub(crate) fn new(
        transport: Transport,
        config: Config,
        service: Box<dyn Service>,
    ) -> Arc<Self> {
        let outstanding =
            OutstandingTable::new(config.outstanding_messages, config.credit_messages);
        let bulletin = transport.members.bulletin();
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            counters: Counters::new(bulletin, transport.messages.clone()),
            transport,
            config,
            bulletin,
            outstanding,
            queues: Queues::default(),
            sync_blocks: Arc::default(),
            outgoing: Outgoing::default(),
            service,
            marks: LeftMarks::default(),
            agent: AgentState::default(),
            holding: AtomicBool::new(false),
            left: AtomicBool::new(false),
            // Number 0 of rank 0 is the world's.
            next_object: AtomicU64::new(1),
            looks: AtomicUsize::new(0),
            glanced: AtomicU32::new(0),
            rounds: Rounds::default(),
        })
    }

    #[cfg(test)]
    pub(crate) fn set_next_object(&self, number: u64) {
        self.next_object.store(number, Relaxed);
    }

    /// What serves peers.
    pub(crate) fn service(&self) -> &dyn Service {
        &*self.service
    }

    /// An id that no other communicator or window of the job has; [`object::NO_OBJECT`] once there
    /// are no more.
    pub(crate) fn new_object_id(&self) -> u64 {
        let next = |count: u64| (count < object::OBJECTS).then_some(count + 1);
        let rank = u64::from(self.transport.job.rank.0);
        match self.next_object.fetch_update(Relaxed, Relaxed, next) {
            Ok(count) => object::id(rank, count),
            _ => object::NO_OBJECT,
        }
    }

    /// Locks stay held that no rank can give back once this one has left, or that it has taken
    /// since.
    pub(crate) fn set_holding(&self) {
        // Sequentially consistent, as in `Leaver`: one of the two sees the other.
        self.holding.store(true, SeqCst);
        if self.left.load(SeqCst) && !std::thread::panicking() && !self.transport.members.is_fork()
        {
            self.transport.members.depart(Outcome::Holding);
        }
    }

    /// The launcher is told how many windows there are.
    pub(crate) fn count_windows(&self, by: i64) {
        self.bulletin.iter().for_each(|bulletin| bulletin.count_windows(by));
    }

    pub(crate) fn has_left(&self) -> bool {
        self.left.load(SeqCst)
    }

    /// From now on this rank takes nothing that peers may wait for.
    pub(crate) fn set_left(&self) {
        self.left.store(true, SeqCst);
    }

    /// Whether a window was dropped while this rank held locks of it.
    pub(crate) fn is_holding(&self) -> bool {
        self.holding.load(SeqCst)
    }

    /// Sends what waited, handles what has arrived; returns how much that was.
    pub(crate) fn progress(&self) -> usize {
        self.send_outbox();
        let ended = self.end_transfers();
        let retried = self.service.retry(self) + ended;
        if !self.rounds.looks_for_messages(ended) {
            return retried;
        }
        let count = self.transport.messages.poll(&mut |from, bytes| self.dispatch(from, bytes));
        // Afterwards: a peer that has left may have sent something before, and no thread looks
        // again if that was the last.
        let retried = retried + self.service.look_around(self);
        if count > 0 {
            self.counters.add(Count::Received, count);
            self.send_outbox();
            // Another thread of this rank may be asleep until just this came.
            self.transport.sleep.ring(self.transport.job.rank);
        } else {
            self.service.recover(self);
        }
        count + retried
    }

    /// Ends transfers that are complete; returns how many.
    fn end_transfers(&self) -> usize {
        let ended = self.queues.poll();
        if ended > 0 {
            // Another thread of this rank may be asleep until just this was complete.
            self.transport.sleep.ring(self.transport.job.rank);
        }
        ended
    }

    fn dispatch(&self, from: WorldRank, bytes: &[u8]) {
        let parsed = Head::parse(bytes).and_then(|(head, body)| Some((head.kind()?, head, body)));
        let handled = parsed
            .is_some_and(|(kind, head, body)| self.service.handle(self, from, kind, &head, body));
        if !handled {
            self.counters.add(Count::Dropped, 1);
        }
    }
}
