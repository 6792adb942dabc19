//! The list of files, in a window of rank 0, from which ranks claim one file after the other.
use rma::{Assert, Communicator, Error, LockAll, Op, Rank, RmaError, Window};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// Who holds the list.
pub(crate) const HOME: Rank = Rank(0);
/// Bytes of a number in the window.
const NUMBER: u64 = size_of::<u64>() as u64;

/// The list: a counter, where each path begins and the last one ends, and the paths.
pub(crate) struct FileList {
    window: Window,
    files: u64,
}

/// The right to claim files.
pub(crate) struct Claims<'l> {
    epoch: LockAll<'l>,
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
    /// Shares `files` of rank 0, which the others pass as an empty list. **Collective.**
    pub(crate) fn new(world: &Communicator, files: &[PathBuf]) -> Result<Self, Error> {
        let mut count = [files.len() as u64];
        world.bcast(&mut count, HOME)?;
        let mut begins = Vec::with_capacity(files.len() + 1);
        let mut paths: Vec<u8> = Vec::new();
        for file in files {
            begins.push(paths.len() as u64);
            paths.extend(file.as_os_str().as_bytes());
        }
        begins.push(paths.len() as u64);
        let mine = world.rank() == HOME;
        let bytes = size_of::<u64>() * (1 + begins.len()) + paths.len();
        let window = world.window(if mine { bytes } else { 0 }, 1).allocate()?;
        let list = Self { window, files: count[0] };

        let epoch = list.window.fence(Assert::NO_PRECEDE)?;
        if mine {
            epoch.put(HOME, NUMBER, &begins)?;
            epoch.put(HOME, list.paths(), &paths)?;
        }
        epoch.end()?;
        Ok(list)
    }

    /// Where the paths begin.
    fn paths(&self) -> u64 {
        NUMBER * (self.files + 2)
    }

    /// Begins to claim.
    pub(crate) fn open(&self) -> Result<Claims<'_>, RmaError> {
        Ok(Claims { epoch: self.window.lock_all()?, files: self.files })
    }

    /// Ends the list. **Collective.**
    pub(crate) fn free(self) -> Result<(), Error> {
        Ok(self.window.free()?)
    }
}

impl Claims<'_> {
    /// The next file that nobody has claimed, or `None` when all are.
    pub(crate) fn next(&self) -> Result<Option<Claim>, RmaError> {
        let number = self.epoch.fetch_and_op(HOME, 0, Op::Sum, 1u64)?;
        if number >= self.files {
            return Ok(None);
        }
        let mut range = [0u64; 2];
        self.epoch.get(HOME, NUMBER * (1 + number), &mut range)?;
        let [begin, end] = range;
        let mut path = vec![0u8; end.saturating_sub(begin) as usize];
        self.epoch.get(HOME, NUMBER * (self.files + 2) + begin, &mut path)?;
        Ok(Some(Claim { number, files: self.files, path: OsString::from_vec(path).into() }))
    }

    /// Ends the epoch.
    pub(crate) fn close(self) -> Result<(), RmaError> {
        self.epoch.unlock()
    }
}
