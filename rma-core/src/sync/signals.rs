//! How the signals of post and complete travel: as bits in the peers' blocks where those are mapped
//! and have room, as messages otherwise.
use crate::error::RmaError;
use crate::memory::control_block::SIGNAL_RANKS;
use crate::protocol::message::{Head, Kind};
use crate::protocol::pscw::Signal;
use crate::rank::Rank;
use crate::window::Window;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

impl Window {
    /// Makes ready for the completes of `origins`, before the first of them can come.
    pub(crate) fn expect_completes(&self, origins: &[Rank]) {
        if let Some(mut signals) = self.part.signals.signals() {
            let far = |origin: &Rank| self.bit_of(*origin).is_none();
            signals.expose(&origins.iter().copied().filter(far).collect::<Vec<_>>());
        }
    }

    /// Which bit of this rank's block a signal of a peer is, and of the peer's block one to it
    /// counted the same way; `None` if they come by messages.
    fn bit_of(&self, peer: Rank) -> Option<u32> {
        let bits = self.targets.len() <= SIGNAL_RANKS as usize;
        let near = self.targets.near(peer).filter(|_| bits);
        near.map(|_| self.targets.place(peer) as u32)
    }

    /// Sends a signal to a rank of the window. A post does not wait, even for room in a queue. S-D2
    pub(crate) fn send_signal(&self, signal: Signal, peer: Rank) -> Result<(), RmaError> {
        let (engine, world) = (self.engine(), self.part.comm.world_rank(peer));
        let (Some(_), Some(bit)) = (self.bit_of(peer), self.bit_of(self.rank())) else {
            return match signal {
                Signal::Post => {
                    engine.tell(world, &Head::new(Kind::Post, self.id().0, 0));
                    Ok(())
                }
                Signal::Complete => {
                    let head = Head::new(Kind::Complete, self.id().0, 0);
                    engine
                        .send(world, &head, &[], self.wait_for("a complete", peer))
                        .map_err(|error| self.wait_failed(error))
                }
            };
        };
        let block = self.reach(peer)?.block().ok_or_else(|| self.no_such_rank(peer))?;
        let (word, bit) = block.signal(signal, bit);
        // pairs with the Acquire load in `has_signal`, at the peer: operations of this rank come
        // before its complete, its stores before its post.
        word.fetch_or(bit, Release);
        engine.transport.sleep.ring(world);
        Ok(())
    }

    /// Whether the signal of a rank has come.
    #[inline]
    pub(crate) fn has_signal(&self, signal: Signal, peer: Rank) -> bool {
        match self.bit_of(peer) {
            None => self.part.signals.signals().is_some_and(|signals| signals.has(signal, peer)),
            Some(bit) => {
                let (word, bit) = self.part.block.get().signal(signal, bit);
                // pairs with the Release in `send_signal`, at the peer.
                word.load(Acquire) & bit != 0
            }
        }
    }

    /// Waits for the signal of a rank.
    pub(crate) fn wait_signal(
        &self,
        what: &'static str,
        signal: Signal,
        peer: Rank,
    ) -> Result<(), RmaError> {
        if let Some(bit) = self.bit_of(peer) {
            let (word, bit) = self.part.block.get().signal(signal, bit);
            // pairs with the Release in `send_signal`, at the peer.
            if self.engine().comes_at_once(|| word.load(Acquire) & bit != 0) {
                return Ok(());
            }
        }
        let has = || self.has_signal(signal, peer).then_some(());
        // wait: signal
        let waited = self.engine().wait_until(self.wait_for(what, peer), has);
        waited.map_err(|error| self.wait_failed(error))
    }

    /// The signal of a rank has served: its next one may come.
    pub(crate) fn clear_signal(&self, signal: Signal, peer: Rank) {
        match (self.bit_of(peer), self.part.signals.signals()) {
            (None, None) => {}
            (None, Some(mut signals)) => signals.clear(signal, peer),
            (Some(bit), _) => {
                let (word, bit) = self.part.block.get().signal(signal, bit);
                // The peer sets it again only after the signal that this rank sends next.
                word.fetch_and(!bit, Relaxed);
            }
        }
    }

    /// How signals travel, in words.
    pub(crate) fn explain_signals(&self) -> &'static str {
        match (self.bit_of(self.rank()), self.part.signals.is_used()) {
            (Some(_), false) => "bits in the peer's control words",
            (Some(_), true) => "bits in the peer's control words on this node, messages elsewhere",
            (None, _) => "messages",
        }
    }
}
