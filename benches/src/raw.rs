//! The limit: the machine's own loads, stores, atomics and copies, on the mapping that a window's
//! operations use.
//!
//! Copies are calls of opaque code and inline assembly: what the compiler cannot see into cannot
//! be a data race in its eyes, whichever other rank touches the window.
#![allow(unsafe_code)]

use rma::{RawPart, View};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use std::hint::black_box;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Whether [`Raw::write_non_temporal`] does what it says on this machine.
pub(crate) const HAS_NON_TEMPORAL: bool = cfg!(target_arch = "x86_64");

/// One rank's part of a window, without any runtime in between. Offsets are in bytes.
pub(crate) struct Raw<'w> {
    base: *mut u8,
    len: usize,
    life: PhantomData<View<'w>>,
}

unsafe extern "C" {
    fn memcpy(to: *mut u8, from: *const u8, len: usize) -> *mut u8;
}

type Memcpy = unsafe extern "C" fn(*mut u8, *const u8, usize) -> *mut u8;

impl<'w> Raw<'w> {
    pub(crate) fn new(view: &View<'w>) -> Self {
        Self { base: view.as_ptr(), len: view.size() as usize, life: PhantomData }
    }

    /// Address of `len` bytes at `offset`.
    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        let end = offset.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.len), "{offset}+{len} of {} bytes", self.len);
        // SAFETY: inside the part, as just checked; a view with bytes is mapped while its window,
        // borrowed for `'w`, lives.
        unsafe { self.base.add(offset) }
    }

    /// The 64-bit word at `offset`.
    pub(crate) fn word64(&self, offset: usize) -> &'w AtomicU64 {
        let at = self.at(offset, 8).cast::<u64>();
        assert!(at.is_aligned(), "offset {offset} of a 64-bit word");
        // SAFETY: mapped for `'w`, aligned, and window memory is accessed atomically or by code
        // that the compiler cannot see into.
        unsafe { AtomicU64::from_ptr(at) }
    }

    /// The 32-bit word at `offset`.
    pub(crate) fn word32(&self, offset: usize) -> &'w AtomicU32 {
        let at = self.at(offset, 4).cast::<u32>();
        assert!(at.is_aligned(), "offset {offset} of a 32-bit word");
        // SAFETY: as in `word64`.
        unsafe { AtomicU32::from_ptr(at) }
    }

    /// Copies `bytes` to the part's beginning with the C library's `memcpy`.
    #[inline]
    pub(crate) fn write_memcpy(&self, bytes: &[u8]) {
        self.write_memcpy_at(0, bytes);
    }

    /// The same, to another place.
    #[inline]
    pub(crate) fn write_memcpy_at(&self, offset: usize, bytes: &[u8]) {
        let memcpy = black_box(memcpy as Memcpy);
        let to = self.at(offset, bytes.len());
        // SAFETY: both sides are valid for the length; a private slice and window memory, which is
        // never referenced, do not overlap.
        unsafe { memcpy(to, bytes.as_ptr(), bytes.len()) };
    }

    /// Has the system write what is dirty in the part's pages. The part begins at a page.
    pub(crate) fn msync(&self) -> std::io::Result<()> {
        let at = self.at(0, self.len).cast();
        // SAFETY: mapped for the length; pages are written out, and nothing in memory changes.
        Ok(unsafe { msync(at, self.len, MsyncFlags::SYNC) }?)
    }

    /// Copies the part's beginning into `bytes` with the C library's `memcpy`.
    #[inline]
    pub(crate) fn read_memcpy(&self, bytes: &mut [u8]) {
        self.read_memcpy_at(0, bytes);
    }

    /// The same, from another place.
    #[inline]
    pub(crate) fn read_memcpy_at(&self, offset: usize, bytes: &mut [u8]) {
        let memcpy = black_box(memcpy as Memcpy);
        let from = self.at(offset, bytes.len());
        // SAFETY: as in `write_memcpy_at`.
        unsafe { memcpy(bytes.as_mut_ptr(), from, bytes.len()) };
    }

    /// Adds `values` to the numbers at the part's beginning. Whole blocks of 64 bytes only.
    pub(crate) fn add_f64(&self, values: &[f64]) {
        let len = size_of_val(values);
        let to = self.at(0, len);
        // SAFETY: both sides are valid for the length.
        unsafe { add(to, values.as_ptr().cast(), len / 64) };
    }

    /// As [`add_f64`](Self::add_f64), of integers, which wrap.
    pub(crate) fn add_i64(&self, values: &[i64]) {
        let len = size_of_val(values);
        let to = self.at(0, len);
        // SAFETY: both sides are valid for the length.
        unsafe { add_integers(to, values.as_ptr().cast(), len / 64) };
    }

    /// Copies `bytes` to the part's beginning past the caches. Whole blocks of 8 KiB only.
    pub(crate) fn write_non_temporal(&self, bytes: &[u8]) {
        let to = self.at(0, bytes.len());
        assert!(to.addr().is_multiple_of(64), "a part begins at a cache line");
        // SAFETY: both sides are valid for the length and do not overlap, see `write_memcpy`; the
        // destination is aligned, as just checked.
        unsafe { stream(to, bytes.as_ptr(), bytes.len() / BLOCK) };
    }

    /// Copies the part's beginning into `bytes` past the caches. Whole blocks of 8 KiB only, from
    /// the first cache line in `bytes` on.
    pub(crate) fn read_non_temporal(&self, bytes: &mut [u8]) {
        let skip = bytes.as_ptr().align_offset(64).min(bytes.len());
        let bytes = &mut bytes[skip..];
        let from = self.at(0, bytes.len());
        // SAFETY: as in `write_non_temporal`; the slice begins at a cache line or is empty.
        unsafe { stream(bytes.as_mut_ptr(), from, bytes.len() / BLOCK) };
    }
}

/// Whether [`Raw::add_f64`] and [`Raw::add_i64`] do what they say on this machine.
pub(crate) const HAS_ADD_F64: bool = cfg!(target_arch = "x86_64");

/// The instructions of a block, for all of them.
#[cfg(target_arch = "x86_64")]
macro_rules! turns { ($from:ident $to:ident $blocks:ident, $($line:expr),*) => {
    // SAFETY: the caller's: every access lies in the blocks.
    unsafe {
        std::arch::asm!(
            "2:", $($line,)* "add {f}, 64", "add {d}, 64", "dec {n}", "jnz 2b",
            f = inout(reg) $from => _, d = inout(reg) $to => _, n = inout(reg) $blocks => _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _,
            out("xmm5") _, out("xmm6") _, out("xmm7") _,
            options(nostack)
        );
    }
} }

/// A loop that adds blocks of 64 bytes, by the instruction of that name.
#[cfg(target_arch = "x86_64")]
macro_rules! loop_of { ($name:ident, $add:literal) => {
/// # Safety
///
/// `blocks` times 64 bytes are readable at `from` and writable at `to`.
unsafe fn $name(to: *mut u8, from: *const u8, blocks: usize) {
    if blocks == 0 {
        return;
    }
    if is_x86_feature_detected!("avx2") {
        turns!(from to blocks,
            "vmovupd ymm0, [{d}]",
            "vmovupd ymm1, [{d} + 32]",
            concat!("v", $add, " ymm0, ymm0, [{f}]"),
            concat!("v", $add, " ymm1, ymm1, [{f} + 32]"),
            "vmovupd [{d}], ymm0",
            "vmovupd [{d} + 32], ymm1"
        );
    } else {
        turns!(from to blocks,
            "movupd xmm0, [{f}]",
            "movupd xmm1, [{f} + 16]",
            "movupd xmm2, [{f} + 32]",
            "movupd xmm3, [{f} + 48]",
            "movupd xmm4, [{d}]",
            "movupd xmm5, [{d} + 16]",
            "movupd xmm6, [{d} + 32]",
            "movupd xmm7, [{d} + 48]",
            concat!($add, " xmm0, xmm4"),
            concat!($add, " xmm1, xmm5"),
            concat!($add, " xmm2, xmm6"),
            concat!($add, " xmm3, xmm7"),
            "movupd [{d}], xmm0",
            "movupd [{d} + 16], xmm1",
            "movupd [{d} + 32], xmm2",
            "movupd [{d} + 48], xmm3"
        );
    }
}
} }

#[cfg(target_arch = "x86_64")]
loop_of!(add, "addpd");
#[cfg(target_arch = "x86_64")]
loop_of!(add_integers, "paddq");

/// # Safety
///
/// As above. There is no such loop here: [`HAS_ADD_F64`] says so.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn add(_to: *mut u8, _from: *const u8, _blocks: usize) {}
#[cfg(not(target_arch = "x86_64"))]
use add as add_integers;

/// What [`stream`] copies at a time: two pages, line by line in turn, so that two rows of memory
/// are open.
const BLOCK: usize = 8192;

/// # Safety
///
/// `blocks` times [`BLOCK`] bytes are readable at `from` and writable at `to`, which is aligned to
/// 64, and the two do not overlap.
#[cfg(target_arch = "x86_64")]
unsafe fn stream(to: *mut u8, from: *const u8, blocks: usize) {
    if blocks == 0 {
        return;
    }
    // SAFETY: caller: every access lies in the blocks, stores are aligned; `sfence` orders the
    // stores before what follows.
    unsafe {
        std::arch::asm!(
            "2:",
            "mov {lines:e}, 64",
            "3:",
            "movups {a}, [{f}]",
            "movups {b}, [{f} + 16]",
            "movups {c}, [{f} + 32]",
            "movups {e}, [{f} + 48]",
            "movntps [{d}], {a}",
            "movntps [{d} + 16], {b}",
            "movntps [{d} + 32], {c}",
            "movntps [{d} + 48], {e}",
            "movups {a}, [{f} + 4096]",
            "movups {b}, [{f} + 4112]",
            "movups {c}, [{f} + 4128]",
            "movups {e}, [{f} + 4144]",
            "movntps [{d} + 4096], {a}",
            "movntps [{d} + 4112], {b}",
            "movntps [{d} + 4128], {c}",
            "movntps [{d} + 4144], {e}",
            "add {f}, 64",
            "add {d}, 64",
            "dec {lines:e}",
            "jnz 3b",
            "add {f}, 4096",
            "add {d}, 4096",
            "dec {n}",
            "jnz 2b",
            "sfence",
            f = inout(reg) from => _, d = inout(reg) to => _, n = inout(reg) blocks => _,
            lines = out(reg) _,
            a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, e = out(xmm_reg) _,
            options(nostack)
        );
    }
}

/// # Safety
///
/// As above. There is no such copy here: [`HAS_NON_TEMPORAL`] says so.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn stream(_to: *mut u8, _from: *const u8, _blocks: usize) {}

/// Makes a segment of so many bytes, maps it, and gives it up: what a window needs of the system.
/// `reserve`: takes all its pages before, as is done for a window, so that a shortage is no signal.
pub(crate) fn map_and_close(bytes: usize, reserve: bool) -> std::io::Result<()> {
    let segment = memfd_create(c"rma-bench", MemfdFlags::CLOEXEC)?;
    ftruncate(&segment, bytes as u64)?;
    if reserve {
        fallocate(&segment, FallocateFlags::empty(), 0, bytes as u64)?;
    }
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a new mapping at an address that the kernel chooses.
    let at = unsafe { mmap(std::ptr::null_mut(), bytes, access, flags, &segment, 0) }?;
    // SAFETY: the mapping that was just made; no other code knows of it.
    Ok(unsafe { munmap(at, bytes) }?)
}

/// Memory of a rank that stays where it is, as another rank reaches it by the system.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct RawTarget {
    address: u64,
    pid: u64,
}

/// Memory that lives as long as the process.
pub(crate) fn leaked(len: usize) -> RawPart {
    let memory = Box::leak(vec![0u8; len].into_boxed_slice());
    // SAFETY: never freed, and there is no other reference.
    unsafe { RawPart::new(memory.as_mut_ptr(), len) }
}

impl RawTarget {
    pub(crate) fn of(part: RawPart) -> Self {
        let address = part.as_ptr().expose_provenance() as u64;
        Self { address, pid: u64::from(std::process::id()) }
    }

    /// Copies `bytes` there.
    pub(crate) fn write(self, bytes: &[u8]) -> std::io::Result<()> {
        let at = std::ptr::without_provenance_mut(self.address as usize);
        let here = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let there = libc::iovec { iov_base: at, iov_len: bytes.len() };
        // SAFETY: `here` is only read; the other rank vouched for what lies at `there`.
        let copied = unsafe { libc::process_vm_writev(self.pid as i32, &here, 1, &there, 1, 0) };
        if copied == bytes.len() as isize { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    }
}
