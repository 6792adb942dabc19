//! Copies between this process and another one, by address there.
#![allow(unsafe_code)] // room: calls process_vm_readv and process_vm_writev

use core::ffi::c_void;
use rustix::io::Errno;
use rustix::process::Pid;

/// Fills `bytes` from `address` on in the memory of `pid`.
pub(crate) fn read(pid: Pid, address: u64, bytes: &mut [u8]) -> Result<(), Errno> {
    transfer(address, bytes.len(), |done, there| {
        let rest = &mut bytes[done..];
        let here = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
        // SAFETY: `here` is the rest of a slice that is borrowed for writing; one of each vector.
        unsafe { libc::process_vm_readv(pid.as_raw_nonzero().get(), &here, 1, there, 1, 0) }
    })
}

/// Copies `bytes` to `address` on in the memory of `pid`.
///
/// # Safety
///
/// If `pid` lets it be written, what lies there may be overwritten at any time.
pub(crate) unsafe fn write(pid: Pid, address: u64, bytes: &[u8]) -> Result<(), Errno> {
    transfer(address, bytes.len(), |done, there| {
        let rest = &bytes[done..];
        let here = libc::iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: rest.len() };
        // SAFETY: `here` is only read; of the other process's memory by the contract.
        unsafe { libc::process_vm_writev(pid.as_raw_nonzero().get(), &here, 1, there, 1, 0) }
    })
}

/// Repeats a call that may do less than it is asked for.
fn transfer(
    address: u64,
    len: usize,
    mut call: impl FnMut(usize, *const libc::iovec) -> isize,
) -> Result<(), Errno> {
    let end = address.checked_add(len as u64).filter(|end| usize::try_from(*end).is_ok());
    end.ok_or(Errno::FAULT)?;
    let mut done = 0;
    while done < len {
        let at = address as usize + done;
        let base = core::ptr::without_provenance_mut::<c_void>(at);
        let there = libc::iovec { iov_base: base, iov_len: len - done };
        match call(done, &there) {
            // A range that was cut at a hole in it.
            0 => return Err(Errno::FAULT),
            copied @ 1.. => done += copied as usize,
            _ => match Errno::from_io_error(&std::io::Error::last_os_error()) {
                Some(Errno::INTR) => {}
                error => return Err(error.unwrap_or(Errno::IO)),
            },
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_reads_and_writes_itself_or_is_told_why_not() {
        let me = rustix::process::getpid();
        let (mut there, mut here) = ([1u8, 2, 3, 4], [0u8; 2]);
        let address = there.as_mut_ptr().expose_provenance() as u64;
        // A container may forbid the call altogether.
        if read(me, address + 1, &mut here).is_err() {
            return;
        }
        assert_eq!(here, [2, 3]);
        // SAFETY: `there` is written by no other code.
        unsafe { write(me, address + 2, &[9, 8]) }.unwrap();
        assert_eq!(there, [1, 2, 9, 8]);
        assert_eq!(read(me, 8, &mut here), Err(Errno::FAULT));
        assert_eq!(read(me, u64::MAX, &mut here), Err(Errno::FAULT));
        assert_eq!(read(me, u64::MAX, &mut []), Ok(()));
    }

    /// A call may stop early, or be interrupted: it goes on where it stopped.
    #[test]
    fn what_a_call_leaves_out_is_asked_for_again() {
        let mut asked = Vec::new();
        let mut answers = [3, -1, 1, 4].into_iter();
        let all = transfer(100, 8, |done, there| {
            // SAFETY: `transfer` hands out its own, and no other code changes it.
            let there = unsafe { &*there };
            asked.push((done, there.iov_base.addr(), there.iov_len));
            // SAFETY: no condition; it is this thread's own.
            let errno = unsafe { libc::__errno_location() };
            // SAFETY: as above.
            unsafe { errno.write(libc::EINTR) };
            answers.next().unwrap()
        });
        assert_eq!(all, Ok(()));
        assert_eq!(asked, [(0, 100, 8), (3, 103, 5), (3, 103, 5), (4, 104, 4)]);
        assert_eq!(transfer(100, 8, |_, _| 0), Err(Errno::FAULT), "a hole");
    }
}
