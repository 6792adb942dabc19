//! The machines on words whose accesses are seen late, driven as `window::control` drives them.
//!
//! Loom takes a sequentially consistent access for an acquiring and releasing one, and does know
//! sequentially consistent fences: one before each load makes up for it. Waiters sleep until their
//! bell rings, so a bell that does not is a deadlock.
use super::*;
use loom::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst, fence};
use loom::sync::{Arc, Notify};
use loom::thread;

const HOME: u32 = 0;
const RANKS: usize = 3;

struct Shared {
    home: [AtomicU64; 2],
    /// One for each rank.
    nodes: [[AtomicU64; 3]; RANKS],
    bells: [Notify; RANKS],
    /// Equal, but for writers inside.
    data: [AtomicU64; 2],
}

impl Shared {
    fn new() -> Self {
        let bells = std::array::from_fn(|_| Notify::new());
        Self {
            home: Default::default(),
            nodes: Default::default(),
            bells,
            data: Default::default(),
        }
    }

    fn word(&self, at: At) -> &AtomicU64 {
        match at.word.checked_sub(NODE_FIRST) {
            None => &self.home[usize::from(at.word)],
            Some(word) => &self.nodes[at.rank as usize][usize::from(word)],
        }
    }

    fn load(&self, at: At) -> u64 {
        fence(SeqCst);
        self.word(at).load(SeqCst)
    }

    /// Does a step; `None` for a wait that is not over at once, if it is given up then.
    fn perform(&self, step: Step, patient: bool) -> Option<u64> {
        let (answer, wakes) = match step {
            Step::Load(at) => (self.load(at), None),
            Step::Swap { at, old, new, wake } => {
                let swapped = self.word(at).compare_exchange(old, new, SeqCst, SeqCst);
                let (Ok(seen) | Err(seen)) = swapped;
                (seen, (wake && swapped.is_ok()).then_some(at.rank))
            }
            Step::Store { at, value, wake } => {
                self.word(at).store(value, SeqCst);
                (0, wake.then_some(at.rank))
            }
            Step::Wait { at, not } => loop {
                let seen = self.load(at);
                if seen != not {
                    break (seen, None);
                }
                if !patient {
                    return None;
                }
                self.bells[at.rank as usize].wait();
            },
            Step::Done => (0, None),
        };
        if let Some(rank) = wakes {
            self.bells[rank as usize].notify();
        }
        Some(answer)
    }

    /// False if it gave up.
    fn acquire(&self, rank: u32, mode: Mode, patient: bool) -> bool {
        let node = Node::new(rank, 0).unwrap();
        let take =
            Step::Swap { at: node.word(PHASE), old: phase::FREE, new: phase::WAITING, wake: false };
        assert_eq!(self.perform(take, true), Some(phase::FREE), "one lock at a time");
        let mut machine = Acquire::new(part(HOME), rank, mode, node, 0);
        while machine.poll() != Step::Done {
            match self.perform(machine.poll(), patient) {
                Some(answer) => machine.handle(answer),
                None => machine.abandon(self.perform(machine.abandon_step(), true).unwrap()),
            }
        }
        machine.is_held()
    }

    fn release(&self, rank: u32, mode: Mode) {
        let mut machine = Release::new(part(HOME), mode, uncontended(mode, rank));
        while machine.poll() != Step::Done {
            machine.handle(self.perform(machine.poll(), true).unwrap());
        }
    }

    /// One lock, and what it protects; 1 for a writer that got in.
    fn round(&self, rank: u32, mode: Mode, patient: bool) -> u64 {
        if !self.acquire(rank, mode, patient) {
            return 0;
        }
        let [left, right] = &self.data;
        let seen = left.load(Relaxed);
        assert_eq!(seen, right.load(Relaxed), "{rank} sees half of what a writer did");
        if mode == Mode::Exclusive {
            left.store(seen + 1, Relaxed);
            right.store(seen + 1, Relaxed);
        }
        self.release(rank, mode);
        u64::from(mode == Mode::Exclusive)
    }
}

/// Each rank takes the lock once; those that are not patient give up at their first wait.
fn check<const N: usize>(ranks: [(Mode, bool); N]) {
    loom::model(move || {
        let shared = Arc::new(Shared::new());
        let others = (1..N).map(|rank| {
            let (shared, (mode, patient)) = (shared.clone(), ranks[rank]);
            thread::spawn(move || shared.round(rank as u32, mode, patient))
        });
        let others: Vec<_> = others.collect();
        let mut writers = shared.round(0, ranks[0].0, ranks[0].1);
        writers += others.into_iter().map(|other| other.join().unwrap()).sum::<u64>();
        assert_eq!(shared.data[0].load(Relaxed), writers, "writers got lost");
        assert_eq!(shared.home[0].load(SeqCst), 0, "the lock is free");
        let mut phases = shared.nodes.iter().map(|node| &node[usize::from(PHASE)]);
        assert!(phases.all(|phase| phase.load(SeqCst) == phase::FREE), "the nodes are free");
    });
}

#[test]
fn loom_writer_and_writer() {
    check([(Mode::Exclusive, true); 2]);
}

#[test]
fn loom_writer_and_reader() {
    check([(Mode::Exclusive, true), (Mode::Shared, true)]);
}

#[test]
fn loom_three_writers() {
    check([(Mode::Exclusive, true); 3]);
}

#[test]
fn loom_writer_and_readers() {
    check([(Mode::Exclusive, true), (Mode::Shared, true), (Mode::Shared, true)]);
}

#[test]
fn loom_one_of_two_gives_up() {
    check([(Mode::Exclusive, true), (Mode::Exclusive, false)]);
}

#[test]
fn loom_one_of_three_gives_up() {
    check([(Mode::Exclusive, true), (Mode::Exclusive, false), (Mode::Exclusive, true)]);
}

#[test]
fn loom_two_of_three_give_up() {
    check([(Mode::Exclusive, true), (Mode::Exclusive, false), (Mode::Shared, false)]);
}
