//! One rank of one job: its process-wide state, and the handle that users hold. S-M8
use crate::collective::mail::Mail;
use crate::communicator::Communicator;
use crate::completion::{AgentState, Counters, Marks, Outgoing, ProgressAgent, Slots};
use crate::device::Queues;
use crate::error::CollectiveError;
use crate::protocol::message::{Head, Kind};
use crate::protocol::pscw::Signal;
use crate::serve::{Deferred, Dropped, Incoming, Lines, Registry};
use crate::sync_block::SyncPool;
use crate::transport::{Beneath, Outcome, Transport, WorldRank};
use crate::window::{Graveyard, HintError, Hints};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use core::time::Duration;
use std::sync::{Arc, Weak};

/// Budgets and deadlines of one rank.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Config {
    /// How long any wait may take before it ends in an error; `None` waits for ever.
    pub wait_timeout: Option<Duration>,
    /// CPUs for the ranks of a job of threads; `None`: those that this process may use. If they are
    /// fewer than the ranks, who waits gives its CPU to others at once, instead of looking for a
    /// while whether the wait is over. Ranks that are processes have those of their launcher.
    pub cpus: Option<u32>,
    /// Nodes that the machine is pretended to be, 1 for none: so many of a job of threads, of as
    /// many ranks in a row each (the last may have fewer). Load and store reach the ranks of the
    /// same node; others are reached by messages only, as in a job on several machines, which a
    /// program can be tested for so. Ranks that are processes have those of their launcher
    /// (`rma-run --nodes`).
    pub nodes: u32,
    /// Whether a rank that sleeps in a wait looks around now and then although nobody woke it: so
    /// it notices a process that was killed and could tell nobody. Without it, a wake-up that the
    /// library forgets is a hang and not a delay: for the library's own tests. Only transports that
    /// sleep take naps.
    pub naps: bool,
    /// Messages of far operations that may be unanswered at once; one more waits for a place.
    pub far_slots: usize,
    /// Those of them that may be unanswered by one target, 1 to 256: what a target has to keep
    /// for this rank in the worst case, whatever the network does against congestion.
    pub credit_messages: usize,
    /// Largest put to a far target that is sent at once, in bytes. A larger one asks first, and
    /// sends what the target grants.
    pub eager_bytes: usize,
    /// Bytes of such larger puts that may be on their way to this rank at once, from all origins
    /// together.
    pub grant_bytes: u64,
    /// Largest payload of a collective to one rank, in bytes; at least 256.
    pub collective_bytes: u64,
    /// Payloads of collectives that this rank keeps until it takes part, in bytes of all together.
    /// Ranks get ahead of a slow one by 17 operations at most, and wait when what they send it does
    /// not fit. What it waits for itself always does: 256 KiB at a time of each communicator. So do
    /// payloads of up to 4 KiB.
    pub mail_bytes: u64,
    /// Targets whose size and displacement unit are remembered, per window without symmetry.
    pub target_cache: usize,
    /// Regions that may be attached to one dynamic window of this rank at once. Every rank of a
    /// job has the same.
    pub dynamic_regions: usize,
    /// Told the [explanation](crate::Window::explain) of each new window, on the first rank of it.
    pub on_window: Option<fn(&str)>,
    /// Whether a thread serves the messages of peers while this rank computes.
    pub progress_agent: ProgressAgent,
    hints: Hints,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            wait_timeout: None,
            cpus: None,
            nodes: 1,
            naps: true,
            far_slots: 128,
            credit_messages: 32,
            eager_bytes: 16 << 10,
            grant_bytes: 1 << 20,
            collective_bytes: 1 << 30,
            mail_bytes: 4 << 30,
            target_cache: 64,
            dynamic_regions: 512,
            on_window: None,
            progress_agent: ProgressAgent::Auto,
            hints: Hints::default(),
        }
    }
}

impl Config {
    /// Gives every window that hint, unless it says otherwise itself; see
    /// [`WindowBuilder::hint`](crate::WindowBuilder::hint). Every rank of a job says the same. A
    /// `rma_path` that does not reach all of a window is left aside for that window, and its
    /// [explanation](crate::Window::explain) says so.
    ///
    /// # Errors
    ///
    /// A value that a known key does not take.
    pub fn hint(&mut self, key: &str, value: &str) -> Result<(), HintError> {
        self.hints.set(key, value)
    }

    pub(crate) fn hints(&self) -> Hints {
        self.hints
    }
}

/// Bits of an object's id that count the objects of a rank; above them is the rank.
const COUNT_BITS: u32 = 40;
/// Set in the id of what a communicator has for the runtime's own exchanges: with those of its user
/// they have nothing in common.
pub(crate) const RUNTIME: u64 = 1 << (COUNT_BITS - 1);
/// Objects of a rank: weeks of making and freeing windows at full speed.
const OBJECTS: u64 = RUNTIME;
/// Ranks of a job that can make objects. One less, so that [`NO_OBJECT`] is no id.
const RANKS: u64 = (1 << (u64::BITS - COUNT_BITS)) - 1;
/// The least that [`Config::collective_bytes`] can say: communicators are made of payloads, too.
const COLLECTIVE_LEAST: u64 = 256;
/// No communicator or window has this id.
pub(crate) const NO_OBJECT: u64 = u64::MAX;

/// The rank that made an object, and its number there.
pub(crate) fn maker_and_number(id: u64) -> (u64, u64) {
    (id >> COUNT_BITS, id & (OBJECTS - 1))
}

/// What all handles of one rank share.
pub(crate) struct Process {
    /// Itself.
    pub(crate) me: Weak<Self>,
    pub(crate) transport: Transport,
    pub(crate) config: Config,
    pub(crate) counters: Counters,
    pub(crate) mail: Mail,
    pub(crate) slots: Slots,
    pub(crate) queues: Queues,
    pub(crate) windows: Registry,
    pub(crate) dropped: Dropped,
    pub(crate) deferred: Deferred,
    pub(crate) lines: Lines,
    pub(crate) marks: Marks,
    pub(crate) sync_blocks: SyncPool,
    pub(crate) graveyard: Graveyard,
    pub(crate) outgoing: Outgoing,
    pub(crate) incoming: Incoming,
    pub(crate) agent: AgentState,
    /// A window was dropped while this rank held locks of it.
    holding: AtomicBool,
    /// It has left, or is about to.
    left: AtomicBool,
    next_object: AtomicU64,
    /// Where calls that do not wait go on to look who is gone.
    pub(crate) looks: AtomicUsize,
}

impl Process {
    /// An id that no other communicator or window of the job has; [`NO_OBJECT`] once there are no
    /// more.
    pub(crate) fn new_object_id(&self) -> u64 {
        let next = |count: u64| (count < OBJECTS).then_some(count + 1);
        let rank = u64::from(self.transport.job.rank.0);
        match self.next_object.fetch_update(Relaxed, Relaxed, next) {
            Ok(count) if rank < RANKS => rank << COUNT_BITS | count,
            _ => NO_OBJECT,
        }
    }

    /// Locks stay held that nobody can give back once this rank has left, or that it has taken
    /// since.
    pub(crate) fn set_holding(&self) {
        // Sequentially consistent, as in `Leaver`: one of the two sees the other.
        self.holding.store(true, SeqCst);
        if self.left.load(SeqCst) && !std::thread::panicking() && !self.transport.members.is_fork()
        {
            self.transport.members.depart(Outcome::Holding);
        }
    }

    pub(crate) fn has_left(&self) -> bool {
        self.left.load(SeqCst)
    }

    fn holds_locks(&self) -> bool {
        // In this order: what a thread gives up or back leaves its mark first, and what could not
        // be told may be that a lock was given back.
        self.holding.load(SeqCst)
            || self.windows.all().iter().any(|part| part.holds_locks())
            || self.lines.coming_from().into_iter().any(|home| self.gone(home).is_none())
            || self.outgoing.gives_back()
    }

    /// Sends what waited, handles what has arrived; returns how much that was.
    pub(crate) fn progress(&self) -> usize {
        self.send_outbox();
        let retried = self.retry_deferred() + self.end_transfers();
        let count = self.transport.messages.poll(&mut |from, bytes| self.dispatch(from, bytes));
        // Afterwards: who has left may have sent something before, and nobody looks again if that
        // was the last.
        let retried = retried + self.look_after_lines();
        if count > 0 {
            self.counters.received.fetch_add(count as u64, Relaxed);
            self.send_outbox();
            // Another thread of this rank may be asleep until just this came.
            self.transport.sleep.ring(self.transport.job.rank);
        } else {
            self.recover_grants();
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
        let handled = Head::parse(bytes).is_some_and(|(head, body)| match head.kind() {
            Some(Kind::Collective) => self.take_collective(from, &head, body),
            Some(Kind::Done | Kind::Data | Kind::Value) => self.take_answer(from, &head, body),
            Some(Kind::Grant) => self.take_grant(from, &head, body),
            Some(Kind::Fragment) => self.take_fragment(from, &head, body),
            Some(Kind::Cancel) => self.take_cancel(from, &head, body),
            Some(Kind::Lock) => self.take_request(from, &head, body),
            Some(Kind::Granted) => self.take_granted(from, &head, body),
            Some(Kind::Unlock) => self.take_unlock(from, &head, body),
            Some(Kind::Pass) => self.take_pass(from, &head, body),
            Some(Kind::Post) => self.take_signal(from, Signal::Post, &head, body),
            Some(Kind::Complete) => self.take_signal(from, Signal::Complete, &head, body),
            Some(kind) => self.outgoing.accepts(from) && self.serve(from, kind, &head, body),
            None => false,
        });
        if !handled {
            self.counters.dropped.fetch_add(1, Relaxed);
        }
    }
}

/// One rank of a job. Several may live in one process; there is nothing global.
///
/// Dropping it tells the peers that this rank has left (or failed, in a panic) without waiting for
/// them; [`finalize`](Self::finalize) waits.
/// Windows may outlive it, but take no locks any more: [`RmaError::Left`](crate::RmaError::Left).
pub struct Universe {
    process: Arc<Process>,
    world: Communicator,
}

impl Universe {
    /// Wraps a transport whose ranks have found each other. **Collective** over the job.
    pub fn new(transport: impl Into<Transport>, config: Config) -> Result<Self, CollectiveError> {
        let transport = transport.into();
        let message = transport.messages.limits().message_max;
        let process = Arc::new_cyclic(|me| Process {
            me: me.clone(),
            transport,
            config,
            counters: Counters::default(),
            mail: Mail::new(config.collective_bytes.max(COLLECTIVE_LEAST), config.mail_bytes),
            slots: Slots::new(config.far_slots, config.credit_messages),
            queues: Queues::default(),
            outgoing: Outgoing::default(),
            incoming: Incoming::new(config.grant_bytes, message),
            windows: Registry::default(),
            dropped: Dropped::default(),
            deferred: Deferred::default(),
            lines: Lines::default(),
            marks: Marks::default(),
            sync_blocks: SyncPool::default(),
            graveyard: Graveyard::default(),
            agent: AgentState::default(),
            holding: AtomicBool::new(false),
            left: AtomicBool::new(false),
            // Id 0 of rank 0 is the world's.
            next_object: AtomicU64::new(1),
            looks: AtomicUsize::new(0),
        });
        let leaver = Leaver(&process);
        let world = Communicator::world(&process)?;
        core::mem::forget(leaver);
        Ok(Self { process, world })
    }

    /// The communicator of all ranks.
    pub fn world(&self) -> &Communicator {
        &self.world
    }

    #[cfg(test)]
    pub(crate) fn process(&self) -> &Process {
        &self.process
    }

    /// What there is to know of the transport.
    pub fn transport(&self) -> Beneath<'_> {
        Beneath(&self.process.transport)
    }

    /// Counts of what this rank did.
    pub fn counters(&self) -> &Counters {
        &self.process.counters
    }

    /// Serves what peers have sent, without waiting for more; returns how many messages that were.
    ///
    /// Waits of any kind do that, and the progress agent while a rank computes. Call it in a loop
    /// that waits in another way, such as for a value in this rank's own part: without an agent
    /// (in a simulation, or if it is switched off) nobody else serves what is to come there.
    pub fn progress(&self) -> usize {
        self.process.progress_in_passing()
    }

    /// What was chosen, and why, in lines of text.
    pub fn explain(&self) -> String {
        let transport = &self.process.transport;
        let ranks = || self.world.group().members();
        let near = ranks().filter(|peer| transport.shared.is_near(*peer)).count();
        let Config { far_slots, credit_messages, eager_bytes, grant_bytes, .. } =
            self.process.config;
        let (mut device, mut others) = (String::new(), "active messages to the others".to_owned());
        if let Some(remote) = &transport.remote {
            let far = |peer: &WorldRank| !transport.shared.is_near(*peer) && remote.reaches(*peer);
            let reached = ranks().filter(far).count();
            device = format!("device: {}\n", remote.explain());
            others = format!("the device to {reached} others, active messages for the rest");
        }
        format!(
            "transport: {}\n{device}paths: load and store to {near} of {} ranks, {others}\n\
             progress: load, store and devices need nothing of the target; messages are {}\n\
             messages: puts up to {eager_bytes} bytes are sent at once, larger ones as their \
             target grants them ({grant_bytes} bytes on their way to one target, from all \
             origins); {credit_messages} messages unanswered by one target, {far_slots} by all\n",
            transport.messages.explain(),
            transport.job.size,
            self.process.explain_agent(),
        )
    }

    /// To be dropped when the rank is over, where that does not end a process.
    #[doc(hidden)]
    pub fn stay(&self) -> Stay {
        Stay(Arc::downgrade(&self.process))
    }

    /// Leaves the job in order: waits until every rank has come here. **Collective.**
    pub fn finalize(self) -> Result<(), CollectiveError> {
        self.world.barrier()
    }
}

impl Drop for Universe {
    fn drop(&mut self) {
        drop(Leaver(&self.process));
    }
}

/// Has a rank leave that does not do so by itself: whose universe was forgotten.
pub struct Stay(Weak<Process>);

impl Drop for Stay {
    fn drop(&mut self) {
        // Nobody has it any more who could use it in time.
        if let Some(process) = self.0.upgrade() {
            drop(Leaver(&process));
        }
    }
}

struct Leaver<'a>(&'a Process);

impl Drop for Leaver<'_> {
    fn drop(&mut self) {
        // Once is enough: a second time may come when the transport cannot be used any more.
        if self.0.transport.members.is_fork() || self.0.has_left() {
            return;
        }
        // Its last replies may go to the outbox.
        self.0.stop_agent();
        let failed = std::thread::panicking();
        if !failed {
            let own = self.0.transport.job.rank;
            self.0.windows.all().iter().for_each(|part| self.0.close_lines(part, Some(own)));
            // A reply that is still in the outbox is one that a peer waits for. Of a rank that
            // failed they would say that its windows are gone, and not why.
            self.0.send_outbox();
        }
        self.0.left.store(true, SeqCst);
        self.0.windows.all().iter().for_each(|part| part.epoch.set_left());
        // Threads of it that wait need not any more.
        self.0.transport.sleep.ring(self.0.transport.job.rank);
        self.0.transport.members.depart(match failed {
            true => Outcome::Failed,
            false if self.0.holds_locks() => Outcome::Holding,
            false => Outcome::Departed,
        });
        self.0.dropped.let_go();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epoch::{Assert, LockKind};
    use crate::error::WindowError;
    use crate::protocol::lock::{Node, phase};
    use crate::rank::Rank;
    use crate::serve::lock::look;
    use crate::transport::PeerState;
    use crate::window::Window;
    use crate::window::accumulate_tests::{Loop, with_loop, with_near, with_universe};
    use core::mem::forget;

    /// Ids end, and are not given out again: a message finds no other window than it names.
    #[test]
    fn ids_do_not_repeat() {
        with_universe(Config::default(), |universe| {
            let (process, world) = (universe.process(), universe.world());
            process.next_object.store(OBJECTS - 1, Relaxed);
            let last = world.window(1, 8).allocate().unwrap();
            assert_eq!(last.id().to_string(), format!("#0.{}", OBJECTS - 1));
            for _ in 0..2 {
                let error = world.window(1, 8).allocate().err().unwrap();
                assert!(matches!(
                    error,
                    WindowError::Collective(CollectiveError::TooManyObjects { .. })
                ));
                let error = world.dup().err().unwrap();
                assert!(matches!(error, CollectiveError::TooManyObjects { .. }), "{error}");
                let error = world.split(Some(0), 0).err().unwrap();
                assert!(matches!(error, CollectiveError::TooManyObjects { .. }), "{error}");
                assert!(world.split(None, 0).unwrap().is_none());
            }
            last.free().unwrap();
        });
    }

    /// How a rank leaves that has done `act`, with a window.
    fn leaves_after(act: impl FnOnce(&Window, &Loop)) -> Outcome {
        let mut told = Vec::new();
        with_loop(Config::default(), |universe, network| {
            let window = universe.world().window(1, 8).allocate().unwrap();
            act(&window, network);
            drop(universe.stay());
            told = network.departed();
        });
        assert_eq!(told.len(), 1);
        told[0]
    }

    /// Each of these is one thing that others may wait for, and nothing else says so.
    #[test]
    fn who_leaves_with_something_of_a_window_holds_it() {
        assert_eq!(leaves_after(|_, _| ()), Outcome::Departed);
        let all = |window: &Window, _: &Loop| forget(window.lock_all().unwrap());
        assert_eq!(leaves_after(all), Outcome::Holding);
        let unchecked =
            |window: &Window, _: &Loop| forget(window.lock_all_with(Assert::NO_CHECK).unwrap());
        assert_eq!(leaves_after(unchecked), Outcome::Departed);
        let inside = |window: &Window, _: &Loop| {
            window.part.inside_peers.fetch_add(1, SeqCst);
        };
        assert_eq!(leaves_after(inside), Outcome::Holding);
        let waits = |window: &Window, _: &Loop| {
            let word = Node::new(0, 1).unwrap().phase_word();
            window.part.block.get().word(word).store(phase::WAITING, SeqCst);
        };
        assert_eq!(leaves_after(waits), Outcome::Holding);
    }

    /// A lock that may yet be granted is to be given back, unless its home is gone.
    #[test]
    fn who_leaves_with_a_lock_on_its_way_holds_it() {
        for (home, outcome) in
            [(PeerState::Alive, Outcome::Holding), (PeerState::Departed, Outcome::Departed)]
        {
            let gives_up = |window: &Window, network: &Loop| {
                let (process, peer) = (window.process(), WorldRank(1));
                network.set_state(peer, home);
                process.give_up_lock(process.lines.ask(peer), look(window.id()));
            };
            assert_eq!(leaves_after(gives_up), outcome);
        }
    }

    /// Nobody hears of a lock that is given back by what stays in the outbox.
    #[test]
    fn who_leaves_with_an_unlock_unsent_holds_it() {
        for (full, outcome) in [(true, Outcome::Holding), (false, Outcome::Departed)] {
            let gives_back = |window: &Window, network: &Loop| {
                network.set_full(true);
                window.process().tell(WorldRank(1), &look(window.id()));
                network.set_full(full);
            };
            assert_eq!(leaves_after(gives_back), outcome);
        }
    }

    /// A thread that drops a window of a rank that has left lets go of all that were dropped, which
    /// may be before the rank has said what it holds.
    #[test]
    fn what_is_let_go_is_held_still() {
        let test = |universe: &Universe| {
            let words = || universe.world().window(1, 8).allocate().unwrap();
            let (process, held, other) = (universe.process(), words(), words());
            forget(held.lock(Rank(0), LockKind::Exclusive).unwrap());
            drop(held);
            // As `Leaver` does it.
            process.left.store(true, SeqCst);
            drop(other);
            assert!(process.windows.all().is_empty());
            assert!(process.holds_locks());
        };
        with_universe(Config::default(), test);
        with_near(test);
    }
}
