//! Over how many devices a new file lies, and in pieces of which size, where a file system has an
//! interface for that: Lustre.
#![allow(unsafe_code)] // room: one ioctl of Lustre

use crate::file::retry;
use rustix::fd::{AsFd, AsRawFd};
use rustix::fs::OFlags;
use rustix::io::Errno;

/// What `statfs` says of Lustre.
const LUSTRE: rustix::fs::FsWord = 0x0bd0_0bd0;
/// `LL_IOC_LOV_SETSTRIPE`: `_IOW('f', 154, long)`.
const SET_STRIPE: libc::Ioctl = 0x4008_669a;
/// Lustre's `O_LOV_DELAY_CREATE`: the file has no objects until the ioctl has said which.
const DELAY: i32 = libc::O_NOCTTY | libc::O_ASYNC;
/// `LOV_USER_MAGIC_V1`.
const MAGIC: u32 = 0x0bd1_0bd0;
/// Any device may be the first.
const ANY: u16 = u16::MAX;

/// Of a new file: `striping_factor` and `striping_unit`, of which one may be the file system's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Striping {
    /// Devices.
    pub(crate) factor: Option<u64>,
    /// Bytes.
    pub(crate) unit: Option<u64>,
}

/// Stripes are of multiples of so many bytes.
const UNIT: u32 = 1 << 16;

/// `struct lov_user_md_v1`, without objects.
#[repr(C)]
#[derive(Debug, PartialEq, Eq)]
struct Request {
    magic: u32,
    pattern: u32,
    object: [u64; 2],
    unit: u32,
    factor: u16,
    first: u16,
}

impl Striping {
    pub(crate) fn is_default(self) -> bool {
        self == Self::default()
    }

    /// What Lustre is asked for: 0 is what the folder has; `None` if there is no such number.
    fn request(self) -> Option<Request> {
        // Its numbers above are orders of their own.
        let factor = self.factor.unwrap_or(0).try_into().ok().filter(|factor| *factor < 0xfff0)?;
        let unit: u32 = self.unit.unwrap_or(0).try_into().ok()?;
        if !unit.is_multiple_of(UNIT) {
            return None;
        }
        Some(Request { magic: MAGIC, pattern: 0, object: [0; 2], unit, factor, first: ANY })
    }

    /// How a new file is opened that is to be striped; `None` if its folder cannot have that.
    pub(crate) fn flags(self, folder: &std::path::Path) -> Option<OFlags> {
        let is_lustre = || rustix::fs::statfs(folder).is_ok_and(|fs| fs.f_type == LUSTRE);
        let is_wanted = !self.is_default() && self.request().is_some() && is_lustre();
        is_wanted.then(|| OFlags::from_bits_retain(DELAY as u32))
    }

    /// Gives a new file its stripes; any other file system refuses.
    pub(crate) fn set(self, file: impl AsFd) -> Result<(), Errno> {
        let mut request = self.request().ok_or(Errno::INVAL)?;
        let fd = file.as_fd().as_raw_fd();
        retry(|| {
            // SAFETY: the descriptor is open as long as it is borrowed. A file system that knows
            // this call reads the request, which has all that its first word says, and writes no
            // more back than what it read, without objects.
            let set = unsafe { libc::ioctl(fd, SET_STRIPE, &raw mut request) };
            let errno = || Errno::from_io_error(&std::io::Error::last_os_error());
            if set == 0 { Ok(()) } else { Err(errno().unwrap_or(Errno::IO)) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `lustre_user.h` lays it out: packed, and without padding as it is.
    #[test]
    fn the_request_is_the_one_of_lustre() {
        assert_eq!(core::mem::size_of::<Request>(), 32);
        assert_eq!(core::mem::offset_of!(Request, pattern), 4);
        assert_eq!(core::mem::offset_of!(Request, object), 8);
        assert_eq!(core::mem::offset_of!(Request, unit), 24);
        assert_eq!(core::mem::offset_of!(Request, factor), 28);
        assert_eq!(core::mem::offset_of!(Request, first), 30);
        let all = Striping { factor: Some(4), unit: Some(1 << 20) };
        let object = [0; 2];
        let first = u16::MAX;
        let request =
            Request { magic: 0x0bd1_0bd0, pattern: 0, object, unit: 1 << 20, factor: 4, first };
        assert_eq!(all.request(), Some(request));
        let one = Striping { unit: None, ..all };
        assert_eq!(one.request().map(|request| request.unit), Some(0), "what the folder has");
        for (factor, unit) in [(1 << 16, 0), (0xffff, 0), (1, 1 << 32), (1, 1000)] {
            assert_eq!(Striping { factor: Some(factor), unit: Some(unit) }.request(), None);
        }
    }

    #[test]
    fn other_file_systems_have_no_stripes() {
        let folder = tempfile::tempdir().unwrap();
        let all = Striping { factor: Some(4), unit: Some(1 << 20) };
        assert_eq!(all.flags(folder.path()), None);
        let file = tempfile::tempfile().unwrap();
        assert!(all.set(&file).is_err());
    }
}
