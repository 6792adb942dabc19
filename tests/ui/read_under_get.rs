//! What a get fills cannot be read before the scope ends.
use rma::{Rank, Window};

fn misuse(window: &Window) {
    let epoch = window.lock_all().unwrap();
    let mut origin = vec![0u64; 9];
    epoch
        .ops(|ops| {
            ops.get(Rank(1), 0, &mut origin).unwrap();
            assert_eq!(origin[0], 1);
            Ok(())
        })
        .unwrap();
}

fn main() {}
