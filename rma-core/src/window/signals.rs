//! Signals of post and complete that come by messages.
use crate::memory::control_block::SIGNAL_RANKS;
use crate::protocol::pscw::Signals;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Signals that come by messages; `None` where all come as bits.
#[derive(Debug)]
pub(crate) struct ByMessage(Option<Mutex<Signals>>);

impl ByMessage {
    /// For a window of so many ranks, whose words all reach or not; every rank chooses the same.
    pub(crate) fn new(together: bool, ranks: u32) -> Self {
        Self(Self::needed(together, ranks).then(Mutex::default))
    }

    /// Whether such a window gets messages.
    pub(crate) fn needed(together: bool, ranks: u32) -> bool {
        !together || ranks > SIGNAL_RANKS
    }

    /// Whether messages may come.
    pub(crate) fn is_used(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn signals(&self) -> Option<MutexGuard<'_, Signals>> {
        Some(self.0.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
