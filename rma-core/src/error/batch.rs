//! Where a call on many places failed.
use super::RmaError;
use crate::class::ErrorClass;

/// Why a [`Batch`](crate::Batch) failed, and at which of its places; where all of a target's failed
/// together, at the first of these.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("entry {index} of the batch: {error}")]
pub struct BatchError {
    /// Of the place, 0-based.
    pub index: usize,
    /// Why.
    pub error: RmaError,
}

crate::debug_as_display!(BatchError);

impl BatchError {
    /// The MPI error class.
    pub fn class(&self) -> ErrorClass {
        self.error.class()
    }
}

impl From<BatchError> for RmaError {
    fn from(failed: BatchError) -> Self {
        failed.error
    }
}
