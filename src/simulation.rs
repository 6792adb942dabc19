//! What a simulation that failed tells: the parts of a [`SimFailure`].
//!
//! ```
//! use rma::simulation::Cause;
//!
//! // A rank waits for a flag that no rank sets.
//! let failure = rma::simulate(1, 42, |universe| {
//!     let window = universe.world().window(1, 8).allocate().unwrap();
//!     while window.local().load::<u64>(0).unwrap() == 0 {}
//! });
//! let Cause::Deadlock { waiting, .. } = failure.unwrap_err().cause else { unreachable!() };
//! assert!(waiting[0].polls);
//! ```

pub use rma_transport_sim::{Cause, ConfigError, RankPanic, SimFailure, Trace, Waiter};
