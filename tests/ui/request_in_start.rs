//! Requests belong to passive epochs (S-I1).
use rma::{Assert, Rank, Window};

fn misuse(window: &Window) {
    let epoch = window.start(&[Rank(1)], Assert::NONE).unwrap();
    let request = epoch.rput(Rank(1), 0, vec![1u64]).unwrap();
    epoch.complete().unwrap();
    request.wait().1.unwrap();
}

fn main() {}
