//! The simulated network, through its public API.

mod common;
mod faults;
mod memory;
mod messages;
mod replay;
mod waiting;
