//! What a rank inherits from its launcher, by descriptors whose numbers stand in its environment:
//! the job's secret, in a pipe, so that neither later readers of it nor what the rank starts has
//! it; and the file of [`bulletin`](crate::bulletin).
#![allow(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{FileType, fstat};
use rustix::io::FdFlags;

use crate::start::Secret;

/// Its bytes.
const LENGTH: usize = 32;
/// The standard streams, which are no such pipe, have smaller numbers.
const FIRST: RawFd = 3;

/// Why there is no secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    /// What names the pipe is not written as it should be.
    Malformed,
    /// The descriptor is closed, or another file.
    Elsewhere,
    /// Another process has read it.
    Taken,
}

/// A pipe with the secret, and what names it to the process that inherits it.
#[cfg(feature = "server")]
pub(crate) fn pipe(secret: &Secret) -> std::io::Result<(std::os::fd::OwnedFd, String)> {
    use rustix::pipe::{PipeFlags, pipe_with};

    let (from, to) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::write(&to, &secret.0)?;
    named(&from)
}

/// Another descriptor of a file, and what names it to a process that inherits it.
#[cfg(feature = "server")]
pub(crate) fn named(file: impl AsFd) -> std::io::Result<(std::os::fd::OwnedFd, String)> {
    use std::os::fd::AsRawFd;

    /// Shells use the numbers before it.
    const FIRST_FREE: RawFd = 10;
    let file = rustix::io::fcntl_dupfd_cloexec(file, FIRST_FREE)?;
    let stat = fstat(&file)?;
    let name = format!("{}:{}:{}", file.as_raw_fd(), stat.st_dev, stat.st_ino);
    Ok((file, name))
}

/// The file that `name` names, if this process has inherited it; what it starts does not.
pub(crate) fn open(name: &OsStr, kind: FileType) -> Option<OwnedFd> {
    let (descriptor, file) = parse(name)?;
    own_named(descriptor, kind, file).ok()
}

/// The secret in the pipe that `name` names. It is read once, and remembered.
pub(crate) fn take(name: &OsStr) -> Result<Secret, Missing> {
    static TAKEN: Mutex<Option<(OsString, Secret)>> = Mutex::new(None);
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    match &*taken {
        Some((known, secret)) if known == name => Ok(secret.clone()),
        _ => {
            let secret = read(name)?;
            *taken = Some((name.to_owned(), secret.clone()));
            Ok(secret)
        }
    }
}

/// The socket with that number, if this process has inherited it; what it starts does not. It is
/// taken once.
pub(crate) fn socket(descriptor: RawFd) -> Result<OwnedFd, &'static str> {
    const CLOSED: &str = "the descriptor is closed, or no socket";
    own(descriptor, CLOSED, |file, flags| {
        let is_socket = is_of(file, FileType::Socket);
        match is_socket {
            // What this process has inherited is inherited further, until it is taken.
            true if flags.contains(FdFlags::CLOEXEC) => {
                Err("this process has taken the descriptor before, or opened it itself")
            }
            true => Ok(()),
            false => Err(CLOSED),
        }
    })
}

/// A descriptor of this process's own for one that it inherited, which is no longer inherited;
/// `missing` if that is closed, or what `check` says of it, and of the flags that it had.
fn own<E: Copy>(
    descriptor: RawFd,
    missing: E,
    check: impl FnOnce(&OwnedFd, FdFlags) -> Result<(), E>,
) -> Result<OwnedFd, E> {
    let inherited = borrowed(&descriptor).ok_or(missing)?;
    let flags = rustix::io::fcntl_getfd(inherited).map_err(|_| missing)?;
    // One of our own, which stays the file that was looked at.
    let own = rustix::io::fcntl_dupfd_cloexec(inherited, FIRST).map_err(|_| missing)?;
    check(&own, flags)?;
    // What this process starts has no use for it.
    let _ = rustix::io::fcntl_setfd(inherited, FdFlags::CLOEXEC);
    Ok(own)
}

/// What may be a descriptor that this process has inherited. It lives as long as the number.
fn borrowed(descriptor: &RawFd) -> Option<BorrowedFd<'_>> {
    if *descriptor < FIRST {
        return None;
    }
    // SAFETY: the number is at least `FIRST`, so it is not -1. Which code owns the descriptor, this
    // one cannot know: it is never owned here, so it is not closed. It is used for `fcntl` and
    // `fstat` alone, which take any number and answer with an error if that is no open file.
    Some(unsafe { BorrowedFd::borrow_raw(*descriptor) })
}

/// Whether `descriptor` is the one that `name` names, and no other file has its place.
pub(crate) fn is_or_was(name: &OsStr, descriptor: &OsStr) -> bool {
    let Some((named, file)) = parse(name) else { return false };
    let is_named = descriptor.to_str().is_some_and(|text| text.parse() == Ok(named));
    is_named
        && borrowed(&named)
            .and_then(|inherited| fstat(inherited).ok())
            .is_none_or(|stat| (stat.st_dev, stat.st_ino) == file)
}

/// [`own`], of the file of that kind that a name tells.
fn own_named(descriptor: RawFd, kind: FileType, file: (u64, u64)) -> Result<OwnedFd, Missing> {
    let is_it =
        |own: &OwnedFd, _| if is(own, kind, file) { Ok(()) } else { Err(Missing::Elsewhere) };
    own(descriptor, Missing::Elsewhere, is_it)
}

fn read(name: &OsStr) -> Result<Secret, Missing> {
    let (descriptor, file) = parse(name).ok_or(Missing::Malformed)?;
    let pipe = own_named(descriptor, FileType::Fifo, file)?;
    let mut secret = [0; LENGTH];
    let mut read = 0;
    while read < LENGTH {
        match rustix::io::read(&pipe, &mut secret[read..]) {
            Ok(0) => return Err(Missing::Taken),
            Ok(count) => read += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return Err(Missing::Elsewhere),
        }
    }
    // The pipe stays open, and is empty.
    Ok(Secret(secret))
}

/// The descriptor, and the device and inode of its file.
fn parse(name: &OsStr) -> Option<(RawFd, (u64, u64))> {
    let (descriptor, file) = name.to_str()?.split_once(':')?;
    let (device, inode) = file.split_once(':')?;
    let descriptor = descriptor.parse().ok().filter(|descriptor| *descriptor >= FIRST)?;
    Some((descriptor, (device.parse().ok()?, inode.parse().ok()?)))
}

/// Whether that descriptor is the file of that kind with that device and inode.
fn is(descriptor: impl AsFd, kind: FileType, file: (u64, u64)) -> bool {
    fstat(descriptor).is_ok_and(|stat| {
        (stat.st_dev, stat.st_ino) == file && FileType::from_raw_mode(stat.st_mode) == kind
    })
}

fn is_of(descriptor: impl AsFd, kind: FileType) -> bool {
    fstat(descriptor).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == kind)
}

#[cfg(all(test, feature = "server"))]
mod tests {
    use super::*;
    use std::os::fd::{AsRawFd, IntoRawFd};

    /// A pipe that this process has inherited, as it were.
    fn inherited(secret: [u8; LENGTH]) -> OsString {
        let (pipe, name) = pipe(&Secret(secret)).unwrap();
        let _ = pipe.into_raw_fd();
        name.into()
    }

    #[test]
    fn a_secret_is_read_once_and_remembered() {
        let name = inherited([5; LENGTH]);
        assert_eq!(take(&name).unwrap().0, [5; LENGTH]);
        assert_eq!(take(&name).unwrap().0, [5; LENGTH]);
        assert_eq!(read(&name).err(), Some(Missing::Taken), "the pipe is empty");
    }

    #[test]
    fn a_pipe_that_other_code_owns_stays_its_own() {
        let (pipe, name) = pipe(&Secret([8; LENGTH])).unwrap();
        rustix::io::fcntl_setfd(&pipe, FdFlags::empty()).unwrap();
        assert_eq!(read(name.as_ref()).unwrap().0, [8; LENGTH]);
        assert_eq!(rustix::io::fcntl_getfd(&pipe), Ok(FdFlags::CLOEXEC), "open, for us alone");
        assert_eq!(rustix::io::read(&pipe, &mut [0; 64]), Ok(0), "and empty");
    }

    #[test]
    fn what_another_process_has_read_is_not_there() {
        let (pipe, name) = pipe(&Secret([6; LENGTH])).unwrap();
        rustix::io::read(&pipe, &mut [0; LENGTH]).unwrap();
        let _ = pipe.into_raw_fd();
        assert_eq!(read(name.as_ref()).err(), Some(Missing::Taken));
    }

    #[test]
    fn a_socket_is_taken_once() {
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        rustix::io::fcntl_setfd(&ours, FdFlags::empty()).unwrap();
        let descriptor = ours.into_raw_fd();
        drop(socket(descriptor).unwrap());
        assert!(socket(descriptor).unwrap_err().contains("before"));
        let (pipe, _to) = rustix::pipe::pipe().unwrap();
        for wrong in [pipe.into_raw_fd(), 99_999, 0, -1] {
            assert!(socket(wrong).unwrap_err().contains("no socket"), "{wrong}");
        }
    }

    #[test]
    fn a_socket_that_is_named_is_kept_from_others_and_stays() {
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let (ours, name) = named(ours).unwrap();
        rustix::io::fcntl_setfd(&ours, FdFlags::empty()).unwrap();
        let (name, number) = (OsString::from(name), ours.as_raw_fd());
        let is_it = |number: RawFd| is_or_was(&name, number.to_string().as_ref());
        assert!(is_it(number) && !is_it(number + 1));
        assert!(!is_or_was("x".as_ref(), number.to_string().as_ref()));
        drop(open(&name, FileType::Socket));
        assert_eq!(rustix::io::fcntl_getfd(&ours), Ok(FdFlags::CLOEXEC), "open, for us alone");
        assert!(is_or_was("99999:1:1".as_ref(), "99999".as_ref()), "it was, and is closed");
        let (pipe, _to) = rustix::pipe::pipe().unwrap();
        let other = format!("{}:1:1", pipe.as_raw_fd());
        let number = pipe.as_raw_fd().to_string();
        assert!(!is_or_was(other.as_ref(), number.as_ref()), "another file has its place");
    }

    #[test]
    fn other_files_are_left_alone() {
        let (pipe, name) = pipe(&Secret([7; LENGTH])).unwrap();
        let [descriptor, device, inode] = *name.split(':').collect::<Vec<_>>() else { panic!() };
        let other_inode = format!("{descriptor}:{device}:1");
        let other_device = format!("{descriptor}:9999:{inode}");
        for wrong in [other_inode, other_device, "99999:1:1".to_owned()] {
            assert_eq!(read(wrong.as_ref()).err(), Some(Missing::Elsewhere), "{wrong}");
        }
        for wrong in ["", "7", "7:1", "0:1:1", "-1:1:1", "x:1:1", "5:1:", "5:x:1", "5:1:x"] {
            assert_eq!(read(wrong.as_ref()).err(), Some(Missing::Malformed), "{wrong}");
        }
        assert_eq!(rustix::io::read(&pipe, &mut [0; 64]), Ok(LENGTH), "still there");
    }
}
