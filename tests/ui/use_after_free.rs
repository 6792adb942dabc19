//! `free` takes the window: there is no handle left that could be used. S-A11
use rma::{Assert, Window};

fn misuse(window: Window) {
    window.free().unwrap();
    window.fence(Assert::NONE).unwrap().end().unwrap();
}

fn main() {}
