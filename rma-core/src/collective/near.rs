//! Barriers in shared memory, and what small things ranks tell each other at them.
use super::abandon::By;
pub(crate) use super::barrier::by_count;
use super::barrier::{self, Meeting, distance, rounds};
use super::binomial;
use super::node::Node;
use crate::collective::Inner;
use crate::engine::WaitError;
use crate::error::CollectiveError;
use crate::memory::control_block::{ControlBlock, FLAGS, SlotHead, SlotUse};
use crate::memory::pool::{PeerBlock, SharedCollectiveBlock, SyncBlock};
use crate::object::NO_OBJECT;
use crate::protocol::message::{Head, Kind};
use crate::rank::Rank;
use crate::transport::Descriptor;
use bytemuck::checked::try_pod_read_unaligned;
use bytemuck::{Pod, bytes_of};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Relaxed, Release};

impl Meeting for Inner {
    type Error = WaitError;

    fn rank(&self) -> Rank {
        self.rank
    }

    fn size(&self) -> u32 {
        self.group.size()
    }

    fn ring(&self, rank: Rank) {
        self.engine.transport.sleep.ring(self.world_rank(rank));
    }

    fn wait(&self, peer: Rank, come: impl Fn() -> bool) -> Result<(), WaitError> {
        if self.engine.comes_at_once(&come) {
            return Ok(());
        }
        self.attempt(BARRIER, (Some(peer), By::Flags), |wait| {
            // wait: flag
            self.engine.wait_until(wait, || come().then_some(()))
        })
    }

    fn wait_for_all(&self, come: impl Fn() -> bool) -> Result<(), WaitError> {
        self.attempt(BARRIER, (None, By::Messages), |wait| {
            // wait: arrivals
            self.engine.wait_until(wait, || come().then_some(()))
        })
    }
}

const BARRIER: &str = "a barrier";

/// As [`barrier::by_flags`]: `block_of` gives the blocks of the ranks that this one signals in each
/// round.
pub(crate) fn by_flags<'a, E>(
    comm: &Inner,
    count: u64,
    mine: ControlBlock<'a>,
    block_of: impl Fn(usize, Rank) -> Result<ControlBlock<'a>, E>,
    failed: impl Fn(WaitError) -> E,
) -> Result<(), E> {
    comm.current.begin_barrier(count);
    let flag_of = |round, rank| {
        // Without it, this rank takes no part.
        let block = block_of(round, rank).inspect_err(|_| comm.give_up_barrier())?;
        Ok(block.flag(round))
    };
    barrier::by_flags(comm, count, |round| mine.flag(round), flag_of, failed)
}

/// What the ranks of a communicator share, if all are near each other.
pub(crate) struct Near {
    collective_block: SharedCollectiveBlock,
    /// `None` where barriers are counted on the collective block.
    flags: Option<Flags>,
    /// Of the next window over the communicator, which rank 0 has told when the last one was made;
    /// [`NO_OBJECT`] before that, and while one is made. The same at all ranks.
    next_window: AtomicU64,
}

impl Near {
    /// `None` if not all ranks share memory. **Collective.**
    pub(crate) fn new(comm: &Inner) -> Result<Option<Self>, CollectiveError> {
        if comm.group.size() == 1 || !matches!(comm.node, Node::Whole) {
            return Ok(None);
        }
        let collective_block = find_collective_block(comm)?;
        let crowded = comm.engine.transport.sleep.is_crowded();
        let flags = if crowded { None } else { Some(Flags::new(comm)?) };
        Ok(Some(Self { collective_block, flags, next_window: AtomicU64::new(NO_OBJECT) }))
    }

    /// The id of the next window over the communicator, if all ranks know it already.
    pub(crate) fn take_next_window(&self) -> Option<u64> {
        // Ranks make windows over one communicator in one order, so that no thread races here.
        Some(self.next_window.swap(NO_OBJECT, Relaxed)).filter(|id| *id != NO_OBJECT)
    }

    /// Waits until all ranks of `comm` are in the barrier that comes after `passed`.
    pub(crate) fn wait(&self, comm: &Inner, passed: &AtomicU64) -> Result<(), CollectiveError> {
        let count = passed.load(Relaxed) + 1;
        let waited = match &self.flags {
            Some(flags) => flags.wait(comm, count),
            None => {
                let (arrivals, before) =
                    (self.collective_block.get().arrivals(), self.collective_block.before());
                by_count(comm, count, arrivals, before.arrivals).map_err(Into::into)
            }
        };
        self.counted(passed, waited)
    }

    /// Counts a barrier, or an exchange. If it failed, others may come to it after this rank is
    /// gone, and the next exchange has the same number.
    fn counted<E>(&self, passed: &AtomicU64, waited: Result<(), E>) -> Result<(), E> {
        match &waited {
            // By the thread whose turn it is.
            Ok(()) => passed.store(passed.load(Relaxed) + 1, Relaxed),
            Err(_) => self.set_left(false),
        }
        waited
    }

    /// Whether ranks can [`share`](Self::share).
    pub(crate) fn has_slots(&self) -> bool {
        self.collective_block.get().has_slots()
    }

    /// Hands over what each rank gives to the exchange that comes after `passed`, in rank order;
    /// what has come before an error counts for nothing. `kind` stands for the type.
    pub(crate) fn share<S: Pod>(
        &self,
        comm: &Inner,
        passed: &AtomicU64,
        (kind, mine): (u64, &S),
        each: impl FnMut(&S),
    ) -> Result<(), CollectiveError> {
        let head = SlotHead { id: comm.id, slots: SlotUse::Told, kind };
        self.exchange(comm, passed, head, (comm.rank, mine), each)
    }

    /// As [`share`](Self::share), of offers, in a meeting that may end for other reasons.
    pub(super) fn share_offers<S: Pod, M: Meeting>(
        &self,
        meeting: &M,
        passed: &AtomicU64,
        comm: &Inner,
        mine: &S,
    ) -> Result<Vec<S>, CollectiveError>
    where
        CollectiveError: From<M::Error>,
    {
        let mut all = Vec::with_capacity(meeting.size() as usize);
        let mine = (comm.rank, mine);
        self.exchange(meeting, passed, offers_of(comm), mine, |offer| all.push(*offer))?;
        Ok(all)
    }

    /// What a rank offers in the exchange that comes after `passed`, if it has come there.
    pub(super) fn offer_of<S: Pod>(
        &self,
        comm: &Inner,
        passed: &AtomicU64,
        rank: Rank,
    ) -> Option<S> {
        let number = passed.load(Relaxed) + 1;
        self.collective_block.get().read(offers_of(comm), number, rank)
    }

    fn exchange<S: Pod, M: Meeting>(
        &self,
        meeting: &M,
        passed: &AtomicU64,
        head: SlotHead,
        (rank, mine): (Rank, &S),
        mut each: impl FnMut(&S),
    ) -> Result<(), CollectiveError>
    where
        CollectiveError: From<M::Error>,
    {
        let (collective_block, count) = (self.collective_block.get(), passed.load(Relaxed) + 1);
        self.collective_block.expect_reads();
        collective_block.write(head, count, rank, mine);
        // Counted by itself: no other barrier is taken for it, and all pass it or none.
        let before = self.collective_block.before().writes[head.slots as usize];
        let waited = barrier::by_count(meeting, count, collective_block.writes(head.slots), before);
        self.counted(passed, waited)?;
        let mut theirs = S::zeroed();
        let read = (0..meeting.size()).map(Rank).try_for_each(|from| {
            if !collective_block.read_into(head, count, from, &mut theirs) {
                return Err(CollectiveError::Malformed { what: "an exchange", from });
            }
            each(&theirs);
            Ok(())
        });
        // pairs with the Acquire load of the rank that gives the collective block to another
        // communicator.
        collective_block.reads().fetch_add(1, Release);
        // Ranks were at different meetings: all read that here, and none knows what comes next.
        read.inspect_err(|_| self.set_next_window(NO_OBJECT))
    }

    pub(super) fn set_next_window(&self, id: u64) {
        self.next_window.store(id, Relaxed);
    }

    /// All ranks have it: others may have its words once this rank is done with it.
    pub(crate) fn set_made(&self) {
        self.set_left(true);
    }

    pub(crate) fn set_left(&self, left: bool) {
        self.collective_block.set_left(left);
        if let Some(flags) = &self.flags {
            flags.block.set_left(left);
        }
    }
}

/// Of what ranks offer each other there is one type.
fn offers_of(comm: &Inner) -> SlotHead {
    SlotHead { id: comm.id, slots: SlotUse::Offers, kind: 0 }
}

/// Makes the collective block at rank 0, and maps it elsewhere.
fn find_collective_block(comm: &Inner) -> Result<SharedCollectiveBlock, CollectiveError> {
    const TAG: u32 = FLAGS as u32;
    let size = comm.group.size();
    let (parent, children) = binomial(comm.rank.0, size);
    let (collective_block, invitation) = match parent {
        None => SharedCollectiveBlock::new(&comm.engine.sync_blocks, &comm.engine.transport, size)?,
        Some(parent) => {
            let invitation = hear(comm, Rank(parent), TAG)?;
            let (transport, owner) = (&comm.engine.transport, comm.world_rank(Rank(0)));
            (SharedCollectiveBlock::import(transport, owner, &invitation, size)?, invitation)
        }
    };
    for distance in children {
        tell(comm, Rank(comm.rank.0 + distance), TAG, &invitation)?;
    }
    Ok(collective_block)
}

/// Sends something while the communicator is made. Tags of its operations start above `tag`,
/// which is a round of the barrier or [`FLAGS`].
fn tell<S: Pod>(comm: &Inner, to: Rank, tag: u32, what: &S) -> Result<(), CollectiveError> {
    let mut head = Head::new(Kind::Collective, comm.id, tag);
    head.length = (size_of::<S>() as u64).into();
    Ok(comm.send(MAKING, to, &head, bytes_of(what))?)
}

/// Takes what `from` [told](tell).
fn hear<S: Pod>(comm: &Inner, from: Rank, tag: u32) -> Result<S, CollectiveError> {
    let key = (comm.id, tag, comm.world_rank(from));
    let take = || comm.contributions.take(&key, 0);
    let (taken, cts) = comm.attempt(MAKING, (Some(from), By::Messages), |wait| {
        // wait: invitation
        comm.engine.wait_until(wait, take)
    })?;
    comm.engine.send_cts(cts);
    let part = taken.map_err(|no_room| no_room.of(MAKING, from))?;
    try_pod_read_unaligned(&part.bytes)
        .map_err(|_| CollectiveError::Malformed { what: MAKING, from })
}

const MAKING: &str = "making a communicator";

/// This rank's flags, and those of the ranks that it signals.
struct Flags {
    block: SyncBlock,
    partners: Box<[PeerBlock]>,
}

impl Flags {
    fn new(comm: &Inner) -> Result<Self, CollectiveError> {
        let size = comm.group.size();
        let block = SyncBlock::new(&comm.engine.sync_blocks, &comm.engine.transport)?;
        for round in 0..rounds(size) {
            tell(comm, comm.rank.on_ring(-distance(round), size), round, &block.descriptor().0)?;
        }
        let partner = |round| {
            let after = comm.rank.on_ring(distance(round), size);
            let descriptor = Descriptor(hear(comm, after, round)?);
            let owner = comm.world_rank(after);
            Ok(PeerBlock::import(&comm.engine.transport, owner, &descriptor)?)
        };
        let partners = (0..rounds(size)).map(partner).collect::<Result<_, CollectiveError>>()?;
        Ok(Self { block, partners })
    }

    fn wait(&self, comm: &Inner, count: u64) -> Result<(), CollectiveError> {
        let partner = |round: usize, _| Ok(self.partners[round].get());
        by_flags(comm, count, self.block.get(), partner, CollectiveError::from)
    }
}
