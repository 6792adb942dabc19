//! A sealed window is plain memory: no epoch can be opened on it.
use rma::Sealed;

fn misuse(sealed: &Sealed) {
    sealed.lock_all().unwrap();
}

fn main() {}
