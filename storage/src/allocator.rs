//! Parts of windows on storage, as their hints say.
use crate::memory::of_first_rank;
use crate::{StorageError, StorageHints, StorageMemory};
use rma_core::transport::{Beneath, Mapped};
use rma_core::{
    Allocator, AllocatorError, Backing, Claim, HintError, RequestedPart, WindowBuilder,
};
use std::sync::Arc;

/// Makes a [`StorageMemory`] for each part of a window whose hint `alloc_type` says `storage`. The
/// functions of the crate `rma` that start a job give it to that job.
#[derive(Debug, Clone, Copy)]
pub struct StorageAllocator;

impl StorageAllocator {
    fn hints(part: &RequestedPart<'_>) -> Result<StorageHints, StorageError> {
        let given = part.hints.iter().map(|(key, value)| (*key, value.as_str()));
        let hints = StorageHints::from_info([("alloc_type", "storage")].into_iter().chain(given))?;
        let hints = hints.ok_or(StorageError::NoFile)?;
        Ok(match hints.consecutive {
            true => {
                let offset = hints.offset.saturating_add(part.before);
                hints.offset(offset)
            }
            false => hints,
        })
    }

    fn len(part: &RequestedPart<'_>) -> usize {
        usize::try_from(part.len).unwrap_or(usize::MAX)
    }
}

impl Allocator for StorageAllocator {
    fn check(&self, key: &str, value: &str) -> Result<Option<&'static str>, HintError> {
        StorageHints::check(key, value)
    }

    fn allocate(
        &self,
        transport: &Beneath<'_>,
        part: &RequestedPart<'_>,
    ) -> Result<Arc<dyn Backing>, AllocatorError> {
        let made = Self::hints(part)
            .and_then(|hints| StorageMemory::open_in(transport, &hints, Self::len(part)));
        let made = made.map_err(|error| AllocatorError::new(error.class(), error))?;
        Ok(Arc::new(made))
    }

    fn claim(&self, transport: &Beneath<'_>, part: &RequestedPart<'_>) -> Option<Claim> {
        let hints = Self::hints(part).ok()?;
        StorageMemory::claim(transport, &hints, Self::len(part))
    }

    fn adopt(&self, mapped: Box<dyn Mapped>) -> Arc<dyn Backing> {
        of_first_rank(mapped)
    }
}

/// Typed hints of windows on storage.
pub trait OnStorage: Sized {
    /// Says that allocated parts lie on storage, and all that these hints say: each key of
    /// [`StorageHints::from_info`], as [`WindowBuilder::hint`] takes it.
    ///
    /// ```
    /// use rma_storage::{OnStorage, StorageHints};
    ///
    /// # // Run by the tests of the crate `rma`; here for the compiler.
    /// # fn example(world: &rma_core::Communicator) -> Result<(), Box<dyn std::error::Error>> {
    /// let hints = StorageHints::shared_file("table").unlink(true);
    /// let window = world.window(1000, size_of::<u64>()).on_storage(&hints)?.allocate()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// A path that is not in UTF-8, which hints cannot say: make a [`StorageMemory`] of it.
    fn on_storage(self, hints: &StorageHints) -> Result<Self, HintError>;
}

impl OnStorage for WindowBuilder<'_> {
    fn on_storage(self, hints: &StorageHints) -> Result<Self, HintError> {
        hints
            .to_info()?
            .into_iter()
            .try_fold(self, |builder, (key, value)| builder.hint(key, &value))
    }
}
