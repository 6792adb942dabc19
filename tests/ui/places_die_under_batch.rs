//! A batch borrows its places, and ends before they do.
use rma::{Rank, Window};

fn misuse(window: &Window) {
    let epoch = window.lock_all().unwrap();
    let batch = {
        let places = vec![(Rank(1), 0), (Rank(2), 7)];
        epoch.batch(&places)
    };
    batch.put(&[1u64, 2]).unwrap();
}

fn main() {}
