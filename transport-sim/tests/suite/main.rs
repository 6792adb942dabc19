//! The simulated network, through its public API.

mod atomics;
mod common;
mod cut_off;
mod device;
mod faults;
mod memory;
mod messages;
mod party;
mod replay;
mod waiting;
