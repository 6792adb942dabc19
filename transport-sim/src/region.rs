//! Window memory of a simulated rank: zeroed heap memory.
#![allow(unsafe_code)] // owns the allocation behind `Region`

use core::ptr::NonNull;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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

    fn take(&self, asked: u64) -> Result<(), AllocateError> {
        let take = |left: u64| left.checked_sub(asked);
        match self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(_) => Ok(()),
            Err(available) => Err(AllocateError::Shortage { asked, available, limit: LIMIT }),
        }
    }

    fn give_back(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Window memory of a simulated rank. No peer maps it.
#[derive(Debug)]
pub(crate) struct Region {
    base: NonNull<u8>,
    /// What was asked for; the allocation may be larger, see `layout`.
    len: usize,
    layout: Layout,
    budget: Arc<Budget>,
}

impl Region {
    pub(crate) fn allocate(
        budget: &Arc<Budget>,
        len: usize,
        align: usize,
    ) -> Result<Self, AllocateError> {
        let asked = len as u64;
        let system = |call, errno| AllocateError::System { asked, call, errno };
        budget.take(asked)?;
        // An empty region owns a byte too: its address then differs from every other region's.
        let Ok(layout) = Layout::from_size_align(len.max(1), align.max(ALIGN_MIN)) else {
            budget.give_back(asked);
            return Err(system("Layout::from_size_align", EINVAL));
        };
        // SAFETY: `layout` has a size of at least 1.
        let base = unsafe { alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else {
            budget.give_back(asked);
            return Err(system("alloc_zeroed", ENOMEM));
        };
        Ok(Self { base, len, layout, budget: Arc::clone(budget) })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: `base` came from `alloc_zeroed` with this very layout, and only this drop
        // frees it: `Region` is neither `Copy` nor `Clone`.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
        self.budget.give_back(self.len as u64);
    }
}

// SAFETY: `Region` owns its allocation as a `Box` would and gives out only raw pointers to it;
// allocator and budget may be used from any thread.
unsafe impl Send for Region {}
// SAFETY: through `&Region` one can only copy out the address and the length, which never change.
unsafe impl Sync for Region {}

// SAFETY: `base` and `len` never change, the bytes live on the heap and stay where they are when
// the `Region` moves, and only its drop frees them. `layout` spans at least `len` bytes, aligned
// to at least 64.
unsafe impl Mapped for Region {
    fn mapping(&self) -> Mapping {
        Mapping { base: self.base.as_ptr(), len: self.len }
    }
}

impl transport::Region for Region {
    /// Zeros: nobody can import what is not mapped.
    fn descriptor(&self) -> Descriptor {
        Descriptor([0; Descriptor::LEN])
    }
}
