//! Blocks of a row that have gaps of their own length on one side, and none on the other, copied by
//! vectors of 64 bytes, where a mask keeps those of the gaps from being accessed: parts of complex
//! numbers, fields of pairs. Both sides are accessed in assembly, so one function serves both
//! directions; the model is that of [`copy`](super::copy).
#![allow(unsafe_code)]

use core::arch::asm;

/// Fewer blocks are not worth it.
const WORTH: u64 = 16;

/// Copies the first of `count` blocks of `len` bytes, side by side at `from`, to every other place
/// at `to`, and returns how many: as many as fill vectors, or none.
///
/// # Safety
///
/// Each block is readable and writable, and no block of one side overlaps one of the other.
#[inline(always)]
pub(super) unsafe fn deal(to: *mut u8, from: *const u8, len: u64, count: u64) -> u64 {
    let whole = whole(len, count);
    if whole > 0 {
        match len {
            // SAFETY: forwarded to the caller; `whole` has looked at the CPU. So in the other arms.
            1 => unsafe { deal1(to, from, whole) },
            // SAFETY: as above.
            4 => unsafe { deal4(to, from, whole) },
            // SAFETY: as above.
            _ => unsafe { deal8(to, from, whole) },
        }
    }
    whole
}

/// As [`deal`], from every other place at `from` to blocks that lie side by side.
///
/// # Safety
///
/// As there.
#[inline(always)]
pub(super) unsafe fn collect(to: *mut u8, from: *const u8, len: u64, count: u64) -> u64 {
    let whole = whole(len, count);
    if whole > 0 {
        match len {
            // SAFETY: forwarded to the caller; `whole` has looked at the CPU. So in the other arms.
            1 => unsafe { collect1(to, from, whole) },
            // SAFETY: as above.
            4 => unsafe { collect4(to, from, whole) },
            // SAFETY: as above.
            _ => unsafe { collect8(to, from, whole) },
        }
    }
    whole
}

/// How many of the blocks fill vectors, if there are functions for them that the CPU runs: a
/// multiple of the blocks of a turn.
///
/// CPUs that have only the first parts of AVX-512 run slower for a while after it. Of vectors of
/// single bytes, stores with a mask are known to be fast on those only that have the last parts.
#[inline(always)]
fn whole(len: u64, count: u64) -> u64 {
    if count < WORTH {
        return 0;
    }
    let has_words =
        || is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vbmi2");
    let has_bytes =
        || is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512fp16");
    match len {
        1 if has_bytes() => count / 32 * 32,
        4 | 8 if has_words() => count / 8 * 8,
        _ => 0,
    }
}

/// Every other word of 8 bytes, and of 4.
const WORDS: u32 = 0b0101_0101;
const HALVES: u32 = 0x5555;

/// Where the words of two vectors come from, and where those that are kept of two.
static TWICE: [u64; 16] = [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7];
static EVEN: [u64; 8] = [0, 2, 4, 6, 8, 10, 12, 14];

/// # Safety
///
/// As [`deal`]. `count` is a multiple of 8 and not 0, and the CPU has AVX-512F.
unsafe fn deal8(to: *mut u8, from: *const u8, count: u64) {
    // SAFETY: caller: 8 blocks are left in each turn. What the mask leaves out is not accessed.
    unsafe {
        asm!(
            "kmovw k1, {mask:e}",
            "vmovdqu64 zmm18, [{twice}]",
            "vmovdqu64 zmm19, [{twice} + 64]",
            "2:",
            "vpermq zmm16, zmm18, [{from}]",
            "vpermq zmm17, zmm19, [{from}]",
            "add {from}, 64",
            "vmovdqu64 [{to}]{{k1}}, zmm16",
            "vmovdqu64 [{to} + 64]{{k1}}, zmm17",
            "sub {to}, -128",
            "sub {n}, 8",
            "jnz 2b",
            from = inout(reg) from => _, to = inout(reg) to => _, n = inout(reg) count => _,
            mask = in(reg) WORDS, twice = in(reg) &raw const TWICE,
            out("k1") _, out("xmm16") _, out("xmm17") _, out("xmm18") _, out("xmm19") _,
            options(nostack)
        )
    }
}

/// # Safety
///
/// As [`deal8`].
unsafe fn collect8(to: *mut u8, from: *const u8, count: u64) {
    // SAFETY: as in `deal8`.
    unsafe {
        asm!(
            "kmovw k1, {mask:e}",
            "vmovdqu64 zmm18, [{even}]",
            "2:",
            "vmovdqu64 zmm16{{k1}}{{z}}, [{from}]",
            "vmovdqu64 zmm17{{k1}}{{z}}, [{from} + 64]",
            "sub {from}, -128",
            "vpermt2q zmm16, zmm18, zmm17",
            "vmovdqu64 [{to}], zmm16",
            "add {to}, 64",
            "sub {n}, 8",
            "jnz 2b",
            from = inout(reg) from => _, to = inout(reg) to => _, n = inout(reg) count => _,
            mask = in(reg) WORDS, even = in(reg) &raw const EVEN,
            out("k1") _, out("xmm16") _, out("xmm17") _, out("xmm18") _,
            options(nostack)
        )
    }
}

/// # Safety
///
/// As [`deal8`].
unsafe fn deal4(to: *mut u8, from: *const u8, count: u64) {
    // SAFETY: as in `deal8`.
    unsafe {
        asm!(
            "kmovw k1, {mask:e}",
            "2:",
            "vpmovzxdq zmm16, ymmword ptr [{from}]",
            "add {from}, 32",
            "vmovdqu32 [{to}]{{k1}}, zmm16",
            "add {to}, 64",
            "sub {n}, 8",
            "jnz 2b",
            from = inout(reg) from => _, to = inout(reg) to => _, n = inout(reg) count => _,
            mask = in(reg) HALVES, out("k1") _, out("xmm16") _,
            options(nostack)
        )
    }
}

/// # Safety
///
/// As [`deal8`].
unsafe fn collect4(to: *mut u8, from: *const u8, count: u64) {
    // SAFETY: as in `deal8`.
    unsafe {
        asm!(
            "kmovw k1, {mask:e}",
            "2:",
            "vmovdqu32 zmm16{{k1}}{{z}}, [{from}]",
            "add {from}, 64",
            "vpmovqd ymm16, zmm16",
            "vmovdqu64 ymmword ptr [{to}], ymm16",
            "add {to}, 32",
            "sub {n}, 8",
            "jnz 2b",
            from = inout(reg) from => _, to = inout(reg) to => _, n = inout(reg) count => _,
            mask = in(reg) HALVES, out("k1") _, out("xmm16") _,
            options(nostack)
        )
    }
}

/// # Safety
///
/// As [`deal`]. `count` is a multiple of 32 and not 0, and the CPU has AVX-512BW.
unsafe fn deal1(to: *mut u8, from: *const u8, count: u64) {
    // SAFETY: caller: 32 blocks are left in each turn. What the mask leaves out is not accessed.
    unsafe {
        asm!(
            "kmovq k1, {mask}",
            "2:",
            "vpmovzxbw zmm16, ymmword ptr [{from}]",
            "add {from}, 32",
            "vmovdqu8 [{to}]{{k1}}, zmm16",
            "add {to}, 64",
            "sub {n}, 32",
            "jnz 2b",
            from = inout(reg) from => _, to = inout(reg) to => _, n = inout(reg) count => _,
            mask = in(reg) 0x5555_5555_5555_5555_u64, out("k1") _, out("xmm16") _,
            options(nostack)
        )
    }
}

/// # Safety
///
/// As [`deal1`].
unsafe fn collect1(to: *mut u8, from: *const u8, count: u64) {
    // SAFETY: as in `deal1`.
    unsafe {
        asm!(
            "kmovq k1, {mask}",
            "2:",
            "vmovdqu8 zmm16{{k1}}{{z}}, [{from}]",
            "add {from}, 64",
            "vpmovwb ymm16, zmm16",
            "vmovdqu64 ymmword ptr [{to}], ymm16",
            "add {to}, 32",
            "sub {n}, 32",
            "jnz 2b",
            from = inout(reg) from => _, to = inout(reg) to => _, n = inout(reg) count => _,
            mask = in(reg) 0x5555_5555_5555_5555_u64, out("k1") _, out("xmm16") _,
            options(nostack)
        )
    }
}
