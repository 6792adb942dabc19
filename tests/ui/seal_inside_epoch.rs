//! A window cannot be sealed while one of its epochs is open.
use rma::Window;

fn misuse(window: Window) {
    let epoch = window.lock_all().unwrap();
    let sealed = window.seal();
    epoch.unlock().unwrap();
    drop(sealed);
}

fn main() {}
