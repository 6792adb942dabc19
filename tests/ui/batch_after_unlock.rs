//! A batch is of an epoch, and ends before it does.
use rma::{Rank, Window};

fn misuse(window: &Window) {
    let epoch = window.lock_all().unwrap();
    let batch = epoch.batch(&[(Rank(1), 0)]);
    epoch.unlock().unwrap();
    batch.put(&[1u64]).unwrap();
}

fn main() {}
