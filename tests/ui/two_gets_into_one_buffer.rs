//! Two gets under way cannot fill the same buffer.
use rma::{Rank, Window};

fn misuse(window: &Window) {
    let epoch = window.lock_all().unwrap();
    let mut origin = vec![0u64; 9];
    epoch
        .ops(|ops| {
            ops.get(Rank(1), 0, &mut origin).unwrap();
            ops.get(Rank(2), 0, &mut origin).unwrap();
            Ok(())
        })
        .unwrap();
}

fn main() {}
