//! Operations under a lock of a far target, which was asked for and may not be granted yet: puts
//! and accumulates of few bytes wait in a queue of that lock, so that their calls return; all
//! others, a flush and unlock wait for the grant, and perform what waits there first. S-E1
use super::flush::makes_vain;
use crate::config::Hint;
use crate::engine::grant::{self, Grant};
use crate::error::{RmaError, Shortage};
use crate::operation::{Contiguous, Operation, OwnedOperation, Sink};
use crate::rank::Rank;
use crate::thread;
use crate::window::{LockEnd, Ungranted, Window};
use std::sync::Arc;
use std::thread::ThreadId;

impl Window {
    /// Whether an operation waits, from now on, for the grant of the lock that it is under. What
    /// is wrong with it is an error now, what becomes of it one of the call that waits.
    pub(super) fn queued(&self, operation: &Operation<'_>) -> Result<bool, RmaError> {
        let ungranted = self.far.ungranted(operation.target);
        ungranted.map_or(Ok(false), |ungranted| self.queued_under(&ungranted, operation))
    }

    #[cold]
    #[inline(never)]
    fn queued_under(
        &self,
        ungranted: &Ungranted,
        operation: &Operation<'_>,
    ) -> Result<bool, RmaError> {
        // Whether a dynamic window has such memory is for its target to say.
        if self.part.regions.is_some() {
            return Ok(false);
        }
        let room = self.settings.hints.get(Hint::EagerBytes);
        let contiguous = Contiguous::of(operation).filter(|it| it.footprint() <= room);
        let Some(contiguous) = contiguous else { return Ok(false) };
        self.check_operation(operation, &Sink::none())?;
        let (_, _, there) = self.locate(operation)?;
        let base = self.alignment_of(operation.target);
        if let Some((basic, base)) = operation.action.basic().zip(base) {
            self.check_aligned(operation, base, there, basic)?;
        }
        Ok(ungranted.queue(contiguous, room))
    }

    /// As [`wait_for_grant`](Self::wait_for_grant), of the lock that an operation is under.
    pub(super) fn wait_for_grant_of(&self, operation: &Operation<'_>) -> Result<(), RmaError> {
        match self.far.ungranted(operation.target) {
            None => Ok(()),
            Some(ungranted) if operation.tries => self.try_ungranted(operation, ungranted),
            Some(ungranted) => self.wait_for_ungranted(ungranted),
        }
    }

    /// As [`wait_for_ungranted`](Self::wait_for_ungranted), without waiting: also what waited for
    /// the grant is performed as far as there is room.
    #[cold]
    #[inline(never)]
    fn try_ungranted(
        &self,
        operation: &Operation<'_>,
        ungranted: Arc<Ungranted>,
    ) -> Result<(), RmaError> {
        let none = || self.would_block(operation, Shortage::Grant);
        if !ungranted.test() {
            return Err(none());
        }
        if let Some(LockEnd::Granted) = ungranted.end_or(|| None) {
            let (mut first, mut stays) = (Ok(()), None);
            let emptied = ungranted.advance(|queued| {
                let (waiting, by) = (queued.operation().trying(true), queued.by());
                let performed = self.perform_granted(&waiting, by);
                // Its caller did not try it, and was told that it is issued: it stays, perhaps for
                // a call that waits.
                match performed {
                    Err(RmaError::WouldBlock { shortage, .. }) => {
                        stays = Some(self.would_block(operation, shortage));
                        return false;
                    }
                    Err(error @ RmaError::TooLargeToTry { .. }) => {
                        stays = Some(error);
                        return false;
                    }
                    _ => {}
                }
                if performed.is_err() && by != thread::id() {
                    self.far.add_lost(waiting.target, by);
                }
                first = first.and(performed);
                true
            });
            first?;
            if !emptied {
                return Err(stays.unwrap_or_else(none));
            }
        }
        self.wait_for_ungranted(ungranted)
    }

    /// Returns when the lock of `target` is granted, if it was asked for, and what waited for that
    /// is performed; an error if it cannot be, which everything under that lock ends in.
    #[inline]
    pub(crate) fn wait_for_grant(&self, target: Rank) -> Result<(), RmaError> {
        self.far.ungranted(target).map_or(Ok(()), |ungranted| self.wait_for_ungranted(ungranted))
    }

    #[cold]
    #[inline(never)]
    fn wait_for_ungranted(&self, ungranted: Arc<Ungranted>) -> Result<(), RmaError> {
        ungranted.come_by(None);
        let (target, end) = (ungranted.target, ungranted.end_or(|| None));
        let granted = match end {
            Some(LockEnd::Failed(error)) => Err(self.wait_failed(error)),
            Some(LockEnd::Freed) => Err(RmaError::Freed { window: self.id(), target }),
            Some(LockEnd::Granted) | None => Ok(()),
        };
        // Other threads of the guard stay behind what they had queued.
        let performed = ungranted.close(|queued| match granted {
            Ok(()) => self.perform_queued(target, queued),
            Err(error) => Err(error),
        });
        let is_granted = granted.is_ok();
        let slot = ungranted.slot;
        grant::settle(&(ungranted as Arc<dyn Grant>));
        if is_granted && self.far.take_ungranted(target).is_some() {
            self.far.add_granted(target, slot);
        }
        performed
    }

    /// Performs what waited for a grant, and says how the first fared that failed. Others are
    /// performed all the same, unless that would be in vain; their threads hear of it, too.
    fn perform_queued(
        &self,
        target: Rank,
        queued: impl Iterator<Item = OwnedOperation>,
    ) -> Result<(), RmaError> {
        let mut first = Ok(());
        for queued in queued {
            let (operation, by) = (queued.operation(), queued.by());
            let performed =
                if makes_vain(&first) { first } else { self.perform_granted(&operation, by) };
            if performed.is_err() && by != thread::id() {
                self.far.add_lost(target, by);
            }
            first = first.and(performed);
        }
        first
    }
    /// Performs a put or an accumulate of that thread, under a lock that is granted.
    fn perform_granted(&self, operation: &Operation<'_>, by: ThreadId) -> Result<(), RmaError> {
        let left = self.execute_granted(operation, Sink::none())?;
        left.map_or(Ok(()), |left| self.update(operation, left, by))
    }
}
