//! Networks by libfabric: which providers this host has, and which of them a job takes.
//!
//! libfabric is loaded at run time: a program starts where there is none, and
//! [`Libfabric::load`] says so. Nothing is sent yet: this crate finds and chooses.
//!
//! ```
//! use rma_transport_ofi::{Libfabric, Wanted, choose};
//!
//! let offers = Libfabric::load().and_then(|library| library.offers());
//! match offers.and_then(|offers| choose(&offers, &Wanted::default()).cloned()) {
//!     Ok(offer) => println!("{} on {}", offer.provider, offer.domain),
//!     Err(error) => println!("{error}"),
//! }
//! ```

mod choice;
mod error;
mod offer;
mod sys;

pub use choice::{Wanted, choose};
pub use error::OfiError;
pub use offer::{Keys, Offer, Progress};
pub use sys::Libfabric;
