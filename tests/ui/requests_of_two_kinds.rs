//! Requests that are waited for together own buffers of one type.
use rma::{Rank, Request, Window};

fn misuse(window: &Window) {
    let epoch = window.lock_all().unwrap();
    let words = epoch.rget(Rank(1), 0, vec![0u64; 4]).unwrap();
    let bytes = epoch.rget(Rank(1), 32, vec![0u8; 4]).unwrap();
    Request::wait_all([words, bytes]);
}

fn main() {}
