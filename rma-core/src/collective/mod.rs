//! Collective operations: trees and dissemination over messages, flags where memory is shared.
//!
//! Every operation is a sequence of [`exchange`] sends and receives; what waits, sleeps in
//! `wait_until`. A root or a fast rank may run ahead of the others by a bounded number of
//! operations only ([`AHEAD_MAX`]), so that what arrives early takes bounded memory.
mod exchange;
pub(crate) mod mail;
pub(crate) mod near;
mod operations;
mod reduction;

pub use reduction::Reduction;

/// Operations that a rank may be ahead of another before all wait for each other.
const AHEAD_MAX: u32 = 16;
