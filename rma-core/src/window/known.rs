//! Regions of peers that this rank knows.
use crate::rank::Rank;
use crate::transport::Mapped;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Regions of peers that this rank has used, by target and address.
#[derive(Default)]
pub(crate) struct Known(Mutex<FxHashMap<Rank, RegionsOf>>);

pub(crate) type RegionsOf = BTreeMap<u64, KnownRegion>;

#[derive(Clone)]
pub(crate) struct KnownRegion {
    pub(crate) slot: usize,
    pub(crate) len: u64,
    pub(crate) at: Where,
}

/// Where a region lies.
#[derive(Clone)]
pub(crate) enum Where {
    /// Mapped, all of it.
    Here(Arc<dyn Mapped>),
    /// At that address of its owner, who lets others read and write there.
    There(u64),
}

impl Known {
    pub(crate) fn lock(&self) -> MutexGuard<'_, FxHashMap<Rank, RegionsOf>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
