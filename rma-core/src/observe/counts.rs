//! How many operations went which way.
use crate::window::{Counts, Window};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// Operations of this rank on one window, by the path that they took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct OperationCounts {
    /// By load and store; `None` unless the hint `rma_count` asks for it, because counting would
    /// cost more than they do.
    pub load_store: Option<u64>,
    /// Of those by load and store, pieces of arrays of 32 and 64-bit integers, of up to 4 KiB, that
    /// were combined by one atomic operation of the machine (a hardware transaction, where the CPU
    /// has them), and not by one for each 16 bytes or less; counted as `load_store` is.
    pub combined_at_once: Option<u64>,
    /// By copies between processes.
    pub cma: u64,
    /// By transfers of a device, whatever it takes.
    pub device: u64,
    /// By messages, one for each operation, whatever it takes.
    pub messages: u64,
}

impl Window {
    /// How many operations of this rank went which way so far; those that a `try_` form refused are
    /// among them.
    pub fn operation_counts(&self) -> OperationCounts {
        let count = |count: &AtomicU64| count.load(Relaxed);
        let Counts { load_store, at_once, cma, device, messages } = &self.counts;
        let counted = self.counts_all || self.part.regions.is_some();
        OperationCounts {
            load_store: counted.then(|| count(load_store)),
            combined_at_once: counted.then(|| count(at_once)),
            cma: count(cma),
            device: count(device),
            messages: count(messages),
        }
    }
}
