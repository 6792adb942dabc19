//! The words of a lane, whatever they are: how its writer and its readers tell each other which
//! pieces are there, and which are done with.
//!
//! Pieces have numbers from 0 on. The writer overwrites the place of a piece when all of its
//! readers have said that they have done with it.
use crate::word::Word;
use core::sync::atomic::Ordering::{Acquire, Release};

/// Whether a count, which only grows, has come past that number. Whatever a peer writes, it is yes
/// or no.
fn is_past(count: u64, number: u64) -> bool {
    count.wrapping_sub(number).wrapping_sub(1) < u64::MAX / 2
}

/// The writer has written the piece of that number, and all before it.
pub(super) fn publish(written: &impl Word<Value = u64>, number: u64) {
    // pairs with the Acquire load in `is_there`.
    written.store(number.wrapping_add(1), Release);
}

/// Whether a reader finds the piece of that number.
pub(super) fn is_there(written: &impl Word<Value = u64>, number: u64) -> bool {
    // pairs with the Release store in `publish`.
    is_past(written.load(Acquire), number)
}

/// A reader has done with the piece of that number, and all before it that are for it.
pub(super) fn done_with(read: &impl Word<Value = u64>, number: u64) {
    // pairs with the Acquire load in `is_read`: what it has read is what was there before.
    read.store(number.wrapping_add(1), Release);
}

/// Whether a reader has done with the piece of that number: it may be overwritten.
pub(super) fn is_read(read: &impl Word<Value = u64>, number: u64) -> bool {
    // pairs with the Release store in `done_with`.
    is_past(read.load(Acquire), number)
}

#[cfg(test)]
mod tests {
    use super::is_past;

    #[test]
    fn counts_are_compared_as_they_grow() {
        for (count, number, past) in
            [(0, 0, false), (1, 0, true), (1, 1, false), (9, 3, true), (0, u64::MAX, true)]
        {
            assert_eq!(is_past(count, number), past, "{count} {number}");
        }
    }
}
