//! Memory of a kind that the core does not know, for windows that ask for it by a hint.
use crate::class::ErrorClass;
use crate::config::HintError;
use crate::transport::{Backing, Beneath, Mapped};
use core::fmt;
use std::error::Error;
use std::sync::Arc;

/// Makes memory for windows whose hint `alloc_type` says `storage`; see
/// [`Config::set_allocator`](crate::Config::set_allocator).
pub trait Allocator: fmt::Debug + Send + Sync {
    /// The key itself, if it is a hint that this kind of memory knows.
    ///
    /// # Errors
    ///
    /// A value that it does not take.
    fn check(&self, key: &str, value: &str) -> Result<Option<&'static str>, HintError>;

    /// Memory for this rank's part. Local.
    ///
    /// # Errors
    ///
    /// Why there is none; nothing is left behind then.
    fn allocate(
        &self,
        transport: &Beneath<'_>,
        part: &RequestedPart<'_>,
    ) -> Result<Arc<dyn Backing>, AllocatorError>;

    /// Where these bytes would be on storage that ranks of the node may share, if that exists by
    /// now. Asked when a part could not be made, to name the ranks that are in each other's way.
    fn claim(&self, transport: &Beneath<'_>, part: &RequestedPart<'_>) -> Option<Claim>;

    /// Memory that this allocator made at rank 0 for the parts of all ranks, as mapped here.
    fn adopt(&self, mapped: Box<dyn Mapped>) -> Arc<dyn Backing>;
}

/// What a rank asks an [`Allocator`] for.
#[derive(Debug, Clone, Copy)]
pub struct RequestedPart<'h> {
    /// The hints that it knows, as [`Allocator::check`] named them, each once.
    pub hints: &'h [(&'static str, String)],
    /// Bytes.
    pub len: u64,
    /// Bytes of the parts of lower ranks, each rounded up to whole pages of 64 KiB.
    pub before: u64,
}

/// Bytes of a file or device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// Of its file system.
    pub device: u64,
    /// And in that.
    pub inode: u64,
    /// The first byte.
    pub start: u64,
    /// The byte behind the last.
    pub end: u64,
}

/// Why an [`Allocator`] made no memory.
#[derive(Clone)]
pub struct AllocatorError {
    class: ErrorClass,
    error: Arc<dyn Error + Send + Sync>,
}

impl AllocatorError {
    /// Of that class.
    pub fn new(class: ErrorClass, error: impl Error + Send + Sync + 'static) -> Self {
        Self { class, error: Arc::new(error) }
    }

    /// The MPI error class.
    pub fn class(&self) -> ErrorClass {
        self.class
    }

    /// The allocator's own error, if it is of that type.
    pub fn get<E: Error + 'static>(&self) -> Option<&E> {
        self.error.downcast_ref()
    }
}

impl fmt::Display for AllocatorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl Error for AllocatorError {}

impl PartialEq for AllocatorError {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.error, &other.error)
    }
}

impl Eq for AllocatorError {}

crate::debug_as_display!(AllocatorError);
