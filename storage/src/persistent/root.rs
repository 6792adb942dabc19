//! The root of an instance of an application, which one job has at a time.
use super::error::PersistentError;
use super::{agree, finish};
use crate::file::retry;
use crate::lock::{lock_range, unlock_range};
use crate::store::{Disk, KEY_FILE, Key, key_of, tag};
use rma_core::{Communicator, Universe};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::rand::{GetRandomFlags, getrandom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const LOCK_FILE: &str = "rma-root.lock";
/// More bytes than there are ranks: the first is the instance's, and each other one a rank's.
const ALL: Range<u64> = 0..1 << 40;

/// A folder that is an instance of an application: its persistent windows are below it, by their
/// names. A value of it keeps other instances away; the kernel gives that back with the process.
#[derive(Debug, Clone)]
pub struct Root {
    pub(super) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) path: PathBuf,
    pub(super) disk: Disk,
    pub(super) key: Key,
    /// Tells this opening of the root from those of others, also of a copy, which has its key; the
    /// same at all ranks.
    pub(super) opening: u64,
    lock: Option<(OwnedFd, Range<u64>)>,
    process: Pid,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A fork has the same lock.
        if let Some((file, range)) = self.lock.take()
            && rustix::process::getpid() == self.process
        {
            unlock_range(file, range.start, range.end - range.start);
        }
    }
}

impl Root {
    /// Opens the root of this job, whose folder is there, on a file system that all of its hosts
    /// share; the first time, it is made a root. **Collective**.
    ///
    /// # Errors
    ///
    /// [`PersistentError::RootPath`], [`PersistentError::RootInUse`] with host and process of the
    /// other instance, [`PersistentError::System`].
    pub fn open(world: &Communicator, path: impl AsRef<Path>) -> Result<Self, PersistentError> {
        let (what, rank) = ("opening the root", u32::from(world.rank()));
        let (path, _) = finish(agree(world, what, absolute(path.as_ref()), |_| []))?;
        let path = path.as_path();
        // The first byte keeps all other jobs away; the others of this job lock their own then.
        let first = || {
            let file = take(path, ALL)?;
            unlock_range(&file, 1, ALL.end - 1);
            Ok(file)
        };
        let first = if rank == 0 { first().map(Some) } else { Ok(None) };
        let (first, _) = finish(agree(world, what, first, |_| []))?;
        let range = if rank == 0 { 0..1 } else { 1 + u64::from(rank)..2 + u64::from(rank) };
        let lock = first.map_or_else(|| take(path, range.clone()), Ok);
        let lock = lock.map(|file| (file, range));
        let (lock, _) = finish(agree(world, what, lock, |_| []))?;
        let disk = Disk::new(path);
        let made = || {
            let (key, opening) = (key(path, &disk)?, u64::from_le_bytes(random()?));
            tell_opening(path, &lock.0, opening)?;
            Ok((key, opening))
        };
        let made = if rank == 0 { made().map(Some) } else { Ok(None) };
        let word = |made: &Option<(Key, u64)>| [made.map_or(0, |(_, opening)| opening)];
        let (made, openings) = finish(agree(world, what, made, word))?;
        // A rank that finds none makes none: its host has another file system there.
        let missing = "rank 0 has made it a root, and this rank's host has none there; choose a \
                       folder on a file system that all hosts share";
        let key = made.map_or_else(|| known_key(path, &disk, missing), |(key, _)| Ok(key));
        let words = |key: &Key| [tag(key, b"root")];
        let (key, all) = finish(agree(world, what, key, words))?;
        if all.iter().any(|one| *one != all[0]) {
            let what = "hosts have different roots there; choose a folder on a file system that \
                        all hosts share";
            return Err(refused(path, what));
        }
        // A copy has the key of its original.
        let opening = openings[0][0];
        let is_it = opened_line(path).is_some_and(|line| line == opening_line(opening));
        let what = "it is a copy of the root that rank 0 has opened; name the same folder at all \
                    ranks, on a file system that all hosts share";
        let is_it = if is_it { Ok(()) } else { Err(refused(path, what)) };
        finish(agree(world, "opening the root", is_it, |()| []))?;
        Ok(Self::new(path, disk, (key, opening), Some(lock)))
    }

    /// Opens the root that the job was told of: by `rma-run --root DIR`, `RMA_ROOT`, or by the
    /// program (`Builder::root`). **Collective**.
    ///
    /// # Errors
    ///
    /// [`PersistentError::RootPath`] if it was told of none; those of [`open`](Self::open).
    pub fn of_job(universe: &Universe) -> Result<Self, PersistentError> {
        let what = "the job was told of none; run it by `rma-run --root DIR`";
        let none = || PersistentError::RootPath { path: "of the job".to_owned(), what };
        let world = universe.world();
        let told = universe.root().ok_or_else(none);
        let (path, _) = finish(agree(world, "opening the root", told, |_| []))?;
        Self::open(world, path)
    }

    /// Opens the root by this process alone, to manage what is there.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_alone(path: impl AsRef<Path>) -> Result<Self, PersistentError> {
        let path = &absolute(path.as_ref())?;
        let lock = (take(path, ALL)?, ALL);
        let disk = Disk::new(path);
        let key = (key(path, &disk)?, u64::from_le_bytes(random()?));
        Ok(Self::new(path, disk, key, Some(lock)))
    }

    /// The root as it is at this moment, to be listed only; another job may have it.
    ///
    /// # Errors
    ///
    /// [`PersistentError::RootPath`], [`PersistentError::System`].
    pub fn look(path: impl AsRef<Path>) -> Result<Self, PersistentError> {
        let path = &absolute(path.as_ref())?;
        check_path(path)?;
        let disk = Disk::to_read(path);
        let key = known_key(path, &disk, "it is no root: no job has had windows there")?;
        Ok(Self::new(path, disk, (key, 0), None))
    }

    fn new(
        path: &Path,
        disk: Disk,
        (key, opening): (Key, u64),
        lock: Option<(OwnedFd, Range<u64>)>,
    ) -> Self {
        let (path, process) = (path.to_owned(), rustix::process::getpid());
        Self { inner: Arc::new(Inner { path, disk, key, opening, lock, process }) }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Whether this value keeps others away.
    pub(super) fn is_locked(&self) -> bool {
        self.inner.lock.is_some()
    }
}

fn refused(path: &Path, what: &'static str) -> PersistentError {
    PersistentError::RootPath { path: path.display().to_string(), what }
}

/// The process may have another folder when a window is opened.
fn absolute(path: &Path) -> Result<PathBuf, PersistentError> {
    std::path::absolute(path).map_err(|error| match Errno::from_io_error(&error) {
        Some(errno) => system(path, "getcwd", errno),
        None => refused(path, "it is empty; name a folder"),
    })
}

fn check_path(path: &Path) -> Result<(), PersistentError> {
    match rustix::fs::stat(path) {
        Ok(stat) if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir() => Ok(()),
        Ok(_) => Err(refused(path, "it is no folder; name one")),
        Err(Errno::NOENT | Errno::NOTDIR) => {
            Err(refused(path, "there is no such folder; make it first"))
        }
        Err(errno) => Err(system(path, "stat", errno)),
    }
}

fn system(path: &Path, call: &'static str, errno: Errno) -> PersistentError {
    let path = path.display().to_string();
    PersistentError::System { path, call, errno: errno.raw_os_error() }
}

/// Locks a range of the file of locks; the holder of all of it names itself.
fn take(path: &Path, range: Range<u64>) -> Result<OwnedFd, PersistentError> {
    check_path(path)?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let name = path.join(LOCK_FILE);
    let file = rustix::fs::open(&name, flags, Mode::RUSR | Mode::WUSR);
    let file = file.map_err(|errno| match errno {
        Errno::ACCESS | Errno::ROFS => refused(path, "this user cannot write there"),
        errno => system(&name, "open", errno),
    })?;
    let locked = lock_range(&file, range.start, range.end - range.start);
    if !locked.map_err(|errno| system(&name, "fcntl", errno))? {
        let (path, holder) = (path.display().to_string(), holder(&file));
        return Err(PersistentError::RootInUse { path, holder });
    }
    if range == ALL {
        let host = rustix::system::uname();
        let host = host.nodename().to_string_lossy();
        let text = format!("process {} on {host}\n", rustix::process::getpid().as_raw_nonzero());
        let wrote = rustix::fs::ftruncate(&file, 0)
            .and_then(|()| rustix::io::pwrite(&file, text.as_bytes(), 0));
        wrote.map_err(|errno| system(&name, "pwrite", errno))?;
    }
    Ok(file)
}

fn opening_line(opening: u64) -> String {
    format!("opening {opening:016x}")
}

/// Adds to the file of locks which opening of the root this is, for the other ranks.
fn tell_opening(path: &Path, file: &OwnedFd, opening: u64) -> Result<(), PersistentError> {
    let line = opening_line(opening) + "\n";
    let told = rustix::fs::fstat(file)
        .and_then(|stat| rustix::io::pwrite(file, line.as_bytes(), stat.st_size as u64))
        // As others see it, who open the file behind this, on a file system over a network, too.
        .and_then(|_| rustix::fs::fdatasync(file));
    told.map_err(|errno| system(&path.join(LOCK_FILE), "pwrite", errno))
}

/// What rank 0 has added, if the root is the one that it has opened.
fn opened_line(path: &Path) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::open(path.join(LOCK_FILE), flags, Mode::empty()).ok()?;
    lines_of(&file).lines().nth(1).map(str::to_owned)
}

/// What the file of locks says: its holder, and which opening of the root that has.
fn lines_of(file: &OwnedFd) -> String {
    let mut bytes = [0; 512];
    let len = rustix::io::pread(file, &mut bytes, 0).unwrap_or(0);
    String::from_utf8_lossy(&bytes[..len]).into_owned()
}

/// The holder of the root, as its file says; it may be writing that just now.
fn holder(file: &OwnedFd) -> String {
    let lines = lines_of(file);
    lines.lines().next().filter(|line| !line.is_empty()).unwrap_or("another process").to_owned()
}

/// The key of a root, which is made one if it is none.
fn key(path: &Path, disk: &Disk) -> Result<Key, PersistentError> {
    key_of(disk, random)?.ok_or_else(|| damaged(path))
}

fn random<const N: usize>() -> Result<[u8; N], PersistentError> {
    let mut bytes = [0; N];
    // Of a pool that is filled once the system is up; short reads are of larger ones.
    match retry(|| getrandom(&mut bytes, GetRandomFlags::empty())) {
        Ok(len) if len == N => Ok(bytes),
        Ok(_) => Err(Errno::IO),
        Err(errno) => Err(errno),
    }
    .map_err(|errno| PersistentError::System {
        path: KEY_FILE.to_owned(),
        call: "getrandom",
        errno: errno.raw_os_error(),
    })
}

/// The key of a root; `missing` says what is wrong if it is none.
fn known_key(path: &Path, disk: &Disk, missing: &'static str) -> Result<Key, PersistentError> {
    key_of(disk, || Err(refused(path, missing)))?.ok_or_else(|| damaged(path))
}

fn damaged(path: &Path) -> PersistentError {
    refused(path, "its file rma-root is damaged; put it back from a copy")
}
