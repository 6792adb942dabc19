//! Flushes belong to passive epochs, and that of a lock to its target. S-F6
use rma::{Assert, LockKind, Rank, Window};

fn outside_any_epoch(window: &Window) {
    window.flush_all().unwrap();
}

fn in_a_fence(window: &Window) {
    let epoch = window.fence(Assert::NONE).unwrap();
    epoch.flush(Rank(1)).unwrap();
}

fn in_a_start(window: &Window) {
    let epoch = window.start(&[Rank(1)], Assert::NONE).unwrap();
    epoch.flush_all().unwrap();
}

fn of_another_target(window: &Window) {
    let epoch = window.lock(Rank(1), LockKind::Shared).unwrap();
    epoch.flush(Rank(2)).unwrap();
}

fn main() {}
