//! An epoch cannot outlive its window.
use rma::{LockAll, Window};

fn misuse<'w>(window: Window) -> LockAll<'w> {
    window.lock_all().unwrap()
}

fn main() {}
