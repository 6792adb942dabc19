//! A request owns its buffer: a borrowed one could die while it is under way.
use rma::{Rank, Window};

fn misuse(window: &Window) {
    let epoch = window.lock_all().unwrap();
    let mut origin = [0u64; 4];
    let request = epoch.rget(Rank(1), 0, &mut origin[..]).unwrap();
    request.wait().unwrap();
}

fn main() {}
