//! Operations of this rank on a window, by the way that they went.
use core::sync::atomic::AtomicU64;

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) load_store: AtomicU64,
    /// Not operations: pieces of them, that load and store does.
    pub(crate) at_once: AtomicU64,
    pub(crate) cma: AtomicU64,
    pub(crate) device: AtomicU64,
    pub(crate) messages: AtomicU64,
}
