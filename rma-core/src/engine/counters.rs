//! What one rank did so far.
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// Counts of what one rank did since its start; for tests, benchmarks and `--explain`.
#[derive(Debug, Default)]
pub struct Counters {
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) parked: AtomicU64,
    pub(crate) served_by_agent: AtomicU64,
    pub(crate) transfers: AtomicU64,
}

impl Counters {
    /// Messages sent.
    pub fn messages_sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }

    /// Messages received.
    pub fn messages_received(&self) -> u64 {
        self.received.load(Relaxed)
    }

    /// Transfers that a device was given.
    pub fn transfers(&self) -> u64 {
        self.transfers.load(Relaxed)
    }

    /// Messages received that did not parse, or that no operation waits for; not acted upon.
    pub fn messages_dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    /// Times a thread of this rank went to sleep in a wait.
    pub fn parked(&self) -> u64 {
        self.parked.load(Relaxed)
    }

    /// Messages that the progress agent served, because no other thread of this rank did.
    pub fn served_by_agent(&self) -> u64 {
        self.served_by_agent.load(Relaxed)
    }
}
