//! Protocols without I/O: message layouts and state machines.
pub(crate) mod credit;
pub(crate) mod global_lock;
pub(crate) mod home;
pub(crate) mod lock;
pub(crate) mod message;
pub(crate) mod outbox;
pub(crate) mod pscw;
pub(crate) mod rendezvous;
#[cfg(test)]
mod rendezvous_tests;
pub(crate) mod rows;
pub(crate) mod wire;
