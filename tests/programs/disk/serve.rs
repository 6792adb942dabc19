//! What the kernel asks of the disk.
use crate::contents::{Contents, Inode};
use crate::{Shared, lock};
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use std::ffi::OsStr;
use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The kernel is the only one that changes anything.
const FOREVER: Duration = Duration::from_secs(1 << 20);

/// What is asked, as far as that decides how it may fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Find,
    Make,
    Remove,
    Open,
    Read,
    /// By a call of a program; `Flush` is the kernel's own.
    Write,
    Flush,
    Sync,
    Reserve,
    Lock,
}

/// How the disk fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Nothing,
    Io,
    NoSpace,
    Quota,
    NoLock,
    /// Half of the bytes are written.
    Short,
    /// All calls from that one on.
    Cut,
}

impl Kind {
    pub(super) fn named(name: &str) -> Option<Self> {
        let kinds = [
            ("EIO", Self::Io),
            ("ENOSPC", Self::NoSpace),
            ("EDQUOT", Self::Quota),
            ("ENOLCK", Self::NoLock),
            ("short", Self::Short),
            ("cut", Self::Cut),
        ];
        kinds.into_iter().find(|(known, _)| *known == name).map(|(_, kind)| kind)
    }

    fn may_hit(self, call: Call) -> bool {
        match self {
            Self::Nothing => false,
            Self::Io | Self::Cut => true,
            Self::NoSpace | Self::Quota => {
                matches!(call, Call::Make | Call::Write | Call::Flush | Call::Sync | Call::Reserve)
            }
            Self::NoLock => call == Call::Lock,
            Self::Short => call == Call::Write,
        }
    }

    fn errno(self) -> Errno {
        match self {
            Self::NoSpace => Errno::ENOSPC,
            Self::Quota => Errno::EDQUOT,
            Self::NoLock => Errno::ENOLCK,
            _ => Errno::EIO,
        }
    }
}

/// Which call fails.
#[derive(Debug)]
pub(super) struct Faults {
    kind: Kind,
    at: u64,
    count: u64,
    hit: Option<String>,
}

impl Default for Faults {
    fn default() -> Self {
        Self::of(Kind::Nothing, 0)
    }
}

impl Faults {
    pub(super) fn of(kind: Kind, at: u64) -> Self {
        Self { kind, at, count: 0, hit: None }
    }

    pub(super) fn tell(&self) -> String {
        let hit = self.hit.as_deref().unwrap_or("nothing");
        format!("{} {hit}", self.count)
    }

    /// How this call is to fail.
    fn of_call(&mut self, call: Call, file: impl FnOnce() -> String) -> Option<Kind> {
        if !self.kind.may_hit(call) {
            return None;
        }
        let number = self.count;
        self.count += 1;
        let fails = number == self.at || self.kind == Kind::Cut && number > self.at;
        if fails && self.hit.is_none() {
            self.hit = Some(format!("{call:?} {}", file()));
        }
        fails.then_some(self.kind)
    }
}

/// The file system.
#[derive(Clone)]
pub(super) struct Served {
    pub(super) contents: Shared<Contents>,
    pub(super) faults: Shared<Faults>,
    /// Space, before it is written.
    pub(super) reserves: bool,
}

type Answer<T> = Result<T, Errno>;

fn attributes(number: u64, inode: &Inode) -> FileAttr {
    let (kind, size) = match inode.is_folder {
        true => (FileType::Directory, 0),
        false => (FileType::RegularFile, inode.bytes.len() as u64),
    };
    FileAttr {
        ino: INodeNo(number),
        size,
        blocks: size.div_ceil(512),
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm: inode.mode,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

fn text(name: &OsStr) -> Answer<&str> {
    name.to_str().ok_or(Errno::EINVAL)
}

impl Served {
    /// Runs `body` on an inode unless the call is to fail, with an error or, told by `true`, short.
    fn on<T>(
        &self,
        call: Call,
        number: INodeNo,
        body: impl FnOnce(&mut Inode, bool) -> Answer<T>,
    ) -> Answer<T> {
        let mut contents = lock(&self.contents);
        let fails = lock(&self.faults).of_call(call, || contents.name_of(number.0));
        let inode = contents.get(number.0).ok_or(Errno::ENOENT)?;
        match fails {
            Some(Kind::Short) => body(inode, true),
            Some(kind) => {
                // The system takes what a sync did not write for written all the same.
                if call == Call::Sync && kind != Kind::Cut {
                    inode.forget();
                }
                Err(kind.errno())
            }
            None => body(inode, false),
        }
    }

    fn make(
        &self,
        folder: INodeNo,
        name: &OsStr,
        is_folder: bool,
        mode: u32,
    ) -> Answer<(u64, FileAttr)> {
        let name = text(name)?;
        self.on(Call::Make, folder, |folder, _| match folder.names.contains_key(name) {
            true => Err(Errno::EEXIST),
            false => Ok(()),
        })?;
        let mut contents = lock(&self.contents);
        let number = contents.make(folder.0, name, is_folder, mode);
        let inode = contents.get(number).ok_or(Errno::ENOENT)?;
        Ok((number, attributes(number, inode)))
    }

    fn remove(&self, folder: INodeNo, name: &OsStr, is_folder: bool) -> Answer<()> {
        let name = text(name)?;
        let number = self.on(Call::Find, folder, |folder, _| {
            folder.names.get(name).copied().ok_or(Errno::ENOENT)
        })?;
        let is_empty = lock(&self.contents).get(number).is_none_or(|inode| inode.names.is_empty());
        if is_folder && !is_empty {
            return Err(Errno::ENOTEMPTY);
        }
        self.on(Call::Remove, folder, |folder, _| {
            folder.unlink(name);
            Ok(())
        })
    }
}

/// Replies with what came of a call.
macro_rules! reply {
    ($reply:ident, $answer:expr, $value:pat => $good:expr) => {
        match $answer {
            Ok($value) => $good,
            Err(errno) => $reply.error(errno),
        }
    };
}

impl Filesystem for Served {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // So that it is asked for locks; it grants them all.
        config
            .add_capabilities(InitFlags::FUSE_POSIX_LOCKS)
            .map_err(|_| io::Error::other("the kernel hands on no locks"))
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let find = || {
            let name = text(name)?;
            let number = self.on(Call::Find, parent, |folder, _| {
                folder.names.get(name).copied().ok_or(Errno::ENOENT)
            })?;
            let mut contents = lock(&self.contents);
            let inode = contents.get(number).ok_or(Errno::ENOENT)?;
            Ok(attributes(number, inode))
        };
        reply!(reply, find(), found => reply.entry(&FOREVER, &found, Generation(0)));
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let found = self.on(Call::Find, number, |inode, _| Ok(attributes(number.0, inode)));
        reply!(reply, found, found => reply.attr(&FOREVER, &found));
    }

    fn setattr(
        &self,
        _: &Request,
        number: INodeNo,
        mode: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = self.on(Call::Find, number, |inode, _| {
            mode.iter().for_each(|mode| inode.mode = *mode as u16 & 0o777);
            size.iter().for_each(|size| inode.resize(*size as usize));
            Ok(attributes(number.0, inode))
        });
        reply!(reply, set, set => reply.attr(&FOREVER, &set));
    }

    fn mkdir(&self, _: &Request, at: INodeNo, name: &OsStr, mode: u32, _: u32, reply: ReplyEntry) {
        let made = self.make(at, name, true, mode);
        reply!(reply, made, (_, made) => reply.entry(&FOREVER, &made, Generation(0)));
    }

    fn create(
        &self,
        _: &Request,
        at: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        let (handle, flags) = (FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
        let made = self.make(at, name, false, mode);
        reply!(reply, made, (_, made) => {
            reply.created(&FOREVER, &made, Generation(0), handle, flags);
        });
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply!(reply, self.remove(parent, name, false), () => reply.ok());
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply!(reply, self.remove(parent, name, true), () => reply.ok());
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let renamed = || {
            let (from, to) = (text(name)?, text(new_name)?);
            if parent != new_parent {
                return Err(Errno::EXDEV);
            }
            self.on(Call::Make, parent, |folder, _| {
                folder.rename(from, to);
                Ok(())
            })
        };
        reply!(reply, renamed(), () => reply.ok());
    }

    fn open(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let opened = self.on(Call::Open, number, |_, _| Ok(()));
        reply!(reply, opened, () => reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE));
    }

    fn read(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let read = self.on(Call::Read, number, |inode, _| {
            let start = (offset as usize).min(inode.bytes.len());
            let end = (start + size as usize).min(inode.bytes.len());
            Ok(inode.bytes[start..end].to_vec())
        });
        reply!(reply, read, bytes => reply.data(&bytes));
    }

    fn write(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let is_flush = flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let call = if is_flush { Call::Flush } else { Call::Write };
        let wrote = self.on(call, number, |inode, short| {
            let data = if short { &data[..data.len().div_ceil(2)] } else { data };
            inode.write(offset as usize, data);
            Ok(data.len() as u32)
        });
        reply!(reply, wrote, len => reply.written(len));
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, number: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let synced = self.on(Call::Sync, number, |inode, _| {
            inode.sync();
            Ok(())
        });
        reply!(reply, synced, () => reply.ok());
    }

    fn fsyncdir(&self, _: &Request, number: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let synced = self.on(Call::Sync, number, |inode, _| {
            inode.sync_names();
            Ok(())
        });
        reply!(reply, synced, () => reply.ok());
    }

    fn opendir(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let opened = self.on(Call::Open, number, |_, _| Ok(()));
        reply!(reply, opened, () => reply.opened(FileHandle(0), FopenFlags::empty()));
    }

    fn readdir(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let mut contents = lock(&self.contents);
        let failed = lock(&self.faults).of_call(Call::Read, || contents.name_of(number.0));
        if let Some(kind) = failed {
            return reply.error(kind.errno());
        }
        let names = contents.get(number.0).map(|inode| inode.names.clone()).unwrap_or_default();
        for (next, (name, inode)) in (1..).zip(names).skip(offset as usize) {
            let is_folder = contents.get(inode).is_some_and(|inode| inode.is_folder);
            let kind = if is_folder { FileType::Directory } else { FileType::RegularFile };
            if reply.add(INodeNo(inode), next, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn fallocate(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        if !self.reserves {
            return reply.error(Errno::ENOSYS);
        }
        let reserved = self.on(Call::Reserve, number, |inode, _| {
            let (start, end) = (offset as usize, (offset + length) as usize);
            let here = start.min(inode.bytes.len())..end.min(inode.bytes.len());
            match mode {
                0 => inode.resize(end.max(inode.bytes.len())),
                // Holes are zeros.
                _ => inode.write(here.start, &vec![0; here.len()]),
            }
            Ok(())
        });
        reply!(reply, reserved, () => reply.ok());
    }

    fn setlk(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        _: LockOwner,
        _: u64,
        _: u64,
        kind: i32,
        _: u32,
        _: bool,
        reply: ReplyEmpty,
    ) {
        // To give one back does not fail.
        let locked = match kind {
            libc::F_UNLCK => Ok(()),
            _ => self.on(Call::Lock, number, |_, _| Ok(())),
        };
        reply!(reply, locked, () => reply.ok());
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: fuser::ReplyStatfs) {
        reply.statfs(1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20, 4096, 255, 4096);
    }
}
