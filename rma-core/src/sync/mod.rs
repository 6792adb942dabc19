//! Synchronisation: which epochs are open, the locks and the signals beneath them, and where all
//! ranks of a window meet.
mod commit;
mod epochs;
mod far_lock;
mod global_lock;
mod lock;
mod meeting;
mod pscw;
mod signals;
mod transitions;

pub(crate) use global_lock::Patience;
pub use lock::LockKind;
pub(crate) use pscw::COMPLETE_WAIT;
pub use transitions::{EpochCall, EpochKind};
