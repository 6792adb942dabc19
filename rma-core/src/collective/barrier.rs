//! The two barriers in shared memory, whatever the words and the bells are.
//!
//! Where each rank has a CPU, the barrier is one of dissemination: in round `k`, rank `r` sets a
//! flag at rank `r + 2^k` and waits for one from `r - 2^k`. A flag holds the number of the barrier,
//! so it needs no reset: a rank is at most one barrier ahead.
//!
//! Where ranks share CPUs, a round would cost each of them its turn of the scheduler, while one
//! turn for all rounds is enough: ranks count themselves in a word of rank 0, yield, and find at
//! their next turn that all have come. Those that have gone to sleep are woken along a tree.
use crate::rank::Rank;
use crate::word::Word;
use core::ops::Range;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Ranks that each rank wakes after a barrier that was counted.
const FAN_OUT: u32 = 8;

/// The ranks that meet, seen from one of them.
pub(crate) trait Meeting {
    /// Why a wait failed.
    type Error;

    fn rank(&self) -> Rank;
    fn size(&self) -> u32;
    /// Wakes a rank that waits.
    fn ring(&self, rank: Rank);
    /// Waits until `come`, which `peer` makes true.
    fn wait(&self, peer: Rank, come: impl Fn() -> bool) -> Result<(), Self::Error>;
    /// Waits until `come`, which all make true together.
    fn wait_for_all(&self, come: impl Fn() -> bool) -> Result<(), Self::Error>;
}

/// Rounds of a barrier of `size` ranks.
pub(super) fn rounds(size: u32) -> u32 {
    size.next_power_of_two().trailing_zeros()
}

/// How far the partners of `round` are.
pub(super) fn distance(round: u32) -> i64 {
    1 << round
}

/// Whether a flag tells of barrier `count`. Wrapping: it is one ahead at most.
fn has_arrived(flag: u32, count: u32) -> bool {
    flag.wrapping_sub(count) < u32::MAX / 2
}

/// As [`has_arrived`], of a count of arrivals.
fn all_have_come(arrivals: u64, all: u64) -> bool {
    arrivals.wrapping_sub(all) < u64::MAX / 2
}

/// Ranks that `rank` wakes.
fn wakes(rank: Rank, size: u32) -> Range<u32> {
    let first = rank.0.saturating_mul(FAN_OUT).saturating_add(1).min(size);
    first..first.saturating_add(FAN_OUT).min(size)
}

/// Waits until all ranks are in their barrier `count`, which is 1 for the first. `mine` gives this
/// rank's flag of each round, `flag_of` that of the rank that it signals there. After an error, the
/// flags that this rank has set stay, and others may pass with them whenever they come: this rank
/// must not come to a barrier with these flags again.
pub(crate) fn by_flags<'a, M: Meeting, W: Word<Value = u32> + 'a, E>(
    meeting: &M,
    count: u64,
    mine: impl Fn(usize) -> &'a W,
    flag_of: impl Fn(usize, Rank) -> Result<&'a W, E>,
    failed: impl Fn(M::Error) -> E,
) -> Result<(), E> {
    let (rank, size) = (meeting.rank(), meeting.size());
    for round in 0..rounds(size) {
        let (after, before) =
            (rank.on_ring(distance(round), size), rank.on_ring(-distance(round), size));
        let round = round as usize;
        // Flags hold the low half. pairs with the Acquire load below, in `after`.
        flag_of(round, after)?.store(count as u32, Release);
        meeting.ring(after);
        let flag = mine(round);
        // pairs with the Release store above, in `before`.
        let arrived = || has_arrived(flag.load(Acquire), count as u32);
        meeting.wait(before, arrived).map_err(&failed)?;
    }
    Ok(())
}

/// As [`by_flags`]. `arrivals` counts the ranks that have come, and nothing else ever: it was
/// `before` when no barrier had been. The memory may have another use before the last rank leaves.
/// After an error, this rank has not come, and may come to the same barrier again.
pub(crate) fn by_count<M: Meeting>(
    meeting: &M,
    count: u64,
    arrivals: &impl Word<Value = u64>,
    before: u64,
) -> Result<(), M::Error> {
    let (rank, size) = (meeting.rank(), meeting.size());
    let all = before.wrapping_add(count.wrapping_mul(size.into()));
    // pairs with itself and the Acquire load below: a rank that finds all has what all did before.
    if arrivals.fetch_add(1, AcqRel).wrapping_add(1) == all {
        meeting.ring(Rank(0));
    } else {
        // pairs with the AcqRel additions above.
        let arrived = || all_have_come(arrivals.load(Acquire), all);
        let waited = meeting.wait_for_all(arrived);
        if waited.is_err() && leave(arrivals, all) {
            return waited;
        }
    }
    for rank in wakes(rank, size) {
        meeting.ring(Rank(rank));
    }
    Ok(())
}

/// Takes an arrival back; false if all have come in the meantime.
fn leave(arrivals: &impl Word<Value = u64>, all: u64) -> bool {
    let fewer = |seen| (!all_have_come(seen, all)).then(|| seen.wrapping_sub(1));
    // pairs with the AcqRel additions of the ranks that have come.
    arrivals.fetch_update(Relaxed, Acquire, fewer).is_ok()
}

#[cfg(all(test, loom))]
#[path = "barrier_loom_tests.rs"]
mod loom_tests;
