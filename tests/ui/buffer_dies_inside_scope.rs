//! A buffer of an operation under way must outlive the scope.
use rma::{Rank, Window};

fn misuse(window: &Window) {
    let epoch = window.lock_all().unwrap();
    epoch
        .ops(|ops| {
            let origin = vec![1u64; 9];
            ops.put(Rank(1), 0, &origin)
        })
        .unwrap();
}

fn main() {}
