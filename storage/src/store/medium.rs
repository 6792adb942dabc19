//! All that the store asks of storage: one trait, so that tests can be a storage that loses power.
use crate::ahead::begin_to_write;
use crate::file::{is_btrfs, is_too_long, retry};
use core::fmt::Debug;
use core::ops::Range;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// What the metadata of some stores takes on btrfs: 16 KiB for each piece of a file that is stored
/// to.
const ROOM: u64 = 512 << 10;

/// A call that storage refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MediumError {
    /// Below the root.
    pub(crate) path: String,
    pub(crate) call: &'static str,
    pub(crate) errno: Errno,
}

pub(crate) type Result<T> = std::result::Result<T, MediumError>;

/// Files in folders of one level, below a root. Paths have a `/` between the two.
pub(crate) trait Medium {
    type File: Debug;

    /// The file, if there is one.
    fn open(&self, path: &str) -> Result<Option<Self::File>>;
    /// A file of no bytes: new, or emptied.
    fn create(&self, path: &str) -> Result<Self::File>;
    fn len(&self, file: &Self::File) -> Result<u64>;
    /// Fills all of `bytes`; `NODATA` if the file ends before.
    fn read_at(&self, file: &Self::File, bytes: &mut [u8], offset: u64) -> Result<()>;
    fn write_at(&self, file: &Self::File, bytes: &[u8], offset: u64) -> Result<()>;
    /// Begins to write bytes to the device, so that `sync` waits the less; no more than a wish.
    fn begin_sync(&self, file: &Self::File, bytes: Range<u64>) {
        _ = (file, bytes);
    }
    /// Reserves space for the bytes from `start` to `end`, which the file then has.
    fn allocate(&self, file: &Self::File, start: u64, end: u64) -> Result<()>;
    /// Makes the bytes durable, and not the name.
    fn sync(&self, file: &Self::File) -> Result<()>;
    /// Makes durable which names are in a folder, and what they name.
    fn sync_folder(&self, folder: &str) -> Result<()>;
    fn rename(&self, from: &str, to: &str) -> Result<()>;
    /// Also if there is none.
    fn remove(&self, path: &str) -> Result<()>;
    /// Names in a folder; none at all if there is no such folder.
    fn list(&self, folder: &str) -> Result<Option<Vec<String>>>;
    /// Also if there is one.
    fn make_folder(&self, folder: &str) -> Result<()>;
    /// An empty one; also if there is none.
    fn remove_folder(&self, folder: &str) -> Result<()>;

    /// Whether a block is what was written.
    fn is_intact(&self, bytes: &[u8], crc: u32) -> bool {
        crc32fast::hash(bytes) == crc
    }

    /// All bytes of a file, if there is one.
    fn read(&self, path: &str) -> Result<Option<Vec<u8>>> {
        let Some(file) = self.open(path)? else { return Ok(None) };
        let len = self.len(&file)?;
        // Damage may have made it of any length.
        let mut bytes = Vec::new();
        let room = usize::try_from(len).ok().filter(|len| bytes.try_reserve_exact(*len).is_ok());
        let nomem = || MediumError { path: path.to_owned(), call: "read", errno: Errno::NOMEM };
        bytes.resize(room.ok_or_else(nomem)?, 0);
        self.read_at(&file, &mut bytes, 0)?;
        Ok(Some(bytes))
    }

    /// A file of these bytes, which are durable; the name is not.
    fn write_durable(&self, path: &str, bytes: &[u8]) -> Result<()> {
        let file = self.create(path)?;
        self.allocate(&file, 0, bytes.len() as u64)?;
        self.write_at(&file, bytes, 0)?;
        self.sync(&file)
    }
}

/// A folder of a file system.
#[derive(Debug, Clone)]
pub(crate) struct Disk {
    root: PathBuf,
    /// How files that are there are opened.
    access: OFlags,
}

/// A file of it.
#[derive(Debug)]
pub(crate) struct DiskFile {
    descriptor: OwnedFd,
    path: String,
}

impl AsFd for DiskFile {
    fn as_fd(&self) -> rustix::fd::BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Disk {
    pub(crate) fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), access: OFlags::RDWR }
    }

    /// To be looked at, also by users who may not write there.
    pub(crate) fn to_read(root: &Path) -> Self {
        Self { root: root.to_owned(), access: OFlags::RDONLY }
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        if path.is_empty() { self.root.clone() } else { self.root.join(path) }
    }

    fn opened(&self, path: &str, flags: OFlags) -> std::result::Result<DiskFile, Errno> {
        let mode = Mode::RUSR | Mode::WUSR;
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let descriptor = retry(|| rustix::fs::open(self.path(path), flags, mode))?;
        Ok(DiskFile { descriptor, path: path.to_owned() })
    }
}

fn failed(path: &str, call: &'static str) -> impl Fn(Errno) -> MediumError {
    let path = if path.is_empty() { "the root" } else { path }.to_owned();
    move |errno| MediumError { path: path.clone(), call, errno }
}

/// Sees that a file does not take the last space of a file system that takes some for each page of
/// a mapping that is stored to, although its blocks are there: windows are such mappings, and a
/// store without that space is a SIGBUS.
fn leave_room(file: &DiskFile) -> rustix::io::Result<()> {
    if !is_btrfs(file) {
        return Ok(());
    }
    let end = rustix::fs::fstat(file)?.st_size as u64;
    let room = retry(|| rustix::fs::fallocate(file, FallocateFlags::empty(), end, ROOM));
    // Also the part of it that there was.
    retry(|| rustix::fs::ftruncate(file, end))?;
    room
}

impl Medium for Disk {
    type File = DiskFile;

    fn open(&self, path: &str) -> Result<Option<DiskFile>> {
        match self.opened(path, self.access) {
            Err(Errno::NOENT) => Ok(None),
            opened => opened.map(Some).map_err(failed(path, "open")),
        }
    }

    fn create(&self, path: &str) -> Result<DiskFile> {
        self.opened(path, OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC)
            .map_err(failed(path, "open"))
    }

    fn len(&self, file: &DiskFile) -> Result<u64> {
        let stat = rustix::fs::fstat(file).map_err(failed(&file.path, "fstat"))?;
        Ok(stat.st_size as u64)
    }

    fn read_at(&self, file: &DiskFile, mut bytes: &mut [u8], mut offset: u64) -> Result<()> {
        let failed = failed(&file.path, "pread");
        while !bytes.is_empty() {
            let read = retry(|| rustix::io::pread(file, &mut *bytes, offset)).map_err(&failed)?;
            if read == 0 {
                return Err(failed(Errno::NODATA));
            }
            bytes = &mut bytes[read..];
            offset += read as u64;
        }
        Ok(())
    }

    fn write_at(&self, file: &DiskFile, mut bytes: &[u8], mut offset: u64) -> Result<()> {
        let failed = failed(&file.path, "pwrite");
        while !bytes.is_empty() {
            let wrote = retry(|| rustix::io::pwrite(file, bytes, offset)).map_err(&failed)?;
            if wrote == 0 {
                return Err(failed(Errno::NOSPC));
            }
            bytes = &bytes[wrote..];
            offset += wrote as u64;
        }
        Ok(())
    }

    fn begin_sync(&self, file: &DiskFile, bytes: Range<u64>) {
        begin_to_write(file, bytes);
    }

    fn allocate(&self, file: &DiskFile, start: u64, end: u64) -> Result<()> {
        if start >= end {
            return Ok(());
        }
        if is_too_long(end) {
            return Err(failed(&file.path, "fallocate")(Errno::FBIG));
        }
        let flags = FallocateFlags::empty();
        match retry(|| rustix::fs::fallocate(file, flags, start, end - start)) {
            // Then space is taken by writing.
            Err(Errno::OPNOTSUPP) => {
                let zeros = vec![0; 1 << 16];
                let mut at = start.max(self.len(file)?);
                while at < end {
                    let len = (end - at).min(zeros.len() as u64) as usize;
                    self.write_at(file, &zeros[..len], at)?;
                    at += len as u64;
                }
                Ok(())
            }
            reserved => {
                let reserved = reserved.and_then(|()| leave_room(file));
                reserved.map_err(failed(&file.path, "fallocate"))
            }
        }
    }

    fn sync(&self, file: &DiskFile) -> Result<()> {
        retry(|| rustix::fs::fdatasync(file)).map_err(failed(&file.path, "fdatasync"))
    }

    fn sync_folder(&self, folder: &str) -> Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(self.path(folder), flags, Mode::empty());
        let synced = opened.and_then(|opened| retry(|| rustix::fs::fsync(&opened)));
        synced.map_err(failed(folder, "fsync"))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        rustix::fs::rename(self.path(from), self.path(to)).map_err(failed(to, "rename"))
    }

    fn remove(&self, path: &str) -> Result<()> {
        match rustix::fs::unlink(self.path(path)) {
            Err(Errno::NOENT) => Ok(()),
            removed => removed.map_err(failed(path, "unlink")),
        }
    }

    fn list(&self, folder: &str) -> Result<Option<Vec<String>>> {
        let errno = |error: &std::io::Error| Errno::from_io_error(error).unwrap_or(Errno::IO);
        let entries = match std::fs::read_dir(self.path(folder)) {
            Err(error) if [Errno::NOENT, Errno::NOTDIR].contains(&errno(&error)) => {
                return Ok(None);
            }
            entries => entries.map_err(|error| failed(folder, "readdir")(errno(&error)))?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| failed(folder, "readdir")(errno(&error)))?;
            // The store's own names are text.
            names.extend(entry.file_name().into_string());
        }
        names.sort_unstable();
        Ok(Some(names))
    }

    fn make_folder(&self, folder: &str) -> Result<()> {
        match rustix::fs::mkdir(self.path(folder), Mode::RWXU) {
            Err(Errno::EXIST) => Ok(()),
            made => made.map_err(failed(folder, "mkdir")),
        }
    }

    fn remove_folder(&self, folder: &str) -> Result<()> {
        match rustix::fs::rmdir(self.path(folder)) {
            Err(Errno::NOENT) => Ok(()),
            removed => removed.map_err(failed(folder, "rmdir")),
        }
    }
}
