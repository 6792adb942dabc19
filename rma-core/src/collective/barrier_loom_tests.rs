//! The words of both barriers, set and awaited as [`by_flags`](super::by_flags) and
//! [`by_count`](super::by_count) do it.
use super::*;
use loom::sync::atomic::{AtomicU32, AtomicU64};
use loom::sync::{Arc, Notify};
use loom::thread;

const ROUNDS: usize = 2;

struct Member {
    flags: [AtomicU32; ROUNDS],
    /// Of rank 0.
    arrivals: AtomicU64,
    /// One for each flag rather than for all: fewer interleavings that are the same.
    bells: [Notify; ROUNDS],
    /// Barriers that its rank has come to.
    came: AtomicU32,
}

type Barrier = fn(&[Member], Rank, u32);

/// What the arrivals were before.
const BEFORE: u64 = u64::MAX - 1;

fn flags(members: &[Member], rank: Rank, count: u32) {
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

/// A bell is rung by one rank only, but that of rank 0.
fn arrivals(members: &[Member], rank: Rank, count: u32) {
    let size = members.len() as u32;
    let arrivals = &members[0].arrivals;
    let all = BEFORE.wrapping_add(u64::from(count) * u64::from(size));
    if arrivals.fetch_add(1, AcqRel).wrapping_add(1) == all {
        members[0].bells[0].notify();
    } else {
        while !all_have_come(arrivals.load(Acquire), all) {
            members[rank.0 as usize].bells[0].wait();
        }
    }
    for other in wakes(rank, size) {
        members[other as usize].bells[0].notify();
    }
}

/// Rank 1 gives up once, if nobody else has come, and comes again.
fn impatient(members: &[Member], rank: Rank, count: u32) {
    let all = BEFORE.wrapping_add(u64::from(count) * members.len() as u64);
    let word = &members[0].arrivals;
    if rank == Rank(1) {
        let last = word.fetch_add(1, AcqRel).wrapping_add(1) == all;
        let fewer = |seen| (!all_have_come(seen, all)).then(|| seen.wrapping_sub(1));
        if last || word.fetch_update(Relaxed, Acquire, fewer).is_err() {
            return members[0].bells[0].notify();
        }
    }
    arrivals(members, rank, count);
}

/// Tells before each barrier that this rank comes; after it, all others must have.
fn run(barrier: Barrier, members: &[Member], rank: u32, first: u32, barriers: u32) {
    for turn in 1..=barriers {
        members[rank as usize].came.store(turn, Relaxed);
        barrier(members, Rank(rank), first.wrapping_add(turn));
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
            bells: Default::default(),
            came: AtomicU32::new(0),
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
fn loom_who_gives_up_comes_again() {
    check(impatient, 2, 0, 2);
}

#[test]
fn loom_counted_barriers_of_three_in_a_row() {
    check(arrivals, 3, 0, 2);
}
