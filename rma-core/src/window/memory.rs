//! Memory of a part, and what becomes of it.
#![allow(unsafe_code)]

use super::user::{Contents, Raw, Rebuild, WindowMemory};
use crate::config::{Allocator, PathHint};
use crate::engine::Engine;
use crate::memory::target::Span;
use crate::transport::{
    AllocateError, Backing, DescribeError, Descriptor, Extent, HintChange, Mapped, Mapping,
    PersistError, Place, Region, flaw,
};
use core::any::Any;
use core::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const PAGE: usize = 4096;

/// Memory of a part or an attached region, mapped until it is [freed](Self::set_freed) and, if it
/// never is, as long as peers may write there.
pub(crate) struct Memory {
    mapping: Mapping,
    /// Whether some of it outlives the job.
    is_durable: bool,
    /// `None` once it is freed.
    backing: Mutex<Option<Arc<dyn Backing>>>,
    whose: Whose,
}

/// The owner of memory, and so what becomes of it if it is dropped and was not freed.
enum Whose {
    /// Allocated for the window. Peers that still write there have mappings of their own, so that
    /// it stays allocated in the graveyard until the universe ends.
    Window(Arc<Engine>),
    /// Allocated for the window, and peers copy there by its address. A mapping of its own keeps
    /// memory that this rank gives back, an address does not: it may be anything's by the time a
    /// peer copies there. So it is never given back.
    WindowByAddress,
    /// Rank 0's, which keeps it: the parts of all ranks lie in it.
    FirstRank,
    /// The user's, vouched for (`RawPart::new`).
    Raw,
    /// The user's. The program may have the `Arc`, too, and alone has it after the universe. So it
    /// is never given back.
    User,
}

impl Whose {
    fn is_window(&self) -> bool {
        matches!(self, Self::Window(_) | Self::WindowByAddress)
    }
}

// SAFETY: the mapping is that of the backing, which may be used by any thread, or was.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(backing: Arc<dyn Backing>, whose: Whose) -> Self {
        let (mapping, is_durable) = (backing.mapping(), backing.is_durable());
        Self { mapping, is_durable, backing: Mutex::new(Some(backing)), whose }
    }

    /// Zeroed memory of the transport. If `path` says so, peers may come by address.
    pub(crate) fn allocate(
        engine: &Arc<Engine>,
        len: usize,
        path: PathHint,
    ) -> Result<Self, AllocateError> {
        let align = if len >= PAGE { PAGE } else { 64 };
        let region = engine.transport.shared.allocate(len, align)?;
        let whose = match path {
            PathHint::Cma => Whose::WindowByAddress,
            PathHint::Auto | PathHint::LoadStore | PathHint::Messages | PathHint::Device => {
                Whose::Window(engine.clone())
            }
        };
        Ok(Self::new(Arc::new(Anonymous(region)), whose))
    }

    /// Memory of rank 0, in which this rank's part lies; if an allocator made it, as that has it.
    pub(crate) fn imported(
        mapped: Box<dyn Mapped>,
        allocator: Option<&'static dyn Allocator>,
    ) -> Self {
        let backing = match allocator {
            Some(allocator) => allocator.adopt(mapped),
            None => Arc::new(OfFirstRank(mapped)),
        };
        Self::new(backing, Whose::FirstRank)
    }

    /// What an allocator made for a window.
    pub(crate) fn of_allocator(
        engine: &Arc<Engine>,
        backing: Arc<dyn Backing>,
        path: PathHint,
    ) -> Result<Self, AllocateError> {
        if let Some((extent, why)) = flaw(&*backing) {
            return Err(AllocateError::Extent { extent, why });
        }
        // Where peers come by address, it stays mapped until the process ends.
        let whose = match path {
            PathHint::Cma => Whose::User,
            _ => Whose::Window(engine.clone()),
        };
        Ok(Self::new(backing, whose))
    }

    /// What a user brings along: a copy of it, or where it lies. S-A1 S-A4 S-K7
    pub(crate) fn of_user(
        engine: &Arc<Engine>,
        contents: &Contents<'_>,
        path: PathHint,
    ) -> Result<Self, AllocateError> {
        match contents {
            Contents::Bytes(bytes) => {
                let memory = Self::allocate(engine, bytes.len(), path)?;
                // No other rank knows of it yet.
                memory.span(0, bytes.len()).into_iter().for_each(|all| all.write(bytes));
                Ok(memory)
            }
            Contents::At(part) => Ok(Self::new(Arc::new(Raw(*part)), Whose::Raw)),
            Contents::On(backing) => match flaw(&**backing) {
                None => Ok(Self::new(backing.clone(), Whose::User)),
                Some((extent, why)) => Err(AllocateError::Extent { extent, why }),
            },
        }
    }

    /// Peers do not come by address, although that was asked for.
    pub(crate) fn leave_address(&mut self, engine: &Arc<Engine>) {
        if let Whose::WindowByAddress = self.whose {
            self.whose = Whose::Window(engine.clone());
        }
    }

    pub(crate) fn mapping(&self) -> Mapping {
        self.mapping
    }

    fn backing(&self) -> MutexGuard<'_, Option<Arc<dyn Backing>>> {
        // Every change is one call.
        self.backing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a neighbour imports, side by side; nothing if it cannot map all of the memory.
    pub(crate) fn descriptors(&self, engine: &Engine) -> Result<Vec<Descriptor>, AllocateError> {
        let shared = &engine.transport.shared;
        if !shared.is_near(engine.transport.job.rank) {
            return Ok(Vec::new());
        }
        let backing = self.backing().clone();
        let extents = backing.as_ref().map_or(Vec::new(), |backing| backing.extents());
        let (mut start, mut all) = (0, Vec::with_capacity(extents.len()));
        for (number, extent) in (0..).zip(&extents) {
            // SAFETY: the backing says so of itself, and lives until this returns.
            match unsafe { shared.describe(extent, start) } {
                Ok(descriptor) => all.push(descriptor),
                Err(DescribeError::Unsupported) => return Ok(Vec::new()),
                Err(DescribeError::Unfit(why)) => {
                    return Err(AllocateError::Extent { extent: number, why });
                }
                Err(DescribeError::System { call, errno }) => {
                    return Err(AllocateError::System { requested: extent.len, call, errno });
                }
            }
            start += extent.len;
        }
        Ok(all)
    }

    /// See [`Backing::store`]: bytes at an address in it.
    #[cold]
    pub(crate) fn store(&self, address: u64, bytes: &[u8]) -> bool {
        let offset = address.checked_sub(self.mapping.base.addr() as u64);
        let backing = self.backing().clone();
        offset.zip(backing).is_some_and(|(offset, backing)| backing.store(offset, bytes))
    }

    /// See [`Backing::info`].
    pub(crate) fn info(&self) -> Vec<(&'static str, String)> {
        // Not under the lock: it may wait for what another thread does, which may need the lock.
        let backing = self.backing().clone();
        backing.map_or(Vec::new(), |backing| backing.info())
    }

    /// See [`Backing::set_info`].
    pub(crate) fn set_info(&self, key: &str, value: &str) -> HintChange {
        let backing = self.backing().clone();
        backing.map_or(HintChange::Unknown, |backing| backing.set_info(key, value))
    }

    /// See [`Backing::attribute`].
    pub(crate) fn attribute(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        let backing = self.backing().clone();
        backing.and_then(|backing| backing.attribute())
    }

    /// No window came of it: gives back what was made for that.
    pub(crate) fn unmake(&self) {
        let made = self.backing().take();
        made.iter().filter(|_| self.whose.is_window()).for_each(|backing| backing.unmake());
    }

    /// See [`Backing::release`].
    pub(crate) fn release(&self) -> Result<(), PersistError> {
        let backing = self.backing().clone();
        backing.map_or(Ok(()), |backing| backing.release())
    }

    /// Gives `len` bytes at `offset` back to their user; what it brought along as a whole.
    pub(crate) fn rebuild<M: WindowMemory>(&self, offset: u64, len: usize) -> Option<M> {
        let mut fill = |bytes: &mut [u8]| {
            self.span(offset, bytes.len()).into_iter().for_each(|part| part.read(bytes));
        };
        M::rebuild(match self.brought() {
            Some(backing) => Rebuild::From(backing),
            None => Rebuild::Bytes { len, fill: &mut fill },
        })
    }

    /// What a user brought along that is used where it lies.
    pub(crate) fn brought(&self) -> Option<Arc<dyn Backing>> {
        match self.whose {
            Whose::Raw | Whose::User => self.backing().clone(),
            Whose::Window(_) | Whose::WindowByAddress | Whose::FirstRank => None,
        }
    }

    /// Whether nothing but the window has it.
    pub(crate) fn is_exclusive(&self) -> bool {
        // So that what other threads did before they gave theirs up is done.
        let alone = |backing: &mut Arc<dyn Backing>| {
            backing.is_exclusive() && Arc::get_mut(backing).is_some()
        };
        self.backing().as_mut().is_some_and(alone)
    }

    /// See [`Backing::is_durable`].
    pub(crate) fn is_durable(&self) -> bool {
        self.is_durable
    }

    /// See [`Backing::sync`].
    pub(crate) fn sync(&self, range: Range<u64>) -> Result<bool, PersistError> {
        let backing = self.backing().clone();
        backing.map_or(Err(PersistError::Volatile), |backing| backing.sync(range))
    }

    /// What commits, if this memory has transactions.
    pub(crate) fn transactional(&self) -> Option<Arc<dyn Backing>> {
        self.backing().clone().filter(|backing| backing.has_transactions())
    }

    /// See [`Backing::persist`].
    pub(crate) fn persist(&self, range: Range<u64>) -> Result<(), PersistError> {
        let backing = self.backing().clone();
        backing.map_or(Err(PersistError::Volatile), |backing| backing.persist(range))
    }

    fn span(&self, offset: u64, len: usize) -> Option<Span<'_>> {
        let mapping = self.mapping();
        // SAFETY: mapped until it is freed, after which no thread comes here. No reference into it
        // exists: its user gave it away, and the core makes none but of sealed windows, which have
        // no operations.
        unsafe { Span::of_part(mapping.base, mapping.len as u64, offset, len) }
    }

    /// No rank can reach the memory any more, this one included: it is given back. S-A5
    pub(crate) fn set_freed(&self) {
        let backing = self.backing().take();
        // To unmap takes a while: not under the lock.
        drop(backing);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let Some(backing) = self.backing().take() else { return };
        match &self.whose {
            Whose::Window(engine) => engine.own_windows().bury(backing),
            Whose::WindowByAddress => abandon(backing),
            Whose::User => core::mem::forget(backing),
            Whose::FirstRank | Whose::Raw => drop(backing),
        }
    }
}

/// Keeps the bytes of memory that the transport allocated, and nothing else of it.
fn abandon(backing: Arc<dyn Backing>) {
    let any: Arc<dyn Any + Send + Sync> = backing;
    // It is of that type, and nothing else has it.
    let anonymous = any.downcast::<Anonymous>().ok().and_then(Arc::into_inner);
    anonymous.into_iter().for_each(|Anonymous(region)| region.abandon());
}

/// Memory that the transport allocated for one window.
#[derive(Debug)]
struct Anonymous(Box<dyn Region>);

// SAFETY: as of the region.
unsafe impl Mapped for Anonymous {
    fn mapping(&self) -> Mapping {
        self.0.mapping()
    }
}

// SAFETY: what `Shared::allocate` gave, which is in no other value, and which a neighbour maps by
// its descriptor; it is in one `Memory`, which makes no `Weak`.
unsafe impl Backing for Anonymous {
    fn extents(&self) -> Vec<Extent> {
        let place = Place::Region(self.0.descriptor());
        vec![Extent { len: self.mapping().len as u64, place }]
    }

    fn is_exclusive(&self) -> bool {
        true
    }
}

/// Memory that rank 0 allocated for the parts of all ranks of one window.
#[derive(Debug)]
struct OfFirstRank(Box<dyn Mapped>);

// SAFETY: as of the import.
unsafe impl Mapped for OfFirstRank {
    fn mapping(&self) -> Mapping {
        self.0.mapping()
    }
}

// SAFETY: this rank's part of it is in no other window, and in one `Memory`, which makes no `Weak`;
// other ranks are told of rank 0's own, and not of this mapping.
unsafe impl Backing for OfFirstRank {
    fn extents(&self) -> Vec<Extent> {
        Vec::new()
    }

    fn is_exclusive(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::window::accumulate_tests::with_universe;

    /// Peers may still write in memory that was not freed: no other window gets it. S-A5
    #[test]
    fn what_was_not_freed_is_kept() {
        with_universe(Config::default(), |universe| {
            let engine = &universe.world().inner.engine;
            let memory = || Memory::allocate(engine, 64, PathHint::Auto).unwrap();
            let kept = || engine.own_windows().buried();
            let freed = memory();
            freed.set_freed();
            drop(freed);
            assert_eq!(kept(), 0);
            drop(memory());
            assert_eq!(kept(), 1);
        });
    }
}
