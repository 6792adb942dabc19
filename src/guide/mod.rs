//! Guides: pages to read, without code of their own. Each sample on them runs.
//!
//! | page | for readers who |
//! | --- | --- |
//! | [`tour`] | begin: what there is, one sample for each |
//! | [`epochs`] | ask which epochs go together, and what a refusal means |
//! | [`memory_model`] | ask when a buffer is theirs again, and what each rank sees when |
//! | [`patterns`] | have a problem: halo, counter, lock, message queue, work stealing, updates |
//! | [`debugging`] | have a wrong result, an error, or a program that hangs |
//! | [`from_mpi`] | know MPI: each function of chapter 12, and its form here |
//! | [`from_openshmem`] | know OpenSHMEM: the same |

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

#[cfg(test)]
mod tests {
    use crate::{EpochCall, EpochKind};

    #[test]
    fn the_page_on_epochs_shows_the_table_that_is_checked() {
        let names = ["[`Fence`]", "[`Start`]", "[`Exposure`]", "[`Lock`] of the own part"];
        let names = names.into_iter().chain(["[`Lock`] of another part", "[`LockAll`]"]);
        for (open, name) in EpochKind::ALL.into_iter().zip(names) {
            let word = |call: EpochCall| if call.allowed_in(open) { " yes |" } else { " no |" };
            let row = format!("\n| {name} |{}\n", EpochCall::ALL.map(word).concat());
            assert!(include_str!("epochs.md").contains(&row), "should have{row}");
        }
    }

    /// Chapter 12 of MPI 4.1; forms with `_c` are the same functions.
    const CHAPTER_12: &str = "Win_create Win_allocate Win_allocate_shared Win_shared_query \
        Win_create_dynamic Win_attach Win_detach Win_free Win_get_group Win_set_info Win_get_info \
        Put Get Accumulate Get_accumulate Fetch_and_op Compare_and_swap Rput Rget Raccumulate \
        Rget_accumulate Win_fence Win_start Win_complete Win_post Win_wait Win_test Win_lock \
        Win_lock_all Win_unlock Win_unlock_all Win_flush Win_flush_all Win_flush_local \
        Win_flush_local_all Win_sync";

    #[test]
    fn the_page_for_mpi_has_each_function() {
        for function in CHAPTER_12.split_whitespace() {
            let row = format!("\n| `MPI_{function}` | ");
            assert!(include_str!("from_mpi.md").contains(&row), "no row for {function}");
        }
    }
}
