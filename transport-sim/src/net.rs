//! The network as its threads see it: seats, turns and the baton.

use core::fmt;
use core::marker::PhantomData;
use core::time::Duration;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, ThreadId};

use rma_core::transport::{AgentBody, AgentError, Outcome, Touch, WorldRank};

use crate::failure::{Cause, SimFailure};
use crate::region::{Budget, Regions};
use crate::run::message;
use crate::schedule::{Schedule, Term};
use crate::{ConfigError, NetConfig, Sim, Trace};

/// Payload that unwinds a rank which did not end after its run was lost, or the agent of one that
/// ended.
pub(crate) struct Evicted;

/// A simulated network. Clones are the same network.
///
/// [`run`](crate::run) is the short way; a `Net` serves tests that start their own threads: each
/// of them takes its [`Sim`], calls [`Sim::enter`] once and keeps the [`Seat`] while it runs.
#[derive(Debug, Clone)]
pub struct Net {
    shared: Arc<Shared>,
}

impl Net {
    /// Makes a network whose ranks have not started.
    ///
    /// # Errors
    ///
    /// When a limit of `config` is 0 that must not be.
    pub fn new(config: NetConfig) -> Result<Self, ConfigError> {
        let schedule = Schedule::new(config)?;
        // The ranks', then their agents'.
        let seats = vec![Place::Empty; 2 * config.ranks as usize];
        let turns = seats.iter().map(|_| Turn::default()).collect();
        let table = Table { schedule, seats, entered: 0, cancelled: false };
        let budget = Arc::new(Budget::new(config.memory_max));
        let (table, agents, regions) = (Mutex::new(table), Mutex::default(), Arc::default());
        Ok(Self { shared: Arc::new(Shared { config, table, turns, budget, regions, agents }) })
    }

    /// The transport of rank `rank`.
    ///
    /// # Panics
    ///
    /// When there is no such rank.
    #[must_use]
    pub fn rank(&self, rank: WorldRank) -> Sim {
        let ranks = self.shared.config.ranks;
        assert!(rank.0 < ranks, "rank {rank} was asked for in a network of {ranks} ranks");
        Sim::new(Arc::clone(&self.shared), rank.0)
    }

    pub(crate) fn rank_count(&self) -> u32 {
        self.shared.config.ranks
    }

    /// Digest of everything that happened so far. See [`Trace::hash`].
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.trace().hash
    }

    /// What happened so far.
    #[must_use]
    pub fn trace(&self) -> Trace {
        self.shared.lock().schedule.trace()
    }

    /// What went wrong so far, if anything did.
    #[must_use]
    pub fn failure(&self) -> Option<SimFailure> {
        self.shared.lock().schedule.failure()
    }

    /// Waits for the agents of ranks that ended without having dismissed them.
    pub(crate) fn join_agents(&self) {
        let agents = core::mem::take(&mut *ignore_poison(self.shared.agents.lock()));
        // `play_agent` catches what they throw.
        agents.into_values().for_each(|agent| _ = agent.join());
    }

    /// Sends home the ranks that entered: the others will not come.
    pub(crate) fn cancel(&self, cause: Cause) {
        let mut table = self.shared.lock();
        table.cancelled = true;
        table.schedule.give_up(cause);
        drop(table);
        self.shared.turns.iter().for_each(Turn::give);
    }
}

/// What a player's thread waits on until the baton is handed to it.
#[derive(Debug, Default)]
struct Turn {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Turn {
    fn give(&self) {
        *ignore_poison(self.open.lock()) = true;
        self.opened.notify_one();
    }

    fn wait(&self) {
        let open = ignore_poison(self.open.lock());
        let mut open = ignore_poison(self.opened.wait_while(open, |open| !*open));
        *open = false;
    }
}

/// A misused call panics while it holds a lock, before it changed anything: poison says nothing.
fn ignore_poison<T>(result: Result<T, PoisonError<T>>) -> T {
    result.unwrap_or_else(PoisonError::into_inner)
}

/// Whether a thread plays a rank or its agent, and which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Empty,
    Taken(ThreadId),
    Left,
}

#[derive(Debug)]
struct Table {
    schedule: Schedule,
    seats: Vec<Place>,
    entered: u32,
    cancelled: bool,
}

/// The network, shared by its ranks.
#[derive(Debug)]
pub(crate) struct Shared {
    config: NetConfig,
    table: Mutex<Table>,
    turns: Vec<Turn>,
    budget: Arc<Budget>,
    regions: Arc<Regions>,
    agents: Mutex<BTreeMap<u32, JoinHandle<()>>>,
}

impl Shared {
    pub(crate) const fn config(&self) -> &NetConfig {
        &self.config
    }

    pub(crate) const fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    pub(crate) const fn regions(&self) -> &Arc<Regions> {
        &self.regions
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        ignore_poison(self.table.lock())
    }

    /// Answers a question of `me`, which also may be asked before it entered and after it left.
    pub(crate) fn read<A>(&self, me: u32, answer: impl Fn(&Schedule) -> A) -> A {
        let mut table = self.lock();
        if table.player(me).is_some() && table.schedule.query() {
            drop(table);
            self.yield_now(me);
            table = self.lock();
        }
        answer(&table.schedule)
    }

    /// Does something in the name of `me`, without a yield.
    pub(crate) fn act<A>(&self, me: u32, act: impl FnOnce(&mut Schedule) -> A) -> A {
        let mut table = self.lock();
        table.seated(me);
        act(&mut table.schedule)
    }

    /// As [`act`](Self::act), but does nothing for a rank that is not in its seat.
    pub(crate) fn act_if_seated(&self, me: u32, act: impl FnOnce(&mut Schedule)) {
        let mut table = self.lock();
        if table.player(me).is_some() {
            act(&mut table.schedule);
        }
    }

    /// Does something in the name of `me`, without a yield, from wherever: before it entered, after
    /// it left, or on another thread. `act` is told whether the holder of the baton calls: what
    /// others do has no place in the trace.
    pub(crate) fn settle<A>(&self, me: u32, act: impl FnOnce(&mut Schedule, bool) -> A) -> A {
        let mut table = self.lock();
        let holds = table.holder(me).is_some();
        act(&mut table.schedule, holds)
    }

    /// A yield point: `me` may have to wait here while others run.
    pub(crate) fn yield_now(&self, me: u32) {
        self.yield_after(me, |_| {});
    }

    /// The time. A rank that asks for it may wait for it, and not in vain.
    pub(crate) fn now(&self, me: u32) -> Duration {
        self.act_if_seated(me, Schedule::interrupt_looks);
        self.read(me, Schedule::now)
    }

    /// `me` touches memory by itself, which it also may do before it entered and after it
    /// left. Every look of a few is a yield point; of many in a row, one of several.
    pub(crate) fn touch(&self, me: u32, touch: Touch) {
        let mut table = self.lock();
        if table.player(me).is_none() {
            return;
        }
        let yields = match touch {
            Touch::Look => table.schedule.touch(),
            Touch::Change => {
                table.schedule.change();
                false
            }
        };
        drop(table);
        if yields {
            self.yield_after(me, Schedule::look);
        }
    }

    /// As [`yield_then`](Self::yield_then), at which `me` looks whether something has happened.
    pub(crate) fn look_then<A>(&self, me: u32, act: impl FnOnce(&mut Schedule) -> A) -> A {
        self.yield_after(me, Schedule::look);
        act(&mut self.lock().schedule)
    }

    /// A yield point, and then `act` with the baton in hand.
    pub(crate) fn yield_then<A>(&self, me: u32, act: impl FnOnce(&mut Schedule) -> A) -> A {
        self.yield_now(me);
        act(&mut self.lock().schedule)
    }

    /// A yield point at which `act` happens before the baton is handed on.
    pub(crate) fn yield_after(&self, me: u32, act: impl FnOnce(&mut Schedule)) {
        let unwinding = thread::panicking();
        let mut table = self.lock();
        let player = table.seated(me);
        let schedule = &mut table.schedule;
        let (term, next) = match schedule.term(player) {
            // A second panic would abort the process: a rank in a destructor gets more time.
            term if term == Term::Free || (term == Term::Over && unwinding) => {
                act(schedule);
                (Term::Free, schedule.yield_from(player))
            }
            term => (term, player),
        };
        drop(table);
        assert!(
            term == Term::Free || !unwinding,
            "rank {me} of a lost run (seed {}) waits in a destructor without end; it has to look \
             at failed()",
            self.config.seed
        );
        if term != Term::Free {
            resume_unwind(Box::new(Evicted));
        }
        if next != player {
            self.turns[next as usize].give();
            self.turns[player as usize].wait();
        }
    }

    /// Seats the calling thread, and waits for all others and for the baton. False when the run
    /// was cancelled.
    pub(crate) fn enter(&self, me: u32) -> bool {
        let mut table = self.lock();
        let seat = &mut table.seats[me as usize];
        assert!(*seat == Place::Empty, "rank {me} entered the simulation a second time");
        *seat = Place::Taken(thread::current().id());
        table.entered += 1;
        let first = if table.entered == self.config.ranks { table.schedule.pick() } else { None };
        drop(table);
        if let Some(first) = first {
            self.turns[first as usize].give();
        }
        self.turns[me as usize].wait();
        !self.lock().cancelled
    }

    fn leave(&self, me: u32, outcome: Outcome, panic: Option<String>) {
        let mut table = self.lock();
        table.seats[me as usize] = Place::Left;
        table.schedule.leave(me, outcome, panic);
        // After a cancelled start no rank waits for the baton.
        let next = if table.cancelled { None } else { table.schedule.pick() };
        drop(table);
        if let Some(next) = next {
            self.turns[next as usize].give();
        }
    }
}

/// Agents: players of their own, that take turns with the ranks.
impl Shared {
    /// Starts the agent of `me`, which runs `body` when it is chosen.
    pub(crate) fn start_agent(
        self: &Arc<Self>,
        me: u32,
        body: AgentBody,
    ) -> Result<(), AgentError> {
        self.act(me, |_| {});
        let shared = Arc::clone(self);
        let builder = thread::Builder::new().name(format!("rma-agent-{me}"));
        let thread = builder.spawn(move || shared.play_agent(me, body));
        let thread =
            thread.map_err(|error| AgentError { errno: error.raw_os_error().unwrap_or(0) })?;
        let mut table = self.lock();
        let agent = table.schedule.agent_of(me);
        table.seats[agent as usize] = Place::Taken(thread.thread().id());
        table.schedule.start_agent(me);
        drop(table);
        ignore_poison(self.agents.lock()).insert(me, thread);
        Ok(())
    }

    fn play_agent(&self, of: u32, body: AgentBody) {
        let agent = self.lock().schedule.agent_of(of);
        self.turns[agent as usize].wait();
        let panic = catch_unwind(AssertUnwindSafe(body)).err();
        let panic = panic.and_then(|payload| message(payload.as_ref()));
        let mut table = self.lock();
        table.seats[agent as usize] = Place::Left;
        table.schedule.end_agent(of, panic);
        let next = table.schedule.pick();
        drop(table);
        if let Some(next) = next {
            self.turns[next as usize].give();
        }
    }

    /// Waits until the agent of `me` has ended. A thread that is not in the seat of `me` does not
    /// wait: an agent that is left alone ends by itself.
    pub(crate) fn join_agent(&self, me: u32) {
        self.act_if_seated(me, |schedule| schedule.dismiss_agent(me));
        loop {
            let table = self.lock();
            let agent = table.schedule.agent_of(me);
            if table.player(me).is_none() {
                return;
            }
            if !matches!(table.seats[agent as usize], Place::Taken(_)) {
                break;
            }
            let ticket = table.schedule.arm();
            drop(table);
            let unwinding = thread::panicking();
            self.yield_after(me, |schedule| schedule.park(ticket, None, unwinding));
        }
        if let Some(thread) = ignore_poison(self.agents.lock()).remove(&me) {
            // `play_agent` catches what it throws.
            _ = thread.join();
        }
    }
}

impl Table {
    /// Which player of rank `me` the calling thread is; `None` if the rank is in no seat.
    fn player(&self, me: u32) -> Option<u32> {
        let player = self.holder(me);
        assert!(
            player.is_some() || !matches!(self.seats[me as usize], Place::Taken(_)),
            "the simulated transport of rank {me} is called from another thread than the rank's \
             own; a simulated rank has one thread, and its agent"
        );
        player
    }

    /// As [`player`](Self::player), for threads that are no player, too.
    fn holder(&self, me: u32) -> Option<u32> {
        let (this, agent) = (Place::Taken(thread::current().id()), self.schedule.agent_of(me));
        [me, agent].into_iter().find(|&player| self.seats[player as usize] == this)
    }

    /// As [`player`](Self::player), of a rank that must be in its seat.
    fn seated(&self, me: u32) -> u32 {
        self.player(me).unwrap_or_else(|| match self.seats[me as usize] {
            Place::Empty => panic!("rank {me} uses its transport before `Sim::enter`"),
            _ => panic!(
                "the transport of rank {me} is used after the rank's code ended; drop what \
                 holds it inside that code"
            ),
        })
    }
}

/// A rank's part in the run: while it lives, its thread plays the rank. Dropping it ends the
/// rank (as failed while a panic unwinds, otherwise in order) and hands on the baton for good.
#[must_use = "the rank leaves the run when its seat is dropped"]
pub struct Seat {
    shared: Arc<Shared>,
    rank: u32,
    /// A panic that was caught before the seat was dropped, and what it said.
    caught: Option<Option<String>>,
    /// Not `Send`: the thread that entered is the rank.
    thread_bound: PhantomData<*const ()>,
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat").field("rank", &self.rank).finish_non_exhaustive()
    }
}

impl Seat {
    pub(crate) const fn new(shared: Arc<Shared>, rank: u32) -> Self {
        Self { shared, rank, caught: None, thread_bound: PhantomData }
    }

    /// Ends the rank after a panic that was caught, and that said `message`, if anything.
    pub(crate) fn fail(mut self, message: Option<String>) {
        self.caught = Some(message);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let (outcome, panic) = match self.caught.take() {
            Some(message) => (Outcome::Failed, message),
            None if thread::panicking() => {
                let message = "its thread unwound; see that thread's own output".to_owned();
                (Outcome::Failed, Some(message))
            }
            None => (Outcome::Departed, None),
        };
        self.shared.leave(self.rank, outcome, panic);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancelled_start_sends_home_the_ranks_that_came() {
        let net = Net::new(NetConfig::new(3, 0)).unwrap();
        thread::scope(|scope| {
            let early = net.rank(WorldRank(0));
            let early = scope.spawn(move || early.try_enter().is_some());
            net.cancel(Cause::Threads { started: 1, reason: "no more".to_owned() });
            assert!(!early.join().unwrap());
        });
        assert!(net.rank(WorldRank(1)).try_enter().is_none());
        let text = net.failure().unwrap().to_string();
        assert!(text.contains("only 1 threads started (no more)"), "{text}");
    }
}
