//! Completing a start epoch takes its guard away. S-G11 S-D7
use rma::{Assert, Rank, Window};

fn misuse(window: &Window) {
    let epoch = window.start(&[Rank(1)], Assert::NONE).unwrap();
    epoch.complete().unwrap();
    epoch.put(Rank(1), 0, &[1u64]).unwrap();
}

fn main() {}
