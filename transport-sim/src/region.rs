//! Window memory of a simulated rank: zeroed heap memory, which ranks of the same node map.
#![allow(unsafe_code)] // owns the allocation behind a region

use core::ptr::NonNull;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rma_core::transport::{self, AllocateError, Descriptor, Mapped, Mapping};

/// Least alignment of a [`Mapping`].
const ALIGN_MIN: usize = 64;
/// `errno` of an argument that makes no sense, and of no memory.
const EINVAL: i32 = 22;
const ENOMEM: i32 = 12;
/// Name of the limit in force.
pub(crate) const LIMIT: &str = "memory_max of the simulated network";

/// Bytes that all ranks of a network may still allocate.
#[derive(Debug)]
pub(crate) struct Budget(AtomicU64);

impl Budget {
    pub(crate) const fn new(bytes: u64) -> Self {
        Self(AtomicU64::new(bytes))
    }

    pub(crate) fn available(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn take(&self, requested: u64) -> Result<(), AllocateError> {
        let take = |left: u64| left.checked_sub(requested);
        match self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(_) => Ok(()),
            Err(available) => Err(AllocateError::Shortage { requested, available, limit: LIMIT }),
        }
    }

    fn give_back(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// What ranks have allocated, by owner and number: each counts its own, so that no other rank
/// changes what a descriptor says.
#[derive(Debug, Default)]
pub(crate) struct Regions(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    made: BTreeMap<u32, u64>,
    live: BTreeMap<Id, Weak<Memory>>,
}

type Id = (u32, u64);

impl Regions {
    fn lock(&self) -> MutexGuard<'_, Table> {
        // Nothing in here panics half-way through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, owner: u32, memory: &Arc<Memory>) -> Id {
        let mut table = self.lock();
        let made = table.made.entry(owner).or_default();
        *made += 1;
        let id = (owner, *made);
        table.live.insert(id, Arc::downgrade(memory));
        id
    }

    /// What `owner` describes so, if it still has it.
    pub(crate) fn find(&self, owner: u32, descriptor: &Descriptor) -> Option<Imported> {
        let number = descriptor.0.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let memory = self.lock().live.get(&(owner, number))?.upgrade()?;
        Some(Imported(memory))
    }
}

/// An allocation.
#[derive(Debug)]
struct Memory {
    base: NonNull<u8>,
    /// What was asked for; the allocation may be larger, see `layout`.
    len: usize,
    layout: Layout,
    budget: Arc<Budget>,
}

impl Memory {
    fn allocate(budget: &Arc<Budget>, len: usize, align: usize) -> Result<Self, AllocateError> {
        let requested = len as u64;
        let system = |call, errno| AllocateError::System { requested, call, errno };
        budget.take(requested)?;
        // An empty region owns a byte too: its address then differs from every other region's.
        let Ok(layout) = Layout::from_size_align(len.max(1), align.max(ALIGN_MIN)) else {
            budget.give_back(requested);
            return Err(system("Layout::from_size_align", EINVAL));
        };
        // SAFETY: `layout` has a size of at least 1.
        let base = unsafe { alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else {
            budget.give_back(requested);
            return Err(system("alloc_zeroed", ENOMEM));
        };
        Ok(Self { base, len, layout, budget: Arc::clone(budget) })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `base` came from `alloc_zeroed` with this very layout, and only this drop
        // frees it: `Memory` is neither `Copy` nor `Clone`.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
        self.budget.give_back(self.len as u64);
    }
}

// SAFETY: `Memory` owns its allocation as a `Box` would and gives out only raw pointers to it;
// allocator and budget may be used from any thread.
unsafe impl Send for Memory {}
// SAFETY: through `&Memory` one can only copy out the address and the length, which never change.
unsafe impl Sync for Memory {}

// SAFETY: `base` and `len` never change, the bytes live on the heap and stay where they are when
// the `Memory` moves, and only its drop frees them. `layout` spans at least `len` bytes, aligned
// to at least 64.
unsafe impl Mapped for Memory {
    fn mapping(&self) -> Mapping {
        Mapping { base: self.base.as_ptr(), len: self.len }
    }
}

/// Window memory of a simulated rank. A rank that has imported it keeps it.
#[derive(Debug)]
pub(crate) struct Region {
    memory: Arc<Memory>,
    id: Id,
    regions: Arc<Regions>,
}

impl Region {
    pub(crate) fn allocate(
        (budget, regions): (&Arc<Budget>, &Arc<Regions>),
        owner: u32,
        len: usize,
        align: usize,
    ) -> Result<Self, AllocateError> {
        let memory = Arc::new(Memory::allocate(budget, len, align)?);
        let id = regions.add(owner, &memory);
        Ok(Self { memory, id, regions: Arc::clone(regions) })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.regions.lock().live.remove(&self.id);
    }
}

// SAFETY: as of the memory, which lives as long as this.
unsafe impl Mapped for Region {
    fn mapping(&self) -> Mapping {
        self.memory.mapping()
    }
}

impl transport::Region for Region {
    /// Its number among those of its owner.
    fn descriptor(&self) -> Descriptor {
        let mut bytes = [0; Descriptor::LEN];
        bytes[..size_of::<u64>()].copy_from_slice(&self.id.1.to_le_bytes());
        Descriptor(bytes)
    }
}

/// Memory of another rank of the node.
#[derive(Debug)]
pub(crate) struct Imported(Arc<Memory>);

// SAFETY: as of the memory, which lives as long as this.
unsafe impl Mapped for Imported {
    fn mapping(&self) -> Mapping {
        self.0.mapping()
    }
}
