//! The machines on words whose accesses are seen late, driven as `window::control` drives them.
//!
//! Loom takes a sequentially consistent access for an acquiring and releasing one, and does know
//! sequentially consistent fences: one before each access that loads makes up for it. It may order
//! a store before a swap that happened first, though no value can come between what a swap reads
//! and writes: stores are exchanges that acquire nothing. Waiters sleep until their bell rings, so
//! a bell that does not is a deadlock.
use super::*;
use loom::sync::atomic::Ordering::{Relaxed, Release as AtomicRelease, SeqCst};
use loom::sync::atomic::{AtomicU64, fence};
use loom::sync::{Arc, Notify};
use loom::thread;

const HOME: u32 = 0;
const RANKS: usize = 3;

/// How a rank asks for the lock.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    Waits,
    /// At its first wait.
    GivesUp,
    /// Past those in line, if it may.
    Passes,
}

struct Shared {
    home: [AtomicU64; 2],
    /// One for each rank.
    nodes: [[AtomicU64; NODE_WORDS as usize]; RANKS],
    bells: [Notify; RANKS],
    /// Equal, but for writers inside.
    data: [AtomicU64; 2],
}

/// Does a step; `None` for a wait that is not over at once, if it is given up then.
pub(in crate::protocol) fn perform<'a>(
    word: impl Fn(At) -> &'a AtomicU64,
    bells: &[Notify],
    step: Step,
    patient: bool,
) -> Option<u64> {
    let load = |at| {
        fence(SeqCst);
        word(at).load(SeqCst)
    };
    let answer = match step {
        Step::Load(at) => load(at),
        Step::Swap { at, old, new, wake } => {
            fence(SeqCst);
            let swapped = word(at).compare_exchange(old, new, SeqCst, SeqCst);
            if wake && swapped.is_ok() {
                bells[at.rank as usize].notify();
            }
            let (Ok(seen) | Err(seen)) = swapped;
            seen
        }
        Step::Store { at, value } => word(at).swap(value, AtomicRelease),
        Step::Set { at, bits } => {
            fence(SeqCst);
            word(at).fetch_or(bits, SeqCst)
        }
        Step::Wait { at, not, .. } => loop {
            let seen = load(at);
            if seen != not {
                break seen;
            }
            if !patient {
                return None;
            }
            bells[at.rank as usize].wait();
        },
        Step::Done => 0,
    };
    Some(answer)
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

    fn perform(&self, step: Step, patient: bool) -> Option<u64> {
        perform(|at| self.word(at), &self.bells, step, patient)
    }

    /// Takes the lock past those in line, if that is allowed.
    fn pass(&self, rank: u32, mode: Mode) -> bool {
        let mut seen = 0;
        while let Some(new) = pass(seen, mode, rank) {
            let swap = Step::Swap { at: part(HOME), old: seen, new, wake: false };
            match self.perform(swap, true) {
                Some(found) if found != seen => seen = found,
                _ => return true,
            }
        }
        false
    }

    /// False if it gave up.
    fn acquire(&self, rank: u32, mode: Mode, manner: Manner) -> bool {
        if manner == Manner::Passes && self.pass(rank, mode) {
            return true;
        }
        let patient = manner != Manner::GivesUp;
        let node = QueueNode::new(rank, 0).unwrap();
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
    fn round(&self, rank: u32, mode: Mode, manner: Manner) -> u64 {
        if !self.acquire(rank, mode, manner) {
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

/// Locks of one rank.
type Rank = (Mode, Manner, u32);

/// Each rank takes the lock as often as it says.
fn check<const N: usize>(ranks: [Rank; N]) {
    loom::model(move || {
        let shared = Arc::new(Shared::new());
        let run = move |rank: usize, shared: &Shared| {
            let (mode, manner, rounds) = ranks[rank];
            (0..rounds).map(|_| shared.round(rank as u32, mode, manner)).sum::<u64>()
        };
        let others = (1..N).map(|rank| {
            let shared = shared.clone();
            thread::spawn(move || run(rank, &shared))
        });
        let others: Vec<_> = others.collect();
        let mut writers = run(0, &shared);
        writers += others.into_iter().map(|other| other.join().unwrap()).sum::<u64>();
        assert_eq!(shared.data[0].load(Relaxed), writers, "writers got lost");
        assert_eq!(shared.home[0].load(SeqCst), 0, "the lock is free");
        let mut phases = shared.nodes.iter().map(|node| &node[usize::from(PHASE)]);
        assert!(phases.all(|phase| phase.load(SeqCst) == phase::FREE), "the nodes are free");
    });
}

const WRITER: Rank = (Mode::Exclusive, Manner::Waits, 1);
const READER: Rank = (Mode::Shared, Manner::Waits, 1);
const HASTY_WRITER: Rank = (Mode::Exclusive, Manner::GivesUp, 1);
const HASTY_READER: Rank = (Mode::Shared, Manner::GivesUp, 1);
const PASSER: Rank = (Mode::Exclusive, Manner::Passes, 1);

#[test]
fn loom_writer_and_writer() {
    check([WRITER; 2]);
}

#[test]
fn loom_writer_and_reader() {
    check([WRITER, READER]);
}

#[test]
fn loom_three_writers() {
    check([WRITER; 3]);
}

#[test]
fn loom_writer_and_readers() {
    check([WRITER, READER, READER]);
}

#[test]
fn loom_one_of_two_gives_up() {
    check([WRITER, HASTY_WRITER]);
}

#[test]
fn loom_one_of_three_gives_up() {
    check([WRITER, HASTY_WRITER, WRITER]);
}

#[test]
fn loom_two_of_three_give_up() {
    check([WRITER, HASTY_WRITER, HASTY_READER]);
}

#[test]
fn loom_one_passes_the_head_twice() {
    check([WRITER, (Mode::Exclusive, Manner::Passes, 2)]);
}

#[test]
fn loom_one_passes_two_in_line() {
    check([WRITER, WRITER, PASSER]);
}

#[test]
fn loom_one_passes_a_writer_and_a_reader() {
    check([WRITER, READER, PASSER]);
}

#[test]
fn loom_one_passes_a_head_that_gives_up() {
    check([WRITER, HASTY_WRITER, PASSER]);
}

#[test]
fn loom_two_pass_the_head() {
    check([WRITER, PASSER, PASSER]);
}
