//! libfabric's C interface, as far as it is used: loaded at run time, by versioned symbols.
//!
//! Objects close what they own and then let go of what they stand on (`object.rs`), so that an
//! endpoint is closed before its queue, that before its domain, and that before the fabric.

mod alias;
mod atomics;
mod end;
mod endpoint;
mod infos;
mod layout;
mod library;
mod object;
mod opened;
mod slots;

pub(crate) use alias::NoAlias;
pub(crate) use atomics::{Atomics, Combining, Form};
pub(crate) use end::end;
pub(crate) use endpoint::{Completion, Direction, Endpoint, Failure, Far, Full};
pub use library::Libfabric;
pub(crate) use opened::{Caps, Exposed, Opened, Passive};
pub(crate) use slots::Slot;

#[cfg(test)]
pub(crate) mod here;
#[cfg(test)]
pub(crate) use layout::pretended;
#[cfg(test)]
mod fault_tests;
#[cfg(test)]
mod recorded_tests;
#[cfg(test)]
mod transfer_tests;
