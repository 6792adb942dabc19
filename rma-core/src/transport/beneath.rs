//! The transport beneath a universe, as a program sees it.
#![allow(unsafe_code)] // declares an unsafe function; holds no unsafe block

use super::{SubmitError, Transport, WorldRank};
use core::time::Duration;

/// What a program may ask of the transport beneath its [`Universe`](crate::Universe). Messages are
/// the universe's own.
pub struct Beneath<'u, T: Transport>(pub(crate) &'u T);

impl<T: Transport> Beneath<'_, T> {
    /// See [`Transport::name`].
    pub fn name(&self) -> &'static str {
        self.0.name()
    }

    /// See [`Transport::rank`].
    pub fn rank(&self) -> WorldRank {
        self.0.rank()
    }

    /// See [`Transport::size`].
    pub fn size(&self) -> u32 {
        self.0.size()
    }

    /// See [`Transport::is_near`].
    pub fn is_near(&self, peer: WorldRank) -> bool {
        self.0.is_near(peer)
    }

    /// See [`Transport::now`].
    pub fn now(&self) -> Duration {
        self.0.now()
    }

    /// See [`Transport::relax`].
    pub fn relax(&self, round: u32) -> bool {
        self.0.relax(round)
    }

    /// Sleeps for so long, or until a peer rings; serves nobody.
    pub fn park(&self, timeout: Duration) {
        self.0.park(self.0.arm(), Some(timeout));
    }

    /// See [`Transport::send`].
    ///
    /// # Safety
    ///
    /// The receiver acts on what the message says: it says nothing that the core of this rank would
    /// not say. An answer, for one, may tell where in this rank's memory a peer is to write.
    pub unsafe fn send(&self, to: WorldRank, head: &[u8], body: &[u8]) -> Result<(), SubmitError> {
        self.0.send(to, head, body)
    }
}
