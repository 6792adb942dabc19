//! Any thread may ask a window for its attributes.
use rma::Window;
use std::rc::Rc;

fn misuse(window: &Window) {
    window.set_attribute(Rc::new(1));
}

fn main() {}
