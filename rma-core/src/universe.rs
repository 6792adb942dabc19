//! The handle of a rank that users hold: how a rank joins its job, and leaves it.
use crate::collective::{Communicator, Contributions};
use crate::config::{COLLECTIVE_LEAST, Config};
use crate::engine::{Counters, Engine};
use crate::error::CollectiveError;
use crate::memory::copy;
use crate::rank::WorldRank;
use crate::serve::Serving;
use crate::transport::{Beneath, Outcome, Transport};
use std::path::Path;
use std::sync::{Arc, Weak};

/// One rank of a job. Several may live in one process; there is nothing global.
///
/// Dropping it tells the peers that this rank has left (or failed, in a panic) without waiting for
/// them; [`finalize`](Self::finalize) waits.
/// Windows may outlive it, but take no locks any more: [`RmaError::Left`](crate::RmaError::Left).
pub struct Universe {
    engine: Arc<Engine>,
    world: Communicator,
}

impl Universe {
    /// Wraps a transport whose ranks have found each other. **Collective** over the job.
    pub fn new(transport: impl Into<Transport>, config: Config) -> Result<Self, CollectiveError> {
        let transport = transport.into();
        let message = transport.messages.limits().message_max;
        let most = config.collective_bytes.max(COLLECTIVE_LEAST);
        let contributions = Arc::new(Contributions::new(most, config.unexpected_bytes));
        let serving = Serving::new(&contributions, config.rendezvous_bytes, message);
        let engine = Engine::new(transport, config, Box::new(serving));
        let leaver = Leaver(&engine);
        let world = Communicator::world(&engine, &contributions)?;
        core::mem::forget(leaver);
        Ok(Self { engine, world })
    }

    /// The communicator of all ranks.
    pub fn world(&self) -> &Communicator {
        &self.world
    }

    #[cfg(test)]
    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The folder that is this instance of the application, if the job was told of one:
    /// [`Config::root`].
    pub fn root(&self) -> Option<&Path> {
        self.engine.config.root.as_deref()
    }

    /// What there is to know of the transport.
    pub fn transport(&self) -> Beneath<'_> {
        Beneath(&self.engine.transport)
    }

    /// Counts of what this rank did.
    pub fn counters(&self) -> &Counters {
        &self.engine.counters
    }

    /// Serves what peers have sent, without waiting for more; returns how much that was, transfers
    /// that have ended among it. After a call that returns 0, nothing is left for this thread.
    ///
    /// Waits of any kind do that, and the progress agent while a rank computes. Call it in a loop
    /// that waits in another way: where there is no agent
    /// ([`Config::progress_agent`](crate::Config::progress_agent)), nothing else serves meanwhile.
    /// For a value there is [`View::wait_until`](crate::View). [`Communicator`],
    /// [`Window`](crate::Window) and [`View`](crate::View) have the same call.
    pub fn progress(&self) -> usize {
        self.engine.progress_in_passing()
    }

    /// What was chosen, and why, in lines of text; also each setting and the source of its value.
    pub fn explain(&self) -> String {
        let transport = &self.engine.transport;
        let ranks = || self.world.group().members();
        let near = ranks().filter(|peer| transport.shared.is_near(*peer)).count();
        let Config { outstanding_messages, credit_messages, eager_bytes, rendezvous_bytes, .. } =
            &self.engine.config;
        let (mut device, mut others) = (String::new(), "active messages to the others".to_owned());
        if let Some(remote) = &transport.remote {
            let far = |peer: &WorldRank| !transport.shared.is_near(*peer) && remote.reaches(*peer);
            let reached = ranks().filter(far).count();
            device = format!("device: {}\n", remote.explain());
            others = format!("the device to {reached} others, active messages for the rest");
        }
        format!(
            "transport: {}\n{device}paths: load and store to {near} of {} ranks, {others}\n\
             progress: load, store and devices need nothing of the target; messages are {}\n\
             messages: puts up to {eager_bytes} bytes are sent at once, larger ones as their \
             target grants them ({rendezvous_bytes} bytes on their way to one target, from all \
             origins); {credit_messages} messages unanswered by one target, \
             {outstanding_messages} by all\n\
             {}{}{}",
            transport.messages.explain(),
            transport.job.size,
            self.engine.explain_agent(),
            self.engine.explain_payloads(),
            copy::explain(),
            self.engine.config.explain(),
        )
    }

    /// To be dropped when the rank is over, where that does not end a process.
    #[doc(hidden)]
    pub fn stay(&self) -> Stay {
        Stay(Arc::downgrade(&self.engine))
    }

    /// Leaves the job in order: waits until every rank has come here. **Collective.**
    pub fn finalize(self) -> Result<(), CollectiveError> {
        self.world.barrier()
    }
}

impl Drop for Universe {
    fn drop(&mut self) {
        drop(Leaver(&self.engine));
    }
}

/// Has a rank leave that does not do so by itself: its universe was forgotten.
#[expect(unnameable_types, reason = "of a hidden method, to be dropped")]
pub struct Stay(Weak<Engine>);

impl Drop for Stay {
    fn drop(&mut self) {
        // The program has it no more, or cannot use it in time.
        if let Some(engine) = self.0.upgrade() {
            drop(Leaver(&engine));
        }
    }
}

/// Has a rank leave, without waiting for peers. S-M8
struct Leaver<'a>(&'a Engine);

impl Drop for Leaver<'_> {
    fn drop(&mut self) {
        // Once is enough: a second time may come when the transport cannot be used any more.
        if self.0.transport.members.is_fork() || self.0.has_left() {
            return;
        }
        // Its last replies may go to the outbox.
        self.0.stop_agent();
        let failed = std::thread::panicking();
        if !failed {
            let own = self.0.transport.job.rank;
            self.0.own_windows().all().iter().for_each(|part| self.0.close_lines(part, Some(own)));
            // A reply that is still in the outbox is one that a peer waits for. Of a rank that
            // failed they would say that its windows are gone, and not why.
            self.0.send_outbox();
        }
        self.0.set_left();
        self.0.own_windows().all().iter().for_each(|part| part.epoch.set_left());
        // Threads of it that wait need not any more.
        self.0.transport.sleep.ring(self.0.transport.job.rank);
        self.0.transport.members.depart(match failed {
            true => Outcome::Failed,
            false if holds_locks(self.0) => Outcome::Holding,
            false => Outcome::Departed,
        });
        self.0.own_windows().let_go();
    }
}

/// Whether peers may wait for something that this rank keeps when it leaves.
fn holds_locks(engine: &Engine) -> bool {
    // In this order: what a thread gives up or back leaves its mark first, and what could not
    // be told may be that a lock was given back.
    engine.is_holding()
        || engine.own_windows().all().iter().any(|part| part.holds_locks())
        || engine.serving().lines.coming_from().into_iter().any(|home| engine.gone(home).is_none())
        || engine.outgoing.gives_back()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epoch::Assert;
    use crate::error::WindowError;
    use crate::object::OBJECTS;
    use crate::protocol::lock::{QueueNode, phase};
    use crate::rank::Rank;
    use crate::serve::lock::look;
    use crate::sync::LockKind;
    use crate::transport::{PeerState, WorldRank};
    use crate::window::Window;
    use crate::window::accumulate_tests::{Loop, with_loop, with_near, with_universe};
    use core::mem::forget;
    use core::sync::atomic::Ordering::SeqCst;

    /// Ids end, and are not given out again: a message finds no other window than it names.
    #[test]
    fn ids_do_not_repeat() {
        with_universe(Config::default(), |universe| {
            let (engine, world) = (universe.engine(), universe.world());
            engine.set_next_object(OBJECTS - 1);
            let last = world.window(1, 8).allocate().unwrap();
            assert_eq!(last.id().to_string(), format!("#0.{}", OBJECTS - 1));
            for _ in 0..2 {
                let error = world.window(1, 8).allocate().err().unwrap();
                assert!(matches!(
                    error,
                    WindowError::Collective(CollectiveError::TooManyObjects { .. })
                ));
                let error = world.dup().err().unwrap();
                assert!(matches!(error, CollectiveError::TooManyObjects { .. }), "{error}");
                let error = world.split(Some(0), 0).err().unwrap();
                assert!(matches!(error, CollectiveError::TooManyObjects { .. }), "{error}");
                assert!(world.split(None, 0).unwrap().is_none());
            }
            last.free().unwrap();
        });
    }

    /// How a rank leaves that has done `act`, with a window.
    fn leaves_after(act: impl FnOnce(&Window, &Loop)) -> Outcome {
        let mut told = Vec::new();
        with_loop(Config::default(), |universe, network| {
            let window = universe.world().window(1, 8).allocate().unwrap();
            act(&window, network);
            drop(universe.stay());
            told = network.departed();
        });
        assert_eq!(told.len(), 1);
        told[0]
    }

    /// Each of these is one thing that others may wait for, and nothing else says so.
    #[test]
    fn a_rank_that_leaves_with_something_of_a_window_holds_it() {
        assert_eq!(leaves_after(|_, _| ()), Outcome::Departed);
        let all = |window: &Window, _: &Loop| forget(window.lock_all().unwrap());
        assert_eq!(leaves_after(all), Outcome::Holding);
        let unchecked =
            |window: &Window, _: &Loop| forget(window.lock_all_with(Assert::NO_CHECK).unwrap());
        assert_eq!(leaves_after(unchecked), Outcome::Departed);
        let inside = |window: &Window, _: &Loop| {
            window.part.inside_peers.fetch_add(1, SeqCst);
        };
        assert_eq!(leaves_after(inside), Outcome::Holding);
        let waits = |window: &Window, _: &Loop| {
            let word = QueueNode::new(0, 1).unwrap().phase_word();
            window.part.block.get().word(word).store(phase::WAITING, SeqCst);
        };
        assert_eq!(leaves_after(waits), Outcome::Holding);
    }

    /// A lock that may yet be granted is to be given back, unless its home is gone.
    #[test]
    fn a_rank_that_leaves_with_a_lock_on_its_way_holds_it() {
        for (home, outcome) in
            [(PeerState::Alive, Outcome::Holding), (PeerState::Departed, Outcome::Departed)]
        {
            let gives_up = |window: &Window, network: &Loop| {
                let (engine, peer) = (window.engine(), WorldRank(1));
                network.set_state(peer, home);
                engine.give_up_lock(engine.serving().lines.begin(peer), look(window.id()));
            };
            assert_eq!(leaves_after(gives_up), outcome);
        }
    }

    /// No home hears of a lock that is given back by what stays in the outbox.
    #[test]
    fn a_rank_that_leaves_with_an_unlock_unsent_holds_it() {
        for (full, outcome) in [(true, Outcome::Holding), (false, Outcome::Departed)] {
            let gives_back = |window: &Window, network: &Loop| {
                network.set_full(true);
                window.engine().tell(WorldRank(1), &look(window.id()));
                network.set_full(full);
            };
            assert_eq!(leaves_after(gives_back), outcome);
        }
    }

    /// A thread that drops a window of a rank that has left lets go of all that were dropped, which
    /// may be before the rank has said what it holds.
    #[test]
    fn what_is_let_go_is_held_still() {
        let test = |universe: &Universe| {
            let words = || universe.world().window(1, 8).allocate().unwrap();
            let (engine, held, other) = (universe.engine(), words(), words());
            forget(held.lock(Rank(0), LockKind::Exclusive).unwrap());
            drop(held);
            // As `Leaver` does it.
            engine.set_left();
            drop(other);
            assert!(engine.own_windows().all().is_empty());
            assert!(holds_locks(engine));
        };
        with_universe(Config::default(), test);
        with_near(test);
    }
}
