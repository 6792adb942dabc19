//! What can be done to a target's memory: operations, scopes, requests.
mod op;
mod request;
mod scope;

pub use op::Op;
pub use request::{OriginBuffer, Request};
pub use scope::Ops;
