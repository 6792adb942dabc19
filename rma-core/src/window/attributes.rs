//! What a window is called, how it was made, and what its user attached to it.
use super::{Memory, Window};
use crate::config::{Hint, Hints, InForce};
use crate::object::Flavor;
use core::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Whether loads and stores and operations of others see the same memory (`MPI_WIN_MODEL`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoryModel {
    /// They do.
    Unified,
    /// They do after synchronisation only.
    Separate,
}

type Attributes = HashMap<TypeId, Arc<dyn Any + Send + Sync>>;

/// What belongs to a window and not to an operation.
pub(crate) struct Settings {
    /// How the window got its memory. S-B2
    flavor: Flavor,
    pub(crate) hints: InForce,
    /// Whether the part of any rank may outlive the job; all ranks say the same.
    pub(crate) durable: bool,
    /// What its user calls it. S-B4
    name: Mutex<String>,
    /// By type. S-B3
    attributes: Mutex<Attributes>,
}

impl Settings {
    pub(crate) fn new(flavor: Flavor, hints: &Hints, memory: &Memory, durable: bool) -> Self {
        let hints = InForce::new(hints);
        // By the type of the value, and not of what it is kept in.
        let attribute = memory.attribute().map(|value| ((*value).type_id(), value));
        let attributes = Mutex::new(attribute.into_iter().collect());
        Self { flavor, hints, durable, name: Mutex::default(), attributes }
    }

    fn attributes(&self) -> MutexGuard<'_, Attributes> {
        self.attributes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An attribute has the type that it was set with.
fn typed<V: Any + Send + Sync>(value: Arc<dyn Any + Send + Sync>) -> Option<Arc<V>> {
    value.downcast().ok()
}

impl Window {
    /// Attaches a value to the window on this rank, and returns the one of this type that it had.
    ///
    /// Types are keys: a program that wants several wraps them in types of its own. The window
    /// drops its attributes when it is freed or dropped, so `Drop` does what MPI's delete callback
    /// does, unless the program still has the value (MPI 4.1, section 7.7.3).
    pub fn set_attribute<V: Any + Send + Sync>(&self, value: V) -> Option<Arc<V>> {
        let old = self.settings.attributes().insert(TypeId::of::<V>(), Arc::new(value));
        old.and_then(typed)
    }

    /// The attribute of this type, if there is one.
    pub fn attribute<V: Any + Send + Sync>(&self) -> Option<Arc<V>> {
        self.settings.attributes().get(&TypeId::of::<V>()).cloned().and_then(typed)
    }

    /// Takes the attribute of this type away.
    pub fn remove_attribute<V: Any + Send + Sync>(&self) -> Option<Arc<V>> {
        self.settings.attributes().remove(&TypeId::of::<V>()).and_then(typed)
    }

    /// Whether it was made for no locks. S-B10
    #[inline]
    pub(crate) fn excludes_locks(&self) -> bool {
        self.settings.hints.is_set(Hint::NoLocks)
    }

    /// Bytes of a name, at most: `MPI_MAX_OBJECT_NAME` without C's zero.
    pub const NAME_MAX: usize = 127;

    /// How the window got its memory.
    pub fn flavor(&self) -> Flavor {
        self.settings.flavor
    }

    /// [`Unified`](MemoryModel::Unified) on every transport.
    pub fn memory_model(&self) -> MemoryModel {
        MemoryModel::Unified
    }

    /// What this rank calls the window; empty unless it said so (MPI 4.1, section 7.8).
    pub fn name(&self) -> String {
        self.settings.name.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Calls the window `name` on this rank, for [`explain`](Self::explain) and its user. What is
    /// longer than [`NAME_MAX`](Self::NAME_MAX) bytes is cut, as in MPI, between two characters.
    pub fn set_name(&self, name: &str) {
        let name = &name[..name.floor_char_boundary(Self::NAME_MAX)];
        name.clone_into(&mut self.settings.name.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
