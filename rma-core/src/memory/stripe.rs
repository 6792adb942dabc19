//! Locks of window bytes while they are combined by several loads and stores.
//!
//! A part is divided into stripes of 16 KiB that share the few locks of its block in turn. An
//! element belongs to the stripe of its first byte. A thread that combines elements which the
//! machine does not combine by itself, or integers of which arrays come, takes the lock first,
//! unless it is [alone](super::bias); puts and gets do not.
use super::control_block::{ControlBlock, STRIPES};
use crate::layout::Row;
use crate::rank::Rank;
use crate::word::Word;
use core::ops::Range;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::time::Duration;

/// How often a thread that wants a stripe looks again: giving one back rings no rank.
pub(crate) const RECHECK: Duration = Duration::from_micros(100);

/// Bytes of a window part that lie in one stripe.
pub(crate) const STRIPE: u64 = 16 << 10;

/// Bytes that lie in all stripes of a block once: a range as long is in each of them.
pub(crate) const ALL_STRIPES: Range<u64> = 0..STRIPES as u64 * STRIPE;

/// Where the words of the locks are.
pub(crate) trait Stripes: Copy {
    /// The word at `index`, which must be below [`STRIPES`].
    fn stripe(&self, index: usize) -> &impl Word<Value = u64>;
}

impl Stripes for ControlBlock<'_> {
    #[inline(always)]
    fn stripe(&self, index: usize) -> &impl Word<Value = u64> {
        ControlBlock::stripe(*self, index)
    }
}

/// Locks that this rank holds; given back when dropped. S-H4 S-H6
pub(crate) struct TakenStripes<S: Stripes> {
    stripes: S,
    first: usize,
    count: usize,
}

/// Those of a block.
pub(crate) type HeldStripe<'a> = TakenStripes<ControlBlock<'a>>;

/// Takes the lock of the stripe of `offset`, unless it is held.
#[inline]
pub(crate) fn try_one<S: Stripes>(stripes: S, offset: u64, rank: Rank) -> Option<TakenStripes<S>> {
    try_from(stripes, index(offset), 1, rank)
}

/// The holder of the lock of the stripe of `offset`, if it is held.
pub(crate) fn holder(block: ControlBlock<'_>, offset: u64) -> Option<Rank> {
    holder_of(block, index(offset))
}

/// The holders of locks of the stripes of these bytes.
pub(crate) fn holders(block: ControlBlock<'_>, bytes: &Range<u64>) -> impl Iterator<Item = Rank> {
    let (first, count) = stripes_of(bytes);
    (first..first + count).filter_map(move |stripe| holder_of(block, stripe % STRIPES))
}

/// The first stripe of these bytes, and how many they lie in.
fn stripes_of(bytes: &Range<u64>) -> (usize, usize) {
    let last = bytes.end.saturating_sub(1).max(bytes.start);
    let count = (last / STRIPE - bytes.start / STRIPE + 1).min(STRIPES as u64);
    (index(bytes.start), count as usize)
}

fn holder_of(block: ControlBlock<'_>, stripe: usize) -> Option<Rank> {
    let word = block.stripe(stripe).load(Relaxed).checked_sub(1)?;
    u32::try_from(word).ok().map(Rank)
}

/// Takes the locks of all stripes of these bytes, unless one of them is held.
pub(crate) fn try_range<S: Stripes>(
    stripes: S,
    bytes: &Range<u64>,
    rank: Rank,
) -> Option<TakenStripes<S>> {
    let (first, count) = stripes_of(bytes);
    try_from(stripes, first, count, rank)
}

/// Cuts a row of elements of `width` bytes, which begins at 0 or behind, into rows whose elements
/// all begin in the same stripe; in the row's order.
pub(crate) fn pieces(mut rest: Row, width: u64) -> impl Iterator<Item = Row> {
    let mut begun = Row::NONE;
    core::iter::from_fn(move || {
        if begun.count == 0 {
            if rest.count == 0 {
                return None;
            }
            let (within, apart) = (rest.at.cast_unsigned() % STRIPE, rest.stride.unsigned_abs());
            // From the first byte of a block's first element to that of its last.
            let reach = rest.len.saturating_sub(width);
            let blocks = match rest.stride {
                _ if within + reach >= STRIPE => 0,
                0 => rest.count,
                1.. => (STRIPE - within - reach).div_ceil(apart).min(rest.count),
                ..0 => (within / apart + 1).min(rest.count),
            };
            let piece = Row { count: blocks, ..rest };
            let passed = blocks.max(1);
            begun = Row { stride: 0, count: 1, ..rest };
            rest.at = rest.at.wrapping_add(rest.stride.wrapping_mul(passed.cast_signed()));
            rest.count -= passed;
            if blocks > 0 {
                begun = Row::NONE;
                return Some(piece);
            }
        }
        let within = begun.at.cast_unsigned() % STRIPE;
        let len = ((STRIPE - within).div_ceil(width) * width).min(begun.len);
        let piece = Row { len, ..begun };
        begun = Row { at: begun.at.wrapping_add_unsigned(len), len: begun.len - len, ..begun };
        if begun.len == 0 {
            begun = Row::NONE;
        }
        Some(piece)
    })
}

fn index(offset: u64) -> usize {
    (offset / STRIPE) as usize % STRIPES
}

#[inline(always)]
fn try_from<S: Stripes>(
    stripes: S,
    first: usize,
    count: usize,
    rank: Rank,
) -> Option<TakenStripes<S>> {
    let mut held = TakenStripes { stripes, first, count: 0 };
    while held.count < count {
        let word = stripes.stripe((first + held.count) % STRIPES);
        // pairs with the Release store in `drop`: what was combined before is seen.
        if word.compare_exchange(0, u64::from(rank) + 1, Acquire, Relaxed).is_err() {
            return None;
        }
        held.count += 1;
    }
    Some(held)
}

impl<S: Stripes> Drop for TakenStripes<S> {
    #[inline]
    fn drop(&mut self) {
        for taken in 0..self.count {
            // pairs with the Acquire exchange in `try_from`. No rank is rung: one that waits for a
            // stripe looks again by itself.
            self.stripes.stripe((self.first + taken) % STRIPES).store(0, Release);
        }
    }
}

#[cfg(all(test, loom))]
#[path = "stripe_loom_tests.rs"]
mod loom_tests;

#[cfg(test)]
mod tests {
    #![allow(unsafe_code)]
    use super::super::control_block::BLOCK_BYTES;
    use super::*;

    #[repr(align(64))]
    struct Memory([u8; BLOCK_BYTES]);

    const ME: Rank = Rank(3);

    fn with_block(test: impl FnOnce(ControlBlock<'_>)) {
        let mut memory = Memory([0; BLOCK_BYTES]);
        // SAFETY: aligned, long enough, and used through the block only while that lives.
        test(unsafe { ControlBlock::new(memory.0.as_mut_ptr()) });
        assert!(memory.0.iter().all(|byte| *byte == 0), "everything is given back");
    }

    #[test]
    fn a_stripe_has_one_holder() {
        with_block(|block| {
            let held = try_one(block, STRIPE - 1, ME).unwrap();
            assert_eq!((holder(block, 0), holder(block, STRIPE)), (Some(ME), None));
            assert!(try_one(block, 0, Rank(0)).is_none());
            assert!(try_one(block, 8 * STRIPE, Rank(0)).is_none(), "locks are shared in turn");
            assert!(try_one(block, STRIPE, Rank(0)).is_some());
            drop(held);
            assert!(try_one(block, 0, Rank(0)).is_some());
        });
    }

    #[test]
    fn pieces_are_the_row_cut_at_borders() {
        let edge = STRIPE as i64;
        let starts = |row: Row, width: u64| -> Vec<i64> {
            let blocks = row.starts();
            blocks.flat_map(|at| (at..at + row.len as i64).step_by(width as usize)).collect()
        };
        let widths: &[u64] = if cfg!(miri) { &[8] } else { &[1, 4, 8, 16] };
        for width in widths.iter().copied() {
            let (small, large) = (width as i64, (edge + 900) / width as i64 * width as i64);
            for stride in [0, small, 2 * small, -3 * small, large, -large, 5 * edge, -5 * edge] {
                let (blocks, places): (&[u64], &[i64]) = if cfg!(miri) {
                    (&[2, 600], &[edge - 8])
                } else {
                    (&[1, 2, 5, 1200, 2400], &[0, 8, edge - 8, edge, 3 * edge - 8])
                };
                for blocks in blocks {
                    for at in places {
                        let at = if stride < 0 { at - stride * 8 } else { *at };
                        let row = Row { at, stride, len: blocks * width, count: 9 };
                        let mut all = Vec::new();
                        for piece in pieces(row, width) {
                            let elements = starts(piece, width);
                            let stripe = piece.at / STRIPE as i64;
                            assert!(elements.iter().all(|at| at / STRIPE as i64 == stripe));
                            assert!(!elements.is_empty());
                            all.extend(elements);
                        }
                        assert_eq!(all, starts(row, width), "{row:?} of {width}");
                    }
                }
            }
        }
    }

    #[test]
    fn pieces_are_few() {
        let row = Row { at: 0, stride: 16, len: 8, count: STRIPE / 8 };
        assert_eq!(pieces(row, 8).count(), 2, "one for each stripe");
        let row = Row { at: 8, stride: 0, len: 2 * STRIPE, count: 1 };
        let lens: Vec<_> = pieces(row, 8).map(|piece| piece.len).collect();
        assert_eq!(lens, [STRIPE - 8, STRIPE, 8]);
    }

    #[test]
    fn a_range_takes_all_or_nothing() {
        with_block(|block| {
            let taken = |index: usize| block.stripe(index).load(Relaxed) != 0;
            let held = try_range(block, &(7 * STRIPE + 1..8 * STRIPE + 1), ME).unwrap();
            assert!(taken(7) && taken(0) && !taken(1), "wraps round");
            drop(held);
            let exact = try_range(block, &(STRIPE..2 * STRIPE), ME).unwrap();
            assert!(taken(1) && !taken(2), "the end is not part of it");
            assert!(try_range(block, &(0..3 * STRIPE), ME).is_none());
            assert!(!taken(0), "what was taken is given back");
            drop(exact);
            let all = try_range(block, &(5..5 + 100 * STRIPE), ME).unwrap();
            assert!((0..STRIPES).all(taken));
            assert_eq!(holders(block, &(0..1)).collect::<Vec<_>>(), [ME]);
            drop(all);
            drop(try_range(block, &(12..12), ME).unwrap());
        });
    }
}
