//! Direct loads and stores end with the window.
use rma::{View, Window};

fn misuse<'w>(window: Window) -> View<'w> {
    window.local()
}

fn main() {}
