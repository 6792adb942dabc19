//! A reference means nothing at another rank.
use rma::{Rank, Window};

fn misuse(window: &Window) {
    let epoch = window.lock_all().unwrap();
    epoch.put(Rank(1), 0, &["pointer"]).unwrap();
}

fn main() {}
