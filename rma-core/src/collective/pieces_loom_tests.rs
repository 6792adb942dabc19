//! A lane of two places, whose words are seen late: no reader finds anything but its piece, and
//! nothing is overwritten that is not read. Places are cells that loom watches.
#![allow(unsafe_code)]
use super::*;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;

const PLACES: usize = 2;
const PIECES: u64 = 3;

struct Lane {
    written: AtomicU64,
    read: [AtomicU64; 2],
    places: [UnsafeCell<u64>; PLACES],
}

// SAFETY: that its words keep accesses of the places apart is what is tested; loom watches them.
unsafe impl Sync for Lane {}

fn wait_until(come: impl Fn() -> bool) {
    while !come() {
        thread::yield_now();
    }
}

fn read(lane: &Lane, reader: usize) {
    for number in 0..PIECES {
        wait_until(|| is_there(&lane.written, number));
        // SAFETY: it is there, and stays until this reader has done with it: loom sees otherwise.
        lane.places[number as usize % PLACES].with(|place| assert_eq!(unsafe { *place }, number));
        done_with(&lane.read[reader], number);
    }
}

#[test]
fn loom_pieces_are_read_before_they_are_overwritten() {
    loom::model(|| {
        let lane = Arc::new(Lane {
            written: AtomicU64::new(0),
            read: Default::default(),
            places: [UnsafeCell::new(99), UnsafeCell::new(99)],
        });
        let readers = [0, 1].map(|reader| {
            let lane = lane.clone();
            thread::spawn(move || read(&lane, reader))
        });
        for number in 0..PIECES {
            if let Some(before) = number.checked_sub(PLACES as u64) {
                wait_until(|| lane.read.iter().all(|read| is_read(read, before)));
            }
            // SAFETY: all have done with what was there: loom sees otherwise.
            lane.places[number as usize % PLACES].with_mut(|place| unsafe { *place = number });
            publish(&lane.written, number);
        }
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}
