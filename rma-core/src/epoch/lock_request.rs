//! Locks that are asked for now and waited for later.
use super::lock::TakenLock;
use super::{Assert, Lock};
use crate::engine::grant;
use crate::error::RmaError;
use crate::memory::target::held;
use crate::rank::Rank;
use crate::sync::{LockKind, Patience};
use crate::window::Window;
use core::mem;
use core::time::Duration;

/// A lock that was asked for: [`wait`](Self::wait) gives it.
///
/// Dropping it gives the request up, and the lock back if it was granted. Forgetting it may leave
/// the lock held, as forgetting the [`Lock`] does. As soon as it is in line, the epoch is open;
/// until then, other epochs may be opened, and those that do not go together with it refuse it.
///
/// Locks that are asked for together are granted in any order: two ranks that ask for the same two
/// may wait for each other for ever, although both asked in the same order. A rank that has several
/// locks at a time waits for each before asking for the next, in an order that all ranks agree on.
#[must_use = "the request is given up when it is dropped"]
pub struct LockRequest<'w> {
    window: &'w Window,
    target: Rank,
    kind: LockKind,
    stage: RequestStage,
}

/// How far a request is. S-E1 S-E13
#[derive(Debug, Clone, Copy)]
enum RequestStage {
    /// It has the lock.
    Granted(TakenLock),
    /// Its home was sent it, with that slot.
    Sent(u64),
    /// It is nowhere in line: taken by a test, if that is possible just then, or by a wait.
    Wanted,
}

impl Window {
    /// Asks for the lock of `target` without waiting for it: this rank can do something else until
    /// it is granted.
    ///
    /// Where messages are needed to reach all parts of the window, the target puts this rank in
    /// line. Where load and store reach all of them, the lock is taken if it is free; otherwise
    /// [`test`](LockRequest::test) tries again, and [`wait`](LockRequest::wait) gets in line.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    ///
    /// An extension (MPI 4.1, section 12.5.3): [`lock`](Self::lock) may return before the lock is
    /// granted, too, but what comes next may wait for it. This one can be tested and given up,
    /// nothing else waits for it, and several may be out at a time.
    pub fn request_lock(&self, target: Rank, kind: LockKind) -> Result<LockRequest<'_>, RmaError> {
        self.check_lock(Assert::NONE)?;
        grant::wait(None);
        // Before there is a request: dropping one takes the mark back, which may be another's.
        let begun = self.begin(target, held::LOCKING)?;
        let mut request = LockRequest { window: self, target, kind, stage: RequestStage::Wanted };
        if !begun {
            request.stage = RequestStage::Granted(TakenLock::Nothing);
            return Ok(request);
        }
        // Dropped on errors, `request` takes the mark back.
        self.check_left()?;
        let stage = if self.together {
            self.take_lock(target, kind, Patience::None)?
                .map_or(RequestStage::Wanted, RequestStage::Granted)
        } else {
            let asked = self.request_at_home(target, kind.mode())?;
            asked.map_or(RequestStage::Granted(TakenLock::AtHome(kind)), RequestStage::Sent)
        };
        request.enter(stage);
        Ok(request)
    }
}

impl<'w> LockRequest<'w> {
    /// The target.
    pub fn target(&self) -> Rank {
        self.target
    }

    /// Notes how far it is, for this rank's other calls too.
    fn enter(&mut self, stage: RequestStage) {
        self.stage = stage;
        let how = match stage {
            RequestStage::Granted(TakenLock::Nothing) => return,
            RequestStage::Granted(_) => held::BY_LOCK,
            // From now on it may be granted.
            RequestStage::Sent(_) => held::REQUESTED,
            RequestStage::Wanted => held::LOCKING,
        };
        self.window.set_held(self.target, how);
    }

    /// Whether the lock is there, and [`wait`](Self::wait) does not wait; makes some progress.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait), as soon as a holder of the lock is gone. It may be tested for ever,
    /// for as long as ranks that hold locks take part.
    pub fn test(&mut self) -> Result<bool, RmaError> {
        let (window, target, kind) = (self.window, self.target, self.kind);
        match self.stage {
            RequestStage::Granted(_) => {}
            RequestStage::Sent(slot) => match window.test_home(target, slot) {
                Ok(true) => self.enter(RequestStage::Granted(TakenLock::AtHome(kind))),
                Ok(false) => return Ok(false),
                Err(error) => {
                    // Not in line any more, whatever the reason.
                    window.leave_line(target, slot);
                    self.enter(RequestStage::Wanted);
                    return Err(error);
                }
            },
            RequestStage::Wanted => {
                if !grant::wait(Some(Duration::ZERO)) {
                    return Ok(false);
                }
                window.check_goes(target).and_then(|()| window.check_left())?;
                match window.take_lock(target, kind, Patience::None)? {
                    Some(taken) => self.enter(RequestStage::Granted(taken)),
                    None => return window.check_holders(target).map(|()| false),
                }
            }
        }
        Ok(true)
    }

    /// Waits until the lock is granted, and gives it.
    ///
    /// # Errors
    ///
    /// What ends every wait: a holder of the lock died or left with it, the target left, or the
    /// deadline of the configuration passed; [`RmaError::EpochOpen`] if it was not in line, and an
    /// epoch was opened meanwhile that excludes it. The request is then given up.
    pub fn wait(mut self) -> Result<Lock<'w>, RmaError> {
        let (window, target, kind) = (self.window, self.target, self.kind);
        let taken = match self.stage {
            RequestStage::Granted(taken) => taken,
            RequestStage::Sent(slot) => {
                // If it fails, this rank is not in line any more.
                self.stage = RequestStage::Wanted;
                window.wait_for_home(target, slot)?;
                TakenLock::AtHome(kind)
            }
            RequestStage::Wanted => loop {
                grant::wait(None);
                window.check_goes(target).and_then(|()| window.check_left())?;
                let patience = Patience::Until(None);
                if let Some(taken) = window.take_lock(target, kind, patience)? {
                    self.enter(RequestStage::Granted(taken));
                    // Dropped on an error, `self` gives it up.
                    window.wait_for_grant(target)?;
                    break taken;
                }
            },
        };
        self.enter(RequestStage::Granted(taken));
        mem::forget(self);
        Ok(Lock::new(window, target, taken))
    }
}

impl Drop for LockRequest<'_> {
    fn drop(&mut self) {
        let (window, target) = (self.window, self.target);
        if window.engine().transport.members.is_fork() {
            return;
        }
        match self.stage {
            RequestStage::Granted(taken) => return drop(Lock::new(window, target, taken)),
            RequestStage::Sent(slot) => window.leave_line(target, slot),
            RequestStage::Wanted => {}
        }
        window.set_held(target, held::NOT);
    }
}
