//! Nor can two of one target fill an array, though with layouts they may touch no element twice.
use rma::{Layout, Rank, Window};

fn misuse(window: &Window, odd: &Layout) {
    let epoch = window.lock_all().unwrap();
    let mut origin = [0u64; 8];
    epoch
        .ops(|ops| {
            ops.get(Rank(1), 0, odd.of(&mut origin)).unwrap();
            ops.get(Rank(1), 8, odd.of(&mut origin)).unwrap();
            Ok(())
        })
        .unwrap();
}

fn main() {}
