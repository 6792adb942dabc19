//! Protocols without I/O: message layouts and state machines.
pub(crate) mod lock;
pub(crate) mod message;
pub(crate) mod pscw;
pub(crate) mod rows;
