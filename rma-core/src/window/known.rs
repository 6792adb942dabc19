//! Regions of peers that this rank knows.
use crate::memory::directory::PAGES;
use crate::rank::Rank;
use crate::transport::Mapped;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Pages of a peer's directory behind the first, mapped when they are first used.
#[derive(Default)]
pub(crate) struct Pages(OnceLock<Box<[MappedPage]>>);

/// One of them.
pub(crate) type MappedPage = OnceLock<Box<dyn Mapped>>;

impl Pages {
    /// Where a page is kept, from 1.
    pub(crate) fn get(&self, page: usize) -> Option<&MappedPage> {
        let pages = self.0.get_or_init(|| (1..PAGES).map(|_| MappedPage::new()).collect());
        pages.get(page.checked_sub(1)?)
    }
}

/// Regions of peers that this rank has used, by target and address.
#[derive(Default)]
pub(crate) struct Known(Mutex<FxHashMap<Rank, RegionsOf>>);

/// Those of one target.
#[derive(Default)]
pub(crate) struct RegionsOf {
    by_start: BTreeMap<u64, KnownRegion>,
    /// The region that had a slot last.
    by_slot: FxHashMap<usize, u64>,
    /// Regions from which on those are forgotten that are not attached any more.
    crowd: usize,
}

/// Regions that are remembered before it matters whether they are still attached.
const CROWD_LEAST: usize = 64;

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
    /// At that address of its owner, which lets others read and write there.
    There(u64),
    /// Somewhere in its owner, which was not asked where.
    Unasked,
}

impl Known {
    pub(crate) fn lock(&self) -> MutexGuard<'_, FxHashMap<Rank, RegionsOf>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RegionsOf {
    /// The last region that begins at `address` or before.
    pub(crate) fn below(&self, address: u64) -> Option<(u64, &KnownRegion)> {
        self.by_start.range(..=address).next_back().map(|(start, region)| (*start, region))
    }

    /// Takes a region that was found; `attached` says of a slot and a start whether that region is
    /// there, and what is not is forgotten.
    pub(crate) fn insert(
        &mut self,
        start: u64,
        region: KnownRegion,
        attached: impl Fn(usize, u64) -> bool,
    ) {
        // A slot describes one region.
        if let Some(before) = self.by_slot.insert(region.slot, start) {
            self.by_start.remove(&before);
        }
        self.by_start.insert(start, region);
        if self.by_start.len() > self.crowd.max(CROWD_LEAST) {
            self.by_start.retain(|start, region| attached(region.slot, *start));
            self.by_slot.retain(|_, start| self.by_start.contains_key(start));
            // So that it costs as much as inserting.
            self.crowd = 2 * self.by_start.len();
        }
    }

    /// Forgets a region that is not attached any more.
    pub(crate) fn forget(&mut self, start: u64) {
        self.by_start.remove(&start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there(slot: usize) -> KnownRegion {
        KnownRegion { slot, len: 8, at: Where::There(0) }
    }

    /// What takes the slot of another replaces it, and a crowd is thinned out.
    #[test]
    fn what_is_gone_is_forgotten() {
        let mut regions = RegionsOf::default();
        regions.insert(64, there(0), |_, _| true);
        regions.insert(128, there(1), |_, _| true);
        assert_eq!(regions.below(127).unwrap().0, 64);
        regions.insert(192, there(0), |_, _| true);
        assert!(regions.below(127).is_none());
        regions.forget(128);
        assert!(regions.below(191).is_none());
        for slot in 1..CROWD_LEAST {
            regions.insert(64 * (slot as u64 + 4), there(slot), |_, _| panic!("no crowd"));
        }
        assert_eq!((regions.by_start.len(), regions.by_slot.len()), (CROWD_LEAST, CROWD_LEAST));
        regions.insert(1 << 20, there(CROWD_LEAST), |slot, _| slot >= 60);
        let left = CROWD_LEAST + 1 - 60;
        assert_eq!((regions.by_start.len(), regions.by_slot.len()), (left, left));
    }
}
