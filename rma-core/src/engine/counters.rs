//! What one rank did so far.
use crate::transport::{Bulletin, Count, Messages};
use core::fmt;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

/// Counts of what one rank did since its start; for tests, benchmarks, `--explain` and
/// `rma-run top`.
#[derive(Debug)]
pub struct Counters {
    /// Unless the launcher reads them.
    own: [AtomicU64; Count::ALL],
    bulletin: Option<Bulletin>,
    refusing: Refusing,
}

/// Which counts what it refuses.
struct Refusing(Arc<dyn Messages>);

impl fmt::Debug for Refusing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} refused", self.0.refused())
    }
}

impl Counters {
    pub(super) fn new(bulletin: Option<Bulletin>, transport: Arc<dyn Messages>) -> Self {
        Self { own: <[AtomicU64; Count::ALL]>::default(), bulletin, refusing: Refusing(transport) }
    }

    fn of(&self, count: Count) -> &AtomicU64 {
        match &self.bulletin {
            Some(bulletin) => bulletin.count(count),
            None => &self.own[count as usize],
        }
    }

    fn get(&self, count: Count) -> u64 {
        self.of(count).load(Relaxed)
    }

    pub(crate) fn add(&self, count: Count, by: usize) {
        self.of(count).fetch_add(by as u64, Relaxed);
    }

    /// Operations on windows that the calling thread did not perform by load and store alone;
    /// those, too, of windows with the hint `rma_count`.
    pub fn operations(&self) -> u64 {
        self.get(Count::Operations)
    }

    /// Messages sent.
    pub fn messages_sent(&self) -> u64 {
        self.get(Count::Sent)
    }

    /// Messages received.
    pub fn messages_received(&self) -> u64 {
        self.get(Count::Received)
    }

    /// Transfers that a device was given.
    pub fn transfers(&self) -> u64 {
        self.get(Count::Transfers)
    }

    /// Messages received that did not parse, or that no operation waits for; not acted upon.
    pub fn messages_dropped(&self) -> u64 {
        self.get(Count::Dropped)
    }

    /// Messages that came by a network and were not taken: made up by others than ranks of the job,
    /// altered on their way, or sent a second time.
    pub fn messages_refused(&self) -> u64 {
        self.refusing.0.refused()
    }

    /// Times a thread of this rank went to sleep in a wait.
    pub fn parked(&self) -> u64 {
        self.get(Count::Parked)
    }

    /// Messages that the progress agent served, because no other thread of this rank did.
    pub fn served_by_agent(&self) -> u64 {
        self.get(Count::ServedByAgent)
    }
}
