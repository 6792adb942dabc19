//! Semantics of one-sided communication: no system call, no environment, no clock.
pub mod transport;
