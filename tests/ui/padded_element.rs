//! Padding is not data: a type with padding does not travel.
use rma::{Rank, Window};

#[derive(Clone, Copy)]
#[repr(C)]
struct Padded {
    small: u8,
    large: u64,
}

fn misuse(window: &Window) {
    let epoch = window.lock_all().unwrap();
    epoch.put(Rank(1), 0, &[Padded { small: 1, large: 2 }]).unwrap();
}

fn main() {}
