//! No message is left lying between senders, threads that attend and the agent.
#![allow(unsafe_code)] // room: calls `pop`

use super::Doorbell;
use crate::ring::{Popped, Ring};
use crate::sync::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU32;
use loom::thread;

/// A rank: its bell, messages that lie there, messages that were served.
struct Rank {
    bell: Doorbell,
    contributions: AtomicU32,
    served: AtomicU32,
}

impl Rank {
    fn new() -> Arc<Self> {
        let bell = Doorbell::new();
        Arc::new(Self { bell, contributions: AtomicU32::new(0), served: AtomicU32::new(0) })
    }

    fn send(&self) {
        self.contributions.fetch_add(1, Relaxed);
        self.bell.ring_for_work();
    }

    fn serve(&self) {
        if self.contributions.load(Relaxed) > 0 {
            let taken = self.contributions.swap(0, Relaxed);
            self.served.fetch_add(taken, Relaxed);
        }
    }

    /// As the core's waits do: they serve, and look once more when they end. For the agent to see
    /// the end of the test, it is woken when this thread served.
    fn attend(&self) {
        self.bell.attend();
        self.serve();
        if self.bell.leave() && self.contributions.load(Relaxed) > 0 {
            self.bell.ring_for_work();
        }
        self.bell.wake_agent();
    }

    /// As the core's agent does, until `all` messages are served; a lost wake-up is a deadlock,
    /// which loom reports.
    fn be_agent(&self, all: u32) {
        let is_over = || {
            self.serve();
            self.served.load(Relaxed) == all
        };
        while !is_over() {
            self.bell.arm_agent();
            if is_over() {
                self.bell.disarm_agent();
                return;
            }
            self.bell.park_agent(None);
        }
    }
}

/// Plays the agent after `rank_play` has started the others, and said how many messages come.
fn check(rank_play: impl Fn(&Arc<Rank>) -> u32 + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(move || {
        let rank = Rank::new();
        let all = rank_play(&rank);
        rank.be_agent(all);
    });
}

fn spawn(rank: &Arc<Rank>, play: impl FnOnce(&Rank) + 'static) {
    let rank = rank.clone();
    thread::spawn(move || play(&rank));
}

#[test]
fn loom_agent_serves_what_no_thread_does() {
    check(|rank| {
        spawn(rank, |rank| {
            rank.send();
            rank.send();
        });
        2
    });
}

#[test]
fn loom_a_thread_that_stops_attending_leaves_no_message_unserved() {
    check(|rank| {
        spawn(rank, Rank::send);
        spawn(rank, Rank::attend);
        1
    });
}

#[test]
fn loom_the_last_one_that_attends_passes_the_duty_on() {
    check(|rank| {
        spawn(rank, Rank::send);
        spawn(rank, Rank::attend);
        spawn(rank, Rank::attend);
        1
    });
}

#[test]
fn loom_an_agent_is_stopped_whichever_thread_attends() {
    loom::model(|| {
        let rank = Rank::new();
        spawn(&rank, |rank| {
            rank.bell.attend();
            rank.served.store(1, Relaxed);
            rank.bell.wake_agent();
        });
        rank.be_agent(1);
    });
}

/// An answer, which does not wake the agent, is not published yet when a request comes behind it,
/// whose ringer wakes the agent in vain.
#[test]
fn loom_a_request_behind_an_answer_is_served() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let shared = Arc::new((Doorbell::new(), Ring::<4, 1, 1>::new(), AtomicU64::new(0)));
        let answer = shared.clone();
        thread::spawn(move || {
            let (bell, ring, _) = &*answer;
            let end = ring.push(0, &[0], &[]).unwrap();
            bell.ring_unless_work(|| ring.claimed() != end);
        });
        let request = shared.clone();
        thread::spawn(move || {
            let (bell, ring, _) = &*request;
            ring.push(1, &[1], &[]).unwrap();
            bell.ring_for_work();
        });
        let (bell, ring, head) = &*shared;
        let is_served = || {
            let mut buffer = [0];
            // SAFETY: only this thread pops.
            while let Popped::Message { sender, .. } = unsafe { ring.pop(head, 2, &mut buffer) } {
                if sender == 1 {
                    return true;
                }
            }
            false
        };
        while !is_served() {
            bell.arm_agent();
            if is_served() {
                bell.disarm_agent();
                return;
            }
            bell.park_agent(None);
        }
    });
}
