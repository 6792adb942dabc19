//! The dissemination barrier in shared memory.
//!
//! In round `k`, rank `r` sets a flag at rank `r + 2^k` and waits for one from `r - 2^k`. A flag
//! holds the number of the barrier, so it needs no reset: a rank is at most one barrier ahead.
use crate::communicator::Inner;
use crate::completion::WaitError;
use crate::error::CollectiveError;
use crate::memory::block::{Block, FLAGS};
use crate::protocol::message::{Head, Kind};
use crate::rank::Rank;
use crate::sync_block::{PeerBlock, SyncBlock};
use crate::transport::{Descriptor, ImportError, Transport};
use core::sync::atomic::{Ordering::Acquire, Ordering::Release};

/// Rounds of a barrier of `size` ranks.
fn rounds(size: u32) -> u32 {
    size.next_power_of_two().trailing_zeros()
}

/// How far the partners of `round` are.
fn distance(round: u32) -> i64 {
    1 << round
}

/// Whether a flag tells of barrier `count`. Wrapping: it is one ahead at most.
fn has_arrived(flag: u32, count: u32) -> bool {
    flag.wrapping_sub(count) < u32::MAX / 2
}

/// Whether all ranks of a communicator share memory, and there are several.
pub(crate) fn all_near<T: Transport>(comm: &Inner<T>) -> bool {
    let transport = &comm.process.transport;
    let rounds = rounds(comm.group.size()) as usize;
    rounds <= FLAGS && comm.group.members().all(|peer| transport.is_near(peer))
}

/// Why a barrier failed.
pub(crate) enum BarrierError {
    Wait(WaitError),
    Import(ImportError),
}

impl From<WaitError> for BarrierError {
    fn from(error: WaitError) -> Self {
        Self::Wait(error)
    }
}

impl From<ImportError> for BarrierError {
    fn from(error: ImportError) -> Self {
        Self::Import(error)
    }
}

/// Waits until all ranks of `comm` are in their barrier `count`, which is 1 for the first.
/// `block_of` gives the blocks of the ranks that this one signals.
pub(crate) fn wait<'a, T: Transport>(
    comm: &Inner<T>,
    count: u32,
    mine: Block<'a>,
    block_of: impl Fn(usize, Rank) -> Result<Block<'a>, ImportError>,
) -> Result<(), BarrierError> {
    let size = comm.group.size();
    for round in 0..rounds(size) {
        let (after, before) =
            (comm.rank.on_ring(distance(round), size), comm.rank.on_ring(-distance(round), size));
        let round = round as usize;
        // pairs with the Acquire load below, in `after`.
        block_of(round, after)?.flag(round).store(count, Release);
        comm.process.transport.ring(comm.world_rank(after));
        let flag = mine.flag(round);
        let wait = comm.wait_for("a barrier", before);
        // pairs with the Release store above, in `before`.
        let arrived = || has_arrived(flag.load(Acquire), count).then_some(());
        comm.process.wait_until(wait, arrived)?;
    }
    Ok(())
}

/// The barrier of a communicator: its own flags, and those of the ranks that it signals.
pub(crate) struct NearBarrier<T: Transport> {
    block: SyncBlock<T>,
    partners: Box<[PeerBlock<T>]>,
}

impl<T: Transport> NearBarrier<T> {
    /// `None` if not all ranks share memory. **Collective.**
    pub(crate) fn new(comm: &Inner<T>) -> Result<Option<Self>, CollectiveError> {
        let size = comm.group.size();
        if size == 1 || !all_near(comm) {
            return Ok(None);
        }
        let what = "making a communicator";
        let block = SyncBlock::new(&comm.process)?;
        // Tags of operations start above these.
        for round in 0..rounds(size) {
            let before = comm.rank.on_ring(-distance(round), size);
            let mut head = Head::new(Kind::Collective, comm.id, round);
            head.length = (Descriptor::LEN as u64).into();
            let to = comm.world_rank(before);
            let wait = comm.wait_for(what, before);
            comm.process.send(to, &head, &block.descriptor().0, wait)?;
        }
        let partner = |round| {
            let after = comm.rank.on_ring(distance(round), size);
            let key = (comm.id, round, comm.world_rank(after));
            let take = || comm.process.mail.take(&key);
            let taken = comm.process.wait_until(comm.wait_for(what, after), take)?;
            let bytes = taken.map_err(|no_room| no_room.of(what, after))?;
            let malformed = |_| CollectiveError::Malformed { what, from: after };
            let descriptor = Descriptor(bytes.try_into().map_err(malformed)?);
            Ok(PeerBlock::import(&comm.process.transport, key.2, &descriptor)?)
        };
        let partners = (0..rounds(size)).map(partner).collect::<Result<_, CollectiveError>>()?;
        Ok(Some(Self { block, partners }))
    }

    /// See [`wait`].
    pub(crate) fn wait(&self, comm: &Inner<T>, count: u32) -> Result<(), CollectiveError> {
        wait(comm, count, self.block.get(), |round, _| Ok(self.partners[round].get())).map_err(
            |error| match error {
                BarrierError::Wait(error) => error.into(),
                BarrierError::Import(error) => error.into(),
            },
        )
    }
}

#[cfg(all(test, loom))]
#[path = "near_loom_tests.rs"]
mod loom_tests;
