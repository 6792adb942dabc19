//! The only code that touches window bytes.
//!
//! Window memory is written by other ranks at any time, so there is no reference to it and no
//! plain load or store of it: everything goes through [`copy`], [`strided`] and [`atomic`].
pub(crate) mod accumulate;
pub(crate) mod atomic;
pub(crate) mod block;
pub(crate) mod copy;
pub(crate) mod directory;
pub(crate) mod fused;
pub(crate) mod stores;
pub(crate) mod strided;
pub(crate) mod stripe;
pub(crate) mod target;
