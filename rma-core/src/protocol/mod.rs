//! Protocols without I/O: message layouts and state machines.
pub(crate) mod lock;
pub(crate) mod message;
