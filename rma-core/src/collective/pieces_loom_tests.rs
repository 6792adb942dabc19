//! Lanes of few places, whose words are seen late, with bells that wake ranks that sleep: a reader
//! finds its piece, and nothing is overwritten that is still read, or loom, which watches the
//! places, reports it; as it does a bell that does not ring, which is a deadlock.
#![allow(unsafe_code)]
use super::*;
use core::convert::Infallible;
use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU64;
use loom::sync::{Arc, Notify};
use loom::thread;

struct Lane {
    written: AtomicU64,
    read: Vec<AtomicU64>,
    places: Vec<UnsafeCell<u64>>,
}

// SAFETY: that its words keep accesses of the places apart is what is tested; loom watches them.
unsafe impl Sync for Lane {}
// SAFETY: as above.
unsafe impl Send for Lane {}

impl Lane {
    fn place(&self, number: u64) -> &UnsafeCell<u64> {
        &self.places[number as usize % self.places.len()]
    }
}

struct Node {
    lanes: Vec<Lane>,
    bells: Vec<Notify>,
}

impl Node {
    fn new(ranks: usize, places: usize) -> Self {
        let lane = |_| Lane {
            written: AtomicU64::new(0),
            read: (0..ranks).map(|_| AtomicU64::new(0)).collect(),
            places: (0..places).map(|_| UnsafeCell::new(0)).collect(),
        };
        Self {
            lanes: (0..ranks).map(lane).collect(),
            bells: (0..ranks).map(|_| Notify::new()).collect(),
        }
    }
}

/// A rank at a lane.
struct View<'a> {
    node: &'a Node,
    rank: Rank,
    owner: Rank,
}

impl AtLane for View<'_> {
    type Error = Infallible;

    fn written(&self) -> &impl Word<Value = u64> {
        &self.lane().written
    }

    fn read_by(&self, reader: Rank) -> &impl Word<Value = u64> {
        &self.lane().read[reader.0 as usize]
    }

    fn ring(&self, rank: Rank) {
        self.node.bells[rank.0 as usize].notify();
    }

    fn wait_there(&self, _: Rank, is_there: impl Fn() -> bool) -> Result<(), Infallible> {
        self.sleep_until(is_there);
        Ok(())
    }

    fn wait_read(&self, _: Rank, _: u64, is_read: impl Fn() -> bool) -> Result<(), Infallible> {
        self.sleep_until(is_read);
        Ok(())
    }
}

impl View<'_> {
    /// A spin that yields would come to no end under loom, which may show old words for long.
    fn sleep_until(&self, come: impl Fn() -> bool) {
        while !come() {
            self.node.bells[self.rank.0 as usize].wait();
        }
    }

    fn lane(&self) -> &Lane {
        &self.node.lanes[self.owner.0 as usize]
    }

    fn half(&self) -> u64 {
        self.lane().places.len() as u64 / 2
    }

    fn put(&self, places: &mut HeldPlaces, readers: Readers, rings: bool) {
        let write = |number: u64| {
            // SAFETY: all have done with what was there: loom sees otherwise.
            self.lane().place(number).with_mut(|place| unsafe { *place = content(number) });
        };
        let Ok(()) = places.put(self, readers, rings, write);
    }

    fn get(&self, number: u64, rings: bool) {
        let read = || {
            // SAFETY: it is there until this rank has done with it: loom sees otherwise.
            let found = self.lane().place(number).with(|place| unsafe { *place });
            assert_eq!(found, content(number), "another piece than {number}");
        };
        let Ok(()) = get(self, (self.owner, self.rank), number, rings, read);
    }
}

fn content(number: u64) -> u64 {
    number + 100
}

type Script = fn(&Node, Rank);

/// Ranks that run that, rank 0 among them.
fn check(ranks: u32, places: usize, preemptions: usize, script: Script) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let node = Arc::new(Node::new(ranks as usize, places));
        let others = (1..ranks).map(|rank| {
            let node = node.clone();
            thread::spawn(move || script(&node, Rank(rank)))
        });
        let others: Vec<_> = others.collect();
        script(&node, Rank(0));
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

/// As `put_stream` of rank 0 to all others, and their `get_stream`.
fn stream<const PIECES: u64>(node: &Node, rank: Rank) {
    let view = View { node, rank, owner: Rank(0) };
    let rings = |number: u64| number + 1 == PIECES || ends_half(number, view.half());
    if rank != Rank(0) {
        (0..PIECES).for_each(|number| view.get(number, rings(number)));
        return;
    }
    let mut places = HeldPlaces::new(view.lane().places.len() as u32, 0);
    let others = (1..node.bells.len() as u32).map(Rank);
    let readers = Readers::All(others.collect());
    for number in 0..PIECES {
        view.put(&mut places, readers.clone(), rings(number));
    }
    let Ok(()) = places.drain(&view);
}

/// As `put_stream` of rank 0 to one rank, and then to the next.
fn one_after_the_other(node: &Node, rank: Rank) {
    const EACH: u64 = 2;
    let view = View { node, rank, owner: Rank(0) };
    let of = |reader: u32| (0..EACH).map(move |number| (u64::from(reader) - 1) * EACH + number);
    let rings = |number: u64| number % EACH == EACH - 1 || ends_half(number, view.half());
    if rank != Rank(0) {
        of(rank.0).for_each(|number| view.get(number, rings(number)));
        return;
    }
    let mut places = HeldPlaces::new(view.lane().places.len() as u32, 0);
    for reader in 1..node.bells.len() as u32 {
        of(reader).for_each(|number| {
            view.put(&mut places, Readers::One(Rank(reader)), rings(number));
        });
    }
    let Ok(()) = places.drain(&view);
}

/// As `allgather_flat` of two: half a lane is written, and then that of the other is read.
fn each_other(node: &Node, rank: Rank) {
    const PIECES: u64 = 5;
    let other = Rank(1 - rank.0);
    let own = View { node, rank, owner: rank };
    let theirs = View { node, rank, owner: other };
    let mut places = HeldPlaces::new(own.lane().places.len() as u32, 0);
    for first in (0..PIECES).step_by(own.half() as usize) {
        let end = PIECES.min(first + own.half());
        (first..end).for_each(|number| {
            own.put(&mut places, Readers::One(other), number + 1 == end);
        });
        (first..end).for_each(|number| theirs.get(number, number + 1 == end));
    }
    // The other one knows this lane: it reads the rest whatever this rank does.
    let Ok(()) = places.settle(&own, &mut [true; 2]);
}

/// A writer that leaves when the one reader which does not know its lane has read, twice.
fn left_to_one_that_knows(node: &Node, rank: Rank) {
    let view = View { node, rank, owner: Rank(0) };
    if rank != Rank(0) {
        (0..2).for_each(|number| view.get(number, true));
        return;
    }
    let mut places = HeldPlaces::new(view.lane().places.len() as u32, 0);
    let mut known = [false, true, false];
    for number in 0..2 {
        view.put(&mut places, Readers::All([Rank(1), Rank(2)].into()), true);
        let Ok(()) = places.settle(&view, &mut known);
        let read = is_read(view.read_by(Rank(2)), number);
        assert!(read || number > 0, "it may have gone without the lane");
        assert_eq!(known, [false, true, true]);
    }
}

// More pieces or preemptions take minutes; a read of something old is no preemption.

#[test]
fn loom_a_stream_through_single_places() {
    check(2, 2, 1, stream::<5>);
    check(2, 2, 2, stream::<3>);
}

#[test]
fn loom_a_stream_that_rings_for_halves() {
    check(2, 4, 0, stream::<8>);
    check(2, 4, 1, stream::<5>);
}

#[test]
fn loom_a_stream_to_two_readers() {
    check(3, 2, 0, stream::<4>);
}

#[test]
fn loom_streams_to_one_reader_after_the_other() {
    check(3, 2, 1, one_after_the_other);
}

#[test]
fn loom_what_is_left_is_read_by_those_that_know_the_lane() {
    check(3, 2, 0, left_to_one_that_knows);
}

#[test]
fn loom_two_ranks_that_read_each_other() {
    check(2, 4, 1, each_other);
}
