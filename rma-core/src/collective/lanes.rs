//! Payloads that pass from a rank to its neighbours through memory, in pieces: each is copied into
//! the [lane](crate::memory::lane) of its sender once, and out of it by each of its receivers,
//! while the next is written.
//!
//! A message offers a payload, and says where in the lane it begins. The sender decides so, and the
//! receiver takes what comes: a sender that has no memory for a lane uses messages. A rank
//! leaves an operation when all has been written, and others may read it later: each has the lane
//! mapped by then, for what it reads there first is waited for. If an operation fails, no rank can
//! tell when the last reader is done: the lane is kept, and not used again.
use super::abandon::By;
use super::contributions::{CollectiveKind, PayloadPart, step_head};
use super::exchange::Exchange;
use super::node::{Node, TreeOrder};
use super::operations::Result;
use super::pieces::{self, AtLane, HeldPlaces, Readers};
use crate::collective::{Communicator, Inner};
use crate::config::{Config, digest};
use crate::engine::{Cause, Engine};
use crate::error::CollectiveError;
use crate::memory::lane::{Lane, LaneGeometry, OwnLane, PIECES, PeerLane};
use crate::protocol::wire::{U32, U64};
use crate::rank::Rank;
use crate::transport::{Descriptor, ImportError};
use crate::word::Word;
use bytemuck::{Pod, Zeroable, bytes_of, try_pod_read_unaligned};
use core::mem;
use rustc_hash::FxHashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Pieces of half a lane: one is written while the other is read.
pub(super) const HALF: u64 = PIECES as u64 / 2;

/// A payload is cut into so many pieces, unless they are very small, or too large.
const IN_PIECES: usize = 16;
const UNIT_LEAST: usize = 8 << 10;

/// A rank that has lost lanes of so many bytes, in operations that failed, makes no more of them.
const LOST_MOST: u64 = 32 << 20;

/// What is said of a payload that is offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum OfferKind {
    /// One piece after the other is for the receiver alone.
    Alone = 1,
    /// Of an operation in which each rank reads what others wrote, without a tree.
    Flat = 2,
    /// The sender would take part in such an operation, but has no lane.
    NoLane = 3,
    /// There is nothing to be read here: the sender is in such an operation, and another rank
    /// reads what it has.
    Length = 4,
}

/// What ranks do in an operation without a tree.
#[derive(Debug, Clone, Copy)]
#[repr(u64)]
pub(super) enum FlatKind {
    Broadcast = 1,
    Scatter,
    Gather,
    Allgather,
    Alltoall,
    Reduce,
}

/// All that decides which pieces a rank of such an operation writes and reads, but for lengths, as
/// one number. Where ranks disagree on that, they would read what is for others, or wait for what
/// never comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct FlatPlan(u64);

impl FlatPlan {
    /// `how` is whatever there is besides the kind, in an order that tells all of it apart.
    pub(super) fn new(kind: FlatKind, how: impl IntoIterator<Item = u64>) -> Self {
        Self(digest(core::iter::once(kind as u64).chain(how)))
    }

    /// Of one that has a root.
    pub(super) fn around(kind: FlatKind, root: Rank) -> Self {
        Self::new(kind, [u64::from(root)])
    }
}

/// The body of a message that offers a payload.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct LaneOffer {
    descriptor: [u8; Descriptor::LEN],
    first: U64,
    /// The [`FlatPlan`] of the sender.
    plan: U64,
    kind: U32,
    readers: U32,
    pieces: U32,
    piece_bytes: U32,
    /// Of its pieces, but for the last.
    unit: U32,
}

impl LaneOffer {
    fn is(&self, kind: OfferKind) -> bool {
        self.kind.get() == kind as u32
    }
}

/// The lanes that a communicator uses.
#[derive(Default)]
pub(crate) struct Lanes {
    own: Mutex<OwnState>,
    peers: Mutex<FxHashMap<Rank, FoundLane>>,
}

/// The lane of a peer, and where it said that it is.
struct FoundLane {
    descriptor: [u8; Descriptor::LEN],
    lane: Arc<PeerLane>,
}

/// This rank's.
#[derive(Default)]
enum OwnState {
    #[default]
    Unmade,
    Idle(OutLane),
    /// An operation has it, or has lost it; or there is no memory for it.
    Gone,
}

/// A lane that this rank writes.
pub(super) struct OutLane {
    lane: OwnLane,
    places: HeldPlaces,
    /// The first piece of the operation that has it.
    since: u64,
    /// The ranks that have read there: they have it mapped.
    known: Box<[bool]>,
}

impl OutLane {
    fn is_read(&self) -> bool {
        let lane = self.lane.get();
        self.places.unread().all(|piece| lane.is_read(piece))
    }
}

impl Drop for OutLane {
    fn drop(&mut self) {
        self.lane.set_unread(self.places.unread());
    }
}

/// A lane of a peer, in one operation.
pub(super) struct InLane {
    from: Rank,
    lane: Arc<PeerLane>,
    /// The number of the first piece.
    first: u64,
    unit: usize,
    /// Bytes of the payload.
    pub(super) bytes: u64,
}

impl InLane {
    /// The rank that writes there.
    pub(super) fn from(&self) -> Rank {
        self.from
    }

    /// Bytes of each piece but the last.
    pub(super) fn unit(&self) -> usize {
        self.unit
    }
}

impl Lanes {
    fn own(&self) -> MutexGuard<'_, OwnState> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This rank's lane, to be given back.
    fn take(&self, comm: &Inner) -> Option<OutLane> {
        let mut own = self.own();
        let mut lane = match mem::replace(&mut *own, OwnState::Gone) {
            OwnState::Idle(lane) => lane,
            OwnState::Unmade => OutLane::new(comm)?,
            OwnState::Gone => return None,
        };
        // Until it is given back. An operation that is left in the middle loses it.
        lane.lane.set_idle(false);
        // A reader that gave up may never come to what is left of an earlier operation.
        if comm.current.news().leaves_messages() && !lane.is_read() {
            return None;
        }
        lane.since = lane.places.next();
        Some(lane)
    }

    fn give_back(&self, mut lane: OutLane) {
        lane.lane.set_idle(true);
        *self.own() = OwnState::Idle(lane);
    }
}

impl OutLane {
    fn new(comm: &Inner) -> Option<Self> {
        let engine = &comm.engine;
        let geometry =
            LaneGeometry::within(engine.config.collective_lane_bytes, comm.group.size())?;
        if engine.body_max() < size_of::<LaneOffer>() {
            return None;
        }
        let (pool, transport) = (&engine.sync_blocks, &engine.transport);
        if pool.kept_lanes() >= LOST_MOST {
            transport.members.note(
                "large payloads of collectives go by messages in new communicators: 32 MiB of \
                 dropped ones are kept for ranks that may still read them",
            );
            return None;
        }
        let lane = OwnLane::new(pool, transport, geometry).inspect_err(|error| {
            transport.members.note(&format!(
                "no shared memory for payloads of collectives, which go by messages: {error}"
            ));
        });
        let lane = lane.ok()?;
        let (since, readers) = (lane.next(), comm.group.size() as usize);
        let places = HeldPlaces::new(geometry.pieces(), since);
        Some(Self { lane, places, since, known: vec![false; readers].into() })
    }
}

/// A member at a lane.
struct Member<'a> {
    comm: &'a Inner,
    what: &'static str,
    lane: Lane<'a>,
    /// The first piece of the operation, at its own lane.
    since: u64,
}

impl AtLane for Member<'_> {
    type Error = CollectiveError;

    fn written(&self) -> &impl Word<Value = u64> {
        self.lane.written()
    }

    fn read_by(&self, reader: Rank) -> &impl Word<Value = u64> {
        self.lane.read_by(reader.0)
    }

    fn ring(&self, rank: Rank) {
        self.comm.engine.transport.sleep.ring(self.comm.world_rank(rank));
    }

    fn wait_there(&self, writer: Rank, is_there: impl Fn() -> bool) -> Result<()> {
        Ok(self.comm.attempt(self.what, (Some(writer), By::Messages), |wait| {
            // wait: piece
            self.comm.engine.wait_until(wait, || is_there().then_some(()))
        })?)
    }

    fn wait_read(&self, reader: Rank, number: u64, is_read: impl Fn() -> bool) -> Result<()> {
        if is_read() {
            return Ok(());
        }
        // A reader that gave up an earlier operation may never come to what is left of it.
        let is_left = number < self.since;
        let in_vain = || is_left && self.comm.current.news().leaves_messages();
        self.comm.attempt(self.what, (Some(reader), By::Messages), |wait| {
            // wait: place for a piece
            self.comm.engine.wait_until(wait, || (is_read() || in_vain()).then_some(()))
        })?;
        if is_read() {
            return Ok(());
        }
        self.comm.give_up_operation();
        Err(CollectiveError::GaveUp { what: self.what, world: self.comm.world_rank(reader) })
    }
}

impl Communicator {
    /// The other ranks of an order, if all of them share memory.
    fn near_others(&self, order: TreeOrder<'_>) -> Option<Arc<[Rank]>> {
        let are_near = match order {
            TreeOrder::Node(..) => true,
            TreeOrder::From(_) => matches!(self.inner.node, Node::Whole),
            TreeOrder::Leaders(..) => false,
        };
        let others = (0..order.size(self)).map(|place| order.at(self, place));
        are_near.then(|| others.filter(|rank| *rank != self.rank()).collect())
    }
}

impl Exchange<'_> {
    /// Whether a payload of so many bytes is large enough for lanes.
    pub(super) fn is_large(&self, bytes: usize) -> bool {
        bytes as u64 >= self.comm().inner.engine.config.collective_lane_from
    }

    /// The other ranks of an order, if payloads of so many bytes pass between them without a tree.
    /// All of them say the same, if they have the same length.
    pub(super) fn flat(&self, order: TreeOrder<'_>, bytes: usize) -> Option<Arc<[Rank]>> {
        let inner = &self.comm().inner;
        let geometry =
            || LaneGeometry::within(inner.engine.config.collective_lane_bytes, inner.group.size());
        let is_flat = self.is_large(bytes) && order.size(self.comm()) > 1 && geometry().is_some();
        is_flat.then(|| self.comm().near_others(order)).flatten()
    }

    /// Whether this rank can write to its lane in this operation.
    pub(super) fn opens(&self) -> bool {
        let mut out = self.out.borrow_mut();
        if out.is_none() {
            *out = self.comm().inner.lanes.take(&self.comm().inner);
        }
        out.is_some()
    }

    /// As [`opens`](Self::opens), for a payload of so many bytes to one rank.
    pub(super) fn opens_to(&self, to: Rank, bytes: usize) -> bool {
        let comm = self.comm();
        let shared = &comm.inner.engine.transport.shared;
        let is_near = to != comm.rank() && shared.is_near(comm.world_rank(to));
        is_near && self.is_large(bytes) && self.opens()
    }

    /// Bytes of the pieces of such a payload: some of them are on their way while others are
    /// written, but where ranks take turns on a CPU, a turn shall be worth it.
    pub(super) fn unit(&self, bytes: usize) -> usize {
        let inner = &self.comm().inner;
        let geometry =
            LaneGeometry::within(inner.engine.config.collective_lane_bytes, inner.group.size());
        let most = geometry.map_or(0, LaneGeometry::piece_bytes);
        if inner.engine.transport.sleep.is_crowded() {
            return most;
        }
        (bytes / IN_PIECES).next_multiple_of(64).max(UNIT_LEAST).min(most)
    }

    /// Elements of `width` bytes in a piece of such a payload; 0 if a piece holds none.
    pub(super) fn unit_elements(&self, width: usize, bytes: usize) -> usize {
        let unit = self.unit(bytes).max(width.min(self.unit(usize::MAX / 2)));
        unit / width.max(1)
    }

    /// As [`next_piece`](Self::next_piece), of a lane that is opened if it can be.
    pub(super) fn first_piece(&self) -> u64 {
        self.opens();
        self.next_piece()
    }

    /// The number of the next piece.
    pub(super) fn next_piece(&self) -> u64 {
        self.out.borrow().as_ref().map_or(0, |out| out.places.next())
    }

    /// Offers a payload of so many bytes, that begins with the piece of that number.
    pub(super) fn offer(
        &self,
        (to, round): (Rank, u32),
        kind: OfferKind,
        bytes: usize,
        first: u64,
    ) -> Result<()> {
        self.check_payload(bytes as u64)?;
        let offer = self.lane_offer(kind, bytes, first);
        let (id, tag, _) = self.key(to, round);
        let head = step_head(id, tag, CollectiveKind::Offer, 0, bytes as u64);
        Ok(self.comm().inner.send(self.what(), to, &head, bytes_of(&offer))?)
    }

    /// What is said of a payload of so many bytes, that begins with that piece.
    pub(super) fn lane_offer(&self, kind: OfferKind, bytes: usize, first: u64) -> LaneOffer {
        let out = self.out.borrow();
        let (geometry, descriptor) = match out.as_ref() {
            Some(out) => (Some(out.lane.geometry()), out.lane.descriptor()),
            None => (None, Descriptor([0; Descriptor::LEN])),
        };
        let unit = self.unit(bytes) as u32;
        LaneOffer {
            unit: unit.into(),
            descriptor: descriptor.0,
            first: first.into(),
            plan: self.plan.get().0.into(),
            kind: (kind as u32).into(),
            readers: self.comm().size().into(),
            pieces: geometry.map_or(0, LaneGeometry::pieces).into(),
            piece_bytes: geometry.map_or(0, |geometry| geometry.piece_bytes() as u32).into(),
        }
    }

    /// Writes a piece, when its place is free. Readers are rung, unless there is more for them at
    /// once.
    pub(super) fn put_piece(&self, readers: Readers, piece: &[u8], rings: bool) -> Result<()> {
        let mut out = self.out.borrow_mut();
        let Some(OutLane { lane, places, since, .. }) = out.as_mut() else { return Ok(()) };
        let at = lane.get();
        places.put(&self.at(at, *since), readers, rings, |number| at.put(number, piece))?;
        lane.advance();
        Ok(())
    }

    fn at<'a>(&'a self, lane: Lane<'a>, since: u64) -> Member<'a> {
        Member { comm: &self.comm().inner, what: self.what(), lane, since }
    }

    /// Whether the other side is woken behind that piece, which is not the last. Where ranks share
    /// CPUs it is worth it for half a lane only. Where they do not, a side that sleeps is late, and
    /// would have the other sleep, too, by the time that it has done half a lane: they would take
    /// turns.
    fn rings_behind(&self, number: u64) -> bool {
        let is_crowded = self.comm().inner.engine.transport.sleep.is_crowded();
        !is_crowded || pieces::ends_half(number, HALF)
    }

    /// Writes a payload, for readers that do nothing but to [read](Self::get_stream) it.
    pub(super) fn put_stream(&self, readers: &Readers, payload: &[u8]) -> Result<()> {
        self.put_more(readers, payload, payload.len(), &mut 0)
    }

    /// As [`put_stream`](Self::put_stream), of a payload whose first bytes have come, so many, and
    /// of which `put` are written.
    pub(super) fn put_more(
        &self,
        readers: &Readers,
        payload: &[u8],
        come: usize,
        put: &mut usize,
    ) -> Result<()> {
        let unit = self.unit(payload.len());
        while *put < come && (come == payload.len() || come - *put >= unit) {
            let end = come.min(*put + unit);
            let rings = end == payload.len() || self.rings_behind(self.next_piece());
            self.put_piece(readers.clone(), &payload[*put..end], rings)?;
            *put = end;
        }
        Ok(())
    }

    /// This rank has written all that the operation needs, or will no more: ranks that have not
    /// read there before are waited for. Others come to what is left whatever becomes of this rank.
    pub(super) fn leave_lane(&self) -> Result<()> {
        // Some may not come to it.
        let drains = self.comm().inner.current.news().leaves_messages();
        let mut out = self.out.borrow_mut();
        if let Some(OutLane { lane, places, since, known }) = out.as_mut() {
            let side = self.at(lane.get(), *since);
            match drains {
                true => places.drain(&side)?,
                false => places.settle(&side, known)?,
            }
        }
        if let Some(out) = out.take() {
            self.comm().inner.lanes.give_back(out);
        }
        Ok(())
    }

    /// No rank reads what was written in this operation from that piece on.
    pub(super) fn recall(&self, first: u64) {
        if let Some(out) = self.out.borrow_mut().as_mut() {
            out.places.recall(first);
        }
    }

    /// Whether a part is the offer of an operation without a tree.
    pub(super) fn is_flat_offer(&self, part: &PayloadPart) -> bool {
        let offer = try_pod_read_unaligned::<LaneOffer>(&part.bytes);
        part.is_offer && offer.is_ok_and(|offer| offer.is(OfferKind::Flat))
    }

    /// What `from` offers of that kind; `None` if there is nothing to be read. An error if it is
    /// another kind, of another plan, or of another length than is expected.
    pub(super) fn accept(
        &self,
        from: Rank,
        part: &PayloadPart,
        kind: OfferKind,
        expected: Option<usize>,
    ) -> Result<Option<InLane>> {
        if let Some(expected) = expected {
            self.check_length(from, expected, part.rest)?;
        }
        let malformed = || self.fails(CollectiveError::Malformed { what: self.what(), from });
        let offer = part.is_offer.then(|| try_pod_read_unaligned::<LaneOffer>(&part.bytes));
        let Some(offer) = offer.and_then(core::result::Result::ok) else { return Err(malformed()) };
        self.accept_offer((from, kind), &offer, part.rest)
    }

    /// As [`accept`](Self::accept), of a payload of so many bytes.
    pub(super) fn accept_offer(
        &self,
        (from, kind): (Rank, OfferKind),
        offer: &LaneOffer,
        bytes: u64,
    ) -> Result<Option<InLane>> {
        let malformed = || self.fails(CollectiveError::Malformed { what: self.what(), from });
        if offer.readers.get() != self.comm().size() {
            return Err(malformed());
        }
        let is = |kind| offer.is(kind);
        // One that is for this rank alone says all about itself.
        if kind != OfferKind::Alone && offer.plan.get() != self.plan.get().0 {
            return Err(malformed());
        }
        if kind == OfferKind::Flat && is(OfferKind::NoLane) {
            return Ok(None);
        }
        if !is(kind) {
            return Err(malformed());
        }
        if kind == OfferKind::Length {
            return Ok(None);
        }
        let inner = &self.comm().inner;
        let lane = inner.attempt(self.what(), (Some(from), By::Messages), |wait| {
            inner.import(from, offer).map_err(|error| {
                let cause = match error {
                    // It went with the peer, because of another failure if there is one.
                    ImportError::PeerGone(world) => {
                        inner.engine.trouble(wait).unwrap_or(Cause::PeerLeft(world))
                    }
                    error => Cause::Import(error),
                };
                inner.engine.given_up(wait, cause)
            })
        })?;
        let unit = offer.unit.get() as usize;
        if unit == 0 || unit > lane.geometry().piece_bytes() {
            return Err(malformed());
        }
        Ok(Some(InLane { from, lane, first: offer.first.get(), unit, bytes }))
    }

    /// Reads the first bytes of a piece, counted from the one that was offered. The writer is rung,
    /// unless more of what it has written is read at once.
    pub(super) fn get_piece(
        &self,
        of: &InLane,
        number: u64,
        bytes: &mut [u8],
        rings: bool,
    ) -> Result<()> {
        let (lane, number) = (of.lane.get(), of.first.wrapping_add(number));
        let ends = (of.from, self.comm().rank());
        pieces::get(&self.at(lane, 0), ends, number, rings, || lane.get(number, bytes))
    }

    /// Reads a payload whose pieces follow each other.
    pub(super) fn get_stream(&self, of: &InLane, bytes: &mut [u8]) -> Result<()> {
        self.get_more(of, bytes, |_, _| Ok(()))
    }

    /// As [`get_stream`](Self::get_stream), and has what has come handed on, as in
    /// [`broadcast_on`](Self::broadcast_on).
    pub(super) fn get_more(
        &self,
        of: &InLane,
        bytes: &mut [u8],
        mut hand_on: impl FnMut(&[u8], usize) -> Result<()>,
    ) -> Result<()> {
        let (whole, unit) = (bytes.len(), of.unit());
        for (number, start) in (0..).zip((0..whole).step_by(unit)) {
            let end = whole.min(start + unit);
            let rings = end == whole || self.rings_behind(of.first.wrapping_add(number));
            self.get_piece(of, number, &mut bytes[start..end], rings)?;
            hand_on(bytes, end)?;
        }
        Ok(())
    }
}

impl Engine {
    /// How payloads of collectives pass inside of a node.
    pub(crate) fn explain_payloads(&self) -> String {
        let Config { collective_lane_bytes: bytes, collective_lane_from: from, .. } = self.config;
        match LaneGeometry::within(bytes, 2) {
            Some(_) => format!(
                "collectives: inside of a node, payloads of {from} bytes and more pass through \
                 shared memory\n"
            ),
            None => format!(
                "collectives: inside of a node, all payloads go by messages: {bytes} bytes of \
                 shared memory are too few for them (collective_lane_bytes)\n"
            ),
        }
    }
}

impl Inner {
    /// Maps the lane of a peer, once.
    fn import(
        &self,
        owner: Rank,
        offer: &LaneOffer,
    ) -> core::result::Result<Arc<PeerLane>, ImportError> {
        let mut peers = self.lanes.peers.lock().unwrap_or_else(PoisonError::into_inner);
        let known = peers.get(&owner).filter(|known| known.descriptor == offer.descriptor);
        if let Some(known) = known {
            return Ok(known.lane.clone());
        }
        let world = self.world_rank(owner);
        let geometry =
            LaneGeometry::of_peer(offer.readers.get(), offer.pieces.get(), offer.piece_bytes.get());
        let geometry = geometry.ok_or(ImportError::Malformed(world))?;
        let (transport, descriptor) = (&self.engine.transport, Descriptor(offer.descriptor));
        let lane = Arc::new(PeerLane::import(transport, world, descriptor, geometry)?);
        peers.insert(owner, FoundLane { descriptor: offer.descriptor, lane: lane.clone() });
        Ok(lane)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::accumulate_tests::with_universe;

    #[test]
    fn how_payloads_pass_is_said() {
        let mut config = Config::default();
        config.collective_lane_from = 4096;
        with_universe(config.clone(), |universe| {
            let text = universe.explain();
            assert!(text.contains("payloads of 4096 bytes and more pass through shared"), "{text}");
        });
        config.collective_lane_bytes = 1;
        with_universe(config, |universe| {
            let text = universe.explain();
            assert!(text.contains("all payloads go by messages: 1 bytes"), "{text}");
        });
    }

    #[test]
    fn what_is_lost_has_a_bound() {
        with_universe(Config::default(), |universe| {
            let world = universe.world();
            let kept = || world.inner.engine.sync_blocks.kept_lanes();
            let lose = || world.inner.lanes.take(&world.inner).map(drop);
            let renew = || *world.inner.lanes.own() = OwnState::Unmade;
            let mut lost = 0;
            while lose().is_some() {
                lost += 1;
                assert!(world.inner.lanes.take(&world.inner).is_none(), "it is lost");
                renew();
            }
            assert!(lost > 1 && (LOST_MOST..LOST_MOST * 2).contains(&kept()), "{lost}");
        });
    }
}
