//! Sends and receives inside one collective operation.
use super::AHEAD_MAX;
use super::abandon::By;
use super::contributions::{
    CollectiveKind, ContributionKey, Contributions, CtsHeads, PART, PayloadPart, SMALL, step_head,
};
use super::near::Near;
use super::node::TreeOrder;
use crate::collective::{Communicator, Turn};
use crate::engine::Engine;
use crate::error::CollectiveError;
use crate::protocol::message::Head;
use crate::rank::{Rank, WorldRank};
use bytemuck::Pod;
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
}

impl Arriving {
    fn is_whole(&self) -> bool {
        self.left == Some(0)
    }
}

impl Contributions {
    /// Handles a message of a collective operation; false if nobody can expect it.
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

/// One collective operation under way; holds the communicator's order.
pub(crate) struct Exchange<'a> {
    comm: &'a Communicator,
    what: &'static str,
    tag: u32,
    turn: Turn<'a>,
    /// Its thread panics anyway.
    panicking: bool,
}

impl<'a> Exchange<'a> {
    /// Starts an operation in which ranks do not all wait for each other.
    pub(crate) fn start(
        comm: &'a Communicator,
        what: &'static str,
    ) -> Result<Self, CollectiveError> {
        let mut turn = comm.turn(what)?;
        comm.inner.check_step(what)?;
        turn.one_sided += 1;
        if turn.one_sided >= AHEAD_MAX {
            Self::begin(comm, what, turn).barrier()?;
            turn = comm.turn(what)?;
        }
        Ok(Self::begin(comm, what, turn))
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
        Self { comm, what, tag, turn, panicking: thread::panicking() }
    }

    /// This rank cannot go on with what it has begun: nobody waits for it.
    pub(crate) fn fails(&self, error: CollectiveError) -> CollectiveError {
        self.comm.inner.give_up_operation();
        error
    }

    /// Waits until every rank has come here. After an error, this rank takes part in nothing later
    /// of that kind: others may have passed.
    pub(crate) fn barrier(mut self) -> Result<(), CollectiveError> {
        self.comm.inner.check_step(self.what)?;
        self.meet().inspect_err(|_| self.comm.inner.lose_step(self.what))?;
        // Only then: who is ahead of others may not go on as if they had come.
        self.turn.one_sided = 0;
        Ok(())
    }

    fn meet(&mut self) -> Result<(), CollectiveError> {
        if let Some(near) = self.comm.near() {
            return near.wait(&self.comm.inner, &mut self.turn.barriers);
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
    /// collective block that they have. Answers with that of all, in rank order. All pass it or
    /// none, so that it can be repeated after an error.
    pub(crate) fn share<S: Pod>(
        mut self,
        near: &Near,
        kind: u64,
        mine: &S,
    ) -> Result<Vec<S>, CollectiveError> {
        let all = near.share(&self.comm.inner, &mut self.turn.shares, kind, mine)?;
        self.turn.one_sided = 0;
        Ok(all)
    }

    /// Sends a payload to a rank; `round` tells payloads of one pair apart, below 256.
    pub(crate) fn send(&self, to: Rank, round: u32, payload: &[u8]) -> Result<(), CollectiveError> {
        for number in 0..parts(payload.len()) {
            self.send_part(to, round, payload, number)?;
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
        let engine = &self.comm.inner.engine;
        let (bytes, limit) =
            (payload.len() as u64, self.comm.inner.contributions.payload_max(self.comm.inner.id));
        if bytes > limit {
            return Err(self.fails(CollectiveError::TooLarge { what: self.what, bytes, limit }));
        }
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
        let mut incoming = Arriving::default();
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
        self.expect(from, round);
        let mut incoming = Arriving::default();
        let parts = parts(payload.len());
        for number in 0.. {
            if number >= parts && incoming.is_whole() {
                break;
            }
            if number < parts {
                self.send_part(to, round, payload, number)?;
            }
            if !incoming.is_whole() {
                self.receive_next(from, round, &mut incoming)?;
            }
        }
        Ok(incoming.bytes)
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
        let engine = &self.comm.inner.engine;
        engine.send_cts(self.comm.inner.contributions.expect(&self.key(from, round)));
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
        let place = &mut bytes[(number * PART) as usize..];
        self.check_length(from, place.len(), part.rest)?;
        place[..part.bytes.len()].copy_from_slice(&part.bytes);
        Ok(())
    }

    fn receive_next(
        &self,
        from: Rank,
        round: u32,
        incoming: &mut Arriving,
    ) -> Result<(), CollectiveError> {
        let PayloadPart { bytes, rest } = self.take(from, round, incoming.parts)?;
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

    fn take(&self, from: Rank, round: u32, number: u64) -> Result<PayloadPart, CollectiveError> {
        let engine = &self.comm.inner.engine;
        let key = self.key(from, round);
        let (part, cts) =
            self.comm.inner.attempt(self.what, (Some(from), By::Messages), |wait| {
                // wait: payload
                engine.wait_until(wait, || self.comm.inner.contributions.take(&key, number))
            })?;
        engine.send_cts(cts);
        // The sender has others to serve, which may wait for this rank.
        part.map_err(|no_room| self.fails(no_room.of(self.what, from)))
    }

    fn key(&self, peer: Rank, round: u32) -> ContributionKey {
        (self.comm.inner.id, self.tag | round & 0xff, self.comm.world_rank(peer))
    }

    fn check_length(&self, from: Rank, expected: usize, got: u64) -> Result<(), CollectiveError> {
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
        // Code of the user has panicked in the middle of it.
        if thread::panicking()
            && !self.panicking
            && !self.comm.inner.engine.transport.members.is_fork()
        {
            self.comm.inner.give_up_operation();
        }
    }
}
