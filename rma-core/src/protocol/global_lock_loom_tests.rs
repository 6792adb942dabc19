//! Exclusive lockers and `lock_all` on words whose accesses are seen late.
//!
//! Loom takes a sequentially consistent access for an acquiring and releasing one, and does know
//! sequentially consistent fences: one before each load makes up for it. The locks are those of
//! [`lock`](super::lock), passed whenever that is allowed.
use super::super::lock::loom_tests::perform;
use super::super::lock::{
    Acquire, NODES, QueueNode, Release, Step, barge, pass, phase, uncontended,
};
use super::*;
use core::convert::Infallible;
use loom::sync::atomic::AtomicU64;
use loom::sync::atomic::Ordering::{Relaxed, SeqCst};
use loom::sync::{Arc, Notify};
use loom::thread;

const PARTS: usize = 2;
const RANKS: usize = 3;
const NODE_WORDS: usize = 2 * NODES as usize;

struct Shared {
    /// Equal, but for a writer inside.
    data: [[AtomicU64; 2]; PARTS],
    part: [[AtomicU64; 2]; PARTS],
    mark: [AtomicU64; PARTS],
    global_lock: [AtomicU64; 2],
    watch: AtomicU64,
    marks: AtomicU64,
    nodes: [[AtomicU64; NODE_WORDS]; RANKS],
    bells: [Notify; RANKS],
}

/// What a rank sees.
struct View<'a> {
    shared: &'a Shared,
    rank: u32,
    watched: u64,
}

impl View<'_> {
    fn word(&self, at: At) -> &AtomicU64 {
        let (own, first) = (at.rank as usize, |home: At| usize::from(at.word - home.word));
        let second = |home: At| at == home || at == At { word: home.word + 1, ..home };
        let nodes = QueueNode::new(0, 0).map_or(0, |node| node.phase_word() - 1);
        match at {
            at if at.word >= nodes => &self.shared.nodes[own][usize::from(at.word - nodes)],
            _ if second(lock::global_lock()) => {
                &self.shared.global_lock[first(lock::global_lock())]
            }
            at if at == lock::watch() => &self.shared.watch,
            at if at == lock::marks() => &self.shared.marks,
            at if second(lock::part(at.rank)) => &self.shared.part[own][first(lock::part(0))],
            at if at == lock::mark(at.rank) => &self.shared.mark[own],
            _ => panic!("no such word: {at:?}"),
        }
    }

    fn perform(&self, step: Step) -> u64 {
        perform(|at| self.word(at), &self.shared.bells, step, true).unwrap()
    }

    fn take_node(&self) -> QueueNode {
        let mut nodes = (0..NODES).filter_map(|index| QueueNode::new(self.rank, index));
        let free = |node: &QueueNode| {
            let at = At { rank: self.rank, word: node.phase_word() };
            let Ok(found) = self.swap(at, phase::FREE, phase::WAITING);
            found == phase::FREE
        };
        nodes.find(free).unwrap()
    }
}

impl LockOps for View<'_> {
    type Error = Infallible;

    fn load(&self, at: At) -> Result<u64, Infallible> {
        Ok(self.perform(Step::Load(at)))
    }

    fn swap(&self, at: At, old: u64, new: u64) -> Result<u64, Infallible> {
        Ok(self.perform(Step::Swap { at, old, new, wake: false }))
    }

    fn acquire(&self, home: At, mode: Mode) -> Result<(), Infallible> {
        let (mut seen, rank) = (0, self.rank);
        while let Some(new) = barge(seen, mode, rank).or_else(|| pass(seen, mode, rank)) {
            match self.swap(home, seen, new)? {
                found if found == seen => return Ok(()),
                found => seen = found,
            }
        }
        let mut machine = Acquire::new(home, rank, mode, self.take_node(), seen);
        while machine.poll() != Step::Done {
            machine.handle(self.perform(machine.poll()));
        }
        Ok(())
    }

    fn release(&self, home: At, mode: Mode) -> Result<(), Infallible> {
        let mut machine = Release::new(home, mode, uncontended(mode, self.rank));
        while machine.poll() != Step::Done {
            machine.handle(self.perform(machine.poll()));
        }
        Ok(())
    }
}

impl View<'_> {
    /// An exclusive lock, and what it protects; a lock that passes the global lock makes it
    /// unwatched.
    fn write(&mut self, part: u32) {
        let Ok(hint) = self.load(lock::watch());
        let past = is_unwatched(hint) && lock_unwatched(self, part) == Ok(true);
        if !past {
            let Ok(()) = self.acquire(lock::global_lock(), Mode::Group);
            let Ok(()) = self.acquire(lock::part(part), Mode::Exclusive);
            let Ok(()) = unwatch(self);
        }
        let [left, right] = &self.shared.data[part as usize];
        let seen = left.load(Relaxed);
        assert_eq!(seen, right.load(Relaxed), "another writer is inside");
        left.store(seen + 1, Relaxed);
        right.store(seen + 1, Relaxed);
        let Ok(()) = self.release(lock::part(part), Mode::Exclusive);
        if !past {
            let Ok(()) = self.release(lock::global_lock(), Mode::Group);
        }
    }

    /// A `lock_all`, and what it protects.
    fn read_all(&mut self) {
        while share(self, self.watched) == Ok(false) {
            let Ok(watched) = watch(self, PARTS as u32);
            self.watched = watched;
        }
        for [left, right] in &self.shared.data {
            assert_eq!(left.load(Relaxed), right.load(Relaxed), "a writer is inside");
        }
        let Ok(()) = self.release(lock::global_lock(), Mode::Shared);
    }
}

type Script = fn(&mut View<'_>);

/// Ranks that run scripts, from a global lock that is unwatched or not.
fn check<const N: usize>(watch: u64, scripts: [Script; N], writes: u64) {
    loom::model(move || {
        let shared = Arc::new(Shared {
            data: Default::default(),
            part: Default::default(),
            mark: Default::default(),
            global_lock: Default::default(),
            watch: AtomicU64::new(watch),
            marks: AtomicU64::new(0),
            nodes: Default::default(),
            bells: std::array::from_fn(|_| Notify::new()),
        });
        let run = move |rank: usize, shared: &Shared| {
            scripts[rank](&mut View { shared, rank: rank as u32, watched: 0 });
        };
        let others = (1..N).map(|rank| {
            let shared = shared.clone();
            thread::spawn(move || run(rank, &shared))
        });
        let others: Vec<_> = others.collect();
        run(0, &shared);
        others.into_iter().for_each(|other| other.join().unwrap());
        let written = |[left, _]: &[AtomicU64; 2]| left.load(Relaxed);
        assert_eq!(shared.data.iter().map(written).sum::<u64>(), writes, "writers got lost");
        let [global_lock, _] = &shared.global_lock;
        assert_eq!(global_lock.load(SeqCst), 0, "the global_lock is free");
        assert!(shared.part.iter().all(|[part, _]| part.load(SeqCst) == 0), "the parts are free");
    });
}

#[test]
fn loom_a_writer_past_the_global_lock_and_lock_all() {
    check(1, [|rank| rank.write(1), |rank| rank.read_all()], 1);
}

#[test]
fn loom_a_writer_that_makes_it_unwatched_and_lock_all() {
    let twice: Script = |rank| (0..2).for_each(|_| rank.write(0));
    check(0, [twice, |rank| rank.read_all()], 2);
}

#[test]
fn loom_lock_all_twice_and_a_writer() {
    let twice: Script = |rank| (0..2).for_each(|_| rank.read_all());
    check(1, [twice, |rank| rank.write(0)], 1);
}

#[test]
fn loom_writers_of_two_parts_and_lock_all() {
    check(1, [|rank| rank.write(0), |rank| rank.write(1), |rank| rank.read_all()], 2);
}

#[test]
fn loom_a_writer_and_two_lock_alls() {
    check(1, [|rank| rank.write(1), |rank| rank.read_all(), |rank| rank.read_all()], 1);
}

/// A writer comes twice, and passes the other one, or a `lock_all` that waits for writers in line.
#[test]
fn loom_two_writers_of_a_part_and_lock_all() {
    let twice: Script = |rank| (0..2).for_each(|_| rank.write(0));
    check(1, [twice, |rank| rank.write(0), |rank| rank.read_all()], 3);
}
