//! Payloads that their readers copy out of the sender's own memory, once, by the system.
//!
//! All ranks meet first ([`offers`](super::offers)), and say where what they have lies, and whether
//! they may read the memory of those that they read from. If one may not, all of them go through
//! lanes, then and later in this communicator. What is shown so is a piece of the sender's lane
//! that holds no bytes: its words say that it is there, and which readers have done with it. The
//! sender returns when all have.
//!
//! Bytes that are copied so are whatever lies there at that moment. A sender that gives up, or
//! unwinds, first takes back what it has shown ([`Showing`]), and each reader looks after each copy
//! whether it has: what it has copied before that was the payload. The memory of a process that has
//! ended cannot be copied, which is an error; and if the system refuses a copy that the probe
//! had promised, this rank goes another way from then on.
use super::abandon::By;
use super::exchange::Exchange;
use super::flat::Ring;
use super::lanes::{FlatKind, FlatPlan, InLane, OfferKind};
use super::near::Near;
use super::node::TreeOrder;
use super::operations::Result;
use super::pieces::{self, Readers};
use crate::config::Config;
use crate::engine::{Cause, Engine};
use crate::error::CollectiveError;
use crate::memory::lane::LaneGeometry;
use crate::rank::Rank;
use crate::transport::{CmaError, ImportError};
use core::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

/// A block in the memory of another rank, which this one reads.
struct CopySource {
    lane: InLane,
    address: u64,
}

/// What this rank shows of its memory in an operation. The memory outlives it.
struct Showing<'e, 'a>(&'e Exchange<'a>);

impl Drop for Showing<'_, '_> {
    fn drop(&mut self) {
        // An operation that has ended well has left its lane.
        self.0.withdraw();
    }
}

/// What a rank brings to the meeting.
struct Bringing<'r> {
    /// Of each payload.
    bytes: usize,
    /// What it shows, and to which readers.
    shows: Option<(&'r [u8], Readers)>,
    /// The ranks whose memory it reads.
    reads: &'r [Rank],
}

fn address_of(bytes: &[u8]) -> u64 {
    bytes.as_ptr().expose_provenance() as u64
}

/// How payloads of collectives pass inside of a node; `hindered` says why none is copied where it
/// lies, whatever its length.
fn explain(config: &Config, hindered: Option<&str>) -> String {
    let Config { collective_lane_bytes, collective_lane_from: from_lane, .. } = *config;
    if LaneGeometry::within(collective_lane_bytes, 2).is_none() {
        return format!(
            "collectives: inside of a node, all payloads go by messages: {collective_lane_bytes} \
             bytes of shared memory are too few for them (collective_lane_bytes)\n"
        );
    }
    // Words of lanes say which ranks have read.
    let (from, to) = (config.collective_direct_from.max(from_lane), config.collective_direct_to);
    let direct = match hindered {
        _ if from > to => {
            "none is copied out of the memory of its rank (collective_direct_to)".to_owned()
        }
        Some(why) => format!("{why} out of the memory of its rank"),
        None => format!(
            "of two ranks, blocks of {from} to {to} bytes of a broadcast or an all-gather are \
             copied by the system out of the memory of the other, if it lets both"
        ),
    };
    format!(
        "collectives: inside of a node, payloads of {from_lane} bytes and more pass through shared \
         memory; {direct}\n"
    )
}

impl Engine {
    /// As [`explain`], of this rank.
    pub(crate) fn explain_payloads(&self) -> String {
        let hindered = if self.transport.cma.is_none() {
            Some("the transport copies none")
        } else if self.transport.sleep.is_crowded() {
            Some("ranks share CPUs, so none is copied")
        } else if self.is_copy_refused.load(Relaxed) {
            Some("the system has refused to copy one, so none is copied any more")
        } else {
            None
        };
        explain(&self.config, hindered)
    }
}

impl Exchange<'_> {
    /// What ranks of an order meet on, if blocks of so many bytes are copied from the memory of the
    /// rank that has them. All of them say the same, if they have the same length.
    ///
    /// Lanes are as fast, or faster, but where bytes do not change (ADR 84): the system copies
    /// lines that another CPU has changed more slowly than a program does, and a rank fills its
    /// lane while others empty it.
    pub(super) fn direct(&self, order: TreeOrder<'_>, bytes: usize) -> Option<&Near> {
        let inner = &self.comm().inner;
        let Engine { transport, config, .. } = &*inner.engine;
        let is_direct = (config.collective_direct_from..=config.collective_direct_to)
            .contains(&(bytes as u64))
            && inner.group.size() == 2
            && !transport.sleep.is_crowded()
            && transport.cma.is_some()
            && matches!(order, TreeOrder::From(_))
            && !inner.lanes.is_apart.load(Relaxed);
        is_direct.then(|| self.comm().collective_block()).flatten()
    }

    /// All ranks tell each other what they show. Answers with what this rank reads, in that order,
    /// and with what takes back what it shows; `None` if ranks cannot read each other's memory.
    fn meet_directly(
        &self,
        near: &Near,
        Bringing { bytes, shows, reads }: Bringing<'_>,
    ) -> Result<Option<(Vec<CopySource>, Showing<'_, '_>)>> {
        let comm = self.comm();
        let Engine { transport, is_copy_refused, .. } = &*comm.inner.engine;
        let reaches = |rank: &Rank| transport.cma_with(comm.world_rank(*rank)).is_some();
        let kind = match &shows {
            _ if is_copy_refused.load(Relaxed) || !reads.iter().all(reaches) => {
                OfferKind::Unreachable
            }
            Some(_) if !self.opens() => OfferKind::NoLane,
            _ => OfferKind::Direct,
        };
        let (showing, first) = (Showing(self), self.next_piece());
        let address = shows.as_ref().map_or(0, |(bytes, _)| address_of(bytes));
        if let Some((_, readers)) = shows.filter(|_| kind == OfferKind::Direct) {
            // A rank that hears of the offer finds it there.
            self.put_piece(readers, &[], false)?;
        }
        let offers = self.share_lanes(near, kind, (bytes, address), first)?;
        let (mut is_apart, mut all_show) = (false, true);
        for (from, offer) in comm.ranks().zip(&offers) {
            self.check_length(from, bytes, offer.bytes())?;
            let is = |kind| offer.lane().is(kind);
            let is_direct = is(OfferKind::Direct);
            let is_known = is_direct || is(OfferKind::NoLane) || is(OfferKind::Unreachable);
            if !is_known || !offer.lane().is_planned(self.plan.get()) {
                return Err(self.fails(CollectiveError::Malformed { what: self.what(), from }));
            }
            is_apart |= is(OfferKind::Unreachable);
            all_show &= is_direct;
        }
        if is_apart {
            comm.inner.lanes.is_apart.store(true, Relaxed);
        }
        if !all_show {
            self.recall(first);
            return Ok(None);
        }
        let source = |from: &Rank| {
            let offer = &offers[usize::from(*from)];
            let lane =
                self.accept_offer((*from, OfferKind::Direct), offer.lane(), offer.bytes())?;
            let malformed = CollectiveError::Malformed { what: self.what(), from: *from };
            let lane = lane.ok_or_else(|| self.fails(malformed))?;
            Ok(CopySource { lane, address: offer.address() })
        };
        let sources = reads.iter().map(source).collect::<Result<_>>()?;
        Ok(Some((sources, showing)))
    }

    /// Copies the payload of a source, which this rank has not done with.
    fn copy_shown(&self, source: &CopySource, bytes: &mut [u8]) -> Result<()> {
        let (inner, from) = (&self.comm().inner, source.lane.from());
        let (engine, world) = (&inner.engine, inner.world_rank(from));
        let copied = match engine.transport.cma_with(world) {
            Some(cma) => cma.copy_from(world, source.address, bytes),
            None => Err(CmaError::PeerGone(world)),
        };
        let (lane, first) = source.lane.words();
        if pieces::is_withdrawn(&self.at(lane, 0), first) {
            return Err(self.fails(CollectiveError::GaveUp { what: self.what(), world }));
        }
        Ok(inner.attempt(self.what(), (Some(from), By::Messages), |wait| {
            copied.map_err(|error| {
                let system = |errno| {
                    let (owner, call) = (world, "process_vm_readv");
                    Cause::Import(ImportError::System { owner, call, errno })
                };
                let cause = match error {
                    CmaError::PeerGone(_) | CmaError::Far(_) => inner.cause_of_loss(wait, world),
                    // The buffer may be of a kind that is never copied so, or the process is
                    // confined since the probe: the next would fail as well.
                    CmaError::System { errno, .. } => {
                        engine.is_copy_refused.store(true, Relaxed);
                        system(errno)
                    }
                };
                engine.given_up(wait, cause)
            })
        })?)
    }

    /// Copies the payload of a source, and has done with it.
    fn take_shown(&self, source: &CopySource, bytes: &mut [u8]) -> Result<()> {
        let (from, (lane, first)) = (source.lane.from(), source.lane.words());
        let side = self.at(lane, 0);
        pieces::await_piece(&side, from, first)?;
        self.copy_shown(source, bytes)?;
        pieces::done(&side, (from, self.comm().rank()), first, true);
        self.comm().inner.engine.counters.count_copied_block();
        Ok(())
    }

    /// Copies the bytes of `root` to the other ranks; false if they have to go another way.
    ///
    /// The first step of an operation: a rank that waits for a message of another takes what that
    /// one offers for a mistake.
    pub(super) fn broadcast_direct(&self, root: Rank, bytes: &mut [u8]) -> Result<bool> {
        let order = TreeOrder::From(root);
        let (near, others) = (self.direct(order, bytes.len()), self.flat(order, bytes.len()));
        let (Some(near), Some(others)) = (near, others) else { return Ok(false) };
        self.plan.set(FlatPlan::around(FlatKind::Broadcast, root));
        let is_root = self.comm().rank() == root;
        let shows = is_root.then(|| (&bytes[..], Readers::All(others)));
        let reads = if is_root { &[][..] } else { &[root] };
        let bringing = Bringing { bytes: bytes.len(), shows, reads };
        let Some((sources, _showing)) = self.meet_directly(near, bringing)? else {
            return Ok(false);
        };
        for source in &sources {
            self.take_shown(source, bytes)?;
        }
        self.leave_read_lane()?;
        Ok(true)
    }

    /// As [`allgather_flat`](Self::allgather_flat).
    pub(super) fn allgather_direct(
        &self,
        near: &Near,
        ring: Ring<'_>,
        others: &Arc<[Rank]>,
        all: &mut [u8],
    ) -> Result<bool> {
        let block = all.len() / self.comm().size() as usize;
        let place = |rank: Rank| usize::from(rank) * block..(usize::from(rank) + 1) * block;
        let shows = Some((&all[place(self.comm().rank())], Readers::All(others.clone())));
        let bringing = Bringing { bytes: block, shows, reads: &ring.all_before() };
        let Some((sources, _showing)) = self.meet_directly(near, bringing)? else {
            return Ok(false);
        };
        for source in &sources {
            self.take_shown(source, &mut all[place(source.lane.from())])?;
        }
        self.leave_read_lane()?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_bound_what_is_copied_where_it_lies() {
        let mut config = Config::default();
        config.collective_lane_from = 4096;
        (config.collective_direct_from, config.collective_direct_to) = (1, 10_000);
        let text = explain(&config, None);
        assert!(text.contains("blocks of 4096 to 10000 bytes"), "{text}");
        let why = "ranks share CPUs, so none is copied";
        let text = explain(&config, Some(why));
        assert!(text.contains(why) && !text.contains("blocks of"), "{text}");

        config.collective_lane_from = 10_001;
        let text = explain(&config, None);
        assert!(text.contains("none is copied") && !text.contains("blocks of"), "{text}");

        config.collective_lane_from = 4096;
        config.collective_lane_bytes = 1;
        let text = explain(&config, None);
        assert!(text.contains("all payloads go by messages") && !text.contains("blocks"), "{text}");
    }
}
