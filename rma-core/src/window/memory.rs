//! Memory of a part, and what becomes of it. S-A5
use crate::transport::{Mapped, Mapping, Transport};
use crate::universe::Process;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// Memory of a part, mapped as long as this value lives.
pub(super) enum Memory<T: Transport> {
    Own(Own<T>),
    Imported(T::Import),
}

/// Memory that this rank allocated.
///
/// Unless the window was freed, peers may still write there: then it goes to the graveyard when
/// dropped, where it stays allocated until the universe ends.
pub(super) struct Own<T: Transport> {
    process: Arc<Process<T>>,
    // `Some` until drop.
    region: Option<T::Region>,
    freed: AtomicBool,
}

/// Memory of windows that were dropped on this rank and not freed.
pub(crate) struct Graveyard<T: Transport>(Mutex<Vec<T::Region>>);

impl<T: Transport> Default for Graveyard<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Transport> Memory<T> {
    pub(super) fn own(process: &Arc<Process<T>>, region: T::Region) -> Self {
        let process = process.clone();
        Self::Own(Own { process, region: Some(region), freed: AtomicBool::new(false) })
    }

    pub(super) fn mapping(&self) -> Mapping {
        match self {
            Self::Own(own) => own.region.as_ref().expect("taken by drop only").mapping(),
            Self::Imported(import) => import.mapping(),
        }
    }

    /// No rank can reach the memory any more: it may be given back when dropped.
    pub(super) fn set_freed(&self) {
        if let Self::Own(own) = self {
            own.freed.store(true, Relaxed);
        }
    }
}

impl<T: Transport> Drop for Own<T> {
    fn drop(&mut self) {
        if !*self.freed.get_mut() {
            let graveyard = &self.process.graveyard.0;
            graveyard.lock().unwrap_or_else(PoisonError::into_inner).extend(self.region.take());
        }
    }
}
