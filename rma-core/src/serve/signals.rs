//! Signals of peers, as they arrive.
use crate::engine::Engine;
use crate::protocol::message::Head;
use crate::protocol::pscw::Signal;
use crate::rank::WorldRank;
use crate::window::Part;

impl Engine {
    /// Takes a signal of a peer; false if it makes no sense. Signals have no answer. S-D2
    pub(crate) fn take_signal(
        &self,
        from: WorldRank,
        signal: Signal,
        head: &Head,
        body: &[u8],
    ) -> bool {
        let Some(part) = self.own_windows().get(head.object.get()) else { return false };
        body.is_empty() && part.take_signal(from, signal)
    }
}

impl Part {
    fn take_signal(&self, from: WorldRank, signal: Signal) -> bool {
        let Some(from) = self.comm.group().rank_of(from) else { return false };
        self.signals.signals().is_some_and(|mut signals| signals.take(signal, from))
    }
}
