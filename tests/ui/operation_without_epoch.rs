//! An operation needs an epoch: windows have no `put`. S-G11
use rma::{Rank, Window};

fn misuse(window: &Window) {
    window.put(Rank(1), 0, &[1u64]).unwrap();
}

fn main() {}
