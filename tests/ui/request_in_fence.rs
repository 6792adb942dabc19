//! Requests belong to passive epochs, also those of accumulates. S-I1
use rma::{Assert, Op, Rank, Window};

fn misuse(window: &Window) {
    let epoch = window.fence(Assert::NONE).unwrap();
    epoch.rget(Rank(1), 0, vec![1u64]).unwrap();
    epoch.raccumulate(Rank(1), 0, Op::Sum, vec![1u64]).unwrap();
    epoch.end().unwrap();
}

fn main() {}
