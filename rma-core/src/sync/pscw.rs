//! Post, start, complete and wait between chosen ranks. Why a signal is never taken for another's:
//! `protocol::pscw`.
use crate::engine::grant;
use crate::error::{RmaError, Shortage};
use crate::memory::target::{Permit, held};
use crate::operation::Operation;
use crate::protocol::pscw::Signal;
use crate::rank::Rank;
use crate::transport::Moment;
use crate::window::Window;
use crate::window::epochs::{EXPOSED, NO_CHECK, START, lock};
use core::mem;
use core::sync::atomic::Ordering::{AcqRel, Acquire};

const POST_WAIT: &str = "the wait for a target's post";
pub(crate) const COMPLETE_WAIT: &str = "the wait for an origin's complete";

impl Window {
    /// Takes what the first operation to a target in a start epoch needs. Several threads may come
    /// here for one target: the post is only looked at, `complete` uses it. S-D6 S-D8
    #[cold]
    #[inline(never)]
    pub(crate) fn admit_cold(&self, operation: &Operation<'_>) -> Result<(), RmaError> {
        let target = operation.target;
        if lock(&self.part.epoch.partners.targets).binary_search(&target).is_err() {
            return Err(RmaError::NotInGroup { window: self.id(), target });
        }
        // pairs with the AcqRel changes of the word in `start`.
        if self.part.epoch.word.load(Acquire) & NO_CHECK == 0 {
            if operation.tries {
                let posted = || self.has_signal(Signal::Post, target).then_some(());
                let wait = self.wait_for(POST_WAIT, target);
                self.try_for(operation, wait, Shortage::Post, posted)?;
            } else {
                self.wait_signal(POST_WAIT, Signal::Post, target)?;
            }
        }
        self.set_held(target, held::BY_START);
        self.targets.open(Permit::Started, target);
        Ok(())
    }

    /// Ends the start epoch: its operations are at each target before the signal is. S-D1 S-D3
    pub(crate) fn complete(&self) -> Result<(), RmaError> {
        grant::wait(None);
        // Taken out, because nothing is locked while waiting.
        let targets = mem::take(&mut *lock(&self.part.epoch.partners.targets));
        let mut done = Ok(());
        if !self.all_loaded {
            let flush = |all: Result<_, _>, target: &Rank| all.and(self.flush(*target));
            done = targets.iter().fold(done, flush);
        }
        let complete = |all: Result<_, _>, target: &Rank| all.and(self.complete_at(*target));
        done = targets.iter().fold(done, complete);
        *lock(&self.part.epoch.partners.targets) = targets;
        // pairs with the Acquire load in `check`.
        self.part.epoch.word.fetch_and(!(START | NO_CHECK), AcqRel);
        done
    }

    /// Uses the post of a target, and answers it. S-D9
    fn complete_at(&self, target: Rank) -> Result<(), RmaError> {
        self.targets.close(Permit::Started, target);
        self.set_held(target, held::NOT);
        self.wait_signal(POST_WAIT, Signal::Post, target)?;
        self.clear_signal(Signal::Post, target);
        self.send_signal(Signal::Complete, target)
    }

    /// Tells a device that some of the origins are still to use this rank's part.
    fn advise_if_late(&self, origins: &[Rank]) {
        if self.remote().is_none() {
            return;
        }
        self.engine().progress_in_passing();
        if origins.iter().any(|origin| !self.has_signal(Signal::Complete, *origin)) {
            self.part.advise(Moment::Late);
        }
    }

    /// Ends the exposure, once. S-D4
    pub(crate) fn end_exposure(&self) -> Result<(), RmaError> {
        grant::wait(None);
        let origins = mem::take(&mut *lock(&self.part.epoch.partners.origins));
        self.advise_if_late(&origins);
        for origin in &origins {
            self.wait_signal(COMPLETE_WAIT, Signal::Complete, *origin)?;
        }
        origins.iter().for_each(|origin| self.clear_signal(Signal::Complete, *origin));
        *lock(&self.part.epoch.partners.origins) = origins;
        // pairs with the Acquire load in `check`.
        self.part.epoch.word.fetch_and(!EXPOSED, AcqRel);
        Ok(())
    }
}
