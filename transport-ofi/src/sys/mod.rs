//! libfabric's C interface, as far as it is used: loaded at run time, by versioned symbols.

mod infos;
mod layout;
mod library;

pub use library::Libfabric;
