//! The doorbell of a rank: how its sleeping threads, and its progress agent, are woken by any
//! ringer, for the price of a fence and a load when no thread sleeps.
//!
//! The waiter does `arm` → look at its condition → `park` or `disarm`; the ringer, which makes the
//! condition true, does store → `ring`. Both sides pass a sequentially consistent fence between
//! their store and their load, so the waiter sees the condition or the ringer sees the sleeper. A
//! ringer that sees one changes `seq`, and a futex does not sleep on a word that is no longer the
//! armed value.
//!
//! The agent sleeps on a word of its own, and only `ring_for_work` wakes it, if no thread of the
//! rank attends. There are three parties: the ringer (makes work → fence → reads `attended` and
//! `agent`), a thread that leaves (`attended` goes to zero → fence → looks for work), and the
//! agent (`agent` becomes ASLEEP → fence → looks for work). If a ringer sees a thread attend, its
//! fence comes before that thread's, which then sees the work; if it sees the agent awake, its
//! fence comes before the agent's next one, which then sees the work.
//!
//! A process that dies while armed leaves `sleepers` too high: later rings then cost a system
//! call each, nothing else.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::time::Duration;

use crate::sync::{AtomicU32, Futex, fence};

/// Lives in the roster. All zero is its initial state. It has two cache lines of
/// its own (adjacent lines are fetched in pairs). The first is what ringers read all the time, and
/// only a thread writes that goes to sleep. The second each wait writes, and only a ringer reads it
/// that has work and finds the agent asleep: with one line for all, each answer to a rank that
/// waits would take that line away from it.
#[repr(C, align(128))]
pub(crate) struct Doorbell {
    seq: Futex,
    sleepers: AtomicU32,
    /// What the agent sleeps on.
    agent: Futex,
    attended: Attended,
}

/// Threads of the rank that wait, and serve messages meanwhile. Not counted before there is an
/// agent.
#[repr(C, align(64))]
struct Attended(AtomicU32);

/// The agent runs, or there is none.
const AWAKE: u32 = 0;
/// The agent sleeps, or is about to.
const ASLEEP: u32 = 1;

impl Doorbell {
    #[cfg(any(loom, test))]
    pub(crate) fn new() -> Self {
        Self {
            seq: Futex::new(),
            sleepers: AtomicU32::new(0),
            agent: Futex::new(),
            attended: Attended(AtomicU32::new(0)),
        }
    }

    /// Announces a sleeper; the result goes to [`park`](Self::park).
    pub(crate) fn arm(&self) -> u32 {
        self.sleepers.fetch_add(1, Relaxed);
        // Acquire pairs with the Release in `ring`: a waiter that arms with the new value sees the
        // condition.
        let seq = self.seq.load(Acquire);
        // Pairs with the fence in `ring`: `sleepers` is visible before the condition is read.
        fence(SeqCst);
        seq
    }

    /// Takes back an `arm`.
    pub(crate) fn disarm(&self) {
        self.sleepers.fetch_sub(1, Relaxed);
    }

    /// Sleeps until a `ring` after `arm`, or `timeout`; may return early.
    pub(crate) fn park(&self, armed: u32, timeout: Option<Duration>) {
        self.seq.wait(armed, timeout);
        self.disarm();
    }

    /// Whether a sleeper was rung since that `arm`.
    pub(crate) fn is_rung_since(&self, armed: u32) -> bool {
        self.seq.load(Relaxed) != armed
    }

    /// Wakes every sleeper.
    #[inline]
    pub(crate) fn ring(&self) {
        // Pairs with the fence in `arm`: the condition is visible before `sleepers` is read.
        fence(SeqCst);
        if self.sleepers.load(Relaxed) != 0 {
            self.wake();
        }
    }

    /// As [`ring`](Self::ring), for what also the agent is to see: a message, room for one.
    #[inline]
    pub(crate) fn ring_for_work(&self) {
        // Pairs with the fences in `arm`, `arm_agent` and `leave`.
        fence(SeqCst);
        if self.sleepers.load(Relaxed) != 0 {
            self.wake();
        }
        if self.agent.load(Relaxed) == ASLEEP && self.attended.0.load(Relaxed) == 0 {
            self.wake_agent();
        }
    }

    /// As [`ring`](Self::ring), of something that the agent need not see; unless it finds `work`
    /// that it should: then as [`ring_for_work`](Self::ring_for_work).
    ///
    /// Work that was made visible by what the caller has just done, and not by its own ringer, is
    /// `work`. A ringer that makes some later passes a fence after the one here, and so sees what
    /// the caller has done.
    #[inline]
    pub(crate) fn ring_unless_work(&self, work: impl FnOnce() -> bool) {
        // Pairs with the fence in `arm`, and those of other ringers.
        fence(SeqCst);
        if work() {
            self.ring_for_work();
        } else if self.sleepers.load(Relaxed) != 0 {
            self.wake();
        }
    }

    /// Wakes the agent, also if a thread attends.
    #[cold]
    pub(crate) fn wake_agent(&self) {
        // Pairs with the fence in `arm_agent`, for callers that have not passed one.
        fence(SeqCst);
        // One ringer is enough.
        if self.agent.swap(AWAKE, Relaxed) == ASLEEP {
            self.agent.wake_all();
        }
    }

    /// A thread waits, and serves messages meanwhile.
    pub(crate) fn attend(&self) {
        self.attended.0.fetch_add(1, Relaxed);
    }

    /// Takes back an `attend`; true if no thread attends any more.
    pub(crate) fn leave(&self) -> bool {
        // Release pairs with the Acquire of the last one, here: it sees what the others left.
        if self.attended.0.fetch_sub(1, AcqRel) != 1 {
            return false;
        }
        // Pairs with the fence in `ring_for_work`: it sees no thread attend, or the caller the
        // work.
        fence(SeqCst);
        true
    }

    /// Announces that the agent goes to sleep.
    pub(crate) fn arm_agent(&self) {
        self.agent.swap(ASLEEP, Relaxed);
        // Pairs with the fence in `ring_for_work`: it sees the agent asleep, or the agent the
        // work.
        fence(SeqCst);
    }

    /// Takes back an `arm_agent`.
    pub(crate) fn disarm_agent(&self) {
        self.agent.swap(AWAKE, Relaxed);
    }

    /// Sleeps until a ringer wakes the agent after `arm_agent`, or `timeout`; may return early.
    pub(crate) fn park_agent(&self, timeout: Option<Duration>) {
        self.agent.wait(ASLEEP, timeout);
        self.disarm_agent();
    }

    #[cold]
    fn wake(&self) {
        // Pairs with the Acquire in `arm`.
        self.seq.increment(Release);
        self.seq.wake_all();
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::Doorbell;
    use core::sync::atomic::Ordering::Relaxed;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU32;
    use loom::thread;

    /// Waits as the core does; a lost wake-up is a deadlock, which loom reports.
    fn wait_for(bell: &Doorbell, condition: impl Fn() -> bool) {
        while !condition() {
            let armed = bell.arm();
            if condition() {
                bell.disarm();
                return;
            }
            bell.park(armed, None);
        }
    }

    #[test]
    fn loom_no_wakeup_is_lost() {
        loom::model(|| {
            let shared = Arc::new((Doorbell::new(), AtomicU32::new(0)));
            let ringer = {
                let shared = shared.clone();
                thread::spawn(move || {
                    shared.1.store(1, Relaxed);
                    shared.0.ring();
                })
            };
            wait_for(&shared.0, || shared.1.load(Relaxed) == 1);
            ringer.join().unwrap();
            assert_eq!(shared.0.sleepers.load(Relaxed), 0);
        });
    }

    #[test]
    fn loom_two_ringers_and_two_conditions() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let shared = Arc::new((Doorbell::new(), AtomicU32::new(0), AtomicU32::new(0)));
            let first = {
                let shared = shared.clone();
                thread::spawn(move || {
                    shared.1.store(1, Relaxed);
                    shared.0.ring();
                })
            };
            let second = {
                let shared = shared.clone();
                thread::spawn(move || {
                    shared.2.store(1, Relaxed);
                    shared.0.ring();
                })
            };
            wait_for(&shared.0, || shared.1.load(Relaxed) == 1 && shared.2.load(Relaxed) == 1);
            first.join().unwrap();
            second.join().unwrap();
        });
    }
}

#[cfg(all(test, loom))]
#[path = "doorbell_agent_loom_tests.rs"]
mod agent_loom_tests;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{ASLEEP, AWAKE, Doorbell};
    use core::sync::atomic::AtomicU32;
    use core::sync::atomic::Ordering::Relaxed;
    use core::time::Duration;

    #[test]
    fn a_ring_after_arm_makes_park_return() {
        let bell = Doorbell::new();
        let armed = bell.arm();
        bell.ring();
        bell.park(armed, None);
        assert_eq!(bell.sleepers.load(Relaxed), 0);
    }

    #[test]
    fn a_ring_without_sleepers_changes_nothing() {
        let bell = Doorbell::new();
        bell.ring();
        assert_eq!(bell.seq.load(Relaxed), 0);
        let armed = bell.arm();
        bell.park(armed, Some(Duration::from_millis(1)));
        assert_eq!(bell.seq.load(Relaxed), 0);
    }

    #[test]
    fn a_thread_that_attends_spares_the_agent() {
        let bell = Doorbell::new();
        bell.ring_for_work();
        assert_eq!(bell.agent.load(Relaxed), AWAKE);
        bell.arm_agent();
        bell.ring();
        bell.attend();
        bell.attend();
        bell.ring_for_work();
        assert!(!bell.leave());
        bell.ring_for_work();
        assert_eq!(bell.agent.load(Relaxed), ASLEEP, "neither of them is for it");
        assert!(bell.leave());
        bell.ring_for_work();
        assert_eq!(bell.agent.load(Relaxed), AWAKE);
        bell.park_agent(None);
        bell.arm_agent();
        bell.attend();
        bell.wake_agent();
        bell.park_agent(None);
    }

    #[test]
    fn an_answer_spares_the_agent_but_not_what_came_behind_it() {
        let bell = Doorbell::new();
        bell.arm_agent();
        bell.ring_unless_work(|| false);
        assert_eq!(bell.agent.load(Relaxed), ASLEEP);
        bell.ring_unless_work(|| true);
        assert_eq!(bell.agent.load(Relaxed), AWAKE);
        let armed = bell.arm();
        bell.ring_unless_work(|| false);
        bell.park(armed, None);
    }

    #[test]
    fn sleeping_threads_take_turns() {
        const TURNS: u32 = 2_000;
        let turn = AtomicU32::new(0);
        let bells = [Doorbell::new(), Doorbell::new()];
        let player = |me: usize| {
            for mine in (me as u32..TURNS).step_by(2) {
                while turn.load(Relaxed) != mine {
                    let armed = bells[me].arm();
                    if turn.load(Relaxed) == mine {
                        bells[me].disarm();
                    } else {
                        bells[me].park(armed, None);
                    }
                }
                turn.store(mine + 1, Relaxed);
                bells[1 - me].ring();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| player(0));
            scope.spawn(|| player(1));
        });
        assert_eq!(turn.load(Relaxed), TURNS);
    }
}
