//! A window cannot be freed while one of its epochs is open. S-A10
use rma::{Assert, Window};

fn misuse(window: Window) {
    let epoch = window.fence(Assert::NONE).unwrap();
    window.free().unwrap();
    epoch.end().unwrap();
}

fn main() {}
