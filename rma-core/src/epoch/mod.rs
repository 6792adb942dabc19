//! Epochs: a guard is the proof that one is open. The page for users is `rma::guide::epochs`.
//!
//! With nothing open, everything may be asked for. Otherwise (`transitions.rs`):
//!
//! | open on this rank | fence | start | post | lock own | lock other | lock_all | free | seal |
//! | --- | --- | --- | --- | --- | --- | --- | --- | --- |
//! | `Fence` | yes | no | no | no | no | no | no | no |
//! | `Start` | no | no | yes | no | no | no | no | no |
//! | `Exposure` | no | yes | no | no | yes | no | no | no |
//! | `Lock` own | no | no | no | no | yes | no | no | no |
//! | `Lock` other | no | no | yes | yes | yes | no | no | no |
//! | `LockAll` | no | no | no | no | no | no | no | no |
//!
//! A refusal is [`RmaError::EpochOpen`], or [`RmaError::AlreadyLocked`] for a second lock of the
//! same part, own or other. A fence in a fence epoch ends that and opens the next. At most one
//! access epoch and one exposure epoch are open, and a part is never locked by its rank while
//! exposed; that others lock an exposed part is their mistake, and not noticed.
//!
//! Guards borrow their window, so `free` and `seal` are refused by the compiler while one is in
//! scope; at run time only after a guard was forgotten.
mod access;
mod batch;
mod fence;
mod lock;
mod lock_all;
mod lock_request;
mod operands;
mod owned;
mod peer;
mod pscw;
mod request;
mod scope;

pub use access::Access;
pub use batch::Batch;
pub use fence::{Assert, Fence};
pub use lock::Lock;
pub use lock_all::LockAll;
pub use lock_request::LockRequest;
pub use operands::{Operands, OwnedOperands};
pub use owned::{OwnedLock, OwnedLockAll};
pub use peer::Peer;
pub use pscw::{Exposure, Start};
pub use request::Request;
pub use scope::Ops;
