//! A file or block device that memory lies on: found or made, locked, and with space reserved.
use crate::error::SpaceLimit;
use crate::lock::{lock_range, unlock_range};
use crate::striping::Striping;
use crate::{AccessStyle, StorageError};
use core::num::NonZeroU64;
use core::ops::Range;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, IFlags, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// How often a file is looked for that appears and vanishes meanwhile.
const TRIES: usize = 16;
/// Bytes that are written at once where the file system cannot reserve space.
const ZEROS: usize = 1 << 16;
/// What `statfs` says of that file system.
const BTRFS: rustix::fs::FsWord = 0x9123_683e;

/// Whether a file is on btrfs, which writes what it has to other blocks.
pub(crate) fn is_btrfs(file: impl AsFd) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|fs| fs.f_type == BTRFS)
}

/// An open file or device.
#[derive(Debug)]
pub(crate) struct StorageFile {
    pub(crate) descriptor: OwnedFd,
    path: PathBuf,
    is_device: bool,
    /// Made by this value, and not there before.
    is_new: bool,
    /// It lies on devices as was asked for.
    is_striped: bool,
}

/// What a file has that is new.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewFile {
    pub(crate) permissions: u32,
    pub(crate) striping: Striping,
}

impl StorageFile {
    /// That of `path`, with bytes of `range` reserved for this value. One that is not there is
    /// made, with its name as the last step: where the file system can, a failure leaves none.
    pub(crate) fn open(path: &Path, new: NewFile, range: Range<u64>) -> Result<Self, StorageError> {
        for _ in 0..TRIES {
            match Self::open_existing(path) {
                Err(StorageError::System { errno, .. }) if errno == Errno::NOENT.raw_os_error() => {
                }
                opened => match opened?.take_named(range.clone())? {
                    Some(file) => return Ok(file),
                    None => continue,
                },
            }
            let is_link =
                |stat: rustix::fs::Stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
            if rustix::fs::lstat(path).is_ok_and(is_link) {
                let (path, kind) = (path.to_owned(), "a link that leads nowhere");
                return Err(StorageError::NotStorage { path, kind });
            }
            if let Some(file) = Self::make(path, new, range.clone())? {
                return Ok(file);
            }
        }
        Err(system(path, "open", Errno::NOENT))
    }

    fn open_existing(path: &Path) -> Result<Self, StorageError> {
        let not_storage = |kind| StorageError::NotStorage { path: path.to_owned(), kind };
        // A pipe does not keep the caller waiting.
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        let descriptor =
            rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| match errno {
                Errno::ISDIR => not_storage("a folder"),
                Errno::NXIO => not_storage("a socket, or a device that is not there"),
                errno => system(path, "open", errno),
            })?;
        let is_device = match kind_of(&descriptor).map_err(|errno| system(path, "fstat", errno))? {
            FileType::RegularFile => false,
            FileType::BlockDevice => true,
            FileType::CharacterDevice => return Err(not_storage("a character device")),
            FileType::Fifo => return Err(not_storage("a pipe")),
            _ => return Err(not_storage("no file")),
        };
        Ok(Self { descriptor, path: path.to_owned(), is_device, is_new: false, is_striped: false })
    }

    /// With bytes of `range` reserved; `None` if its name is gone, or another file's: the memory
    /// that had these bytes may have removed it since it was opened.
    fn take_named(self, range: Range<u64>) -> Result<Option<Self>, StorageError> {
        self.take(range.clone())?;
        if !self.is_device && !self.is_at(rustix::fs::stat(&self.path)) {
            self.unlock(range);
            return Ok(None);
        }
        // Its maker may have been killed before the name was durable. A folder that cannot be read
        // is that of others.
        _ = sync_folder(&self.path);
        Ok(Some(self))
    }

    /// Whether it is the file that was found somewhere.
    fn is_at(&self, found: Result<rustix::fs::Stat, Errno>) -> bool {
        let file = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
        let open = rustix::fs::fstat(&self.descriptor).map(file);
        found.is_ok_and(|found| open == Ok(file(found)))
    }

    /// A new file; `None` if there is one by now.
    fn make(path: &Path, new: NewFile, range: Range<u64>) -> Result<Option<Self>, StorageError> {
        let folder = folder_of(path);
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(new.permissions);
        let striped = new.striping.flags(folder);
        let unnamed = match striped {
            Some(_) => Err(Errno::OPNOTSUPP),
            None => rustix::fs::open(folder, flags | OFlags::TMPFILE, mode),
        };
        let (descriptor, is_named) = match unnamed {
            Ok(descriptor) => (descriptor, false),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                let flags =
                    flags | OFlags::CREATE | OFlags::EXCL | striped.unwrap_or(OFlags::empty());
                match rustix::fs::open(path, flags, mode) {
                    Err(Errno::EXIST) => return Ok(None),
                    named => (named.map_err(|errno| system(path, "open", errno))?, true),
                }
            }
            Err(errno) => return Err(system(path, "open", errno)),
        };
        let is_striped = striped.is_some() && new.striping.set(&descriptor).is_ok();
        if striped.is_some() && !is_striped {
            // It has no stripes at all, and could not hold a byte: without the wish, then.
            rustix::fs::unlink(path).map_err(|errno| system(path, "unlink", errno))?;
            return Self::make(path, NewFile { striping: Striping::default(), ..new }, range);
        }
        let path_of = path.to_owned();
        let file = Self { descriptor, path: path_of, is_device: false, is_new: true, is_striped };
        file.keep_in_place();
        let made = file.take(range).and_then(|()| {
            rustix::fs::fsync(&file.descriptor).map_err(|errno| system(path, "fsync", errno))?;
            if !is_named && !file.name()? {
                return Ok(false);
            }
            sync_folder(path).map(|()| true)
        });
        let made = made.inspect_err(|_| file.unmake())?;
        Ok(made.then_some(file))
    }

    /// Has the file system write to the blocks that the file has, where it would take new ones for
    /// each write: that space is not reserved, and a writer without it ends by SIGBUS.
    fn keep_in_place(&self) {
        let is_btrfs = is_btrfs(&self.descriptor);
        let flags = rustix::fs::ioctl_getflags(&self.descriptor);
        if let Some(flags) = flags.ok().filter(|_| is_btrfs) {
            // What is compressed, as its folder wishes, cannot be: first the one, then the other.
            let flags = flags - IFlags::COMPRESSED;
            for flags in [flags, flags | IFlags::NOCOW] {
                _ = rustix::fs::ioctl_setflags(&self.descriptor, flags);
            }
        }
    }

    /// Gives the file its name; false if another has it.
    fn name(&self) -> Result<bool, StorageError> {
        let number = format!("/proc/self/fd/{}", self.descriptor.as_raw_fd());
        match rustix::fs::linkat(CWD, number, CWD, &self.path, AtFlags::SYMLINK_FOLLOW) {
            Err(Errno::EXIST) => Ok(false),
            linked => linked.map(|()| true).map_err(|errno| self.system("linkat", errno)),
        }
    }

    /// Locks the bytes, and reserves space for them.
    fn take(&self, range: Range<u64>) -> Result<(), StorageError> {
        let Range { start, end } = range;
        let locked = lock_range(&self.descriptor, start, end - start);
        if !locked.map_err(|errno| self.system("fcntl", errno))? {
            return Err(StorageError::InUse { path: self.path.clone(), start, end });
        }
        // All that this file has locked, what `shrink` did included.
        self.make_room(start, end).inspect_err(|_| self.unlock(0..i64::MAX as u64))
    }

    /// Reserves space for bytes that are locked.
    fn make_room(&self, start: u64, end: u64) -> Result<(), StorageError> {
        let space = |limit| StorageError::Space { path: self.path.clone(), start, end, limit };
        if self.is_device {
            let size = rustix::fs::seek(&self.descriptor, SeekFrom::End(0));
            let size = size.map_err(|errno| self.system("lseek", errno))?;
            let small = space(SpaceLimit::Device);
            return if end > size { Err(small) } else { Ok(()) };
        }
        if is_too_long(end) {
            return Err(space(SpaceLimit::FileLength));
        }
        let size = rustix::fs::fstat(&self.descriptor).map(|stat| stat.st_size as u64);
        let before = size.map_err(|errno| self.system("fstat", errno))?;
        match self.reserve(start, end).inspect_err(|_| self.shrink(before.max(start)..end)) {
            Ok(()) => Ok(()),
            Err(errno) => Err(match SpaceLimit::of(errno) {
                Some(limit) => space(limit),
                None => self.system("fallocate", errno),
            }),
        }
    }

    /// Gives back what a reservation that failed has taken behind the end of the file. These bytes
    /// are locked; others before and behind may be of memory that came, and went, meanwhile.
    fn shrink(&self, Range { start, end }: Range<u64>) {
        let rest = (i64::MAX as u64).saturating_sub(start);
        if start >= end {
            return;
        }
        let alone = lock_range(&self.descriptor, start, rest) == Ok(true);
        let size = rustix::fs::fstat(&self.descriptor).map(|stat| stat.st_size as u64);
        if alone && size.is_ok_and(|size| size > start && size <= end) {
            _ = rustix::fs::ftruncate(&self.descriptor, start);
            return;
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        _ = retry(|| rustix::fs::fallocate(&self.descriptor, flags, start, end - start));
    }

    fn reserve(&self, start: u64, end: u64) -> Result<(), Errno> {
        let flags = FallocateFlags::empty();
        match retry(|| rustix::fs::fallocate(&self.descriptor, flags, start, end - start)) {
            Err(Errno::OPNOTSUPP) => self.fill(start, end),
            reserved => reserved,
        }
    }

    /// Writes zeros where the file has nothing.
    fn fill(&self, start: u64, end: u64) -> Result<(), Errno> {
        let zeros = vec![0; ZEROS];
        let mut at = start;
        while at < end {
            at = match rustix::fs::seek(&self.descriptor, SeekFrom::Hole(at)) {
                Ok(hole) => hole.max(at),
                // Behind its end, all is a hole.
                Err(Errno::NXIO) => at,
                Err(errno) => return Err(errno),
            };
            let data = match rustix::fs::seek(&self.descriptor, SeekFrom::Data(at)) {
                Ok(data) => data.min(end),
                Err(Errno::NXIO) => end,
                Err(errno) => return Err(errno),
            };
            while at < data {
                let len = (data - at).min(ZEROS as u64) as usize;
                let wrote = retry(|| rustix::io::pwrite(&self.descriptor, &zeros[..len], at))?;
                if wrote == 0 {
                    return Err(Errno::NOSPC);
                }
                at += wrote as u64;
            }
        }
        Ok(())
    }

    /// Gives its bytes back; forks have a copy of the file, so that closing it may not do.
    pub(crate) fn unlock(&self, Range { start, end }: Range<u64>) {
        unlock_range(&self.descriptor, start, end - start);
    }

    /// There will be no memory: removes a file that was made for it, if no other memory lies there.
    pub(crate) fn unmake(&self) {
        if self.is_new && lock_range(&self.descriptor, 0, i64::MAX as u64) == Ok(true) {
            self.unlink();
        }
        self.unlock(0..i64::MAX as u64);
    }

    /// Whether it is a block device, which no rank makes or removes.
    pub(crate) fn is_device(&self) -> bool {
        self.is_device
    }

    /// Removes its name, unless that is another file's by now, or a link. Not of devices.
    pub(crate) fn unlink(&self) {
        if !self.is_device && self.is_at(rustix::fs::lstat(&self.path)) {
            _ = rustix::fs::unlink(&self.path);
        }
    }

    /// Bytes of a file; a device has those that it has.
    pub(crate) fn len(&self) -> Result<Option<u64>, Errno> {
        if self.is_device {
            return Ok(None);
        }
        rustix::fs::fstat(&self.descriptor).map(|stat| Some(stat.st_size as u64))
    }

    /// Writes bytes that the file has. False if it has them not, or not all were written.
    pub(crate) fn overwrite(&self, mut bytes: &[u8], mut at: u64) -> bool {
        let end = at.saturating_add(bytes.len() as u64);
        // A file that was cut must not grow again: `sync` tells of it by its length. And a limit
        // that was lowered since is no reason to be ended by a signal.
        let is_whole = self.len().is_ok_and(|len| len.is_none_or(|len| end <= len));
        if !is_whole || is_too_long(end) {
            return false;
        }
        while !bytes.is_empty() {
            match retry(|| rustix::io::pwrite(&self.descriptor, bytes, at)) {
                Ok(written) if written > 0 => {
                    bytes = bytes.get(written..).unwrap_or_default();
                    at += written as u64;
                }
                Ok(_) | Err(_) => return false,
            }
        }
        true
    }

    /// Makes durable what any process has written to it, its length, and where its bytes are.
    pub(crate) fn sync(&self) -> Result<(), StorageError> {
        let synced = retry(|| rustix::fs::fdatasync(&self.descriptor));
        synced.map_err(|errno| self.system("fdatasync", errno))
    }

    /// Whether this value made it.
    pub(crate) fn is_new(&self) -> bool {
        self.is_new
    }

    /// Whether it lies on devices as was asked for.
    pub(crate) fn is_striped(&self) -> bool {
        self.is_striped
    }

    /// Tells the system how these bytes are gone through; a wish: it may do as it likes.
    pub(crate) fn advise(&self, range: Range<u64>, styles: &[AccessStyle]) {
        for advice in styles.iter().filter_map(|style| style.advice()) {
            let len = NonZeroU64::new(range.end - range.start);
            _ = rustix::fs::fadvise(&self.descriptor, range.start, len, advice);
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn system(&self, call: &'static str, errno: Errno) -> StorageError {
        system(&self.path, call, errno)
    }
}

fn kind_of(descriptor: &OwnedFd) -> Result<FileType, Errno> {
    rustix::fs::fstat(descriptor).map(|stat| FileType::from_raw_mode(stat.st_mode))
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes the name of a file durable.
fn sync_folder(path: &Path) -> Result<(), StorageError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder_of(path), flags, Mode::empty());
    let synced = folder.and_then(rustix::fs::fsync);
    synced.map_err(|errno| system(path, "fsync", errno))
}

/// Whether a file may not have so many bytes: a process that writes beyond is sent a signal, not an
/// error.
pub(crate) fn is_too_long(len: u64) -> bool {
    getrlimit(Resource::Fsize).current.is_some_and(|most| len > most)
}

pub(crate) fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}

pub(crate) fn system(path: &Path, call: &'static str, errno: Errno) -> StorageError {
    let remedy = match errno {
        Errno::ACCESS | Errno::PERM => "; let this user read and write it",
        Errno::ROFS => "; use a file system that is mounted for writing",
        Errno::NOENT => "; make the folder first",
        Errno::NOTDIR => "; a part of the path is no folder",
        Errno::LOOP => "; the path leads in a circle",
        Errno::NAMETOOLONG => "; choose a shorter name",
        Errno::TXTBSY => "; it is a program that runs",
        Errno::NOLCK | Errno::NOSYS => "; use a file system that has locks",
        Errno::MFILE => "; raise ulimit -n",
        Errno::NOSPC => "; the file system is full",
        Errno::DQUOT => "; the quota is used up",
        _ => "",
    };
    StorageError::System { path: path.to_owned(), call, errno: errno.raw_os_error(), remedy }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const NEW: NewFile =
        NewFile { permissions: 0o600, striping: Striping { factor: None, unit: None } };

    /// What a file system does that cannot reserve space: holes are zeros on it, data stays.
    #[test]
    fn holes_are_filled_and_data_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, vec![7u8; 5000]).unwrap();
        let file = StorageFile::open_existing(&path).unwrap();
        rustix::fs::ftruncate(&file.descriptor, 1 << 20).unwrap();
        file.fill(1000, (2 << 20) + 5).unwrap();
        let bytes = fs::read(&path).unwrap();
        assert_eq!(bytes.len(), (2 << 20) + 5);
        assert!(bytes[..5000].iter().all(|byte| *byte == 7));
        assert!(bytes[5000..].iter().all(|byte| *byte == 0));
        let hole = rustix::fs::seek(&file.descriptor, SeekFrom::Hole(1000)).unwrap();
        assert_eq!(hole, bytes.len() as u64, "no hole is left");
    }

    #[test]
    fn the_second_to_create_a_file_opens_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let first = StorageFile::make(&path, NEW, 0..10).unwrap().unwrap();
        assert!(StorageFile::make(&path, NEW, 10..20).unwrap().is_none());
        let second = StorageFile::open(&path, NEW, 10..20).unwrap();
        let overlap = StorageFile::open(&path, NEW, 19..21).unwrap_err();
        assert!(matches!(overlap, StorageError::InUse { start: 19, end: 21, .. }), "{overlap}");
        second.unlock(10..20);
        StorageFile::open(&path, NEW, 19..21).unwrap();
        drop(first);
    }

    /// What other memory has written meanwhile, beside the bytes that were not to be had, stays.
    #[test]
    fn what_is_given_back_is_no_other_memorys() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, b"four").unwrap();
        let file = StorageFile::open_existing(&path).unwrap();
        assert!(lock_range(&file.descriptor, 8192, 8192).unwrap());
        // Before them: the file ends where they begin.
        rustix::io::pwrite(&file.descriptor, &[1; 4096], 4096).unwrap();
        rustix::fs::ftruncate(&file.descriptor, 10_000).unwrap();
        file.shrink(8192..16384);
        let bytes = fs::read(&path).unwrap();
        assert!(bytes.len() == 8192 && bytes[4096..].iter().all(|byte| *byte == 1));
        // And behind: only the space goes.
        rustix::io::pwrite(&file.descriptor, &[2; 4096], 8192).unwrap();
        rustix::io::pwrite(&file.descriptor, &[3; 4096], 16384).unwrap();
        file.shrink(8192..16384);
        let bytes = fs::read(&path).unwrap();
        assert!(bytes.len() == 20480 && bytes[16384..].iter().all(|byte| *byte == 3));
        assert!(bytes[8192..16384].iter().all(|byte| *byte == 0));
    }

    /// The memory that had the bytes removes its file between the two steps: what is written to a
    /// file without a name is lost.
    #[test]
    fn a_file_that_lost_its_name_is_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let first = StorageFile::open(&path, NEW, 0..10).unwrap();
        let opened = || StorageFile::open_existing(&path).unwrap();
        let (second, third) = (opened(), opened());
        first.unlink();
        first.unlock(0..10);
        assert!(second.take_named(0..10).unwrap().is_none());
        fs::write(&path, b"another").unwrap();
        assert!(third.take_named(0..10).unwrap().is_none(), "nor one whose name is another's");
        assert!(opened().take_named(0..10).unwrap().is_some());
    }

    #[test]
    fn a_link_that_leads_nowhere_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("link");
        std::os::unix::fs::symlink(folder.path().join("nothing"), &path).unwrap();
        let refused = StorageFile::open(&path, NEW, 0..10).unwrap_err();
        assert!(refused.to_string().contains("leads nowhere"), "{refused}");
    }

    /// The name may be another file's by now.
    #[test]
    fn only_the_file_itself_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let file = StorageFile::open(&path, NEW, 0..10).unwrap();
        fs::rename(&path, folder.path().join("moved")).unwrap();
        fs::write(&path, b"another").unwrap();
        file.unlink();
        assert_eq!(fs::read(&path).unwrap(), b"another");
        drop(file);
        StorageFile::open(&path, NEW, 0..10).unwrap().unlink();
        assert!(!path.exists());
    }
}
