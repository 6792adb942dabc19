//! What a window tells of itself: hints in force, ways to targets, counts.
mod counts;
mod info;

pub use counts::OperationCounts;
