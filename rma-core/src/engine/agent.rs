//! The progress agent: a parked thread of the rank that serves messages while the rank computes.
//!
//! It is started when the rank gets a window that peers reach by messages, or has something to tell
//! for which there is no room, and stopped before the rank leaves. While a thread of the rank is in
//! a wait, that thread serves, and senders do not wake the agent: see [`Agent`] for how no message
//! is left lying in between.
use crate::config::ProgressAgent;
use crate::engine::Engine;
use crate::transport::{Agent, AgentError, Count, Outcome};
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, fence};
use core::time::Duration;
use std::sync::{Mutex, PoisonError};
use std::thread;

/// How often a sleeping agent looks whether an origin that holds grants of this rank is gone, while
/// other origins wait for them: a process that was killed tells no rank.
const GRANTS_RECHECK: Duration = Duration::from_millis(20);

/// Rounds of progress in which the last thread that attends serves what keeps coming, before it
/// leaves that to the agent.
const LAST_ROUNDS: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum AgentStage {
    #[default]
    NotNeeded,
    Runs,
    Stopped,
}

/// This rank's agent.
#[derive(Debug, Default)]
pub(crate) struct AgentState {
    stage: Mutex<AgentStage>,
    /// As `stage` says, for those that only want to know.
    runs: AtomicBool,
    stop: AtomicBool,
    /// It looks after grants by itself: its next sleep has a bound.
    looks: AtomicBool,
}

impl AgentState {
    fn stage(&self) -> std::sync::MutexGuard<'_, AgentStage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread that waits, and serves messages meanwhile, as senders see it.
pub(crate) struct Attending<'a> {
    engine: &'a Engine,
    agent: &'a dyn Agent,
}

impl Drop for Attending<'_> {
    fn drop(&mut self) {
        if !self.agent.leave() {
            return;
        }
        // Its sender saw this thread attend. To serve it costs less than to wake the agent. Of many
        // answers, which come one after the other, some are still under way.
        for _ in 0..LAST_ROUNDS {
            if !self.agent.has_messages() || thread::panicking() {
                break;
            }
            self.engine.progress();
        }
        if self.agent.has_messages() || self.engine.has_leftovers() {
            self.agent.ring();
        }
    }
}

/// Lets the peers know of a panic in the agent, as one in a rank's own thread would.
struct FailsInPanic<'a>(&'a Engine);

impl Drop for FailsInPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.transport.members.depart(Outcome::Failed);
        }
    }
}

impl Engine {
    /// Starts the agent unless it runs; called before peers can send what it is to serve.
    pub(crate) fn need_agent(&self) -> Result<(), AgentError> {
        let Some(agent) = self.agent_of_config() else { return Ok(()) };
        let mut stage = self.agent.stage();
        let (AgentStage::NotNeeded, Some(engine)) = (*stage, self.me.upgrade()) else {
            return Ok(());
        };
        agent.start(Box::new(move || engine.run_agent()))?;
        *stage = AgentStage::Runs;
        // A thread that attends without having seen it lets the agent be woken in vain, nothing
        // else.
        self.agent.runs.store(true, Relaxed);
        Ok(())
    }

    /// Ends the agent, for good; its thread is gone afterwards.
    pub(crate) fn stop_agent(&self) {
        // Its thread is the parent's, which goes on.
        if self.transport.members.is_fork() {
            return;
        }
        // The agent does not take this mutex.
        let mut stage = self.agent.stage();
        if let (AgentStage::Runs, Some(agent)) = (*stage, self.agent_of_config()) {
            self.agent.runs.store(false, Relaxed);
            // Ordered with the look in `run_agent` by the fences of `join` and `arm`.
            self.agent.stop.store(true, Relaxed);
            agent.join();
        }
        *stage = AgentStage::Stopped;
    }

    fn agent_of_config(&self) -> Option<&dyn Agent> {
        match self.config.progress_agent {
            ProgressAgent::Auto => self.transport.agent.as_deref(),
            ProgressAgent::Never => None,
        }
    }

    /// The agent, if it runs.
    fn running_agent(&self) -> Option<&dyn Agent> {
        if self.agent.runs.load(Relaxed) { self.transport.agent.as_deref() } else { None }
    }

    /// Says that the calling thread serves, until the value is dropped.
    pub(super) fn attend(&self) -> Option<Attending<'_>> {
        let agent = self.running_agent()?;
        agent.attend();
        Some(Attending { engine: self, agent })
    }

    /// Progress of a call that does not wait.
    pub(crate) fn progress_in_passing(&self) -> usize {
        let count = self.progress();
        if self.has_leftovers() {
            self.ring_agent();
        }
        count
    }

    /// Whether something is left to be done that perhaps no rank rings for any more.
    fn has_leftovers(&self) -> bool {
        self.service.has_put_off() || !self.outgoing.is_empty() || self.has_unwatched_grants()
    }

    /// Whether origins wait for grants of others, and the agent sleeps without a bound.
    fn has_unwatched_grants(&self) -> bool {
        if !self.service.is_cts_due() {
            return false;
        }
        // Pairs with the fence of `arm` in `run_agent`: this thread sees that the agent does not
        // look yet, or the agent sees that an origin waits.
        fence(SeqCst);
        !self.agent.looks.load(Relaxed)
    }

    /// Has the outbox sent whether or not this rank comes by again: by an agent, which may not have
    /// been needed until now.
    #[cold]
    pub(crate) fn see_off(&self) {
        if self.has_leftovers() {
            // Without one, calls of this rank send it, the last of which leaves.
            _ = self.need_agent();
            self.ring_agent();
        }
    }

    /// The agent is to make progress: perhaps no thread comes by again.
    #[cold]
    pub(crate) fn ring_agent(&self) {
        if let Some(agent) = self.running_agent() {
            agent.ring();
        }
    }

    /// What the agent's thread does. S-E7 S-M5
    fn run_agent(&self) {
        let Some(agent) = self.transport.agent.as_deref() else { return };
        let _fails = FailsInPanic(self);
        while !self.agent.stop.load(Relaxed) {
            if self.progress_of_agent() > 0 {
                continue;
            }
            self.agent.looks.store(false, Relaxed);
            let ticket = agent.arm();
            if self.agent.stop.load(Relaxed) || self.progress_of_agent() > 0 {
                agent.disarm(ticket);
                continue;
            }
            let looks = self.config.naps && self.service.is_cts_due();
            self.agent.looks.store(looks, Relaxed);
            let grants = looks.then_some(GRANTS_RECHECK);
            agent.park(ticket, grants.into_iter().chain(self.recheck()).min());
        }
    }

    /// After what time a sleeping thread is to look by itself at what waits here.
    pub(super) fn recheck(&self) -> Option<Duration> {
        self.service.recheck(self.config.naps)
    }

    fn progress_of_agent(&self) -> usize {
        let count = self.progress();
        if count > 0 {
            self.counters.add(Count::ServedByAgent, count);
        }
        count
    }

    /// Which threads serve messages of peers, and why, in words.
    pub(crate) fn explain_agent(&self) -> &'static str {
        if self.transport.agent.is_none() {
            return "served inside the target's own calls (the transport has no agent)";
        }
        match (self.config.progress_agent, *self.agent.stage()) {
            (ProgressAgent::Never, _) => {
                "served inside the target's own calls (progress_agent is Never)"
            }
            (_, AgentStage::NotNeeded) => {
                "served by the target's waiting threads, else by its agent, a parked thread that \
                 starts when a window needs it; none does yet"
            }
            (_, AgentStage::Runs) => {
                "served by the target's waiting threads, else by its agent, a parked thread; it \
                 runs here"
            }
            (_, AgentStage::Stopped) => "no longer served: the rank has left",
        }
    }
}
