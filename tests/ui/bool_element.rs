//! Not every byte is a `bool`: a get could make an invalid one.
use rma::{Rank, Window};

fn misuse(window: &Window) {
    let epoch = window.lock_all().unwrap();
    let mut origin = [false];
    epoch.get(Rank(1), 0, &mut origin).unwrap();
}

fn main() {}
