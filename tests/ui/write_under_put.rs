//! What a put sends cannot be changed before the scope ends.
use rma::{Rank, Window};

fn misuse(window: &Window) {
    let epoch = window.lock_all().unwrap();
    let mut origin = vec![0u64; 9];
    epoch
        .ops(|ops| {
            ops.put(Rank(1), 0, &origin).unwrap();
            origin[0] = 1;
            Ok(())
        })
        .unwrap();
}

fn main() {}
