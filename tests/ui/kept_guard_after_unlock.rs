//! What a kept guard lends ends with it, and so before its window is freed.
use rma::{Rank, Window};
use std::sync::Arc;

fn misuse(window: Window) {
    let kept = Arc::new(window).lock_all_owned().unwrap();
    let epoch = kept.epoch();
    let window = kept.unlock().unwrap();
    Arc::into_inner(window).unwrap().free().unwrap();
    epoch.put(Rank(1), 0, &[1u64]).unwrap();
}

fn main() {}
