//! What can be done to a target's memory: operations, scopes, requests.
pub(crate) mod layout;
mod op;
mod request;
mod scope;
mod shaped;

pub use layout::{Layout, LayoutError, Order, Shape, Signature};
pub use op::Op;
pub use request::{OriginBuffer, Request};
pub use scope::Ops;
