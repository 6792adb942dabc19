//! Why a layout cannot be made.
use crate::class::ErrorClass;

/// Why a [`Layout`](crate::layout::Layout) cannot be made.
///
/// A negative count or length is one that 63 bits cannot hold; a layout of nothing is legal.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// A position or a size that 63 bits cannot hold.
    #[error(
        "{what} of the layout does not fit 63 bits of bytes; pass smaller counts, strides or \
         displacements"
    )]
    Overflow {
        /// What does not fit.
        what: &'static str,
    },
    /// Layouts of layouts of layouts …
    #[error("a layout nested more than {limit} deep; describe it with fewer levels")]
    TooDeep {
        /// Levels allowed.
        limit: u32,
    },
    /// A subarray whose three lists do not have the same length, or none.
    #[error(
        "a subarray with {sizes} sizes, {subsizes} subsizes and {starts} starts; pass one of each \
         for every dimension, and at least one dimension"
    )]
    Dimensions {
        /// Sizes passed.
        sizes: usize,
        /// Subsizes passed.
        subsizes: usize,
        /// Starts passed.
        starts: usize,
    },
    /// A subarray that does not lie inside its array.
    #[error(
        "dimension {dimension} of a subarray: {subsize} elements from {start} on are not inside \
         an array of {size}"
    )]
    OutsideArray {
        /// Which dimension, from 0.
        dimension: usize,
        /// Size of the array.
        size: u64,
        /// Size of the subarray.
        subsize: u64,
        /// Where it begins.
        start: u64,
    },
}

crate::debug_as_display!(LayoutError);

impl LayoutError {
    /// The MPI error class.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Overflow { .. } | Self::TooDeep { .. } => ErrorClass::Type,
            Self::Dimensions { .. } | Self::OutsideArray { .. } => ErrorClass::Count,
        }
    }
}

/// Turns the `None` of checked arithmetic into an error.
pub(super) fn fits<V>(value: Option<V>, what: &'static str) -> Result<V, LayoutError> {
    value.ok_or(LayoutError::Overflow { what })
}
