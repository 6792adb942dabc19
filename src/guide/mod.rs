//! Guides: pages to read, without code of their own. Each sample on them runs.
//!
//! | page | for whom |
//! | --- | --- |
//! | [`tour`] | who begins: what there is, one sample for each |
//! | [`epochs`] | which epochs go together, and what a refusal means |
//! | [`memory_model`] | when a buffer is yours again, and who sees what when |
//! | [`patterns`] | who has a problem: halo, counter, lock, mailbox, work stealing, updates |
//! | [`debugging`] | who has a wrong result, an error, or a program that hangs |
//! | [`from_mpi`] | who knows MPI: each function of chapter 12, and its form here |
//! | [`from_openshmem`] | who knows OpenSHMEM: the same |

// What the pages link to.
#[cfg(doc)]
use crate::*;

#[doc = include_str!("debugging.md")]
pub mod debugging {}

#[doc = include_str!("epochs.md")]
pub mod epochs {}

#[doc = include_str!("from_mpi.md")]
pub mod from_mpi {}

#[doc = include_str!("from_openshmem.md")]
pub mod from_openshmem {}

#[doc = include_str!("memory_model.md")]
pub mod memory_model {}

#[doc = include_str!("patterns.md")]
pub mod patterns {}

#[doc = include_str!("tour.md")]
pub mod tour {}
