//! The conformance suite: one file per topic, generic over a harness, instantiated by every
//! transport.
//!
//! A *case* is a function of a [`Universe`] that every rank of a job runs, and the number of ranks
//! it wants. [`suite!`] makes a `#[test]` of every case for one [`Harness`].
use rma_core::Universe;
use rma_core::transport::Transport;

/// A way to run a case: which transport, and ranks as what.
pub trait Harness {
    /// The transport under test.
    type T: Transport;

    /// Runs `case` as `ranks` ranks, and panics if one of them does. `name` is that of the test.
    fn run(name: &str, ranks: u32, case: fn(Universe<Self::T>));
}
