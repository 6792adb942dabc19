//! No message of a network is left lying between threads that attend, the agent and its waker. The
//! doorbell is that of a node, without the fences that it has of its own in `ring`.
use super::InboxFlag;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, fence};
use loom::thread;

#[derive(Default)]
struct Rank {
    /// Messages of the network.
    queue: AtomicU32,
    inbox: InboxFlag<AtomicU32>,
    attended: AtomicU32,
    asleep: AtomicU32,
    /// The agent was woken.
    woken: AtomicU32,
}

impl Rank {
    /// As `Waker::wake`, after a message.
    fn arrive(&self) {
        self.queue.fetch_add(1, Relaxed);
        self.inbox.come();
        if self.asleep.load(Relaxed) == 1 && self.attended.load(Relaxed) == 0 {
            self.woken.store(1, Relaxed);
        }
    }

    /// As `Composed::poll`.
    fn poll(&self) -> u32 {
        self.inbox.take();
        let count = self.queue.load(Relaxed);
        if count > 0 {
            self.queue.fetch_sub(count, Relaxed);
        }
        count
    }

    /// A thread has waited, and leaves.
    fn leave(&self) {
        self.attended.fetch_sub(1, Relaxed);
        fence(SeqCst);
        if self.inbox.is_there() {
            self.poll();
        }
        if self.inbox.is_there() {
            self.woken.store(1, Relaxed);
        }
    }

    fn is_left_lying(&self) -> bool {
        self.queue.load(Relaxed) > 0 && self.woken.load(Relaxed) == 0
    }
}

/// Messages that come while a thread looks a last time are seen by it, or wake the agent.
#[test]
fn loom_a_thread_that_leaves_or_the_agent_sees_messages_of_a_network() {
    loom::model(|| {
        let (attended, asleep) = (AtomicU32::new(1), AtomicU32::new(1));
        let rank = Arc::new(Rank { attended, asleep, ..Rank::default() });
        let network = {
            let rank = rank.clone();
            thread::spawn(move || {
                rank.arrive();
                rank.arrive();
            })
        };
        rank.poll();
        rank.leave();
        network.join().unwrap();
        assert!(!rank.is_left_lying());
    });
}

/// The agent sees them before it sleeps, or is woken.
#[test]
fn loom_an_agent_that_goes_to_sleep_sees_messages_of_a_network() {
    loom::model(|| {
        let rank = Arc::new(Rank::default());
        let network = {
            let rank = rank.clone();
            thread::spawn(move || rank.arrive())
        };
        rank.asleep.store(1, Relaxed);
        fence(SeqCst);
        rank.poll();
        network.join().unwrap();
        assert!(!rank.is_left_lying());
    });
}
