//! libfabric, for unit tests that run where it is.

use crate::{Libfabric, Offer, OfiError, Wanted, choose};
use std::io::{Write, stderr};

/// What CI sets where it has installed libfabric, which has the providers that tests take.
const NEEDED: &str = "RMA_TESTS_NEED_LIBFABRIC";

/// A test that is skipped says so by its name; it fails where libfabric has to be.
fn skip(why: &OfiError) {
    assert!(std::env::var_os(NEEDED).is_none(), "{why}");
    let thread = std::thread::current();
    // Not through the macros, whose output the test framework hides.
    _ = writeln!(stderr(), "test {} is skipped: {why}", thread.name().unwrap_or("?"));
}

/// The library, if it is here; panics if it cannot be used.
pub(crate) fn library() -> Option<Libfabric> {
    match Libfabric::load() {
        Ok(library) => Some(library),
        Err(why @ OfiError::Missing { .. }) => {
            skip(&why);
            None
        }
        Err(why) => panic!("{why}"),
    }
}

/// The library and a provider of it, if both are here.
pub(crate) fn provider(name: &str, needs_rma: bool) -> Option<(Libfabric, Offer)> {
    let library = library()?;
    let offers = library.offers().unwrap();
    let wanted = Wanted { provider: Some(name), needs_rma, ..Wanted::default() };
    match choose(&offers, &wanted) {
        Ok(offer) => Some((library, offer.clone())),
        Err(why) => {
            skip(&why);
            None
        }
    }
}
