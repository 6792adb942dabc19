//! A target that was looked up is one of its epoch.
use rma::{Rank, Window};

fn misuse(window: &Window) {
    let epoch = window.lock_all().unwrap();
    let peer = epoch.peer(Rank(1)).unwrap();
    epoch.unlock().unwrap();
    peer.put(0, &[1u64]).unwrap();
}

fn main() {}
