//! Fetch-and-op is for integers of 32 and 64 bits.
use rma::{Op, Rank, Window};

fn misuse(window: &Window) {
    let epoch = window.lock_all().unwrap();
    epoch.fetch_and_op(Rank(0), 0, Op::Sum, 1.0f64).unwrap();
}

fn main() {}
