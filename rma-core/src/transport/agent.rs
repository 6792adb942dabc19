//! What a transport gives to the progress agent of its rank: a thread, and a bell of its own.
use super::Ticket;
use core::time::Duration;

/// What the agent's thread runs.
pub type AgentBody = Box<dyn FnOnce() + Send>;

/// Why the thread of an agent could not be started.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the operating system refused another thread (os error {errno})")]
pub struct AgentError {
    /// Its error number.
    pub errno: i32,
}

crate::debug_as_display!(AgentError);

/// The progress agent of one rank: a parked thread that serves messages while no other thread of
/// the rank does. From [`Transport::agent`](super::Transport).
///
/// Threads of the rank that wait serve messages anyway; they *attend*. An arriving message wakes
/// the agent only if no thread attends, because a futex wake and a switch of threads cost more than
/// serving it. So that no message is left lying:
///
/// - whatever makes work for a rank from afar (a message, room in a queue that refused one, news of
///   a failure) does: store → sequentially consistent fence → if no thread attends and the agent
///   sleeps, wake it, once;
/// - [`leave`](Self::leave) does: no thread attends → fence; the core looks for work after it;
/// - [`arm`](Self::arm) does: the agent sleeps → fence; the core looks for work after it.
///
/// Any two of them are ordered by their fences: either the sender sees that it has to wake the
/// agent, or the thread that looks sees the work. [`Sleep::ring`](super::Sleep::ring) does not wake
/// the agent: it tells of what waiting threads wait for, and the agent waits for messages.
pub trait Agent: Send + Sync {
    /// Starts a thread that runs `body` and ends with it. Called again only after
    /// [`join`](Self::join).
    fn start(&self, body: AgentBody) -> Result<(), AgentError>;
    /// Wakes the agent, whether threads attend or not, and waits until its thread has ended, if one
    /// was started.
    fn join(&self);

    /// The calling thread waits, and serves messages meanwhile. Must be followed by `leave`.
    fn attend(&self);
    /// Takes back an `attend`; true if no thread attends any more.
    fn leave(&self) -> bool;
    /// Whether a message has arrived that no `poll` has taken. May say yes to one that is taken
    /// already.
    fn has_messages(&self) -> bool;
    /// Wakes the agent if it sleeps and no thread attends: for work that this rank makes itself.
    fn ring(&self);

    /// As [`Sleep::arm`](super::Sleep::arm), for the agent's thread.
    fn arm(&self) -> Ticket;
    /// As [`Sleep::disarm`](super::Sleep::disarm), for the agent's thread.
    fn disarm(&self, ticket: Ticket);
    /// As [`Sleep::park`](super::Sleep::park), for the agent's thread, until one of the
    /// wake-ups above.
    fn park(&self, ticket: Ticket, timeout: Option<Duration>);
}
