//! The progress agent of a rank: a thread of its process, and its half of the doorbell.
use std::sync::PoisonError;
use std::thread;
use std::time::Duration;

use rma_core::transport::{Agent, AgentBody, AgentError, Ticket};

use crate::shm::Shm;

impl Agent for Shm {
    fn start(&self, body: AgentBody) -> Result<(), AgentError> {
        let builder = thread::Builder::new().name(format!("rma-agent-{}", self.rank));
        let thread = builder.spawn(body);
        let thread =
            thread.map_err(|error| AgentError { errno: error.raw_os_error().unwrap_or(0) })?;
        *self.agent.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(())
    }

    fn join(&self) {
        let thread = self.agent.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            self.bell().wake_agent();
            // A panic of the agent has been printed, and made this rank fail.
            _ = thread.join();
        }
    }

    fn attend(&self) {
        self.bell().attend();
    }

    fn leave(&self) -> bool {
        self.bell().leave()
    }

    fn has_messages(&self) -> bool {
        self.inbox.has_messages(&self.own.ring)
    }

    fn ring(&self) {
        self.bell().ring_for_work();
    }

    fn arm(&self) -> Ticket {
        self.bell().arm_agent();
        Ticket(0)
    }

    fn disarm(&self, _ticket: Ticket) {
        self.bell().disarm_agent();
    }

    /// Without naps of its own: the core knows when it matters that a rank was killed.
    fn park(&self, _ticket: Ticket, timeout: Option<Duration>) {
        self.bell().park_agent(timeout);
    }
}
