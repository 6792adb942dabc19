//! What the engine asks of the rooms above it, which it does not know.
use super::{Engine, Sent};
use crate::protocol::message::{Head, Kind};
use crate::protocol::outbox::GetCursor;
use crate::rank::WorldRank;
use core::any::Any;
use core::time::Duration;

/// What a rank does with what arrives from its peers. Nothing in here waits.
pub(crate) trait Service: Any + Send + Sync {
    /// Handles a message; false if it makes no sense.
    fn handle(
        &self,
        engine: &Engine,
        from: WorldRank,
        kind: Kind,
        head: &Head,
        body: &[u8],
    ) -> bool;
    /// Tries again what was put off; returns how much of it is done.
    fn retry(&self, engine: &Engine) -> usize;
    /// Looks whether ranks are gone that peers wait for here, after what has arrived was handled;
    /// returns how much came of it.
    fn look_around(&self, engine: &Engine) -> usize;
    /// As [`look_around`](Self::look_around), when nothing has arrived.
    fn recover(&self, engine: &Engine);
    /// Sends the next piece of what a get asked for, if there is room.
    fn send_piece(&self, engine: &Engine, to: WorldRank, cursor: &mut GetCursor) -> Sent;
    /// Whether something is put off that no rank rings for.
    fn has_put_off(&self) -> bool;
    /// Whether origins wait for what others were granted here.
    fn is_cts_due(&self) -> bool;
    /// After what time a sleeping thread is to look by itself at what waits here.
    fn recheck(&self, naps: bool) -> Option<Duration>;
    /// The windows of the rank: what they are is known above.
    fn windows(&self) -> &dyn Any;
}
