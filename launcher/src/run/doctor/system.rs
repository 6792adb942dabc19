//! What the doctor asks of the C library.
#![allow(unsafe_code)] // room: calls process_vm_readv, reads the version of the C library

use std::ffi::c_void;

use rustix::process::Pid;

/// Copies a byte out of the memory of a process, from an address there.
///
/// # Errors
///
/// What the system says.
pub(super) fn copy_one_byte(process: Pid, address: u64) -> Result<(), String> {
    let mut byte = 0u8;
    let here = libc::iovec { iov_base: (&raw mut byte).cast::<c_void>(), iov_len: 1 };
    let there = usize::try_from(address).map_err(|error| error.to_string())?;
    let there =
        libc::iovec { iov_base: std::ptr::without_provenance_mut::<c_void>(there), iov_len: 1 };
    let process = process.as_raw_nonzero().get();
    // SAFETY: `here` is one byte of this function, which no other code uses meanwhile; of the other
    // process's memory the call only reads, and an address that is none there is an error. One of
    // each vector.
    let count =
        unsafe { libc::process_vm_readv(process, &raw const here, 1, &raw const there, 1, 0) };
    match count {
        1 => Ok(()),
        _ => Err(std::io::Error::last_os_error().to_string()),
    }
}

/// Which C library this program runs with.
#[cfg(target_env = "gnu")]
pub(super) fn libc_version() -> String {
    // SAFETY: it takes nothing.
    let version = unsafe { libc::gnu_get_libc_version() };
    // SAFETY: a constant string of the library, which ends in a zero.
    let version = unsafe { std::ffi::CStr::from_ptr(version) };
    format!("glibc {}", version.to_string_lossy())
}

/// Which C library this program runs with.
#[cfg(not(target_env = "gnu"))]
pub(super) fn libc_version() -> String {
    "other than glibc".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_is_copied_or_it_is_said_why_not() {
        let me = rustix::process::getpid();
        let byte = 7u8;
        let address = (&raw const byte).expose_provenance() as u64;
        // A container may forbid the call altogether.
        if copy_one_byte(me, address).is_ok() {
            assert!(copy_one_byte(me, 8).unwrap_err().contains("Bad address"));
        }
        assert!(!libc_version().is_empty());
    }
}
