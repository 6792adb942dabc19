//! Persistent windows: memory of a name, below a root, with versions that survive crashes.

mod error;
mod hints;
mod manage;
mod memory;
mod root;

pub use error::{PersistentCode, PersistentError};
pub use hints::{PersistentHints, PersistentMode};
pub use manage::{VersionSummary, WindowSummary};
pub use memory::PersistentMemory;
pub use root::Root;

use rma_core::{Communicator, Rank};

const CODES: [PersistentCode; 8] = [
    PersistentCode::RootPath,
    PersistentCode::Name,
    PersistentCode::CheckpointVersion,
    PersistentCode::Mode,
    PersistentCode::Windows,
    PersistentCode::Versions,
    PersistentCode::Arg,
    PersistentCode::NoMem,
];

/// Words of each rank, if all have done what they were about to. A rank that failed tells its own
/// error, and all others that of the lowest one that failed.
fn agree<T, const N: usize>(
    comm: &Communicator,
    what: &'static str,
    done: Result<T, PersistentError>,
    words: impl FnOnce(&T) -> [u64; N],
) -> Result<(T, Vec<[u64; N]>), PersistentError> {
    // 0: done; 1: an error without a code; from 2 on: one with that.
    let mut mine = vec![0; N + 1];
    match &done {
        Ok(done) => mine[1..].copy_from_slice(&words(done)),
        Err(error) => {
            let code = error.code().and_then(|code| CODES.iter().position(|all| *all == code));
            mine[0] = code.map_or(1, |code| code as u64 + 2);
        }
    }
    let all = comm.allgather(&mine);
    let (done, all) = (done?, all?);
    let mut words = Vec::new();
    for (rank, all) in (0..).zip(all.chunks(N + 1)) {
        if all[0] != 0 {
            let code = (all[0] as usize).checked_sub(2).and_then(|code| CODES.get(code).copied());
            return Err(PersistentError::Elsewhere { rank: Rank(rank), what, code });
        }
        let mut own = [0; N];
        own.copy_from_slice(&all[1..]);
        words.push(own);
    }
    Ok((done, words))
}
