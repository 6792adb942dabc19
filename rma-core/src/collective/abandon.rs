//! Collective operations that cannot end, because a member left without taking part.
//!
//! Who waits for that member notices by itself. Others wait for ranks that have noticed, and gone
//! on with something else: so who gives up tells all members, and from then on no wait in a
//! collective operation of that communicator outlasts what is there already. S-M7
use super::mail::{Step, step_head};
use crate::communicator::Inner;
use crate::completion::{Cause, On, Wait, WaitError};
use crate::protocol::message::Head;
use crate::rank::Rank;
use crate::transport::{Transport, WorldRank};

impl<T: Transport> Inner<T> {
    /// Does what waits for `peer` in a collective operation. If that is in vain because a member
    /// has left, all members hear of it.
    pub(super) fn attempt<R>(
        &self,
        what: &'static str,
        peer: Rank,
        act: impl FnOnce(Wait<'_>) -> Result<R, WaitError>,
    ) -> Result<R, WaitError> {
        let on = |_| Some(self.current.abandoned().unwrap_or(self.world_rank(peer)));
        let done = act(Wait { what, on: On::Whoever(&on), recheck: None });
        if let Err(WaitError { cause: Cause::PeerLeft(left), .. }) = done {
            self.abandon(left);
        }
        done
    }

    /// Sends a message of a collective operation.
    pub(super) fn send(
        &self,
        what: &'static str,
        to: Rank,
        head: &Head,
        body: &[u8],
    ) -> Result<(), WaitError> {
        let world = self.world_rank(to);
        self.attempt(what, to, |wait| self.process.send(world, head, body, wait))
    }

    /// Tells the members that `left` takes part no more, unless they were told.
    fn abandon(&self, left: WorldRank) {
        if !self.current.abandon(left) {
            return;
        }
        let head = step_head(self.id, 0, Step::Abandon, 0, left.0.into());
        let own = self.process.transport.rank();
        for member in self.group.members().filter(|member| ![own, left].contains(member)) {
            self.process.tell(member, &head);
        }
        self.process.see_off();
    }
}
