//! Active target synchronisation of chosen ranks: post, start, complete and wait (MPI 4.1, section
//! 12.5.2). Why a signal is never taken for another's: `protocol::pscw`.
use super::{Access, Assert};
use crate::engine::grant;
use crate::error::RmaError;
use crate::memory::target::Permit;
use crate::protocol::pscw::Signal;
use crate::rank::Rank;
use crate::sync::{COMPLETE_WAIT, EpochCall};
use crate::transport::Moment;
use crate::window::Window;
use crate::window::epochs::{EXPOSED, NO_CHECK, START, fill, lock};
use core::mem;
use core::ops::Deref;
use core::time::Duration;

/// An access epoch to chosen targets: operations to those are allowed.
///
/// The first operation to a target waits until the target has posted. [`complete`](Self::complete)
/// ends the epoch; dropping the guard does too, but swallows errors. In a panic, and if the guard
/// is forgotten, the epoch stays open, because ending it may mean waiting: later epochs of the
/// window are then refused with [`RmaError::EpochOpen`].
#[must_use = "operations are methods of the guard"]
pub struct Start<'w> {
    access: Access<'w>,
}

/// An exposure epoch: chosen origins may operate on this rank's part.
///
/// It has no operations. [`wait`](Self::wait) or [`test`](Self::test) ends it. Dropping or
/// forgetting the guard does not, because the origins may still be at work: the epoch stays open,
/// and later epochs of the window that exclude it are refused with [`RmaError::EpochOpen`].
#[must_use = "the epoch ends in `wait` or `test` only"]
pub struct Exposure<'w> {
    window: &'w Window,
}

impl Window {
    /// Exposes this rank's part to `origins`, each of which opens the epoch with a
    /// [`start`](Self::start) that names this rank. Never waits.
    ///
    /// Stores of this rank before it are visible to the origins. A rank named twice counts once;
    /// this rank may be named, and none at all. Asserts: [`Assert::NO_CHECK`],
    /// [`Assert::NO_STORE`], [`Assert::NO_PUT`]; they change nothing here (MPI 4.1, section
    /// 12.5.2).
    ///
    /// # Errors
    ///
    /// [`RmaError::EpochOpen`] if an exposure, fence or lock_all epoch is open on this rank, or it
    /// has locked its own part; [`RmaError::NoSuchRank`], [`RmaError::WrongAssert`]: no rank was
    /// told.
    pub fn post(&self, origins: &[Rank], asserts: Assert) -> Result<Exposure<'_>, RmaError> {
        self.check_post(origins, asserts)?;
        grant::wait(None);
        self.open(EpochCall::Post, EXPOSED)?;
        let origins = fill(&self.part.epoch.partners.origins, origins);
        self.expect_completes(&origins);
        self.part.advise(Moment::Posted);
        origins.iter().try_for_each(|origin| self.send_signal(Signal::Post, *origin))?;
        Ok(Exposure { window: self })
    }

    /// As [`post`](Self::post), and makes this rank's part durable before any origin may write
    /// there: on persistent memory with transactions as a version of this rank only, elsewhere on
    /// storage by a flush. Local: other ranks make no version.
    ///
    /// # Errors
    ///
    /// Those of [`post`](Self::post), and [`RmaError::Persist`]: no rank was told then, and no
    /// epoch is open.
    pub fn post_persist(
        &self,
        origins: &[Rank],
        asserts: Assert,
    ) -> Result<Exposure<'_>, RmaError> {
        self.check_post(origins, asserts)?;
        grant::wait(None);
        self.check(EpochCall::Post)?;
        self.commit_alone()?;
        self.post(origins, asserts)
    }

    fn check_post(&self, origins: &[Rank], asserts: Assert) -> Result<(), RmaError> {
        let taken = Assert::NO_CHECK | Assert::NO_STORE | Assert::NO_PUT;
        self.check_asserts(asserts, taken, "a post takes NO_CHECK, NO_STORE and NO_PUT")?;
        self.check_partners(origins)
    }

    /// Opens an access epoch to `targets`, each of which exposes its part with a
    /// [`post`](Self::post) that names this rank, before or afterwards.
    ///
    /// It does not wait: the first operation to a target does, until that target has posted. With
    /// [`Assert::NO_CHECK`] operations do not wait either, because the program promises that all
    /// targets have posted. A rank named twice counts once; this rank may be named, and none at all
    /// (MPI 4.1, section 12.5.2).
    ///
    /// # Errors
    ///
    /// [`RmaError::EpochOpen`] if this rank has another access epoch open on this window (start,
    /// fence, lock or lock_all), [`RmaError::NoSuchRank`], [`RmaError::WrongAssert`].
    pub fn start(&self, targets: &[Rank], asserts: Assert) -> Result<Start<'_>, RmaError> {
        self.check_asserts(asserts, Assert::NO_CHECK, "a start takes NO_CHECK only")?;
        self.check_partners(targets)?;
        let no_check = if asserts == Assert::NO_CHECK { NO_CHECK } else { 0 };
        self.open(EpochCall::Start, START | no_check)?;
        drop(fill(&self.part.epoch.partners.targets, targets));
        Ok(Start { access: Access::new(self, Permit::Started) })
    }

    /// Fails if a call does not take one of the asserts. S-D6
    fn check_asserts(
        &self,
        asserts: Assert,
        taken: Assert,
        why: &'static str,
    ) -> Result<(), RmaError> {
        if taken.contains(asserts) {
            return Ok(());
        }
        Err(RmaError::WrongAssert { window: self.id(), assert: "of another call", why })
    }

    /// Fails unless all of `ranks` exist and can be signalled. S-D1
    fn check_partners(&self, ranks: &[Rank]) -> Result<(), RmaError> {
        ranks.iter().try_for_each(|rank| self.reach_if_near(*rank))
    }
}

impl Start<'_> {
    /// Ends the epoch: your operations are locally complete, and at each target when its
    /// [`wait`](Exposure::wait) has returned.
    ///
    /// Waits until every target has posted, those without an operation too.
    ///
    /// # Errors
    ///
    /// [`RmaError::PeerFailed`], [`RmaError::PeerLeft`], [`RmaError::Timeout`]: the epoch is over
    /// on this rank; targets that could be told have been.
    pub fn complete(self) -> Result<(), RmaError> {
        let window = self.access.window();
        mem::forget(self);
        window.complete()
    }
}

impl<'w> Deref for Start<'w> {
    type Target = Access<'w>;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        &self.access
    }
}

impl Drop for Start<'_> {
    fn drop(&mut self) {
        let window = self.access.window();
        if !std::thread::panicking() && !window.engine().transport.members.is_fork() {
            // `complete` is for callers that want to know.
            _ = window.complete();
        }
    }
}

impl Exposure<'_> {
    /// Ends the epoch: waits until every origin has completed. What they put is visible then.
    ///
    /// # Errors
    ///
    /// [`RmaError::PeerFailed`], [`RmaError::PeerLeft`], [`RmaError::Timeout`]: some origin may
    /// still write, so the epoch stays open on this rank, and with it the window.
    pub fn wait(self) -> Result<(), RmaError> {
        self.window.end_exposure()
    }

    /// As [`wait`](Self::wait), and makes this rank's part durable then: on persistent memory with
    /// transactions as a version of this rank only, elsewhere on storage by a flush. Other ranks
    /// make no version: after a crash, `pmem_global_checkpoint` asks for the newest that every rank
    /// has.
    ///
    /// # Errors
    ///
    /// Those of [`wait`](Self::wait), and [`RmaError::Persist`]: the epoch has ended, and what the
    /// origins put is visible, but not durable.
    pub fn wait_persist(self) -> Result<(), RmaError> {
        let window = self.window;
        self.wait()?;
        window.commit_alone()
    }

    /// As [`test`](Self::test), and once the epoch has ended, as
    /// [`wait_persist`](Self::wait_persist): until then, nothing is made durable.
    pub fn test_persist(self) -> Result<Result<(), RmaError>, Self> {
        let window = self.window;
        Ok(self.test()?.and_then(|()| window.commit_alone()))
    }

    /// As [`wait`](Self::wait) if every origin has completed, or if waiting would fail; otherwise
    /// the epoch back, after some progress.
    ///
    /// It may be polled for ever (MPI's `MPI_Win_test`).
    pub fn test(self) -> Result<Result<(), RmaError>, Self> {
        let window = self.window;
        // To end the exposure waits for it.
        if !grant::wait(Some(Duration::ZERO)) {
            return Err(self);
        }
        let missing = || {
            let origins = lock(&window.part.epoch.partners.origins);
            origins.iter().copied().find(|origin| !window.has_signal(Signal::Complete, *origin))
        };
        let Some(first) = missing() else { return Ok(self.wait()) };
        // Before the last look, which sees what the peer did before it left.
        let wait = window.wait_for(COMPLETE_WAIT, first);
        let trouble = window.engine().progress_or_trouble(wait);
        match (missing(), trouble) {
            (None, _) => Ok(self.wait()),
            (Some(origin), Some(_)) if origin == first => Ok(self.wait()),
            _ => Err(self),
        }
    }
}
