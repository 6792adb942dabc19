//! An exposure epoch is the targets' side: its guard has no operations.
use rma::{Assert, Rank, Window};

fn misuse(window: &Window) {
    let exposure = window.post(&[Rank(1)], Assert::NONE).unwrap();
    exposure.put(Rank(1), 0, &[1u64]).unwrap();
    exposure.wait().unwrap();
}

fn main() {}
