//! Copies between private memory and window memory.
//!
//! MODEL. A copy accesses the window by the *cells* of [`cells`](super::cells), each by one relaxed
//! atomic access or several, in any order: a racing reader may see torn data but never undefined
//! behaviour.
//!
//! - under Miri, and on machines other than x86-64: literally;
//! - on x86-64: moves in inline assembly up to 64 bytes, an opaque call of the C library's
//!   `memcpy` above (or vectors, where that would crawl), and from 512 KiB on whichever
//!   [kernel](super::large) is the fastest. (`rep movsb` loses 3x at 256 bytes, a loop of
//!   `AtomicU64` 2x to 5x from 1 KiB on.) To the compiler
//!   these are blocks that may do anything with the window's bytes which the model allows. What the
//!   machine does is bytewise or wider, and writes no byte beyond those asked for: whatever comes
//!   of it can come of loads and updates of cells.
#![allow(unsafe_code)]

#[cfg(any(not(target_arch = "x86_64"), miri))]
use super::cells as kernels;
#[cfg(any(not(target_arch = "x86_64"), miri))]
pub(crate) use super::cells::CellBounds;
#[cfg(all(target_arch = "x86_64", not(miri)))]
use x86 as kernels;
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) use x86::CellBounds;

/// Copies `len` bytes from private memory to window memory. S-G12
///
/// # Safety
///
/// `from..from+len` is readable, `to..to+len` is writable, both are mapped, and they do not
/// overlap. The private side is accessed by nothing else during the call, the window's as the
/// model says only. The window's bytes lie in `part`, which is mapped.
#[inline(always)]
pub(crate) unsafe fn write(to: *mut u8, from: *const u8, len: usize, part: CellBounds) {
    // SAFETY: forwarded to the caller.
    unsafe { kernels::write(to, from, len, part) }
}

/// Copies `len` bytes from window memory to private memory.
///
/// # Safety
///
/// As [`write`].
#[inline(always)]
pub(crate) unsafe fn read(to: *mut u8, from: *const u8, len: usize, part: CellBounds) {
    // SAFETY: forwarded to the caller.
    unsafe { kernels::read(to, from, len, part) }
}

/// How large blocks are copied, in a line.
pub(crate) fn explain() -> String {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    return super::large::explain();
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    return String::from("copies: cell by cell\n");
}

/// The compiler does not see these accesses, so that none of them is a race to it. S-G6
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86 {
    use crate::memory::large::{self, Kernel};
    use core::arch::asm;
    use core::arch::x86_64::__m128i;

    /// Stores the value that an ordinary load found at `from`.
    macro_rules! store {
        ($to:expr, $from:expr, $type:ty, $class:ident, $mov:literal) => {{
            // SAFETY: caller: readable, and private, so that an ordinary load will do.
            let value = unsafe { $from.cast::<$type>().read_unaligned() };
            // SAFETY: caller: writable for the width of the register.
            unsafe {
                asm!(
                    $mov, d = in(reg) $to, v = in($class) value, options(nostack, preserves_flags)
                )
            }
        }};
    }

    /// Loads a value, for an ordinary store to `to`.
    macro_rules! load {
        ($to:expr, $from:expr, $type:ty, $class:ident, $mov:literal) => {{
            let value: $type;
            // SAFETY: caller: readable for the width of the register.
            unsafe {
                asm!(
                    $mov, f = in(reg) $from, v = out($class) value,
                    options(nostack, preserves_flags, readonly)
                )
            }
            // SAFETY: caller: writable, and private, so that an ordinary store will do.
            unsafe { $to.cast::<$type>().write_unaligned(value) }
        }};
    }

    /// Assembly needs no cells.
    #[derive(Debug, Clone, Copy)]
    pub(crate) struct CellBounds;

    impl CellBounds {
        /// Of the part of `size` bytes at `base`.
        #[inline(always)]
        pub(crate) fn of(_base: *mut u8, _size: usize) -> Self {
            Self
        }
    }

    /// With a length known at compile time one arm remains.
    #[inline(always)]
    pub(super) unsafe fn write(to: *mut u8, from: *const u8, len: usize, _: CellBounds) {
        match len {
            0 => {}
            8 => store!(to, from, u64, reg, "mov [{d}], {v:r}"),
            4 => store!(to, from, u32, reg, "mov [{d}], {v:e}"),
            16 => store!(to, from, __m128i, xmm_reg, "movups [{d}], {v}"),
            // SAFETY: forwarded to the caller.
            _ => unsafe { any(to, from, len) },
        }
    }

    /// As [`write`].
    #[inline(always)]
    pub(super) unsafe fn read(to: *mut u8, from: *const u8, len: usize, _: CellBounds) {
        match len {
            0 => {}
            8 => load!(to, from, u64, reg, "mov {v:r}, [{f}]"),
            4 => load!(to, from, u32, reg, "mov {v:e}, [{f}]"),
            16 => load!(to, from, __m128i, xmm_reg, "movups {v}, [{f}]"),
            // SAFETY: forwarded to the caller.
            _ => unsafe { any(to, from, len) },
        }
    }

    /// Any length; either side may be window memory.
    #[inline(always)]
    unsafe fn any(to: *mut u8, from: *const u8, len: usize) {
        if len > 64 {
            // SAFETY: forwarded to the caller.
            unsafe { large(to, from, len) }
        } else {
            // SAFETY: forwarded to the caller, and short enough.
            unsafe { small(to, from, len) }
        }
    }

    /// At most 64 bytes.
    #[inline(never)]
    unsafe fn small(to: *mut u8, from: *const u8, len: usize) {
        // A chain, and not a `match`, for its order; each arm guarantees its function the length.
        if len > 32 {
            // SAFETY: forwarded to the caller.
            unsafe { ends32(to, from, len) }
        } else if len >= 16 {
            // SAFETY: as above.
            unsafe { ends16(to, from, len) }
        } else if len >= 8 {
            // SAFETY: as above.
            unsafe { ends8(to, from, len) }
        } else if len >= 4 {
            // SAFETY: as above.
            unsafe { ends4(to, from, len) }
        } else if len >= 2 {
            // SAFETY: as above.
            unsafe { ends2(to, from, len) }
        } else if len == 1 {
            // SAFETY: as above.
            unsafe { one(to, from) }
        }
    }

    /// More than 64 bytes.
    #[inline(never)]
    unsafe fn large(to: *mut u8, from: *const u8, len: usize) {
        if len < large::MIN {
            // SAFETY: forwarded to the caller.
            unsafe { library(to, from, len) }
        } else {
            // SAFETY: forwarded to the caller.
            large::by_kernel(len, |kernel| unsafe { by_kernel(kernel, to, from, len) });
        }
    }

    /// Any length.
    #[inline(never)]
    pub(super) unsafe fn by_kernel(kernel: Kernel, to: *mut u8, from: *const u8, len: usize) {
        match kernel {
            // SAFETY: forwarded to the caller.
            Kernel::Library => unsafe { library(to, from, len) },
            // SAFETY: as above.
            Kernel::Movsb if movsb_crawls(to, from) => unsafe { library(to, from, len) },
            // SAFETY: as above.
            Kernel::Movsb => unsafe { movsb(to, from, len) },
            // SAFETY: as above.
            Kernel::Lines => unsafe { non_temporal(to, from, len, LINE_BLOCK, stream_lines) },
            // SAFETY: as above.
            Kernel::Pages => unsafe { non_temporal(to, from, len, PAGE_BLOCK, stream_pages) },
        }
    }

    #[inline(always)]
    unsafe fn one(to: *mut u8, from: *const u8) {
        // SAFETY: caller: both are valid for a byte.
        unsafe {
            asm!(
                "mov {t}, [{f}]",
                "mov [{d}], {t}",
                f = in(reg) from, d = in(reg) to, t = out(reg_byte) _,
                options(nostack, preserves_flags)
            )
        }
    }

    /// Defines a copy of `n..=2n` bytes: the first `n` and the last `n`, which may overlap. All
    /// loads come before all stores.
    macro_rules! ends {
        ($name:ident, $n:literal, $class:ident, $modifier:literal, $mov:literal) => {
            #[inline(always)]
            unsafe fn $name(to: *mut u8, from: *const u8, len: usize) {
                // SAFETY: caller: `n <= len <= 2n` and both spans are valid for `len` bytes, so
                // both ends lie inside them.
                unsafe {
                    asm!(
                        concat!($mov, " {a", $modifier, "}, [{f}]"),
                        concat!($mov, " {b", $modifier, "}, [{f} + {n} - ", $n, "]"),
                        concat!($mov, " [{d}], {a", $modifier, "}"),
                        concat!($mov, " [{d} + {n} - ", $n, "], {b", $modifier, "}"),
                        f = in(reg) from, d = in(reg) to, n = in(reg) len,
                        a = out($class) _, b = out($class) _,
                        options(nostack, preserves_flags)
                    )
                }
            }
        };
    }
    ends!(ends2, "2", reg, ":x", "mov");
    ends!(ends4, "4", reg, ":e", "mov");
    ends!(ends8, "8", reg, ":r", "mov");
    ends!(ends16, "16", xmm_reg, "", "movups");

    #[inline(always)]
    unsafe fn ends32(to: *mut u8, from: *const u8, len: usize) {
        // SAFETY: caller: `32 <= len <= 64` and both spans are valid for `len` bytes.
        unsafe {
            asm!(
                "movups {a}, [{f}]",
                "movups {b}, [{f} + 16]",
                "movups {c}, [{f} + {n} - 32]",
                "movups {e}, [{f} + {n} - 16]",
                "movups [{d}], {a}",
                "movups [{d} + 16], {b}",
                "movups [{d} + {n} - 32], {c}",
                "movups [{d} + {n} - 16], {e}",
                f = in(reg) from, d = in(reg) to, n = in(reg) len,
                a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, e = out(xmm_reg) _,
                options(nostack, preserves_flags)
            )
        }
    }

    unsafe extern "C" {
        fn memcpy(to: *mut u8, from: *const u8, len: usize) -> *mut u8;
    }

    /// As many bytes and more are `rep movsb` in C libraries, or may be.
    const MOVSB_FROM: usize = 2 << 10;

    /// Whether `rep movsb` crawls: AMD's Zen 3 takes up to 20 times as long for it where the
    /// destination lies less than a line behind the source's place in a page (ADR 105).
    #[inline(always)]
    pub(super) fn movsb_crawls(to: *mut u8, from: *const u8) -> bool {
        const LINE: usize = 64;
        const PAGE: usize = 4096;
        (to.addr().wrapping_sub(from.addr()).wrapping_sub(1)) % PAGE < LINE - 1
    }

    /// The C library's `memcpy`; vectors where that may crawl.
    #[inline(always)]
    unsafe fn library(to: *mut u8, from: *const u8, len: usize) {
        if len >= MOVSB_FROM && movsb_crawls(to, from) && is_x86_feature_detected!("avx") {
            // SAFETY: forwarded to the caller; long enough, and the CPU has the instructions.
            unsafe { vectors(to, from, len) }
        } else {
            // SAFETY: forwarded to the caller.
            unsafe { opaque(to, from, len) }
        }
    }

    /// What [`vectors`] copies at a time.
    const VECTORS: usize = 128;

    /// At least [`VECTORS`] bytes: blocks of as many, and the last ones, some of them twice.
    #[inline(never)]
    #[target_feature(enable = "avx")]
    unsafe fn vectors(to: *mut u8, from: *const u8, len: usize) {
        let last = len - VECTORS;
        // SAFETY: caller: both spans are valid for `len` bytes, which is one block at least: as
        // many whole blocks end at `len` at most, and so does the one that begins at `last`.
        unsafe {
            asm!(
                "2:",
                "vmovups {a}, [{f}]",
                "vmovups {b}, [{f} + 32]",
                "vmovups {c}, [{f} + 64]",
                "vmovups {e}, [{f} + 96]",
                "vmovups [{d}], {a}",
                "vmovups [{d} + 32], {b}",
                "vmovups [{d} + 64], {c}",
                "vmovups [{d} + 96], {e}",
                "add {f}, 128",
                "add {d}, 128",
                "dec {n}",
                "jnz 2b",
                "vmovups {a}, [{fl}]",
                "vmovups {b}, [{fl} + 32]",
                "vmovups {c}, [{fl} + 64]",
                "vmovups {e}, [{fl} + 96]",
                "vmovups [{dl}], {a}",
                "vmovups [{dl} + 32], {b}",
                "vmovups [{dl} + 64], {c}",
                "vmovups [{dl} + 96], {e}",
                "vzeroupper",
                f = inout(reg) from => _, d = inout(reg) to => _,
                n = inout(reg) len / VECTORS => _,
                fl = in(reg) from.wrapping_add(last), dl = in(reg) to.wrapping_add(last),
                a = out(ymm_reg) _, b = out(ymm_reg) _, c = out(ymm_reg) _, e = out(ymm_reg) _,
                options(nostack)
            )
        }
    }

    /// The C library's `memcpy`, called in a way that tells the compiler nothing about it: a plain
    /// call would be a data race in its eyes.
    #[inline(always)]
    unsafe fn opaque(to: *mut u8, from: *const u8, len: usize) {
        // SAFETY: caller: valid, not overlapping. The stack is aligned for a call because
        // `nostack` is not given, and everything the C ABI may change is declared changed.
        unsafe {
            asm!(
                "call {memcpy}",
                memcpy = sym memcpy,
                inout("rdi") to => _, inout("rsi") from => _, inout("rdx") len => _,
                clobber_abi("C")
            )
        }
    }

    #[inline(always)]
    unsafe fn movsb(to: *mut u8, from: *const u8, len: usize) {
        // SAFETY: caller: both sides are valid for the length.
        unsafe {
            asm!(
                "rep movsb",
                inout("rdi") to => _, inout("rsi") from => _, inout("rcx") len => _,
                options(nostack, preserves_flags)
            )
        }
    }

    /// What [`stream_lines`] copies at a time.
    const LINE_BLOCK: usize = 128;

    /// What [`stream_pages`] copies at a time: two pages, line by line in turn, so that two rows
    /// of memory are open.
    const PAGE_BLOCK: usize = 8192;

    /// Stores that bypass the caches, by `stream`, which copies whole blocks; the ends by
    /// [`library`].
    #[inline(always)]
    unsafe fn non_temporal(
        to: *mut u8,
        from: *const u8,
        len: usize,
        block: usize,
        stream: unsafe fn(*mut u8, *const u8, usize),
    ) {
        let head = to.align_offset(64).min(len);
        let blocks = (len - head) / block;
        let body = blocks * block;
        // SAFETY: `head <= len`.
        unsafe { library(to, from, head) };
        let (sink, source) = (to.wrapping_add(head), from.wrapping_add(head));
        if blocks > 0 {
            // SAFETY: `body` bytes from `sink` and `source` lie inside the spans; `sink` is
            // aligned to 64, as the stores demand.
            unsafe { stream(sink, source, blocks) };
        }
        let done = head + body;
        let (sink, source) = (to.wrapping_add(done), from.wrapping_add(done));
        // SAFETY: `done <= len`: this is the rest of the spans.
        unsafe { library(sink, source, len - done) };
    }

    /// # Safety
    ///
    /// As [`super::copy`], for `blocks` times [`LINE_BLOCK`] bytes. There is at least one block,
    /// and `to` is aligned to 64.
    #[inline(never)]
    unsafe fn stream_lines(to: *mut u8, from: *const u8, blocks: usize) {
        // SAFETY: caller: every access lies in the blocks; fetching in advance accesses nothing.
        // `sfence` orders the stores before what follows.
        unsafe {
            asm!(
                "2:",
                "prefetcht0 [{f} + 2048]",
                "prefetcht0 [{f} + 2112]",
                "movups {a}, [{f}]",
                "movups {b}, [{f} + 16]",
                "movups {c}, [{f} + 32]",
                "movups {e}, [{f} + 48]",
                "movups {w}, [{f} + 64]",
                "movups {x}, [{f} + 80]",
                "movups {y}, [{f} + 96]",
                "movups {z}, [{f} + 112]",
                "movntps [{d}], {a}",
                "movntps [{d} + 16], {b}",
                "movntps [{d} + 32], {c}",
                "movntps [{d} + 48], {e}",
                "movntps [{d} + 64], {w}",
                "movntps [{d} + 80], {x}",
                "movntps [{d} + 96], {y}",
                "movntps [{d} + 112], {z}",
                "add {f}, 128",
                "add {d}, 128",
                "dec {n}",
                "jnz 2b",
                "sfence",
                f = inout(reg) from => _, d = inout(reg) to => _, n = inout(reg) blocks => _,
                a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, e = out(xmm_reg) _,
                w = out(xmm_reg) _, x = out(xmm_reg) _, y = out(xmm_reg) _, z = out(xmm_reg) _,
                options(nostack)
            )
        }
    }

    /// # Safety
    ///
    /// As [`stream_lines`], for blocks of [`PAGE_BLOCK`] bytes.
    #[inline(never)]
    unsafe fn stream_pages(to: *mut u8, from: *const u8, blocks: usize) {
        // SAFETY: caller: every access lies in the blocks. `sfence` orders the stores before what
        // follows.
        unsafe {
            asm!(
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
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    use core::ptr;

    /// From here on, kernels are chosen.
    const LARGE: usize = 512 << 10;

    type Copy = unsafe fn(*mut u8, *const u8, usize, CellBounds);

    fn check(len: usize, to_offset: usize, from_offset: usize) {
        for (kernel, to_window) in [(write as Copy, true), (read, false)] {
            let mut source: Vec<u8> = (0..len + from_offset).map(|i| (i * 7 + 3) as u8).collect();
            let mut sink = vec![0xEEu8; to_offset + len + 9];
            let (to, from) = (sink[to_offset..].as_mut_ptr(), source[from_offset..].as_mut_ptr());
            let part = CellBounds::of(if to_window { to } else { from }, len);
            // SAFETY: `len` bytes from either lie inside their vectors, which do not overlap.
            unsafe { kernel(to, from, len, part) };
            assert_eq!(sink[to_offset..to_offset + len], source[from_offset..], "length {len}");
            assert!(sink[..to_offset].iter().all(|b| *b == 0xEE), "wrote before, length {len}");
            assert!(sink[to_offset + len..].iter().all(|b| *b == 0xEE), "wrote after {len}");
        }
    }

    #[test]
    fn every_small_length_and_offset() {
        let (lengths, step) = if cfg!(miri) { (40, 3) } else { (300, 1) };
        for len in (0..lengths).step_by(step) {
            for offset in [0, 1, 3, 8] {
                check(len, offset, 8 - offset);
            }
        }
    }

    #[test]
    fn large_lengths() {
        let lengths: &[usize] =
            if cfg!(miri) { &[1024] } else { &[4096, 65_537, LARGE - 1, LARGE, LARGE + 8269] };
        for len in lengths {
            check(*len, 5, 2);
            check(*len, 0, 0);
        }
    }

    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[test]
    fn places_less_than_a_line_behind_in_a_page_are_told() {
        let from = 0x7000_0123_usize;
        let crawls = |apart: usize| {
            let to = ptr::without_provenance_mut(from.wrapping_add(apart));
            x86::movsb_crawls(to, ptr::without_provenance(from))
        };
        for page in [0, 4096, 8192, 4096_usize.wrapping_neg()] {
            for behind in [1, 16, 32, 63] {
                assert!(crawls(page.wrapping_add(behind)), "{behind} behind");
            }
            for behind in [0, 64, 65, 2048, 4095] {
                assert!(!crawls(page.wrapping_add(behind)), "{behind} behind");
            }
        }
    }

    /// Where `rep movsb` would crawl, and right beside that.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[test]
    fn copies_that_begin_close_behind_in_a_page() {
        for behind in [0, 1, 16, 31, 32, 63, 64] {
            for len in [2047, 2048, 2049, 2175, 4096, 65_537, LARGE - 1, LARGE + 8269] {
                let source: Vec<u8> = (0..len).map(|i| (i * 13 + 1) as u8).collect();
                let mut sink = vec![0xEEu8; len + 3 * 4096];
                let apart = sink.as_ptr().addr().wrapping_sub(source.as_ptr().addr()) % 4096;
                let before = (4096 + behind - apart) % 4096 + 4096;
                let to = sink[before..].as_mut_ptr();
                assert_eq!(to.addr().wrapping_sub(source.as_ptr().addr()) % 4096, behind);
                for kernel in crate::memory::large::Kernel::ALL {
                    sink.fill(0xEE);
                    // SAFETY: `len` bytes from either lie inside their vectors.
                    unsafe { x86::by_kernel(kernel, to, source.as_ptr(), len) };
                    let (all, end) = (&sink[before..before + len], &sink[before + len..]);
                    assert!(all == source, "{kernel:?} of {len}, {behind} behind");
                    let others = sink[..before].iter().chain(end).all(|byte| *byte == 0xEE);
                    assert!(others, "{kernel:?} of {len}, {behind} behind");
                }
            }
        }
    }

    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[test]
    fn each_kernel_copies_all_and_no_more() {
        for kernel in crate::memory::large::Kernel::ALL {
            for len in [0, 1, 63, 64, 127, 128, 129, 8191, 8192, 8300, 20_000] {
                for (before, skip) in [(0, 0), (64, 1), (7, 3), (63, 64)] {
                    let source: Vec<u8> = (0..len + skip).map(|i| (i * 11 + 5) as u8).collect();
                    let mut sink = vec![0xEEu8; before + len + 70];
                    // SAFETY: `len` bytes from either lie inside their vectors.
                    unsafe {
                        x86::by_kernel(
                            kernel,
                            sink[before..].as_mut_ptr(),
                            source[skip..].as_ptr(),
                            len,
                        );
                    }
                    assert_eq!(sink[before..before + len], source[skip..], "{kernel:?} of {len}");
                    assert!(sink[..before].iter().all(|byte| *byte == 0xEE), "{kernel:?} of {len}");
                    assert!(sink[before + len..].iter().all(|byte| *byte == 0xEE), "{kernel:?}");
                }
            }
        }
    }
}
