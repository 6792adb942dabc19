//! Why a run failed, and how to see it again.

use core::fmt;
use core::time::Duration;

use rma_core::transport::WorldRank;

use crate::{ConfigError, Trace};

/// A run that did not end well. Its display names the seed and how to replay it, and so does its
/// debug form, which is what `unwrap` shows.
#[derive(Clone, PartialEq, Eq)]
pub struct SimFailure {
    /// Seed of the run.
    pub seed: u64,
    /// Ranks of the run.
    pub ranks: u32,
    /// What went wrong first.
    pub cause: Cause,
    /// Every panic of a rank, in order; those after the first cause are often its consequences.
    pub panics: Vec<RankPanic>,
    /// What the run did until the failure was asked for.
    pub trace: Trace,
}

/// What went wrong first in a run.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// A rank panicked.
    Panic(RankPanic),
    /// All ranks that had not ended were parked without a timeout, or polled in vain: they looked
    /// at their memory, or for messages, 20 000 steps in a row and did nothing else. No message or
    /// transfer was on its way.
    Deadlock {
        /// Virtual time when it was found.
        at: Duration,
        /// The ranks that were parked or polled.
        waiting: Vec<Waiter>,
    },
    /// The ranks took more steps than allowed.
    Livelock {
        /// Steps taken.
        steps: u64,
        /// The ranks that were parked or polled in vain at that moment; all others were running.
        waiting: Vec<Waiter>,
    },
    /// No network can be made of the configuration.
    Config(ConfigError),
    /// The operating system did not start all threads.
    Threads {
        /// How many started.
        started: u32,
        /// Its error.
        reason: String,
    },
}

/// A rank that panicked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankPanic {
    /// Which.
    pub rank: WorldRank,
    /// What it said.
    pub message: String,
}

/// A rank that was parked or polled, and what is known about its wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiter {
    /// Which.
    pub rank: WorldRank,
    /// Virtual time when it parked, or began to poll.
    pub since: Duration,
    /// It was not parked, but looked again and again for what did not come.
    pub polls: bool,
    /// Messages that arrived and that it has not taken: it waits without looking for them.
    pub unread: usize,
    /// The receiver whose full queue refused its last message.
    pub refused_by: Option<WorldRank>,
    /// It waits in a destructor while a panic unwinds it.
    pub unwinding: bool,
}

impl fmt::Display for RankPanic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} panicked: {}", self.rank, self.message)
    }
}

impl fmt::Display for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let does = if self.polls { "polls in vain" } else { "parked" };
        write!(f, "rank {} {does} since {} us", self.rank, self.since.as_micros())?;
        if self.unread > 0 {
            write!(f, ", {} messages unread", self.unread)?;
        }
        if let Some(receiver) = self.refused_by {
            write!(f, ", refused by the full queue of rank {receiver}")?;
        }
        if self.unwinding {
            write!(f, ", unwinding from a panic")?;
        }
        Ok(())
    }
}

fn list(f: &mut fmt::Formatter<'_>, waiting: &[Waiter]) -> fmt::Result {
    waiting.iter().try_for_each(|waiter| write!(f, "\n  {waiter}"))
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Panic(panic) => panic.fmt(f),
            Self::Deadlock { at, waiting } => {
                write!(f, "deadlock at {} us, no rank can go on:", at.as_micros())?;
                list(f, waiting)
            }
            Self::Livelock { steps, waiting } => {
                write!(f, "livelock, no end after {steps} steps (raise step_max if it works)")?;
                list(f, waiting)
            }
            Self::Config(error) => error.fmt(f),
            Self::Threads { started, reason } => write!(
                f,
                "only {started} threads started ({reason}); simulate fewer ranks or raise the \
                 limit of threads"
            ),
        }
    }
}

impl fmt::Display for SimFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "simulation of {} ranks with seed {}: {}", self.ranks, self.seed, self.cause)?;
        let shown = usize::from(matches!(self.cause, Cause::Panic(_)));
        for panic in self.panics.iter().skip(shown) {
            writeln!(f, "  then {panic}")?;
        }
        let Trace { hash, steps, ticks } = self.trace;
        writeln!(f, "  trace {hash:016x}, {steps} steps, {ticks} us")?;
        write!(f, "  replay with seed {}", self.seed)
    }
}

impl fmt::Debug for SimFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl core::error::Error for SimFailure {}
