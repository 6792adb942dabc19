//! Errors are results, and the compiler sees a caller that ignores one. S-B5 S-B6
#![deny(unused_must_use)]
use rma::{LockAll, Rank};

fn misuse(epoch: &LockAll) {
    epoch.put(Rank(1), 0, &[1u64]);
}

fn main() {}
