//! A deterministic network inside one process: the transport that turns a seed into a bug report.
//!
//! Ranks are threads that hand on a baton, so that exactly one of them runs at a time. At every
//! *yield point* (`send`, `poll`, `relax`, `park`, `ring`, `touches`) the seed decides which runs
//! next; the seed also decides how long each message travels, so messages overtake each other.
//! Nothing else decides anything: the same seed gives the same run, bit for bit, on every machine
//! and under Miri, and [`Trace::hash`] proves it.
//!
//! A rank's progress agent is one more thread that takes turns.
//!
//! Nothing is mapped, unless [`nodes`](NetConfig::nodes) says so:
//! [`is_near`](rma_core::transport::Shared::is_near) is false for every rank, itself included, so
//! all operations take the active-message path. Inside a node, load and store are a yield point
//! like views.
//!
//! ```
//! use rma_core::transport::{Messages, Sleep, WorldRank};
//! use rma_transport_sim::{NetConfig, run};
//!
//! let sums = run(&NetConfig::new(3, 42), |sim| {
//!     for to in 0..sim.size() {
//!         // SAFETY: no core receives it.
//!         unsafe { sim.send(WorldRank(to), &[1], &[2]) }.unwrap();
//!     }
//!     let (mut messages, mut sum) = (0, 0);
//!     while messages < sim.size() as usize {
//!         messages += sim.poll(&mut |_, bytes| sum += u32::from(bytes[0] + bytes[1]));
//!         sim.relax(0);
//!     }
//!     sum
//! });
//! assert_eq!(sums.unwrap(), [9, 9, 9]);
//! ```
//!
//! With a [`DeviceConfig`], a network has a device, too, which moves bytes to and from memory of
//! other ranks without them: each transfer takes some steps, at times that the seed decides. To
//! post, to flush and to poll an endpoint is a yield point.
//!
//! # Time
//!
//! One tick is one virtual microsecond. Every yield takes one tick; when no rank can run, the
//! clock jumps to the next arrival or timeout. If there is none either, the run is a
//! [deadlock](Cause::Deadlock): all ranks are made to fail and wake up to see it. A rank that only
//! looks, at its memory or for messages, 20 000 yields in a row in which nothing happens anywhere,
//! counts as one that cannot run: the clock jumps for it, too, and it takes part in a deadlock. Of
//! many looks at memory in a row, one in 64 is a yield.
//!
//! # Leaving
//!
//! News of a departure travels like a message: for a while, peers see a rank that left as alive,
//! and what they send to it is lost. An orderly departure is seen after everything that was sent
//! before it has arrived; a failure may be seen earlier.
//!
//! # What a rank's code must not do
//!
//! - Call the transport from another thread than the rank's own or its agent's: the call panics.
//! - Block on anything but the transport (a mutex held across a yield point by another rank, a
//!   `Barrier`, a channel): the rank keeps the baton while it blocks, and no other runs.
//! - Consult a wall clock, an address or a `HashMap`'s order: the seed does not decide those.

mod config;
mod device;
mod dma;
mod endpoint;
mod failure;
mod flight;
mod looks;
mod membership;
mod net;
mod queue;
mod random;
mod region;
mod run;
mod schedule;
mod sim;
mod trace;
mod traffic;

pub use config::{Atomics, ConfigError, DeviceConfig, NetConfig};
pub use failure::{Cause, RankPanic, SimFailure, Waiter};
pub use net::{Net, Seat};
pub use run::{Run, run, run_traced};
pub use sim::Sim;
pub use trace::Trace;
