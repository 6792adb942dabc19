//! Large puts by messages: the target clears bytes, and this rank sends as many.
use crate::engine::{Cause, Next, Pending, SlotId, Wait, WaitError};
use crate::error::RmaError;
use crate::protocol::message::{Head, Kind};
use crate::rank::WorldRank;
use crate::window::Window;
use std::sync::Arc;

impl Window {
    /// Sends an RTS, and then as much as each CTS clears.
    pub(crate) fn put_by_rendezvous(
        &self,
        wait: Wait,
        world: WorldRank,
        offset: u64,
        origin: &[u8],
        pending: &Arc<Pending>,
    ) -> Result<(), RmaError> {
        let engine = self.engine();
        let mut head = Head::new(Kind::Rts, self.id().0, 0);
        head.offset = offset.into();
        head.length = (origin.len() as u64).into();
        let slot = self.issue(wait, world, head, &[], pending)?;
        if let Err(error) = self.send_cleared(wait, world, slot, origin) {
            // In this order: the target answers. What it cleared and is not used goes to another
            // origin.
            engine.cancel_one(slot);
            self.cancel_at(world, slot);
            return Err(self.wait_failed(error));
        }
        // If the window is gone there, a flush says so, as for every put.
        Ok(())
    }

    /// Tells the target that no more data comes.
    fn cancel_at(&self, world: WorldRank, slot: SlotId) {
        let mut head = Head::new(Kind::Cancel, self.id().0, 0);
        head.slot = slot.0.into();
        self.engine().tell(world, &head);
    }

    /// Sends all of it, or as much as the target wants if it has no such window any more.
    fn send_cleared(
        &self,
        wait: Wait,
        world: WorldRank,
        slot: SlotId,
        origin: &[u8],
    ) -> Result<(), WaitError> {
        let engine = self.engine();
        let mut head = Head::new(Kind::PutData, self.id().0, 0);
        head.slot = slot.0.into();
        loop {
            let next = || match engine.outstanding.next(slot, engine.body_max() as u64) {
                Next::Wait => None,
                next => Some(next),
            };
            // wait: rendezvous
            match engine.wait_until(wait, next)? {
                Next::Data(range) => {
                    head.offset = range.start.into();
                    head.length = (range.end - range.start).into();
                    let piece = &origin[range.start as usize..range.end as usize];
                    engine.send(world, &head, piece, wait)?;
                    if range.end == origin.len() as u64 {
                        // Not asked again: the end may have been told to another thread by now.
                        return Ok(());
                    }
                }
                Next::Cancelled => {
                    // Another thread's flush failed, and cancelled all puts to this target.
                    let cause = engine.trouble(wait).unwrap_or(Cause::Timeout);
                    return Err(engine.given_up(wait, cause));
                }
                Next::Answered | Next::Wait => return Ok(()),
            }
        }
    }
}
