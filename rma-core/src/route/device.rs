//! What a device does of the operations of a window.
use crate::error::RmaError;
use crate::operation::Action;
use crate::rank::{Rank, WorldRank};
use crate::transport::Addressing;
use crate::window::{DeviceRoute, Window, atomic_of};

impl Window {
    /// Whether the device moves what an operation moves, of so many bytes in so many runs at the
    /// target. S-G1 S-H13
    pub(crate) fn device_does(&self, action: Action, bytes: u64, runs: u64) -> bool {
        let Some((remote, device)) = self.remote() else { return false };
        match atomic_of(action) {
            Some((atomic, basic)) => device.combines(remote, atomic, basic),
            None if matches!(action, Action::Put | Action::Get) => {
                runs == 1 || bytes / runs >= remote.limits().run_min
            }
            None => false,
        }
    }

    /// How the device reaches a target.
    ///
    /// `None` if the target has not registered its part.
    pub(crate) fn device_route(
        &self,
        target: Rank,
        world: WorldRank,
    ) -> Result<Option<DeviceRoute>, RmaError> {
        let Some((remote, device)) = self.remote() else { return Ok(None) };
        let (key, base) = match device.key.filter(|_| device.symmetric) {
            Some(key) => (key, 0),
            None => {
                let card = self.card_of(target, world)?;
                let Some(key) = card.key() else { return Ok(None) };
                (key, card.base.get())
            }
        };
        let begin = match remote.limits().addressing {
            Addressing::Offset => 0,
            Addressing::Virtual => base,
        };
        Ok(Some(DeviceRoute { world, key, begin, base }))
    }
}
