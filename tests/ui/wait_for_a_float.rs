//! A value that is waited for is one that is stored as a whole: an integer.
use rma::Window;

fn misuse(window: &Window) {
    window.local().wait_until(0, |value: f64| value > 0.5).unwrap();
}

fn main() {}
