//! What a simulated network looks like.

/// Shape of a simulated network. Two equal values give two equal runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetConfig {
    /// Number of ranks, each a thread; at least 1.
    pub ranks: u32,
    /// What decides order and delay.
    pub seed: u64,
    /// Longest time a message travels, in ticks of one virtual microsecond.
    pub delay_max: u64,
    /// Messages sent to one receiver and not yet polled by it, before `send` says `Again`; at
    /// least 1.
    pub queue_max: usize,
    /// Largest message, in bytes.
    pub message_max: usize,
    /// Yields of all ranks together before the run counts as a livelock; at least 1.
    pub step_max: u64,
    /// Window memory that all ranks together may hold, in bytes.
    pub memory_max: u64,
}

impl NetConfig {
    /// A network of `ranks` ranks driven by `seed`, with usual limits.
    #[must_use]
    pub const fn new(ranks: u32, seed: u64) -> Self {
        Self {
            ranks,
            seed,
            delay_max: 200,
            queue_max: 64,
            message_max: 16 * 1024,
            step_max: 2_000_000,
            memory_max: 1 << 30,
        }
    }

    /// Refuses what no network can be made of.
    pub(crate) const fn check(&self) -> Result<(), ConfigError> {
        if self.ranks == 0 {
            return Err(ConfigError::NoRanks);
        }
        if self.queue_max == 0 {
            return Err(ConfigError::NoQueue);
        }
        if self.step_max == 0 {
            return Err(ConfigError::NoSteps);
        }
        Ok(())
    }
}

/// Why no network can be made of a [`NetConfig`].
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// `ranks` is 0.
    #[error("a network of 0 ranks was asked for; ask for at least 1")]
    NoRanks,
    /// `queue_max` is 0.
    #[error("queue_max is 0, so no message could ever be sent; allow at least 1")]
    NoQueue,
    /// `step_max` is 0.
    #[error("step_max is 0, so no rank could ever run; allow at least 1")]
    NoSteps,
}

rma_core::debug_as_display!(ConfigError);
