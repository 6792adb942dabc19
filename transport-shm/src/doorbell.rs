//! The doorbell of a rank: how its sleeping threads are woken by anyone, for the price of a fence
//! and a load when nobody sleeps.
//!
//! The waiter does `arm` → look at its condition → `park` or `disarm`; whoever makes the condition
//! true does store → `ring`. Both sides pass a sequentially consistent fence between their store
//! and their load, so the waiter sees the condition or the ringer sees the sleeper. A ringer that
//! sees one changes `seq`, and a futex does not sleep on a word that is no longer the armed value.
//!
//! A process that dies while armed leaves `sleepers` too high: later rings then cost a system
//! call each, nothing else.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::time::Duration;

use crate::sync::{AtomicU32, Futex, fence};

/// Lives in the owner's control segment. All zero is its initial state. It has two cache lines of
/// its own (adjacent lines are fetched in pairs), because ringers read it all the time and only a
/// waiter that goes to sleep writes it.
#[repr(C, align(128))]
pub(crate) struct Doorbell {
    seq: Futex,
    sleepers: AtomicU32,
}

impl Doorbell {
    #[cfg(any(loom, test))]
    pub(crate) fn new() -> Self {
        Self { seq: Futex::new(), sleepers: AtomicU32::new(0) }
    }

    /// Announces a sleeper; the result goes to [`park`](Self::park).
    pub(crate) fn arm(&self) -> u32 {
        self.sleepers.fetch_add(1, Relaxed);
        // Acquire pairs with the Release in `ring`: who arms with the new value sees the condition.
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

    /// Wakes every sleeper.
    #[inline]
    pub(crate) fn ring(&self) {
        // Pairs with the fence in `arm`: the condition is visible before `sleepers` is read.
        fence(SeqCst);
        if self.sleepers.load(Relaxed) != 0 {
            self.wake();
        }
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Doorbell;
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
