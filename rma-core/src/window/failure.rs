//! Errors of a window.
use super::Window;
use crate::engine::{Cause, On, Wait, WaitError};
use crate::error::RmaError;
use crate::rank::Rank;
use crate::transport::{DeviceError, ImportError};

impl Window {
    /// A peer's memory was not mapped, perhaps because the peer is gone.
    pub(crate) fn import_failed(&self, error: ImportError) -> RmaError {
        let ImportError::PeerGone(peer) = error else {
            return RmaError::Import { window: self.id(), error };
        };
        // A peer that went without a word has failed, whether that has been noticed otherwise or
        // not. A peer that left because another failed has said so first.
        let failed = self.engine().transport.members.failed().map(Cause::PeerFailed);
        let cause = failed.or_else(|| self.engine().gone(peer));
        let cause = cause.unwrap_or(Cause::PeerFailed(peer));
        let wait = Wait::new("mapping a peer's memory", On::Peer(peer));
        self.wait_failed(self.engine().given_up(wait, cause))
    }

    /// The error of a window that a wait ended in; whatever ended that wait, the launcher hears
    /// which peer this rank missed.
    pub(crate) fn wait_failed(&self, WaitError { what, cause }: WaitError) -> RmaError {
        let window = self.id();
        self.engine().misses(cause);
        match cause {
            Cause::PeerFailed(world) => RmaError::PeerFailed { window, world, what },
            Cause::PeerLeft(world) => RmaError::PeerLeft { window, world, what },
            Cause::GaveUp(world) => {
                let by = self.group().rank_of(world).unwrap_or(Rank::NULL);
                RmaError::RefusedBy { window, by, asked: what }
            }
            Cause::Left => RmaError::Left { window },
            Cause::Import(error) => RmaError::Import { window, error },
            Cause::Timeout => RmaError::Timeout { window, what },
        }
    }

    pub(crate) fn no_such_rank(&self, target: Rank) -> RmaError {
        let last = Rank(self.ranks().saturating_sub(1));
        RmaError::NoSuchRank { window: self.id(), target, last }
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn misaligned_cold(&self, target: Rank, disp: u64, width: usize) -> RmaError {
        RmaError::Misaligned { window: self.id(), target, disp, width: width as u32 }
    }

    /// The error of a device, unless the peer is gone and that is why.
    pub(crate) fn device_failed(&self, target: Rank, error: DeviceError) -> RmaError {
        let world = self.part.comm.world_rank(target);
        let wait = Wait::new("a transfer", On::Peer(world));
        // Its memory goes with it. Before the news is here, whether it failed or left is not known.
        let gone = self.engine().trouble(wait).filter(|_| error != DeviceError::Ended);
        match gone {
            Some(cause) => self.wait_failed(self.engine().given_up(wait, cause)),
            None => RmaError::Device { window: self.id(), target, error },
        }
    }
}
