//! Sends and receives inside one collective operation.
use super::AHEAD_MAX;
use crate::communicator::{Communicator, Sequence};
use crate::error::CollectiveError;
use crate::protocol::message::{Head, Kind};
use crate::rank::Rank;
use crate::transport::Transport;
use bytemuck::Pod;
use std::sync::MutexGuard;

/// One collective operation under way; holds the communicator's order.
pub(crate) struct Exchange<'a, T: Transport> {
    comm: &'a Communicator<T>,
    what: &'static str,
    tag: u32,
    sequence: MutexGuard<'a, Sequence>,
}

impl<'a, T: Transport> Exchange<'a, T> {
    /// Starts an operation in which ranks do not all wait for each other.
    pub(crate) fn start(
        comm: &'a Communicator<T>,
        what: &'static str,
    ) -> Result<Self, CollectiveError> {
        let mut sequence = comm.sequence();
        sequence.one_sided += 1;
        if sequence.one_sided >= AHEAD_MAX {
            Self::begin(comm, what, sequence).barrier()?;
            sequence = comm.sequence();
        }
        Ok(Self::begin(comm, what, sequence))
    }

    /// Starts an operation that is a barrier.
    pub(crate) fn start_barrier(comm: &'a Communicator<T>, what: &'static str) -> Self {
        Self::begin(comm, what, comm.sequence())
    }

    fn begin(
        comm: &'a Communicator<T>,
        what: &'static str,
        sequence: MutexGuard<'a, Sequence>,
    ) -> Self {
        let tag = sequence.current.next_tag();
        Self { comm, what, tag, sequence }
    }

    /// Waits until every rank has come here.
    pub(crate) fn barrier(mut self) -> Result<(), CollectiveError> {
        self.sequence.one_sided = 0;
        if let Some(near) = self.comm.near() {
            return near.wait(&self.comm.inner, &mut self.sequence.barriers);
        }
        let size = self.comm.size();
        let mut distance = 1;
        for round in 0..u32::BITS {
            if distance >= i64::from(size) {
                break;
            }
            self.send(self.comm.rank().on_ring(distance, size), round, &[])?;
            self.receive(self.comm.rank().on_ring(-distance, size), round)?;
            distance *= 2;
        }
        Ok(())
    }

    /// As [`barrier`](Self::barrier), at which ranks tell each other what they pass on the board.
    /// Answers with that of all, in rank order; `None`, at once, if there is no board.
    pub(crate) fn share<S: Pod>(
        mut self,
        kind: u64,
        mine: &S,
    ) -> Result<Option<Vec<S>>, CollectiveError> {
        let Some(near) = self.comm.near().filter(|near| near.has_slots()) else { return Ok(None) };
        self.sequence.one_sided = 0;
        near.share(&self.comm.inner, &mut self.sequence.shares, kind, mine).map(Some)
    }

    /// Sends a payload to a rank; `round` tells payloads of one pair apart, below 256.
    pub(crate) fn send(&self, to: Rank, round: u32, payload: &[u8]) -> Result<(), CollectiveError> {
        let process = &self.comm.inner.process;
        let limit = process.mail.payload_max();
        if payload.len() as u64 > limit {
            let (what, bytes) = (self.what, payload.len() as u64);
            return Err(CollectiveError::TooLarge { what, bytes, limit });
        }
        let mut head = Head::new(Kind::Collective, self.comm.inner.id, self.tag | round & 0xff);
        head.length = (payload.len() as u64).into();
        let wait = self.comm.inner.wait_for(self.what, to);
        let mut offset = 0;
        loop {
            let piece = &payload[offset..payload.len().min(offset + process.body_max())];
            head.offset = (offset as u64).into();
            process.send(self.comm.world_rank(to), &head, piece, wait)?;
            offset += piece.len();
            if offset >= payload.len() {
                return Ok(());
            }
        }
    }

    /// Receives the payload that `from` sends in this round.
    pub(crate) fn receive(&self, from: Rank, round: u32) -> Result<Vec<u8>, CollectiveError> {
        let process = &self.comm.inner.process;
        let key = (self.comm.inner.id, self.tag | round & 0xff, self.comm.world_rank(from));
        let wait = self.comm.inner.wait_for(self.what, from);
        // wait: payload
        let taken = process.wait_until(wait, || process.mail.take(&key))?;
        taken.map_err(|no_room| no_room.of(self.what, from))
    }

    /// As [`receive`](Self::receive), of a length that is known.
    pub(crate) fn receive_exactly(
        &self,
        from: Rank,
        round: u32,
        expected: usize,
    ) -> Result<Vec<u8>, CollectiveError> {
        let payload = self.receive(from, round)?;
        if payload.len() != expected {
            return Err(CollectiveError::LengthMismatch {
                what: self.what,
                from,
                expected: expected as u64,
                got: payload.len() as u64,
            });
        }
        Ok(payload)
    }

    pub(crate) fn check_root(&self, root: Rank) -> Result<(), CollectiveError> {
        let last = Rank(self.comm.size() - 1);
        if root > last {
            return Err(CollectiveError::NoSuchRoot { what: self.what, root, last });
        }
        Ok(())
    }

    pub(crate) fn comm(&self) -> &'a Communicator<T> {
        self.comm
    }

    pub(crate) fn what(&self) -> &'static str {
        self.what
    }
}
