//! The transport beneath a universe, as a program sees it.
#![allow(unsafe_code)]

use super::{SubmitError, Transport};
use crate::rank::WorldRank;
use core::time::Duration;

impl Transport {
    /// [`Messages::send`](super::Messages::send).
    pub(crate) fn send(&self, to: WorldRank, head: &[u8], body: &[u8]) -> Result<(), SubmitError> {
        // SAFETY: callers are the core.
        unsafe { self.messages.send(to, head, body) }
    }

    /// [`Messages::answer`](super::Messages::answer).
    pub(crate) fn answer(
        &self,
        to: WorldRank,
        head: &[u8],
        body: &[u8],
    ) -> Result<(), SubmitError> {
        // SAFETY: callers are the core.
        unsafe { self.messages.answer(to, head, body) }
    }
}

/// What a program may ask of the transport beneath its [`Universe`](crate::Universe). Messages are
/// the universe's own.
pub struct Beneath<'u>(pub(crate) &'u Transport);

impl Beneath<'_> {
    /// See [`Job::name`](super::Job::name).
    pub fn name(&self) -> &'static str {
        self.0.job.name
    }

    /// See [`Job::rank`](super::Job::rank).
    pub fn rank(&self) -> WorldRank {
        self.0.job.rank
    }

    /// See [`Job::size`](super::Job::size).
    pub fn size(&self) -> u32 {
        self.0.job.size
    }

    /// See [`Shared::is_near`](super::Shared::is_near).
    pub fn is_near(&self, peer: WorldRank) -> bool {
        self.0.shared.is_near(peer)
    }

    /// Whether there is a device that reaches memory of peers: a [`Remote`](super::Remote).
    pub fn has_device(&self) -> bool {
        self.0.remote.is_some()
    }

    /// See [`Shared::available`](super::Shared::available).
    pub fn available(&self) -> (u64, &'static str) {
        self.0.shared.available()
    }

    /// See [`Sleep::now`](super::Sleep::now).
    pub fn now(&self) -> Duration {
        self.0.sleep.now()
    }

    /// See [`Sleep::relax`](super::Sleep::relax).
    pub fn relax(&self, round: u32) -> bool {
        self.0.sleep.relax(round)
    }

    /// Sleeps for so long, or until a peer rings; serves no message.
    pub fn park(&self, timeout: Duration) {
        self.0.sleep.park(self.0.sleep.arm(), Some(timeout));
    }

    /// See [`Messages::send`](super::Messages::send).
    ///
    /// # Safety
    ///
    /// The receiver acts on what the message says: it says nothing that the core of this rank would
    /// not say. An answer, for one, may tell where in this rank's memory a peer is to write.
    pub unsafe fn send(&self, to: WorldRank, head: &[u8], body: &[u8]) -> Result<(), SubmitError> {
        // SAFETY: forwarded to the caller.
        unsafe { self.0.messages.send(to, head, body) }
    }
}
