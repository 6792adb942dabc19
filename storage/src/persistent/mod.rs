//! Persistent windows: memory of a name, below a root, with versions that survive crashes.

mod error;
mod hints;
mod manage;
mod memory;
mod request;
mod root;
mod start;
mod tracker;
mod transaction;

#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod divide_tests;
#[cfg(test)]
mod simulation;

pub use error::{PersistentCode, PersistentError};
pub use hints::{PersistentHints, PersistentMode};
pub use manage::{VersionSummary, WindowSummary};
pub use memory::PersistentMemory;
pub use request::CommitRequest;
pub use root::Root;
pub use tracker::DirtyTracking;

use core::future::{Future, ready};
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use rma_core::{CommitGroup, Communicator, Rank};

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

/// Ranks that open or commit together.
///
/// What they do is written once, over a [`Medium`](crate::store::Medium) and this: it performs no
/// call of the system, and waits for nothing but `gather`. So tests run all ranks in one thread, in
/// any order, and end each of them at any step.
trait Ranks {
    fn rank(&self) -> u32;
    fn size(&self) -> u32;
    /// The words of each rank, as many of each. **Collective**
    fn gather(
        &self,
        what: &'static str,
        words: &[u64],
    ) -> impl Future<Output = Result<Vec<u64>, PersistentError>>;
}

/// What ranks of processes do together, to its end: each `gather` has its answer when it returns.
fn finish<T>(together: impl Future<Output = T>) -> T {
    match pin!(together).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => unreachable!("it waits for calls that have returned"),
    }
}

impl Ranks for Communicator {
    fn rank(&self) -> u32 {
        self.rank().into()
    }

    fn size(&self) -> u32 {
        self.size()
    }

    fn gather(
        &self,
        _: &'static str,
        words: &[u64],
    ) -> impl Future<Output = Result<Vec<u64>, PersistentError>> {
        ready(self.allgather(words).map_err(PersistentError::from))
    }
}

/// Those of a window, as its core has them.
struct OfWindow<'g>(&'g dyn CommitGroup);

impl Ranks for OfWindow<'_> {
    fn rank(&self) -> u32 {
        self.0.rank().into()
    }

    fn size(&self) -> u32 {
        self.0.size()
    }

    fn gather(
        &self,
        what: &'static str,
        words: &[u64],
    ) -> impl Future<Output = Result<Vec<u64>, PersistentError>> {
        ready(self.0.gather(words).ok_or(PersistentError::Unheard { what }))
    }
}

/// Words of each rank, if all have done what they were about to. A rank that failed tells its own
/// error, and all others that of the lowest one that failed.
async fn agree<T, const N: usize>(
    ranks: &impl Ranks,
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
    let all = ranks.gather(what, &mine).await;
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
