//! A displacement counts.
use rma::{Rank, Window};

fn misuse(window: &Window) {
    let epoch = window.lock_all().unwrap();
    epoch.put(Rank(1), 0.5, &[1u64]).unwrap();
}

fn main() {}
