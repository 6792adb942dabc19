//! libfabric, for tests that run where it is.
use rma::OfiError;
use rma_transport_ofi::Libfabric;

/// Whether there is one; panics if it is there and cannot be used.
pub(crate) fn is_here() -> bool {
    let loaded = Libfabric::load();
    if let Err(error @ OfiError::Missing { .. }) = &loaded {
        println!("skipped: {error}");
        return false;
    }
    loaded.map(drop).unwrap();
    true
}
