//! Sends and receives inside one collective operation.
use super::AHEAD_MAX;
use super::abandon::By;
use super::contributions::{
    CollectiveKind, ContributionKey, Contributions, CtsHeads, PART, PayloadPart, SMALL, step_head,
};
use super::lanes::{FlatPlan, HALF, InLane, OfferKind, OutLane};
use super::near::Near;
use super::node::{Neighbours, TreeOrder};
use super::pieces::Readers;
use crate::collective::{Communicator, Turn};
use crate::engine::Engine;
use crate::error::CollectiveError;
use crate::protocol::message::Head;
use crate::rank::{Rank, WorldRank};
use bytemuck::Pod;
use core::cell::{Cell, RefCell};
use core::sync::atomic::Ordering::Relaxed;
use std::thread;

/// Parts in which a payload of so many bytes is sent.
pub(crate) fn parts(bytes: usize) -> u64 {
    (bytes as u64).div_ceil(PART).max(1)
}

/// What has come of a payload.
#[derive(Default)]
struct Arriving {
    bytes: Vec<u8>,
    parts: u64,
    /// Bytes that are missing; not known before the first part.
    left: Option<u64>,
    /// Where the rest is read.
    lane: Option<InLane>,
}

/// What is to be sent of a payload.
struct Leaving<'p> {
    payload: &'p [u8],
    /// The next part.
    number: u64,
    /// Bytes of a piece, if it goes by a lane.
    piece: Option<usize>,
}

impl Leaving<'_> {
    fn is_gone(&self) -> bool {
        let bytes = self.payload.len();
        self.number >= self.piece.map_or(parts(bytes), |piece| bytes.div_ceil(piece) as u64)
    }
}

impl Arriving {
    fn is_whole(&self) -> bool {
        self.left == Some(0)
    }
}

impl Contributions {
    /// Handles a message of a collective operation; false if no call can expect it.
    pub(crate) fn handle(
        &self,
        engine: &Engine,
        from: WorldRank,
        head: &Head,
        body: &[u8],
    ) -> bool {
        self.deliver(from, head, body).map(|cts| engine.send_cts(cts)).is_some()
    }
}

impl Engine {
    pub(crate) fn send_cts(&self, cts: CtsHeads) {
        for (to, head) in cts {
            self.tell(to, &head);
        }
    }
}

impl Communicator {
    /// As [`Exchange::barrier`], in shared memory and without what an exchange has besides: to make
    /// that takes a tenth of a barrier.
    pub(super) fn barrier_near(&self, near: &Near) -> Result<(), CollectiveError> {
        let (what, inner) = ("barrier", &*self.inner);
        let turn = self.turn(what)?;
        inner.contributions.begin(&inner.current);
        inner.check_step(what)?;
        near.wait(inner, &turn.barriers).inspect_err(|_| inner.lose_step(what))?;
        turn.one_sided.store(0, Relaxed);
        Ok(())
    }

    /// A barrier in a turn that this thread has.
    pub(crate) fn barrier_in(
        &self,
        what: &'static str,
        turn: &Turn<'_>,
    ) -> Result<(), CollectiveError> {
        Exchange::begin(self, what, turn.lend()).barrier()
    }
}

/// One collective operation under way; holds the communicator's order.
pub(crate) struct Exchange<'a> {
    comm: &'a Communicator,
    what: &'static str,
    pub(super) tag: u32,
    pub(super) turn: Turn<'a>,
    /// This rank's lane, once the operation writes there.
    pub(super) out: RefCell<Option<OutLane>>,
    /// Of an operation without a tree.
    pub(super) plan: Cell<FlatPlan>,
    /// Added to all rounds: those before are of a way that could not be gone.
    rounds: Cell<u32>,
    /// Its thread panics anyway.
    panicking: bool,
}

/// Rounds of one way.
const ROUNDS: u32 = 64;

impl<'a> Exchange<'a> {
    /// Starts an operation in which ranks do not all wait for each other.
    pub(crate) fn start(
        comm: &'a Communicator,
        what: &'static str,
    ) -> Result<Self, CollectiveError> {
        let turn = comm.turn(what)?;
        Self::wait_for_others(comm, what, &turn)?;
        Ok(Self::begin(comm, what, turn))
    }

    /// As [`start`](Self::start), in a turn that this thread has.
    pub(super) fn start_in(
        comm: &'a Communicator,
        what: &'static str,
        turn: &'a Turn<'_>,
    ) -> Result<Self, CollectiveError> {
        Self::wait_for_others(comm, what, turn)?;
        Ok(Self::begin(comm, what, turn.lend()))
    }

    /// Before an operation in which ranks do not all wait for each other: one after so many of
    /// these is ahead of the others as far as it may be.
    fn wait_for_others(
        comm: &Communicator,
        what: &'static str,
        turn: &Turn<'_>,
    ) -> Result<(), CollectiveError> {
        comm.inner.check_step(what)?;
        let one_sided = turn.one_sided.load(Relaxed) + 1;
        turn.one_sided.store(one_sided, Relaxed);
        if one_sided < AHEAD_MAX { Ok(()) } else { comm.barrier_in(what, turn) }
    }

    /// Starts an operation that is a barrier.
    pub(crate) fn start_barrier(
        comm: &'a Communicator,
        what: &'static str,
    ) -> Result<Self, CollectiveError> {
        Ok(Self::begin(comm, what, comm.turn(what)?))
    }

    fn begin(comm: &'a Communicator, what: &'static str, turn: Turn<'a>) -> Self {
        let tag = comm.inner.contributions.begin(&comm.inner.current);
        let (out, rounds, panicking) = (RefCell::new(None), Cell::new(0), thread::panicking());
        Self { comm, what, tag, turn, out, plan: Cell::default(), rounds, panicking }
    }

    /// This rank cannot go on with what it has begun: no call waits for it.
    pub(crate) fn fails(&self, error: CollectiveError) -> CollectiveError {
        self.comm.inner.give_up_operation();
        error
    }

    /// Waits until every rank has come here. After an error, this rank takes part in nothing later
    /// of that kind: others may have passed.
    pub(crate) fn barrier(self) -> Result<(), CollectiveError> {
        self.comm.inner.check_step(self.what)?;
        self.meet().inspect_err(|_| self.comm.inner.lose_step(self.what))?;
        // Only then: a rank ahead of others may not go on as if they had come.
        self.turn.one_sided.store(0, Relaxed);
        Ok(())
    }

    fn meet(&self) -> Result<(), CollectiveError> {
        if let Some(near) = self.comm.near() {
            return near.wait(&self.comm.inner, &self.turn.barriers);
        }
        let Some(node) = self.comm.inner.node.neighbours() else {
            return self.disseminate(TreeOrder::From(Rank(0)));
        };
        self.gather(node.order(), &[])?;
        if let Some(leaders) = node.leaders() {
            self.disseminate(leaders)?;
        }
        self.broadcast(node.order(), &mut [])
    }

    /// As [`barrier`](Self::barrier), at which ranks tell each other what they pass on the
    /// collective block that they have. Hands over that of all, in rank order; what has come before
    /// an error counts for nothing. All pass it or none, so that it can be repeated after an error.
    pub(crate) fn share<S: Pod>(
        self,
        near: &Near,
        told: (u64, &S),
        each: impl FnMut(&S),
    ) -> Result<(), CollectiveError> {
        near.share(&self.comm.inner, &self.turn.shares, told, each)?;
        self.turn.one_sided.store(0, Relaxed);
        Ok(())
    }

    /// Sends a payload to a rank; `round` tells payloads of one pair apart, below 256.
    pub(crate) fn send(&self, to: Rank, round: u32, payload: &[u8]) -> Result<(), CollectiveError> {
        if self.opens_to(to, payload.len()) {
            self.offer((to, round), OfferKind::Alone, payload.len(), self.next_piece())?;
            self.put_stream(&Readers::One(to), payload)?;
            return self.leave_lane();
        }
        for number in 0..parts(payload.len()) {
            self.send_part(to, round, payload, number)?;
        }
        Ok(())
    }

    /// Begins to send a payload, piece by piece.
    fn leave<'p>(
        &self,
        to: Rank,
        round: u32,
        payload: &'p [u8],
    ) -> Result<Leaving<'p>, CollectiveError> {
        let piece = self.opens_to(to, payload.len()).then(|| self.unit(payload.len()));
        if piece.is_some() {
            self.offer((to, round), OfferKind::Alone, payload.len(), self.next_piece())?;
        }
        Ok(Leaving { payload, number: 0, piece })
    }

    fn send_next(
        &self,
        to: Rank,
        round: u32,
        leaving: &mut Leaving<'_>,
    ) -> Result<(), CollectiveError> {
        match leaving.piece {
            Some(piece) => {
                let rest = &leaving.payload[leaving.number as usize * piece..];
                self.put_piece(Readers::One(to), &rest[..rest.len().min(piece)], true)?;
            }
            None => self.send_part(to, round, leaving.payload, leaving.number)?,
        }
        leaving.number += 1;
        Ok(())
    }

    /// Fails if a payload is longer than any may be.
    pub(super) fn check_payload(&self, bytes: u64) -> Result<(), CollectiveError> {
        let limit = self.comm.inner.contributions.payload_max(self.comm.inner.id);
        if bytes > limit {
            return Err(self.fails(CollectiveError::TooLarge { what: self.what, bytes, limit }));
        }
        Ok(())
    }

    /// Sends one part of a payload, when its receiver has room for it or waits for it.
    pub(crate) fn send_part(
        &self,
        to: Rank,
        round: u32,
        payload: &[u8],
        number: u64,
    ) -> Result<(), CollectiveError> {
        let (engine, bytes) = (&self.comm.inner.engine, payload.len() as u64);
        self.check_payload(bytes)?;
        let (id, tag, peer) = self.key(to, round);
        let rest = &payload[(number * PART) as usize..];
        let head = |step| step_head(id, tag, step, number, rest.len() as u64);
        if bytes > SMALL {
            self.comm.inner.contributions.request((id, tag, peer), number);
            let cleared = self.comm.inner.attempt(self.what, (Some(to), By::Messages), |wait| {
                engine.send(peer, &head(CollectiveKind::Rts), &[], wait)?;
                let cleared =
                    || self.comm.inner.contributions.is_cleared(&(id, tag, peer)).then_some(());
                // wait: part
                engine.wait_until(wait, cleared)
            });
            self.comm.inner.contributions.withdraw(&(id, tag, peer));
            cleared?;
        }
        let part = &rest[..rest.len().min(PART as usize)];
        let (mut head, mut offset) = (head(CollectiveKind::Piece), 0);
        loop {
            let piece = &part[offset..part.len().min(offset + engine.body_max())];
            head.offset = (offset as u64).into();
            self.comm.inner.send(self.what, to, &head, piece)?;
            offset += piece.len();
            if offset >= part.len() {
                return Ok(());
            }
        }
    }

    /// Receives the payload that `from` sends in this round.
    pub(crate) fn receive(&self, from: Rank, round: u32) -> Result<Vec<u8>, CollectiveError> {
        self.expect(from, round);
        let first = self.take(from, round, 0)?;
        self.receive_from(from, round, first)
    }

    /// The rest of [`receive`](Self::receive), after the first part.
    pub(super) fn receive_from(
        &self,
        from: Rank,
        round: u32,
        first: PayloadPart,
    ) -> Result<Vec<u8>, CollectiveError> {
        let mut incoming = Arriving::default();
        self.arrives(from, first, &mut incoming)?;
        while !incoming.is_whole() {
            self.receive_next(from, round, &mut incoming)?;
        }
        Ok(incoming.bytes)
    }

    /// As [`receive`](Self::receive), of a length that is known.
    pub(crate) fn receive_exactly(
        &self,
        from: Rank,
        round: u32,
        expected: usize,
    ) -> Result<Vec<u8>, CollectiveError> {
        let payload = self.receive(from, round)?;
        self.check_length(from, expected, payload.len() as u64)?;
        Ok(payload)
    }

    /// Sends a payload to one rank and receives one from another that does the same, or
    /// from itself: part by part in turn, for both wait.
    pub(crate) fn swap(
        &self,
        to: Rank,
        payload: &[u8],
        from: Rank,
        round: u32,
    ) -> Result<Vec<u8>, CollectiveError> {
        self.trade(Some(to), payload, Some(from), round)
    }

    /// As [`swap`](Self::swap), where there may be no rank to send to, or to receive from.
    pub(super) fn trade(
        &self,
        to: Option<Rank>,
        payload: &[u8],
        from: Option<Rank>,
        round: u32,
    ) -> Result<Vec<u8>, CollectiveError> {
        if let Some(from) = from {
            self.expect(from, round);
        }
        let leaving = to.map(|to| self.leave(to, round, payload)).transpose()?;
        self.trade_rest((to, leaving), (from, Arriving::default()), round)
    }

    fn trade_rest(
        &self,
        (to, mut leaving): (Option<Rank>, Option<Leaving<'_>>),
        (from, mut incoming): (Option<Rank>, Arriving),
        round: u32,
    ) -> Result<Vec<u8>, CollectiveError> {
        loop {
            let sends = leaving.as_mut().zip(to).filter(|(leaving, _)| !leaving.is_gone());
            let receives = from.filter(|_| !incoming.is_whole());
            if sends.is_none() && receives.is_none() {
                break;
            }
            if let Some((leaving, to)) = sends {
                self.send_next(to, round, leaving)?;
            }
            if let Some(from) = receives {
                self.receive_next(from, round, &mut incoming)?;
            }
        }
        self.leave_lane()?;
        Ok(incoming.bytes)
    }

    /// The rest of [`trade_places`](Self::trade_places) with a rank that has no such lane, after
    /// what came first.
    fn trade_copies(
        &self,
        (with, round): (Rank, u32),
        bytes: &mut [u8],
        unit: usize,
        first: PayloadPart,
    ) -> Result<(), CollectiveError> {
        let (payload, mut incoming) = (bytes.to_vec(), Arriving::default());
        self.arrives(with, first, &mut incoming)?;
        let leaving = Leaving { payload: &payload, number: 0, piece: Some(unit) };
        let got = self.trade_rest((Some(with), Some(leaving)), (Some(with), incoming), round)?;
        self.check_length(with, bytes.len(), got.len() as u64)?;
        bytes.copy_from_slice(&got);
        Ok(())
    }

    /// Sends a payload to a rank that does the same, whose payload takes its place.
    pub(super) fn trade_places(
        &self,
        with: Rank,
        round: u32,
        bytes: &mut [u8],
    ) -> Result<(), CollectiveError> {
        if !self.opens_to(with, bytes.len()) {
            let got = self.swap_exactly(with, bytes, with, round, bytes.len())?;
            bytes.copy_from_slice(&got);
            return Ok(());
        }
        let unit = self.unit(bytes.len());
        self.expect(with, round);
        self.offer((with, round), OfferKind::Alone, bytes.len(), self.next_piece())?;
        let first = self.take(with, round, 0)?;
        let lane = match first.is_offer {
            true => self.accept(with, &first, OfferKind::Alone, Some(bytes.len()))?,
            false => None,
        };
        let Some(lane) = lane.filter(|lane| lane.unit() == unit) else {
            return self.trade_copies((with, round), bytes, unit, first);
        };
        for (step, places) in (0..).zip(bytes.chunks_mut(unit * HALF as usize)) {
            for (number, place) in (1..).zip(places.chunks(unit)) {
                self.put_piece(Readers::One(with), place, number == places.len().div_ceil(unit))?;
            }
            let pieces = places.len().div_ceil(unit) as u64;
            for (number, place) in (0..).zip(places.chunks_mut(unit)) {
                self.get_piece(&lane, step * HALF + number, place, number + 1 == pieces)?;
            }
        }
        self.leave_lane()
    }

    /// As [`swap`](Self::swap), of a length that is known.
    pub(crate) fn swap_exactly(
        &self,
        to: Rank,
        payload: &[u8],
        from: Rank,
        round: u32,
        expected: usize,
    ) -> Result<Vec<u8>, CollectiveError> {
        let payload = self.swap(to, payload, from, round)?;
        self.check_length(from, expected, payload.len() as u64)?;
        Ok(payload)
    }

    /// What `from` sends in this round is received before anything else.
    pub(crate) fn expect(&self, from: Rank, round: u32) {
        self.expect_keys(&[self.key(from, round)]);
    }

    /// As [`expect`](Self::expect), whichever of them comes.
    pub(super) fn expect_any(&self, whom: &[Rank], round: u32) {
        let keys: Vec<ContributionKey> = whom.iter().map(|from| self.key(*from, round)).collect();
        self.expect_keys(&keys);
    }

    fn expect_keys(&self, keys: &[ContributionKey]) {
        self.comm.inner.engine.send_cts(self.comm.inner.contributions.expect(keys));
    }

    /// Receives a part of a payload that is [expected](Self::expect) into its place in `bytes`.
    pub(crate) fn receive_part(
        &self,
        from: Rank,
        round: u32,
        bytes: &mut [u8],
        number: u64,
    ) -> Result<(), CollectiveError> {
        let part = self.take(from, round, number)?;
        self.place_part(from, &part, bytes, number)
    }

    /// Copies a part to its place in `bytes`.
    pub(super) fn place_part(
        &self,
        from: Rank,
        part: &PayloadPart,
        bytes: &mut [u8],
        number: u64,
    ) -> Result<(), CollectiveError> {
        let place = &mut bytes[(number * PART) as usize..];
        let rest = place.len();
        self.copy_part(from, part, rest, &mut place[..rest.min(PART as usize)])
    }

    /// Copies a part to `place`, which is as long, of a payload of which `rest` bytes are expected
    /// from there on.
    pub(super) fn copy_part(
        &self,
        from: Rank,
        part: &PayloadPart,
        rest: usize,
        place: &mut [u8],
    ) -> Result<(), CollectiveError> {
        self.check_length(from, rest, part.rest)?;
        if part.is_offer {
            return Err(self.fails(CollectiveError::Malformed { what: self.what, from }));
        }
        place.copy_from_slice(&part.bytes);
        Ok(())
    }

    fn receive_next(
        &self,
        from: Rank,
        round: u32,
        incoming: &mut Arriving,
    ) -> Result<(), CollectiveError> {
        if incoming.lane.is_none() {
            let part = self.take(from, round, incoming.parts)?;
            let is_offer = part.is_offer;
            self.arrives(from, part, incoming)?;
            if !is_offer {
                return Ok(());
            }
        }
        let Arriving { bytes, parts, left, lane: Some(lane) } = incoming else { return Ok(()) };
        let piece = lane.unit();
        if let Some(bytes) = bytes.chunks_mut(piece).nth(*parts as usize) {
            self.get_piece(lane, *parts, bytes, true)?;
            *left = left.map(|left| left - bytes.len() as u64);
        }
        *parts += 1;
        Ok(())
    }

    /// A part, or where the pieces are.
    fn arrives(
        &self,
        from: Rank,
        part: PayloadPart,
        incoming: &mut Arriving,
    ) -> Result<(), CollectiveError> {
        if !part.is_offer {
            return self.add_part(from, part, incoming);
        }
        incoming.lane = self.accept(from, &part, OfferKind::Alone, None)?;
        incoming.left = Some(part.rest);
        incoming.bytes = vec![0; part.rest as usize];
        Ok(())
    }

    fn add_part(
        &self,
        from: Rank,
        part: PayloadPart,
        incoming: &mut Arriving,
    ) -> Result<(), CollectiveError> {
        let PayloadPart { bytes, rest, .. } = part;
        let left = rest - bytes.len() as u64;
        if incoming.parts == 0 {
            incoming.bytes = bytes;
            incoming.bytes.reserve_exact(left as usize);
        } else if incoming.left == Some(rest) {
            incoming.bytes.extend_from_slice(&bytes);
        } else {
            return Err(self.fails(CollectiveError::Malformed { what: self.what, from }));
        }
        (incoming.left, incoming.parts) = (Some(left), incoming.parts + 1);
        Ok(())
    }

    /// Receives the payload that `from` sends in this round, of a length that is known.
    pub(super) fn receive_into(
        &self,
        from: Rank,
        round: u32,
        into: &mut [u8],
    ) -> Result<(), CollectiveError> {
        self.expect(from, round);
        let first = self.take(from, round, 0)?;
        if first.is_offer {
            let lane = self.accept(from, &first, OfferKind::Alone, Some(into.len()))?;
            return lane.map_or(Ok(()), |lane| self.get_stream(&lane, into));
        }
        self.place_part(from, &first, into, 0)?;
        (1..parts(into.len())).try_for_each(|number| self.receive_part(from, round, into, number))
    }

    pub(super) fn take(
        &self,
        from: Rank,
        round: u32,
        number: u64,
    ) -> Result<PayloadPart, CollectiveError> {
        self.take_any(&[from], round, number).map(|(_, part)| part)
    }

    /// Takes a part of any of those ranks, of which there is one; the first is waited for.
    pub(super) fn take_any(
        &self,
        whom: &[Rank],
        round: u32,
        number: u64,
    ) -> Result<(Rank, PayloadPart), CollectiveError> {
        let (engine, contributions) = (&self.comm.inner.engine, &self.comm.inner.contributions);
        let take = || {
            let taken =
                |from: &Rank| Some((*from, contributions.take(&self.key(*from, round), number)?));
            let taken = whom.iter().find_map(taken).map(Ok);
            // A rank that offers what it has to all at once sends nothing.
            taken.or_else(|| self.offered_by(whom).map(Err))
        };
        let waited_for = whom.first().copied();
        let taken = self.comm.inner.attempt(self.what, (waited_for, By::Messages), |wait| {
            // wait: payload
            engine.wait_until(wait, take)
        })?;
        let (from, (part, cts)) = taken
            .map_err(|from| self.fails(CollectiveError::Malformed { what: self.what, from }))?;
        engine.send_cts(cts);
        // The sender has others to serve, which may wait for this rank.
        let part = part.map_err(|no_room| self.fails(no_room.of(self.what, from)))?;
        Ok((from, part))
    }

    pub(super) fn key(&self, peer: Rank, round: u32) -> ContributionKey {
        // Ranks of other nodes know nothing of how those of this one went on.
        let is_neighbour = |node: &Neighbours| node.place_of(peer).is_some();
        let before = self.comm.inner.node.neighbours().is_none_or(is_neighbour);
        let round = if before { self.rounds.get() } else { 0 } + round;
        (self.comm.inner.id, self.tag | round & 0xff, self.comm.world_rank(peer))
    }

    /// What is sent from now on is taken for nothing that was sent before.
    pub(super) fn set_other_rounds(&self) {
        self.rounds.set(self.rounds.get() + ROUNDS);
    }

    pub(super) fn check_length(
        &self,
        from: Rank,
        expected: usize,
        got: u64,
    ) -> Result<(), CollectiveError> {
        let (what, expected) = (self.what, expected as u64);
        if got != expected {
            let wrong = CollectiveError::LengthMismatch { what, from, expected, got };
            return Err(self.fails(wrong));
        }
        Ok(())
    }

    pub(crate) fn comm(&self) -> &'a Communicator {
        self.comm
    }

    pub(crate) fn what(&self) -> &'static str {
        self.what
    }
}

impl Drop for Exchange<'_> {
    fn drop(&mut self) {
        // If this rank has a lane still, a peer may read it: the pool keeps it.
        drop(self.out.take());
        // Code of the user has panicked in the middle of it.
        if thread::panicking()
            && !self.panicking
            && !self.comm.inner.engine.transport.members.is_fork()
        {
            self.comm.inner.give_up_operation();
        }
    }
}
