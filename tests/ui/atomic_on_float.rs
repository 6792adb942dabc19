//! Compare-and-swap is for integers and `Bool`. S-H12
use rma::{Rank, Window};

fn misuse(window: &Window) {
    let epoch = window.lock_all().unwrap();
    epoch.compare_and_swap(Rank(0), 0, 1.0f64, 2.0).unwrap();
}

fn main() {}
