//! The slice of a sealed window ends with the seal.
use rma::Sealed;

fn misuse(mut sealed: Sealed) {
    let slice: &mut [u8] = sealed.bytes_mut();
    let window = sealed.unseal().unwrap();
    slice[0] = 1;
    drop(window);
}

fn main() {}
