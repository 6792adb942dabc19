//! Both barriers on words whose accesses are seen late, with bells that wake ranks that sleep. A
//! bell that does not ring is a deadlock, which loom reports.
use super::*;
use core::cell::Cell;
use loom::sync::atomic::{AtomicU32, AtomicU64};
use loom::sync::{Arc, Notify};
use loom::thread;

const ROUNDS: usize = 2;

#[derive(Default)]
struct Member {
    flags: [AtomicU32; ROUNDS],
    /// Of rank 0.
    arrivals: AtomicU64,
    bell: Notify,
    /// Barriers that its rank has come to.
    came: AtomicU32,
}

/// What a rank sees.
struct View<'a> {
    members: &'a [Member],
    rank: Rank,
    /// Whether its next wait for all fails instead of sleeping.
    gives_up: Cell<bool>,
}

#[derive(Debug)]
struct GivenUp;

impl Meeting for View<'_> {
    type Error = GivenUp;

    fn rank(&self) -> Rank {
        self.rank
    }

    fn size(&self) -> u32 {
        self.members.len() as u32
    }

    fn ring(&self, rank: Rank) {
        self.members[rank.0 as usize].bell.notify();
    }

    fn wait(&self, _: Rank, come: impl Fn() -> bool) -> Result<(), GivenUp> {
        while !come() {
            self.members[self.rank.0 as usize].bell.wait();
        }
        Ok(())
    }

    fn wait_for_all(&self, come: impl Fn() -> bool) -> Result<(), GivenUp> {
        if self.gives_up.take() && !come() {
            return Err(GivenUp);
        }
        self.wait(self.rank, come)
    }
}

type Barrier = fn(&View<'_>, u32);

/// What the arrivals were before.
const BEFORE: u64 = u64::MAX - 1;

fn flags(view: &View<'_>, count: u32) {
    let flag_of = |round: usize, rank: Rank| Ok(&view.members[rank.0 as usize].flags[round]);
    let mine = |round: usize| &view.members[view.rank.0 as usize].flags[round];
    let passed: Result<(), GivenUp> = by_flags(view, count.into(), mine, flag_of, |error| error);
    passed.unwrap();
}

fn arrivals(view: &View<'_>, count: u32) {
    by_count(view, count.into(), &view.members[0].arrivals, BEFORE).unwrap();
}

/// Rank 1 gives up once, if no other rank has come, and comes again.
fn impatient(view: &View<'_>, count: u32) {
    view.gives_up.set(view.rank == Rank(1));
    if by_count(view, count.into(), &view.members[0].arrivals, BEFORE).is_err() {
        arrivals(view, count);
    }
}

/// Tells before each barrier that this rank comes; after it, all others must have.
fn run(barrier: Barrier, members: &[Member], rank: u32, first: u32, barriers: u32) {
    let view = View { members, rank: Rank(rank), gives_up: Cell::new(false) };
    for turn in 1..=barriers {
        members[rank as usize].came.store(turn, Relaxed);
        barrier(&view, first.wrapping_add(turn));
        for other in members {
            let came = other.came.load(Relaxed);
            assert!(came == turn || came == turn + 1, "{came} after barrier {turn}");
        }
    }
}

fn check(barrier: Barrier, size: u32, first: u32, barriers: u32) {
    let mut model = loom::model::Builder::new();
    if size > 2 {
        // More takes minutes; a read of something old is none.
        model.preemption_bound = Some(1);
    }
    model.check(move || {
        let member = |_| Member {
            flags: std::array::from_fn(|_| AtomicU32::new(first)),
            arrivals: AtomicU64::new(BEFORE),
            ..Default::default()
        };
        let members = Arc::new((0..size).map(member).collect::<Vec<_>>());
        let others = (1..size).map(|rank| {
            let members = members.clone();
            thread::spawn(move || run(barrier, &members, rank, first, barriers))
        });
        let others = others.collect::<Vec<_>>();
        run(barrier, &members, 0, first, barriers);
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

#[test]
fn loom_barriers_of_two_in_a_row() {
    check(flags, 2, 0, 2);
    check(arrivals, 2, 0, 2);
}

#[test]
fn loom_barriers_of_two_whose_count_wraps() {
    check(flags, 2, u32::MAX - 1, 2);
}

#[test]
fn loom_barrier_of_three() {
    check(flags, 3, 0, 1);
}

#[test]
fn loom_a_rank_that_gives_up_comes_again() {
    check(impatient, 2, 0, 2);
}

#[test]
fn loom_counted_barriers_of_three_in_a_row() {
    check(arrivals, 3, 0, 2);
}
