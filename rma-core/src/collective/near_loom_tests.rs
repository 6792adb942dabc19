//! The flags of the barrier, set and awaited as [`wait`](super::wait) does it.
use super::*;
use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};
use loom::sync::{Arc, Notify};
use loom::thread;

const ROUNDS: usize = 2;

struct Member {
    flags: [AtomicU32; ROUNDS],
    bell: Notify,
    /// Barriers that its rank has come to.
    came: AtomicU32,
}

fn barrier(members: &[Member], rank: Rank, count: u32) {
    let size = members.len() as u32;
    for round in 0..rounds(size) {
        let after = &members[rank.on_ring(distance(round), size).0 as usize];
        after.flags[round as usize].store(count, Release);
        after.bell.notify();
        let mine = &members[rank.0 as usize];
        while !has_arrived(mine.flags[round as usize].load(Acquire), count) {
            mine.bell.wait();
        }
    }
}

/// Each rank tells before each barrier that it comes, and sees after it that all others came.
fn check(size: u32, first: u32, barriers: u32) {
    loom::model(move || {
        let member = |_| Member {
            flags: std::array::from_fn(|_| AtomicU32::new(first)),
            bell: Notify::new(),
            came: AtomicU32::new(0),
        };
        let members = Arc::new((0..size).map(member).collect::<Vec<_>>());
        let run = |rank: u32, members: Arc<Vec<Member>>| {
            for turn in 1..=barriers {
                members[rank as usize].came.store(turn, Relaxed);
                barrier(&members, Rank(rank), first.wrapping_add(turn));
                for other in members.iter() {
                    let came = other.came.load(Relaxed);
                    assert!(came == turn || came == turn + 1, "{came} after barrier {turn}");
                }
            }
        };
        let others = (1..size).map(|rank| {
            let members = members.clone();
            thread::spawn(move || run(rank, members))
        });
        let others = others.collect::<Vec<_>>();
        run(0, members);
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

#[test]
fn loom_barriers_of_two_in_a_row() {
    check(2, 0, 3);
}

#[test]
fn loom_barriers_of_two_whose_count_wraps() {
    check(2, u32::MAX - 1, 3);
}

#[test]
fn loom_barrier_of_three() {
    check(3, 0, 2);
}
