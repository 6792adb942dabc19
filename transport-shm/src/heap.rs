//! Window memory of this rank: small regions are carved from arenas, large ones get a segment of
//! their own.
#![allow(unsafe_code)] // room: promises `Mapped`, zeroes blocks before they are handed out

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rma_core::transport::{AllocateError, Descriptor, Mapped, Mapping};

use crate::card;
use crate::free_list::FreeList;
use crate::memory_limits::MemoryLimits;
use crate::segment::Segment;

/// Regions of at most this many bytes come from an arena.
pub(crate) const SMALL_MAX: usize = 64 << 10;
/// Bytes of an arena.
pub(crate) const ARENA_BYTES: usize = 256 << 10;
/// Every region starts, and every block ends, at a multiple of this.
pub(crate) const GRAIN: usize = 64;

/// A segment with the name that peers know it by.
#[derive(Debug)]
struct Named {
    /// Never used for another segment of this rank.
    id: u64,
    segment: Segment,
    is_arena: bool,
}

#[derive(Debug)]
struct Arena {
    named: Arc<Named>,
    free: FreeList,
    /// It has regions that were abandoned: it is never unmapped.
    is_kept: bool,
}

/// The owner's bookkeeping; lives as long as a region does.
#[derive(Debug)]
pub(crate) struct Heap {
    limits: MemoryLimits,
    next_id: AtomicU64,
    arenas: Mutex<Vec<Arena>>,
}

/// Window memory of this rank; dropping it gives the memory back.
#[derive(Debug)]
pub(crate) struct Region {
    named: Arc<Named>,
    offset: usize,
    len: usize,
    /// Where the memory goes back to, if it is a block of an arena.
    block: Option<Block>,
}

#[derive(Debug)]
struct Block {
    heap: Arc<Heap>,
    len: usize,
}

/// Where a region is, in the words of a descriptor.
pub(crate) struct Place<'a> {
    pub(crate) id: u64,
    pub(crate) segment: &'a Segment,
    pub(crate) is_arena: bool,
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

impl Heap {
    pub(crate) fn new(limits: MemoryLimits) -> Arc<Self> {
        let (next_id, arenas) = (AtomicU64::new(1), Mutex::new(Vec::new()));
        Arc::new(Self { limits, next_id, arenas })
    }

    pub(crate) fn limits(&self) -> &MemoryLimits {
        &self.limits
    }

    /// Zeroed memory. `align` is a power of two of at most 4096.
    pub(crate) fn allocate(
        self: &Arc<Self>,
        len: usize,
        align: usize,
    ) -> Result<Region, AllocateError> {
        assert!(align.is_power_of_two() && align <= 4096, "alignment {align}");
        if len <= SMALL_MAX
            && let Some(region) = self.carve(len, align)
        {
            return Ok(region);
        }
        let named = Arc::new(self.segment("rma-window", len, len, false)?);
        Ok(Region { named, offset: 0, len, block: None })
    }

    /// A block of an arena. None: there is no room for a further arena, perhaps for less.
    fn carve(self: &Arc<Self>, len: usize, align: usize) -> Option<Region> {
        let block_len = len.max(1).next_multiple_of(GRAIN);
        let (named, offset) = {
            let mut arenas = self.arenas();
            let take = |arena: &mut Arena| {
                let offset = arena.free.take(block_len, align.max(GRAIN))?;
                Some((arena.named.clone(), offset))
            };
            match arenas.iter_mut().find_map(take) {
                Some(found) => found,
                None => {
                    let named = self.segment("rma-arena", ARENA_BYTES, len, true).ok()?;
                    let free = FreeList::new(ARENA_BYTES);
                    arenas.push(Arena { named: Arc::new(named), free, is_kept: false });
                    arenas.last_mut().and_then(take)?
                }
            }
        };
        // SAFETY: the free list gave this block to this call alone, and a rank that imported an
        // earlier region here has stopped touching it: that is the core's promise when it drops a
        // region.
        unsafe { named.segment.span.zero(offset, block_len) };
        let block = Some(Block { heap: self.clone(), len: block_len });
        Some(Region { named, offset, len, block })
    }

    fn segment(
        &self,
        name: &str,
        len: usize,
        requested: usize,
        is_arena: bool,
    ) -> Result<Named, AllocateError> {
        let segment = Segment::create(name, len, requested as u64, &self.limits, is_arena)?;
        Ok(Named { id: self.next_id.fetch_add(1, Relaxed), segment, is_arena })
    }

    /// Takes a block back; keeps at most one arena that is not in use.
    fn give_back(&self, id: u64, offset: usize, len: usize) {
        let mut arenas = self.arenas();
        let Some(index) = arenas.iter().position(|arena| arena.named.id == id) else { return };
        arenas[index].free.give_back(offset, len);
        if arenas.iter().filter(|arena| arena.free.is_unused()).count() > 1 {
            let unused = arenas.remove(index);
            // Unmapping takes a while; not under the lock.
            drop(arenas);
            drop(unused);
        }
    }

    /// A block that is never given back keeps its arena mapped.
    fn keep(&self, id: u64) {
        let mut arenas = self.arenas();
        let arena = arenas.iter_mut().find(|arena| arena.named.id == id);
        arena.into_iter().for_each(|arena| arena.is_kept = true);
    }

    fn arenas(&self) -> MutexGuard<'_, Vec<Arena>> {
        // The bookkeeping is whole between any two statements that can panic.
        self.arenas.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Region {
    pub(crate) fn place(&self) -> Place<'_> {
        let Named { id, segment, is_arena } = &*self.named;
        let (offset, len) = (self.offset, self.len);
        Place { id: *id, segment, is_arena: *is_arena, offset, len }
    }
}

// SAFETY: the span lies inside the segment (`carve` and `allocate` see to it), which stays mapped
// until `named` is dropped with this value.
unsafe impl Mapped for Region {
    fn mapping(&self) -> Mapping {
        Mapping { base: self.named.segment.span.at(self.offset), len: self.len }
    }
}

impl rma_core::transport::Region for Region {
    fn descriptor(&self) -> Descriptor {
        card::describe(&self.place())
    }

    fn abandon(mut self: Box<Self>) {
        let Some(Block { heap, .. }) = self.block.take() else {
            if let Some(named) = Arc::get_mut(&mut self.named) {
                named.segment.close();
            }
            return core::mem::forget(self);
        };
        // An arena has other regions, now or later, and neighbours that map them.
        heap.keep(self.named.id);
        // Before the heap, which may end here: it is to be the only one to have the arena then.
        drop(self);
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        let arenas = self.arenas.get_mut().unwrap_or_else(PoisonError::into_inner);
        for Arena { mut named, .. } in arenas.drain(..).filter(|arena| arena.is_kept) {
            // Regions that are in use would have the heap: neighbours map nothing of it any more.
            if let Some(named) = Arc::get_mut(&mut named) {
                named.segment.close();
            }
            core::mem::forget(named);
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Some(block) = &self.block {
            block.heap.give_back(self.named.id, self.offset, block.len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heap() -> Arc<Heap> {
        Heap::new(MemoryLimits::discover())
    }

    fn is_zero(region: &Region) -> bool {
        let Mapping { base, len } = region.mapping();
        // SAFETY: mapped, and no rank writes it while this test reads it.
        unsafe { core::slice::from_raw_parts(base, len) }.iter().all(|&byte| byte == 0)
    }

    fn fill(region: &Region) {
        let Mapping { base, len } = region.mapping();
        // SAFETY: mapped, and this test is alone with it.
        unsafe { base.write_bytes(0xff, len) };
    }

    #[test]
    fn regions_are_zeroed_aligned_and_apart() {
        let heap = heap();
        let mut held: Vec<Region> = Vec::new();
        for round in 0..400usize {
            let len = [0, 1, 8, 64, 65, 4096, 30_000, SMALL_MAX, SMALL_MAX + 1][round % 9];
            let align = 1 << (round % 13);
            let region = heap.allocate(len, align).unwrap();
            let base = region.mapping().base as usize;
            assert_eq!(base % align.max(GRAIN), 0);
            assert_eq!(region.mapping().len, len);
            assert!(is_zero(&region), "round {round}");
            for other in &held {
                let Mapping { base: other, len: other_len } = other.mapping();
                let other = other as usize;
                assert!(base + len <= other || other + other_len <= base, "overlap");
            }
            fill(&region);
            held.push(region);
            if held.len() > 20 {
                held.swap_remove(round * 7 % 20);
            }
        }
        drop(held);
        assert_eq!(heap.arenas().len(), 1);
        assert!(heap.arenas()[0].free.is_unused());
    }

    #[test]
    fn ids_are_never_used_twice() {
        let heap = heap();
        let mut seen = std::collections::HashSet::new();
        for _ in 0..20 {
            let large = heap.allocate(SMALL_MAX + 1, 64).unwrap();
            assert!(seen.insert(large.place().id));
            let many: Vec<_> = (0..9).map(|_| heap.allocate(SMALL_MAX, 64).unwrap()).collect();
            let arenas: std::collections::HashSet<_> =
                many.iter().map(|region| region.place().id).collect();
            assert_eq!(arenas.len(), 3, "four blocks an arena");
            assert!(arenas.is_disjoint(&seen) || arenas.intersection(&seen).count() == 1);
            seen.extend(arenas);
        }
    }

    #[test]
    fn what_is_abandoned_stays_mapped_and_keeps_no_file() {
        use rma_core::transport::Region as _;
        let heap = heap();
        let (large, small) =
            (heap.allocate(SMALL_MAX + 1, 64).unwrap(), heap.allocate(8, 8).unwrap());
        let file = |region: &Region| {
            let segment = region.place().segment;
            (segment.descriptor(), segment.identity)
        };
        let is_open = |(descriptor, identity)| {
            crate::segment::is_open(rustix::process::getpid(), descriptor, identity)
        };
        let (files, bases) =
            ([file(&large), file(&small)], [large.mapping().base, small.mapping().base]);
        assert_eq!(files.map(is_open), [true, true]);
        Box::new(large).abandon();
        Box::new(small).abandon();
        assert_eq!(files.map(is_open), [false, true], "others map the arena");
        drop(heap);
        assert_eq!(files.map(is_open), [false, false], "no other process has it");
        for base in bases {
            // SAFETY: it stays mapped, and this test is alone with it.
            unsafe { base.write_bytes(7, 8) };
        }
    }

    #[test]
    fn a_region_outlives_its_arena_list() {
        let heap = heap();
        let region = heap.allocate(8, 8).unwrap();
        drop(heap);
        assert!(is_zero(&region));
    }
}
