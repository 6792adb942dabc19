//! The only code that touches window bytes.
//!
//! Window memory is written by other ranks at any time, so there is no reference to it and no
//! plain load or store of it: everything goes through [`copy`], [`strided`], `masked`, [`plane`],
//! [`fused`] and [`atomic`].
pub(crate) mod accumulate;
pub(crate) mod atomic;
pub(crate) mod bias;
mod by_device;
#[cfg(any(not(target_arch = "x86_64"), miri, test))]
mod cells;
pub(crate) mod control_block;
pub(crate) mod copy;
pub(crate) mod directory;
pub(crate) mod fused;
pub(crate) mod lane;
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) mod large;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod masked;
mod plane;
pub(crate) mod pool;
#[cfg(test)]
mod race_tests;
pub(crate) mod stores;
pub(crate) mod strided;
pub(crate) mod stripe;
pub(crate) mod target;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod transaction;
