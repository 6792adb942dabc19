//! Errors of a window.
use super::Window;
use crate::engine::{Cause, Lost, On, Wait, WaitError};
use crate::error::{CollectiveError, RmaError};
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
                RmaError::Collective { window, error: CollectiveError::GaveUp { what, world } }
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

    /// The error of a transfer. One that may have been refused in a dynamic window ends as messages
    /// do: if its region is not attached any more, that is the error.
    pub(crate) fn transfer_failed(&self, target: Rank, lost: Lost) -> RmaError {
        let refused = lost.at.filter(|_| lost.error.may_be_refusal());
        let gone = refused.and_then(|at| self.is_gone(target, at));
        gone.unwrap_or_else(|| self.device_failed(target, lost.error))
    }

    /// Asks again for a region whose key the device did not take: the error, if nothing is attached
    /// there. A window gives out no address twice, so it was detached, and is so for ever.
    pub(crate) fn is_gone(&self, target: Rank, address: u64) -> Option<RmaError> {
        self.part.regions.as_ref()?;
        self.far.forget_card(target, address);
        let world = self.part.comm.world_rank(target);
        self.card_of((target, world), address, None).err()
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
