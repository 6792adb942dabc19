//! What a device does of the operations of a window.
use crate::config::Hint;
use crate::error::{RmaError, TryLimit};
use crate::operation::{Action, Operation};
use crate::protocol::message::Card;
use crate::rank::{Rank, WorldRank};
use crate::transport::{Addressing, Remote, RemoteLimits};
use crate::window::{DeviceRoute, Window, atomic_of};

impl Window {
    /// Whether the device moves what an operation moves to or from a rank, of so many bytes in so
    /// many runs there. S-G1 S-H13
    pub(crate) fn device_does(
        &self,
        action: Action,
        world: WorldRank,
        (bytes, runs): (u64, u64),
    ) -> bool {
        let Some((remote, device)) = self.remote() else { return false };
        match atomic_of(action) {
            Some((atomic, basic)) => device.combines(remote, atomic, basic),
            None if matches!(action, Action::Put | Action::Get) => {
                runs == 1 || self.favours_transfers(remote, world, (bytes, runs))
            }
            None => false,
        }
    }

    /// Whether the device moves all of an operation that does not wait in one transfer, from memory
    /// of its own or to it; if not, messages may do it.
    pub(crate) fn device_does_at_once(
        &self,
        operation: &Operation<'_>,
        world: WorldRank,
        (bytes, runs): (u64, u64),
    ) -> Result<bool, RmaError> {
        let Some((remote, _)) = self.remote() else { return Ok(false) };
        let RemoteLimits { inject, bounce, transfer_max, atomic_max, .. } = remote.limits_to(world);
        let one = |most: u64| runs == 1 && bytes <= most;
        match operation.action {
            Action::Put => Ok(one(transfer_max.min(inject.max(bounce) as u64))),
            Action::Get => Ok(one(transfer_max.min(bounce as u64))),
            // What messages combine, the device may not combine at the same time.
            _ if one(atomic_max) || remote.limits().coherent => Ok(one(atomic_max)),
            _ => {
                let limit = TryLimit::Transfer { bytes: atomic_max };
                Err(self.too_large_to_try(operation, limit))
            }
        }
    }

    /// Whether so many bytes go as a transfer for each of their runs: what a hint or the
    /// configuration says, or else what takes less time by the costs that the device tells, or else
    /// its limit.
    fn favours_transfers(
        &self,
        remote: &dyn Remote,
        world: WorldRank,
        (bytes, runs): (u64, u64),
    ) -> bool {
        let engine = self.engine();
        let least = self.settings.hints.budget(Hint::DeviceRunBytes).map(|(bytes, _)| bytes);
        match remote.costs_to(world).filter(|_| least.is_none()) {
            Some(costs) => costs.favour_transfers(runs, bytes.div_ceil(engine.body_max() as u64)),
            None => bytes / runs >= least.unwrap_or_else(|| remote.limits_to(world).run_min),
        }
    }

    /// How the device reaches `len` bytes from `low` on of a target's part.
    ///
    /// `None` if the target has not registered the part or, in a dynamic window, their region.
    pub(crate) fn device_route(
        &self,
        (target, world): (Rank, WorldRank),
        (low, len): (u64, u64),
        trying: Option<&Operation<'_>>,
    ) -> Result<Option<DeviceRoute>, RmaError> {
        let Some((remote, device)) = self.remote() else { return Ok(None) };
        let (key, base, start) = match device.key.filter(|_| device.symmetric) {
            Some(key) => (key, 0, 0),
            None => {
                let card = match self.part.regions {
                    Some(_) => self.region_card((target, world), (low, len), trying)?,
                    None => self.card_of((target, world), 0, trying)?,
                };
                let Some(key) = card.key() else { return Ok(None) };
                (key, card.base.get(), card.start.get())
            }
        };
        let first = match remote.limits().addressing {
            Addressing::Offset => 0,
            Addressing::Virtual => base,
        };
        let [begin, base] = [first, base].map(|first| first.wrapping_sub(start));
        Ok(Some(DeviceRoute { world, key, start, begin, base }))
    }

    /// The card of the region of a target that has `len` bytes at `low`. What it says may be over:
    /// then the device refuses its key, as no other memory has that, and the address is in no
    /// region that is attached later.
    fn region_card(
        &self,
        (target, world): (Rank, WorldRank),
        (low, len): (u64, u64),
        trying: Option<&Operation<'_>>,
    ) -> Result<Card, RmaError> {
        let window = self.id();
        let nothing = || RmaError::NotAttached { window, target, range: Some((low, len)) };
        match self.card_of((target, world), low, trying) {
            Ok(card) if card.has(low, len) => Ok(card),
            Ok(_) | Err(RmaError::NotAttached { .. }) => Err(nothing()),
            Err(error) => Err(error),
        }
    }
}
