//! A barrier with a deadline of its own. What it has done when that passes stays done, and the next
//! call goes on from there.
//!
//! It is the dissemination of empty messages, in a space of messages of its own: whatever else the
//! communicator does while a barrier is under way, no message of one is taken for one of the other.
use super::abandon::By;
use super::barrier::{distance, rounds};
use super::contributions::{CollectiveKind, step_head};
use crate::collective::{Communicator, Turn};
use crate::engine::{Cause, Wait, WaitError};
use crate::error::CollectiveError;
use crate::rank::Rank;
use core::task::Poll;
use core::time::Duration;

const BARRIER_FOR: &str = "barrier_for";

/// A barrier that this rank has begun.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Underway {
    tag: u32,
    /// Messages that were sent and received, in turn.
    steps: u32,
}

impl Underway {
    /// The rank that this one tells of its arrival next, or else hears from, and in which round.
    fn step(self, rank: Rank, size: u32) -> (bool, Rank, u32) {
        let (round, tells) = (self.steps / 2, self.steps.is_multiple_of(2));
        let distance = if tells { distance(round) } else { -distance(round) };
        (tells, rank.on_ring(distance, size), round)
    }
}

impl Communicator {
    /// Waits until every rank has called it, for `timeout` at most. [`Poll::Pending`] means that
    /// some have not, or that the way there and back took longer; the next call at this rank goes
    /// on with the same barrier. **Collective.**
    ///
    /// ```
    /// # // Run as three ranks by the crate `rma`; here for the compiler.
    /// # use std::time::Duration;
    /// # fn example(world: &rma_core::Communicator) -> Result<(), rma_core::CollectiveError> {
    /// while world.barrier_for(Duration::from_millis(100))?.is_pending() {
    ///     eprintln!("still waiting");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Every rank calls it until it is ready, as often as that takes, each with a timeout of its
    /// own: [`Duration::ZERO`] looks once, [`Duration::MAX`] waits for as long as
    /// [`barrier`](Self::barrier). A barrier that is under way makes progress in these calls only,
    /// and others may have to wait for the next call of this rank. Meanwhile this rank may do
    /// anything else, also with this communicator.
    ///
    /// It is not a [`barrier`](Self::barrier): a rank that calls the one does not meet those that
    /// call the other. Once it is ready, all that ranks did before their first call has happened,
    /// as after a barrier.
    ///
    /// # Errors
    ///
    /// [`CollectiveError::PeerFailed`] and [`CollectiveError::PeerLeft`] if a rank is gone that has
    /// not come; [`CollectiveError::Timeout`] only if the deadline of the configuration
    /// ([`Config::wait_timeout`](crate::Config::wait_timeout)) comes first. After an error, others
    /// may have passed, or may pass later: `barrier_for` of this communicator fails from then on at
    /// this rank, and what else the communicator does goes on.
    ///
    /// MPI 4.1, section 6.12.1 (`MPI_IBARRIER`); that the wait for it has an end is an extension.
    pub fn barrier_for(&self, timeout: Duration) -> Result<Poll<()>, CollectiveError> {
        let comm = self.timed();
        let sleep = &comm.inner.engine.transport.sleep;
        let until = sleep.now().saturating_add(timeout);
        match comm.turn_until(BARRIER_FOR, Some(until)) {
            Ok(turn) => comm.go_on(turn, until),
            // Another thread is in it.
            Err(CollectiveError::Timeout { .. }) if sleep.now() >= until => Ok(Poll::Pending),
            Err(error) => Err(error),
        }
    }

    /// Begins a barrier, or goes on with the one that is under way.
    fn go_on(&self, turn: Turn<'_>, until: Duration) -> Result<Poll<()>, CollectiveError> {
        let inner = &*self.inner;
        inner.check_step(BARRIER_FOR)?;
        let begin = || Underway { tag: inner.contributions.begin(&inner.current), steps: 0 };
        let mut barrier = turn.underway().take().unwrap_or_else(begin);
        while barrier.steps < 2 * rounds(self.size()) {
            match self.take_step(barrier, until) {
                Ok(()) => barrier.steps += 1,
                Err((_, WaitError { cause: Cause::Timeout, .. }))
                    if inner.engine.transport.sleep.now() >= until =>
                {
                    *turn.underway() = Some(barrier);
                    return Ok(Poll::Pending);
                }
                Err((peer, error)) => {
                    inner.missed(inner.current.place(), (Some(peer), By::Messages), error);
                    inner.lose_step(BARRIER_FOR);
                    return Err(error.into());
                }
            }
        }
        Ok(Poll::Ready(()))
    }

    /// Sends or receives the next message of a barrier; after an error, with which peer.
    fn take_step(&self, barrier: Underway, until: Duration) -> Result<(), (Rank, WaitError)> {
        let inner = &*self.inner;
        let (engine, contributions) = (&inner.engine, &inner.contributions);
        let (tells, peer, round) = barrier.step(self.rank(), self.size());
        let (tag, world) = (barrier.tag | round, self.world_rank(peer));
        let whom = (Some(peer), By::Messages);
        let taken = inner.attempt_once(BARRIER_FOR, inner.current.place(), whom, |wait| {
            let wait = Wait { until: Some(until), ..wait };
            if tells {
                let head = step_head(inner.id, tag, CollectiveKind::Piece, 0, 0);
                return engine.send(world, &head, &[], wait);
            }
            // wait: timed barrier
            engine.wait_until(wait, || contributions.take(&(inner.id, tag, world), 0)).map(
                |(_, cts)| {
                    // That there is one is all it says.
                    engine.send_cts(cts);
                },
            )
        });
        taken.map_err(|error| (peer, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What one rank sends in a round is what the other waits for there.
    #[test]
    fn each_step_has_its_counterpart() {
        for size in 1..40 {
            for (rank, round) in
                (0..size).flat_map(|rank| (0..rounds(size)).map(move |r| (rank, r)))
            {
                let at = |steps| Underway { tag: 0, steps };
                let (tells, to, in_round) = at(2 * round).step(Rank(rank), size);
                assert!(tells && in_round == round);
                assert_eq!(at(2 * round + 1).step(to, size), (false, Rank(rank), round));
            }
        }
    }
}
