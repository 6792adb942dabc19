//! The windows of a rank, as messages name them, and what is left of those that are gone.
use super::Part;
use crate::engine::Engine;
use crate::object::WindowId;
use crate::transport::Backing;
use rustc_hash::FxHashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Windows of one rank.
#[derive(Default)]
pub(crate) struct Windows {
    /// Those that messages may name.
    named: Mutex<FxHashMap<u64, Weak<Part>>>,
    /// Parts of windows that were dropped and not freed. Peers may still come there, whatever way
    /// they take: messages find them, and locks are passed on, until this rank has left.
    dropped: Mutex<Vec<Arc<Part>>>,
    /// Their memory, once their parts are gone, too.
    graveyard: Mutex<Vec<Arc<dyn Backing>>>,
}

impl Windows {
    fn named(&self) -> MutexGuard<'_, FxHashMap<u64, Weak<Part>>> {
        self.named.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dropped(&self) -> MutexGuard<'_, Vec<Arc<Part>>> {
        self.dropped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn graveyard(&self) -> MutexGuard<'_, Vec<Arc<dyn Backing>>> {
        self.graveyard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, id: u64, part: &Arc<Part>) {
        self.named().insert(id, Arc::downgrade(part));
    }

    pub(crate) fn remove(&self, id: WindowId) {
        self.named().remove(&id.0);
    }

    /// Those that are not freed.
    pub(crate) fn all(&self) -> Vec<Arc<Part>> {
        self.named().values().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn get(&self, id: u64) -> Option<Arc<Part>> {
        self.named().get(&id)?.upgrade()
    }

    /// Keeps the part of a window that is dropped.
    pub(crate) fn keep(&self, part: &Arc<Part>) {
        self.dropped().push(part.clone());
    }

    /// Lets go of all that were dropped. They have the engine, which has them.
    pub(crate) fn let_go(&self) {
        // Bound first, so that the lock is given back: what a part keeps goes elsewhere in the
        // process, and may come back here.
        let parts = core::mem::take(&mut *self.dropped());
        drop(parts);
    }

    #[cfg(test)]
    pub(crate) fn buried(&self) -> usize {
        self.graveyard().len()
    }

    /// How many messages may name.
    #[cfg(test)]
    pub(crate) fn names(&self) -> usize {
        self.named().len()
    }

    /// Whether no thread is at those that were dropped.
    #[cfg(test)]
    pub(crate) fn is_dropped_free(&self) -> bool {
        self.dropped.try_lock().is_ok()
    }

    /// Keeps memory where peers may still write as long as the rank lives.
    pub(super) fn bury(&self, memory: Arc<dyn Backing>) {
        self.graveyard().push(memory);
    }
}

impl Engine {
    /// The windows of this rank.
    pub(crate) fn own_windows(&self) -> &Windows {
        self.service().windows().downcast_ref().expect("a service has them")
    }
}
