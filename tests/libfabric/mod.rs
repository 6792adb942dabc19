//! libfabric, for tests that run where it is.
use rma::OfiError;
use rma_transport_ofi::Libfabric;
use std::io::{Write, stderr};

/// What CI sets where it has installed libfabric: tests that skip themselves would hide that it is
/// not found.
const NEEDED: &str = "RMA_TESTS_NEED_LIBFABRIC";

/// Whether tests may not skip themselves.
pub(crate) fn is_needed() -> bool {
    std::env::var_os(NEEDED).is_some()
}

/// Whether there is one; a test that is skipped says so by its name. Panics if libfabric is there
/// and cannot be used, and if it has to be there.
pub(crate) fn is_here() -> bool {
    match Libfabric::load() {
        Ok(_) => true,
        Err(error @ OfiError::Missing { .. }) if !is_needed() => {
            let thread = std::thread::current();
            // Not through the macros, whose output the test framework hides.
            _ = writeln!(stderr(), "test {} is skipped: {error}", thread.name().unwrap_or("?"));
            false
        }
        Err(error) => panic!("{error}"),
    }
}
