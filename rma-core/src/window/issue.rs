//! Requests of a window: a slot, credit and room for each, and the wait for what they bring.
#![allow(unsafe_code)]

use super::Window;
use crate::engine::{Buffer, Cause, Expected, Failure, On, Pending, SlotId, Wait, WaitError};
use crate::error::RmaError;
use crate::protocol::message::{Card, Head, Kind, Status};
use crate::rank::{Rank, WorldRank};
use crate::transport::ImportError;
use core::cell::Cell;
use std::sync::Arc;

/// Waits for the answers on every way out, unwinding included: afterwards nothing is written to
/// the buffers that operations of `pending` were given.
pub(crate) struct Drain<'w> {
    pub(crate) window: &'w Window,
    pub(crate) what: &'static str,
    pub(crate) target: Rank,
    pub(crate) pending: Arc<Pending>,
}

impl<'w> Drain<'w> {
    pub(crate) fn new(window: &'w Window, what: &'static str, target: Rank) -> Self {
        Self { window, what, target, pending: Arc::default() }
    }

    /// Waits, and says how the operations fared.
    pub(crate) fn finish(&self) -> Result<(), RmaError> {
        self.window.drain(self.what, self.target, &self.pending)
    }
}

impl Drop for Drain<'_> {
    fn drop(&mut self) {
        // A forked child has copies of the buffers, and no rank answers it.
        if !self.pending.is_done() && !self.window.engine().transport.members.is_fork() {
            // If that fails, the buffers were taken back: nothing is written to them any more.
            _ = self.finish();
        }
    }
}

impl Window {
    /// Asks a target what is to be known of its part; in a dynamic window, of the region with the
    /// byte at that address.
    pub(crate) fn query_card(
        &self,
        target: Rank,
        world: WorldRank,
        address: u64,
    ) -> Result<Card, RmaError> {
        let what = self.card_query();
        // Before `drain`, and so dropped after it.
        let mut bytes = vec![0; Card::LEN];
        let drain = Drain::new(self, what, target);
        let head = self.card_head(address);
        let buffer = Buffer { at: bytes.as_mut_ptr(), len: bytes.len() };
        let wait = self.wait_for(what, target);
        // SAFETY: `bytes` is not touched before `drain` has waited, on every way out.
        let asked = unsafe { self.issue_into(wait, world, head, &[], buffer, &drain.pending) };
        let answered = drain.finish();
        asked.and(answered)?;
        self.checked_card(target, address, &bytes)
    }

    /// As errors name it.
    pub(super) fn card_query(&self) -> &'static str {
        match self.part.regions {
            Some(_) => "asking for attached memory",
            None => "asking for a target's size",
        }
    }

    pub(super) fn card_head(&self, address: u64) -> Head {
        let mut head = Head::new(Kind::Card, self.id().0, 0);
        (head.offset, head.length) = (address.into(), (Card::LEN as u64).into());
        head
    }

    /// What a target said, if that can be.
    pub(super) fn checked_card(
        &self,
        target: Rank,
        address: u64,
        bytes: &[u8],
    ) -> Result<Card, RmaError> {
        let dynamic = self.part.regions.is_some();
        let card = Card::parse(bytes).ok_or_else(|| self.no_such_rank(target))?;
        if card.start.get() != 0 && !dynamic || dynamic && !card.has(address, 1) {
            return Err(self.no_such_rank(target));
        }
        Ok(card)
    }

    /// Sends a request that brings no bytes back, waiting for a slot, for credit at its target and
    /// for room. If another thread has cancelled `pending` before there was room, nothing is sent.
    pub(crate) fn issue(
        &self,
        wait: Wait<'_>,
        world: WorldRank,
        head: Head,
        body: &[u8],
        pending: &Arc<Pending>,
    ) -> Result<SlotId, RmaError> {
        // SAFETY: no buffer.
        unsafe { self.issue_into(wait, world, head, body, Buffer::NONE, pending) }
    }

    /// As [`issue`](Self::issue), for bytes that come to `buffer`.
    ///
    /// # Safety
    ///
    /// As [`Outstanding::start`](crate::engine::Outstanding::start).
    pub(crate) unsafe fn issue_into(
        &self,
        wait: Wait<'_>,
        world: WorldRank,
        mut head: Head,
        body: &[u8],
        buffer: Buffer,
        pending: &Arc<Pending>,
    ) -> Result<SlotId, RmaError> {
        let (engine, expected) = (self.engine(), Expected::of(&head, buffer));
        // Kept while there is no room: the target alone makes that, and waits for no slot of ours.
        let taken = Cell::new(None);
        let attempt = || {
            // SAFETY: forwarded to the caller.
            let start = || unsafe { engine.outstanding.start(world, expected, pending) };
            let slot = match taken.get() {
                None => start()?,
                Some(slot) if engine.outstanding.resume(slot) => slot,
                // With its credit, which others may have by now.
                Some(_) => {
                    let cause = engine.trouble(wait).unwrap_or(Cause::Timeout);
                    return Some(Err(engine.given_up(wait, cause)));
                }
            };
            taken.set(Some(slot));
            head.slot = slot.0.into();
            let sent = engine.send_now(world, &head, body, wait);
            if sent != Some(Ok(())) {
                engine.set_unsent(slot);
            }
            sent.map(|sent| sent.map(|()| slot))
        };
        let in_the_way = |_| match taken.get() {
            Some(_) => Some(world),
            None => engine.in_the_way(world, 1),
        };
        let place = Wait { on: On::Named(&in_the_way), ..wait };
        // wait: slot
        engine.wait_until(place, attempt).flatten().map_err(|error| {
            taken.get().into_iter().for_each(|slot| engine.cancel_one(slot));
            self.wait_failed(error)
        })
    }

    /// Sends a question with one value as its answer, and waits for that.
    pub(crate) fn query(
        &self,
        what: &'static str,
        target: Rank,
        world: WorldRank,
        head: Head,
        body: &[u8],
    ) -> Result<u64, RmaError> {
        let pending = Arc::<Pending>::default();
        let wait = self.wait_for(what, target);
        self.issue(wait, world, head, body, &pending)?;
        self.drain(what, target, &pending)?;
        Ok(pending.value())
    }

    /// Waits until `pending` is done; if that fails, takes its buffers back.
    pub(crate) fn drain(
        &self,
        what: &'static str,
        target: Rank,
        pending: &Arc<Pending>,
    ) -> Result<(), RmaError> {
        self.drain_unless(|_| false, what, target, pending)
    }

    /// As [`drain`](Self::drain), for a flush, which has no buffers: what is not done by a deadline
    /// may be done yet, and stays for the next flush. S-F1
    pub(crate) fn drain_for_flush(
        &self,
        target: Rank,
        pending: &Arc<Pending>,
    ) -> Result<(), RmaError> {
        self.drain_unless(|cause| cause == Cause::Timeout, "a flush", target, pending)
    }

    /// As [`drain`](Self::drain); what fails by a cause that `stays` is left as it is.
    fn drain_unless(
        &self,
        stays: impl Fn(Cause) -> bool,
        what: &'static str,
        target: Rank,
        pending: &Arc<Pending>,
    ) -> Result<(), RmaError> {
        let Err(error) = self.wait_for_answers(what, pending) else {
            return self.check_failure(what, target, pending);
        };
        if !stays(error.cause) {
            self.engine().cancel(pending);
            pending.set_told();
        }
        Err(self.wait_failed(error))
    }

    fn wait_for_answers(
        &self,
        what: &'static str,
        pending: &Arc<Pending>,
    ) -> Result<(), WaitError> {
        let engine = self.engine();
        let debtor = |turn: usize| {
            let answers = engine.outstanding.debtor(pending, turn / 2);
            let transfers = engine.queues.debtor(pending, turn / 2);
            if turn.is_multiple_of(2) { answers.or(transfers) } else { transfers.or(answers) }
        };
        let wait = self.wait_on(what, On::Named(&debtor));
        let done = || pending.is_done().then_some(());
        // wait: answer
        engine.wait_until(wait, done)
    }

    /// `target` may be null, where `pending` counts operations to several.
    pub(super) fn check_failure(
        &self,
        what: &'static str,
        target: Rank,
        pending: &Pending,
    ) -> Result<(), RmaError> {
        let Some(failure) = pending.failure() else { return Ok(()) };
        pending.set_told();
        if let Failure::Device(lost) = failure {
            let target = self.group().rank_of(lost.peer).unwrap_or(target);
            return Err(self.transfer_failed(target, lost));
        }
        let Failure::Answered(status, by) = failure else {
            // The flush of another thread gave up, and cancelled everything that it waited for.
            let wait = self.wait_for(what, target);
            let cause = self.engine().trouble(wait).unwrap_or(Cause::Timeout);
            return Err(self.wait_failed(self.engine().given_up(wait, cause)));
        };
        if status == Status::HolderLeft {
            let wait = Wait::new(what, On::Peer(by));
            return Err(self.wait_failed(self.engine().given_up(wait, Cause::PeerLeft(by))));
        }
        let target = self.group().rank_of(by).unwrap_or(target);
        // It gave the window up before it left, or because of a rank that failed.
        let wait = self.wait_for(what, target);
        if status == Status::Freed
            && let Some(cause) = self.engine().trouble(wait)
        {
            return Err(self.wait_failed(self.engine().given_up(wait, cause)));
        }
        match status {
            Status::Ok => Ok(()),
            Status::OutOfRange if self.part.regions.is_some() => {
                Err(RmaError::NotAttached { window: self.id(), target, range: None })
            }
            Status::Misaligned => Err(RmaError::MisalignedThere { window: self.id(), target }),
            Status::Unfenced => Err(self.import_failed(ImportError::Unfenced(by))),
            // The range was checked here against what the target said: it has another window now.
            Status::Freed
            | Status::OutOfRange
            | Status::Malformed
            | Status::HolderLeft
            | Status::Busy => Err(RmaError::Freed { window: self.id(), target }),
        }
    }
}
