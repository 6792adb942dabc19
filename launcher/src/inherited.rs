//! The job's secret, which a rank inherits in a pipe: it stands in no environment, and neither
//! later readers of the pipe nor what the rank starts has it.
#![allow(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{FileType, fstat};

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
pub(crate) fn pipe(secret: &Secret) -> std::io::Result<(OwnedFd, String)> {
    use rustix::pipe::{PipeFlags, pipe_with};
    use std::os::fd::AsRawFd;

    /// Shells use the numbers before it.
    const FIRST_FREE: RawFd = 10;
    let (from, to) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::write(&to, &secret.0)?;
    let from = rustix::io::fcntl_dupfd_cloexec(&from, FIRST_FREE)?;
    let name = format!("{}:{}", from.as_raw_fd(), fstat(&from)?.st_ino);
    Ok((from, name))
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

fn read(name: &OsStr) -> Result<Secret, Missing> {
    let numbers = name.to_str().and_then(|text| text.split_once(':'));
    let parsed = numbers.and_then(|(descriptor, inode)| {
        let descriptor = descriptor.parse().ok().filter(|descriptor| *descriptor >= FIRST)?;
        Some((descriptor, inode.parse::<u64>().ok()?))
    });
    let (descriptor, inode) = parsed.ok_or(Missing::Malformed)?;
    if !is_pipe(descriptor, inode) {
        return Err(Missing::Elsewhere);
    }
    // SAFETY: the descriptor is the pipe that `rma-run` made for this rank: it has its inode, which
    // no other file has while it is open. This process has inherited it, and no code in it but this
    // knows of it: whoever had closed it, or put another file in its place, was found out above.
    // It is owned here once: it is closed below, before another thread comes here (`take` holds a
    // lock), and then it is no such pipe any more.
    let pipe = unsafe { OwnedFd::from_raw_fd(descriptor) };
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
    Ok(Secret(secret))
}

/// Whether that descriptor is the pipe with that inode.
fn is_pipe(descriptor: RawFd, inode: u64) -> bool {
    // SAFETY: the number is at least `FIRST`, so it is not -1; it is used for `fstat` alone, which
    // takes any number and answers with an error if that is no open file.
    let file = unsafe { BorrowedFd::borrow_raw(descriptor) };
    fstat(file).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::Fifo && stat.st_ino == inode
    })
}

#[cfg(all(test, feature = "server"))]
mod tests {
    use super::*;
    use std::os::fd::IntoRawFd;

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
        assert_eq!(read(&name).err(), Some(Missing::Elsewhere), "the pipe is closed");
    }

    #[test]
    fn what_another_process_has_read_is_not_there() {
        let (pipe, name) = pipe(&Secret([6; LENGTH])).unwrap();
        rustix::io::read(&pipe, &mut [0; LENGTH]).unwrap();
        let _ = pipe.into_raw_fd();
        assert_eq!(read(name.as_ref()).err(), Some(Missing::Taken));
    }

    #[test]
    fn other_files_are_left_alone() {
        let (pipe, name) = pipe(&Secret([7; LENGTH])).unwrap();
        let descriptor = name.split_once(':').unwrap().0;
        for wrong in [format!("{descriptor}:1"), "99999:1".to_owned()] {
            assert_eq!(read(wrong.as_ref()).err(), Some(Missing::Elsewhere), "{wrong}");
        }
        for wrong in ["", "7", "0:1", "-1:1", "x:1", "5:", "5:x"] {
            assert_eq!(read(wrong.as_ref()).err(), Some(Missing::Malformed), "{wrong}");
        }
        assert_eq!(rustix::io::read(&pipe, &mut [0; 64]), Ok(LENGTH), "still there");
    }
}
