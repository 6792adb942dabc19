//! Networks by libfabric: which providers this host has, which of them a job takes, and messages
//! over that ([`join`]).
//!
//! libfabric is loaded at run time: a program starts where there is none, and
//! [`Libfabric::load`] says so.
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

mod book;
mod choice;
mod device;
mod error;
mod flights;
mod frame;
mod join;
mod lane;
mod looks;
mod objects;
mod offer;
mod patience;
mod port;
mod profile;
mod queue;
mod raw;
mod seal;
mod sync;
mod sys;
mod turns;
mod watcher;

pub use book::{Directory, Told};
pub use choice::{Wanted, choose};
pub use error::OfiError;
pub use join::{OfiConfig, OfiJoinError, join};
pub use offer::{Keys, Offer, Progress};
#[doc(hidden)]
pub use raw::{RawLink, RawMemory};
pub use seal::JobSecret;
pub use sys::Libfabric;
