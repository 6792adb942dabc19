//! A window is not freed while a guard keeps it.
use rma::{LockKind, Rank, Window};
use std::sync::Arc;

fn misuse(window: Window) {
    let window = Arc::new(window);
    let kept = window.lock_owned(Rank(1), LockKind::Shared).unwrap();
    window.free().unwrap();
    kept.unlock().unwrap();
}

fn main() {}
