//! A guard that is kept in a struct with its window: the list of files, in a window of rank 0, from
//! which ranks claim one file after the other.
use rma::{Assert, Communicator, Error, Op, OwnedLockAll, Rank};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::Arc;

/// The rank that holds the list.
pub(crate) const HOME: Rank = Rank(0);
/// Bytes of a number in the window.
const NUMBER: u64 = 8;

/// The list: a counter, where each path begins and the last one ends, and the paths.
pub(crate) struct FileList {
    lock: OwnedLockAll,
    files: u64,
}

/// A file that belongs to the rank that claimed it.
#[derive(Debug)]
pub(crate) struct Claim {
    /// Its place in the list.
    pub(crate) number: u64,
    /// How many there are.
    pub(crate) files: u64,
    /// Where it is.
    pub(crate) path: PathBuf,
}

impl FileList {
    /// Shares `files` of rank 0, which the others pass as an empty list; the first `done` of them
    /// are claimed already. **Collective.**
    pub(crate) fn new(world: &Communicator, files: &[PathBuf], done: u64) -> Result<Self, Error> {
        let mut count = [u64::try_from(files.len())?];
        world.bcast(&mut count, HOME)?;
        let mut begins: Vec<u64> = Vec::with_capacity(files.len() + 1);
        let mut paths: Vec<u8> = Vec::new();
        for file in files {
            begins.push(paths.len().try_into()?);
            paths.extend(file.as_os_str().as_bytes());
        }
        begins.push(paths.len().try_into()?);
        let mine = world.rank() == HOME;
        let bytes = size_of::<u64>() * (1 + begins.len()) + paths.len();
        let window = Arc::new(world.window(if mine { bytes } else { 0 }, 1).allocate()?);
        let epoch = window.fence(Assert::NO_PRECEDE)?;
        if mine {
            epoch.put(HOME, 0, &[done])?;
            epoch.put(HOME, NUMBER, &begins)?;
            epoch.put(HOME, NUMBER * (count[0] + 2), &paths)?;
        }
        epoch.end()?;
        Ok(Self { lock: window.lock_all_owned()?, files: count[0] })
    }

    /// The next file that no rank has claimed, or `None` when all are.
    pub(crate) fn next(&self) -> Result<Option<Claim>, Error> {
        let epoch = self.lock.epoch();
        let number = epoch.fetch_and_op(HOME, 0, Op::Sum, 1u64)?;
        if number >= self.files {
            return Ok(None);
        }
        let [begin, end] = epoch.rget(HOME, NUMBER * (1 + number), [0u64; 2])?.wait()?;
        let path = vec![0u8; usize::try_from(end.saturating_sub(begin))?];
        let path = epoch.rget(HOME, NUMBER * (self.files + 2) + begin, path)?.wait()?;
        Ok(Some(Claim { number, files: self.files, path: OsString::from_vec(path).into() }))
    }

    /// How many are claimed, and how many there are.
    pub(crate) fn claimed(&self) -> Result<(u64, u64), Error> {
        let number = self.lock.epoch().fetch_and_op(HOME, 0, Op::NoOp, 0u64)?;
        // Ranks that found none have counted on.
        Ok((number.min(self.files), self.files))
    }

    /// Ends the list. **Collective.**
    pub(crate) fn free(self) -> Result<(), Error> {
        let window = self.lock.unlock()?;
        Ok(Arc::into_inner(window).expect("no other holds it").free()?)
    }
}
