//! Ending an epoch takes its guard away. S-G11
use rma::{Rank, Window};

fn misuse(window: &Window) {
    let epoch = window.lock_all().unwrap();
    epoch.unlock().unwrap();
    epoch.put(Rank(1), 0, &[1u64]).unwrap();
}

fn main() {}
