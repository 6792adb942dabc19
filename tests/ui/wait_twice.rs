//! An exposure epoch ends once. S-D7
use rma::{Assert, Rank, Window};

fn misuse(window: &Window) {
    let exposure = window.post(&[Rank(1)], Assert::NONE).unwrap();
    exposure.wait().unwrap();
    exposure.wait().unwrap();
}

fn main() {}
