//! The flags of the barrier, set and awaited as [`wait`](super::wait) does it.
use super::*;
use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};
use loom::sync::{Arc, Notify};
use loom::thread;

const ROUNDS: usize = 2;

struct Member {
    flags: [AtomicU32; ROUNDS],
    /// One for each flag rather than for all: fewer interleavings that are the same.
    bells: [Notify; ROUNDS],
    /// Barriers that its rank has come to.
    came: AtomicU32,
}

fn barrier(members: &[Member], rank: Rank, count: u32) {
    let size = members.len() as u32;
    for round in 0..rounds(size) {
        let after = &members[rank.on_ring(distance(round), size).0 as usize];
        let (mine, round) = (&members[rank.0 as usize], round as usize);
        after.flags[round].store(count, Release);
        after.bells[round].notify();
        while !has_arrived(mine.flags[round].load(Acquire), count) {
            mine.bells[round].wait();
        }
    }
}

/// Tells before each barrier that this rank comes; after it, all others must have.
fn run(members: &[Member], rank: u32, first: u32, barriers: u32) {
    for turn in 1..=barriers {
        members[rank as usize].came.store(turn, Relaxed);
        barrier(members, Rank(rank), first.wrapping_add(turn));
        for other in members {
            let came = other.came.load(Relaxed);
            assert!(came == turn || came == turn + 1, "{came} after barrier {turn}");
        }
    }
}

fn check(size: u32, first: u32, barriers: u32) {
    let mut model = loom::model::Builder::new();
    if size > 2 {
        // More takes minutes; a read of something old is none.
        model.preemption_bound = Some(1);
    }
    model.check(move || {
        let member = |_| Member {
            flags: std::array::from_fn(|_| AtomicU32::new(first)),
            bells: Default::default(),
            came: AtomicU32::new(0),
        };
        let members = Arc::new((0..size).map(member).collect::<Vec<_>>());
        let others = (1..size).map(|rank| {
            let members = members.clone();
            thread::spawn(move || run(&members, rank, first, barriers))
        });
        let others = others.collect::<Vec<_>>();
        run(&members, 0, first, barriers);
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

#[test]
fn loom_barriers_of_two_in_a_row() {
    check(2, 0, 2);
}

#[test]
fn loom_barriers_of_two_whose_count_wraps() {
    check(2, u32::MAX - 1, 2);
}

#[test]
fn loom_barrier_of_three() {
    check(3, 0, 1);
}
