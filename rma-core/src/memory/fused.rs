//! Floats, complex numbers and integers of 32 and 64 bits combined right in window memory: half the
//! traffic of a copy out and in.
//!
//! Window memory is accessed by inline assembly, a vector at a time and what is left of one by 16,
//! 8 and 4 bytes, so that the compiler sees an
//! unknown access of memory; the model is that of [`copy`](super::copy). What is made of a vector
//! is plain code on private values. Under Miri, on machines other than x86-64, and on CPUs without
//! AVX2, nothing is done here. Long arrays go by vectors of 64 bytes where these are faster.
#![allow(unsafe_code)]

#[cfg(all(target_arch = "x86_64", not(miri)))]
use super::transaction;
use crate::element::{BasicType, Op};

/// Bytes of a vector.
#[cfg(any(test, all(target_arch = "x86_64", not(miri))))]
const VECTOR: usize = 32;

/// Elements of all types that have kernels are as wide, or a multiple.
const LEAST: usize = 4;

/// Combines the bytes at `at` with `operands`, as far as there is a kernel for that; `result` takes
/// what was there. Returns how many bytes that were, a whole number of elements. No other rank
/// loses what it combines meanwhile if the caller has their stripes, or combines alone.
///
/// # Safety
///
/// `operands.len()` bytes from `at` on are mapped window memory.
#[inline]
pub(crate) unsafe fn combine(
    at: *mut u8,
    basic: BasicType,
    op: Op,
    operands: &[u8],
    result: Option<&mut [u8]>,
) -> usize {
    // SAFETY: forwarded to the caller.
    unsafe { combine_how(at, basic, op, operands, result, How::UnderLock) }
}

/// What [`combine`] does, or one try of it at once.
///
/// # Safety
///
/// `operands.len()` bytes from `at` on are mapped window memory. The CPU has transactions for what
/// is done at once.
#[inline(always)]
unsafe fn combine_how(
    at: *mut u8,
    basic: BasicType,
    op: Op,
    operands: &[u8],
    result: Option<&mut [u8]>,
    how: How,
) -> usize {
    let len = match &result {
        Some(result) => operands.len().min(result.len()),
        None => operands.len(),
    };
    let len = len / LEAST * LEAST;
    let from = operands.as_ptr();
    let done = match result {
        Some(result) => {
            let into = result.as_mut_ptr();
            // SAFETY: caller: `len` bytes are mapped, and as many operands, and bytes of the
            // result, are there. It is a multiple of `LEAST`.
            unsafe { kernels::fetch(at, basic, op, from, into, len, how) }
        }
        // SAFETY: as above.
        None => unsafe { kernels::update(at, basic, op, from, len, how) },
    };
    if done { len } else { 0 }
}

/// What keeps others from the bytes that a kernel combines.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// The caller's lock.
    UnderLock,
    /// Nothing: it is one atomic operation, or fails and does nothing.
    #[cfg_attr(
        any(not(target_arch = "x86_64"), miri),
        expect(dead_code, reason = "there are no transactions")
    )]
    AtOnce,
}

/// Fewer bytes are not worth a transaction.
pub(crate) const AT_ONCE_LEAST: usize = 64;

/// So many bytes are combined by one: what first-level caches keep in it beside the operands, and
/// few enough that others seldom come between.
pub(crate) const AT_ONCE_MOST: usize = 4 << 10;

/// As [`combine`], by a [transaction](super::transaction): at one instant, as others see it,
/// whether they have a lock or not. 0 if that cannot be or failed, and nothing happened.
///
/// # Safety
///
/// `operands.len()` bytes from `at` on are mapped window memory.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
pub(crate) unsafe fn combine_at_once(
    at: *mut u8,
    basic: BasicType,
    op: Op,
    operands: &[u8],
    result: Option<&mut [u8]>,
) -> usize {
    let operands = &operands[..operands.len().min(AT_ONCE_MOST)];
    let is_worth_it = operands.len() >= AT_ONCE_LEAST && transaction::is_promising();
    if !is_worth_it || !kernels::are_there(basic, op) {
        return 0;
    }
    // SAFETY: forwarded to the caller; the CPU has transactions.
    let done = unsafe { combine_how(at, basic, op, operands, result, How::AtOnce) };
    transaction::note(done > 0);
    done
}

#[cfg(any(not(target_arch = "x86_64"), miri))]
mod kernels {
    use super::{BasicType, How, Op};

    pub(super) unsafe fn update(
        _: *mut u8,
        _: BasicType,
        _: Op,
        _: *const u8,
        _: usize,
        _: How,
    ) -> bool {
        false
    }

    pub(super) unsafe fn fetch(
        _: *mut u8,
        _: BasicType,
        _: Op,
        _: *const u8,
        _: *mut u8,
        _: usize,
        _: How,
    ) -> bool {
        false
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod kernels {
    use super::{BasicType, How, Op, VECTOR, transaction};
    use core::arch::asm;
    use core::arch::x86_64::{
        __m256, __m256d, __m256i, __m512, __m512d, __m512i, _CMP_EQ_OQ, _CMP_GT_OQ, _CMP_LT_OQ,
        _CMP_UNORD_Q, _mm256_add_epi32, _mm256_add_epi64, _mm256_add_pd, _mm256_add_ps,
        _mm256_addsub_pd, _mm256_addsub_ps, _mm256_and_pd, _mm256_and_ps, _mm256_and_si256,
        _mm256_andnot_pd, _mm256_andnot_ps, _mm256_blendv_epi8, _mm256_blendv_pd, _mm256_blendv_ps,
        _mm256_cmp_pd, _mm256_cmp_ps, _mm256_cmpgt_epi64, _mm256_max_epi32, _mm256_max_epu32,
        _mm256_min_epi32, _mm256_min_epu32, _mm256_movedup_pd, _mm256_movehdup_ps,
        _mm256_moveldup_ps, _mm256_mul_epu32, _mm256_mul_pd, _mm256_mul_ps, _mm256_mullo_epi32,
        _mm256_or_pd, _mm256_or_ps, _mm256_or_si256, _mm256_permute_pd, _mm256_permute_ps,
        _mm256_set1_epi64x, _mm256_slli_epi64, _mm256_srli_epi64, _mm256_xor_si256,
        _mm512_add_epi32, _mm512_add_epi64, _mm512_add_pd, _mm512_add_ps, _mm512_and_si512,
        _mm512_max_epi32, _mm512_max_epi64, _mm512_max_epu32, _mm512_max_epu64, _mm512_min_epi32,
        _mm512_min_epi64, _mm512_min_epu32, _mm512_min_epu64, _mm512_mul_pd, _mm512_mul_ps,
        _mm512_mullo_epi32, _mm512_or_si512, _mm512_xor_si512,
    };

    /// Vectors of a turn of the loops.
    const TURN: usize = 4;

    /// Bytes of a wide vector: a line of the caches.
    const WIDE: usize = 64;

    /// Fewer bytes are not worth wide vectors.
    const WIDE_LEAST: usize = 512;

    /// Whether vectors of 64 bytes are the faster ones: known of CPUs that have the last parts of
    /// AVX-512. Those with the first alone run slower for a while after it, others are no faster.
    #[inline(always)]
    fn has_wide() -> bool {
        is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512fp16")
    }

    /// Combines so many bytes, which are less than a vector, by a vector whose other lanes are
    /// not looked at; `$mov` moves as many.
    macro_rules! piece { ($bytes:literal, $mov:literal, $vector:ty, $combine:ident,
        $at:ident $from:ident $len:ident $(, $into:ident)?) => {
        if $len & $bytes != 0 {
            let (old, mut x): ($vector, $vector);
            // SAFETY: all bits 0 are a vector.
            x = unsafe { core::mem::zeroed() };
            // SAFETY: caller: as many bytes are left, on all sides, and a vector has more.
            unsafe {
                asm!(
                    concat!($mov, " {v:x}, [{at}]"), at = in(reg) $at, v = out(ymm_reg) old,
                    options(nostack, preserves_flags, readonly)
                );
                (&raw mut x).cast::<u8>().copy_from_nonoverlapping($from.cast(), $bytes);
                $(
                    $into.cast::<u8>().copy_from_nonoverlapping((&raw const old).cast(), $bytes);
                    $into = $into.byte_add($bytes);
                )?
                let new: $vector = $combine(old, x);
                asm!(
                    concat!($mov, " [{at}], {v:x}"), at = in(reg) $at, v = in(ymm_reg) new,
                    options(nostack, preserves_flags)
                );
                ($at, $from) = ($at.add($bytes), $from.byte_add($bytes));
            }
        }
    } }

    /// Combines all of `len` bytes, and keeps what was there in `$into`, if that is given: by turns
    /// of several vectors, whose stores to one line go together, by single ones, and by pieces.
    macro_rules! combine_all { ($vector:ty, $combine:ident,
        $at:ident $from:ident $len:ident $(, $into:ident)?) => {
        while $len >= TURN * VECTOR {
            let (a, b, c, d): ($vector, $vector, $vector, $vector);
            // SAFETY: caller: this many vectors are left, on all sides.
            unsafe {
                asm!(
                    "vmovups {a}, [{at}]",
                    "vmovups {b}, [{at} + 32]",
                    "vmovups {c}, [{at} + 64]",
                    "vmovups {d}, [{at} + 96]",
                    at = in(reg) $at, a = out(ymm_reg) a, b = out(ymm_reg) b,
                    c = out(ymm_reg) c, d = out(ymm_reg) d,
                    options(nostack, preserves_flags, readonly)
                );
                $(
                    $into.write_unaligned(a);
                    $into.add(1).write_unaligned(b);
                    $into.add(2).write_unaligned(c);
                    $into.add(3).write_unaligned(d);
                    $into = $into.add(TURN);
                )?
                let a = $combine(a, $from.read_unaligned());
                let b = $combine(b, $from.add(1).read_unaligned());
                let c = $combine(c, $from.add(2).read_unaligned());
                let d = $combine(d, $from.add(3).read_unaligned());
                asm!(
                    "vmovups [{at}], {a}",
                    "vmovups [{at} + 32], {b}",
                    "vmovups [{at} + 64], {c}",
                    "vmovups [{at} + 96], {d}",
                    at = in(reg) $at, a = in(ymm_reg) a, b = in(ymm_reg) b,
                    c = in(ymm_reg) c, d = in(ymm_reg) d,
                    options(nostack, preserves_flags)
                );
                ($at, $from) = ($at.add(TURN * VECTOR), $from.add(TURN));
            }
            $len -= TURN * VECTOR;
        }
        while $len >= VECTOR {
            let old: $vector;
            // SAFETY: caller: a vector is left, on all sides.
            unsafe {
                asm!(
                    "vmovups {v}, [{at}]", at = in(reg) $at, v = out(ymm_reg) old,
                    options(nostack, preserves_flags, readonly)
                );
                $(
                    $into.write_unaligned(old);
                    $into = $into.add(1);
                )?
                let new: $vector = $combine(old, $from.read_unaligned());
                asm!(
                    "vmovups [{at}], {v}", at = in(reg) $at, v = in(ymm_reg) new,
                    options(nostack, preserves_flags)
                );
                ($at, $from) = ($at.add(VECTOR), $from.add(1));
            }
            $len -= VECTOR;
        }
        if $len != 0 {
            piece!(16, "vmovups", $vector, $combine, $at $from $len $(, $into)?);
            piece!(8, "vmovq", $vector, $combine, $at $from $len $(, $into)?);
            piece!(4, "vmovd", $vector, $combine, $at $from $len $(, $into)?);
        }
    } }

    /// As the first loop of `combine_all`, of wide vectors.
    macro_rules! combine_wide { ($vector:ty, $combine:ident,
        $at:ident $from:ident $len:ident $(, $into:ident)?) => {
        while $len >= TURN * WIDE {
            let (a, b, c, d): ($vector, $vector, $vector, $vector);
            // SAFETY: caller: this many vectors are left, on all sides.
            unsafe {
                let x = $from.cast::<$vector>();
                asm!(
                    "vmovups {a}, [{at}]",
                    "vmovups {b}, [{at} + 64]",
                    "vmovups {c}, [{at} + 128]",
                    "vmovups {d}, [{at} + 192]",
                    at = in(reg) $at, a = out(zmm_reg) a, b = out(zmm_reg) b,
                    c = out(zmm_reg) c, d = out(zmm_reg) d,
                    options(nostack, preserves_flags, readonly)
                );
                $(
                    let old = $into.cast::<$vector>();
                    old.write_unaligned(a);
                    old.add(1).write_unaligned(b);
                    old.add(2).write_unaligned(c);
                    old.add(3).write_unaligned(d);
                    $into = $into.byte_add(TURN * WIDE);
                )?
                let a = $combine(a, x.read_unaligned());
                let b = $combine(b, x.add(1).read_unaligned());
                let c = $combine(c, x.add(2).read_unaligned());
                let d = $combine(d, x.add(3).read_unaligned());
                asm!(
                    "vmovups [{at}], {a}",
                    "vmovups [{at} + 64], {b}",
                    "vmovups [{at} + 128], {c}",
                    "vmovups [{at} + 192], {d}",
                    at = in(reg) $at, a = in(zmm_reg) a, b = in(zmm_reg) b,
                    c = in(zmm_reg) c, d = in(zmm_reg) d,
                    options(nostack, preserves_flags)
                );
                ($at, $from) = ($at.add(TURN * WIDE), $from.byte_add(TURN * WIDE));
            }
            $len -= TURN * WIDE;
        }
    } }

    /// Begins what [`end`] ends. `false` if that failed, and nothing is under way. A transaction
    /// fails where vectors of this width are put out of use, as where these functions return: so
    /// they begin and end it themselves.
    ///
    /// # Safety
    ///
    /// The CPU has transactions, if one is asked for, and [`end`] follows in the same function,
    /// with loads, stores and sums between.
    #[inline(always)]
    unsafe fn begin(how: How) -> bool {
        // SAFETY: forwarded to the caller.
        how == How::UnderLock || unsafe { transaction::begin() }
    }

    /// # Safety
    ///
    /// [`begin`] was `true` for the same.
    #[inline(always)]
    unsafe fn end(how: How) {
        if how == How::AtOnce {
            // SAFETY: caller: it is under way.
            unsafe { transaction::commit() };
        }
    }

    /// Two functions for an operation: one that updates, one that fetches what was there as well.
    /// With `wide`, first by wide vectors, of which CPUs need AVX-512F as well.
    macro_rules! kernel {
        ($update:ident, $fetch:ident, $vector:ty, $combine:expr
        $(, wide $wide_update:ident, $wide_fetch:ident, $wide:ty, $wide_combine:expr)?) => {
        kernel!(@ "avx2" $update, $fetch, $vector, $combine);
        $(kernel!(@ "avx2,avx512f" $wide_update, $wide_fetch, $vector, $combine;
            $wide, $wide_combine);)?
        };
        (@ $features:literal $update:ident, $fetch:ident, $vector:ty, $combine:expr
        $(; $wide:ty, $wide_combine:expr)?) => {
        /// # Safety
        ///
        /// `len` bytes are mapped at `at` and readable at `from`, a multiple of [`super::LEAST`].
        /// The CPU has AVX2, and transactions for what is done at once.
        #[target_feature(enable = $features)]
        #[allow(unused_assignments, reason = "the last piece moves on as well")]
        unsafe fn $update(mut at: *mut u8, from: *const u8, mut len: usize, how: How) -> bool {
            let mut from = from.cast::<$vector>();
            let combine = $combine;
            // SAFETY: caller: transactions are there; what follows loads, stores and sums.
            if !unsafe { begin(how) } {
                return false;
            }
            $(
                let wide = $wide_combine;
                combine_wide!($wide, wide, at from len);
            )?
            combine_all!($vector, combine, at from len);
            // SAFETY: begun above.
            unsafe { end(how) };
            true
        }

        /// # Safety
        ///
        /// As the one above; `into` takes as many bytes.
        #[target_feature(enable = $features)]
        #[allow(unused_assignments, reason = "the last piece moves on as well")]
        unsafe fn $fetch(
            mut at: *mut u8,
            from: *const u8,
            into: *mut u8,
            mut len: usize,
            how: How,
        ) -> bool {
            let (mut from, mut into) = (from.cast::<$vector>(), into.cast::<$vector>());
            let combine = $combine;
            // SAFETY: caller: transactions are there; what follows loads, stores and sums.
            if !unsafe { begin(how) } {
                return false;
            }
            $(
                let wide = $wide_combine;
                combine_wide!($wide, wide, at from len, into);
            )?
            combine_all!($vector, combine, at from len, into);
            // SAFETY: begun above.
            unsafe { end(how) };
            true
        }
    } }

    /// Minima or maxima: the operand where it `$wins`, where both are equal and its sign decides,
    /// and where the window has a NaN. A blend looks at the sign of its mask's lanes.
    macro_rules! extreme {
        ($update:ident, $fetch:ident, $vector:ty, $wins:ident, $sign:ident,
        $cmp:ident $or:ident $blend:ident) => {
            kernel!($update, $fetch, $vector, |old, x| {
                let wins = $cmp::<$wins>(x, old);
                let sign = $sign(x, $cmp::<_CMP_EQ_OQ>(x, old));
                let nan = $cmp::<_CMP_UNORD_Q>(old, old);
                $blend(old, x, $or($or(wins, sign), nan))
            });
        };
    }

    // What `BasicElement::combine` says of each lane.
    kernel!(sum_f64, fetch_sum_f64, __m256d, |old, x| _mm256_add_pd(old, x),
        wide wide_sum_f64, fetch_wide_sum_f64, __m512d, |old, x| _mm512_add_pd(old, x));
    kernel!(sum_f32, fetch_sum_f32, __m256, |old, x| _mm256_add_ps(old, x),
        wide wide_sum_f32, fetch_wide_sum_f32, __m512, |old, x| _mm512_add_ps(old, x));
    kernel!(prod_f64, fetch_prod_f64, __m256d, |old, x| _mm256_mul_pd(old, x),
        wide wide_prod_f64, fetch_wide_prod_f64, __m512d, |old, x| _mm512_mul_pd(old, x));
    kernel!(prod_f32, fetch_prod_f32, __m256, |old, x| _mm256_mul_ps(old, x),
        wide wide_prod_f32, fetch_wide_prod_f32, __m512, |old, x| _mm512_mul_ps(old, x));
    extreme!(min_f64, fetch_min_f64, __m256d, _CMP_LT_OQ, _mm256_and_pd,
        _mm256_cmp_pd _mm256_or_pd _mm256_blendv_pd);
    extreme!(max_f64, fetch_max_f64, __m256d, _CMP_GT_OQ, _mm256_andnot_pd,
        _mm256_cmp_pd _mm256_or_pd _mm256_blendv_pd);
    extreme!(min_f32, fetch_min_f32, __m256, _CMP_LT_OQ, _mm256_and_ps,
        _mm256_cmp_ps _mm256_or_ps _mm256_blendv_ps);
    extreme!(max_f32, fetch_max_f32, __m256, _CMP_GT_OQ, _mm256_andnot_ps,
        _mm256_cmp_ps _mm256_or_ps _mm256_blendv_ps);
    // Real parts of the window's numbers times the operand, imaginary ones times the operand with
    // its parts exchanged; the first lane of each pair is subtracted, the second added.
    kernel!(complex_prod_f64, fetch_complex_prod_f64, __m256d, |old, x| {
        let real = _mm256_mul_pd(_mm256_movedup_pd(old), x);
        let exchanged = _mm256_permute_pd::<0b0101>(x);
        _mm256_addsub_pd(real, _mm256_mul_pd(_mm256_permute_pd::<0b1111>(old), exchanged))
    });
    kernel!(complex_prod_f32, fetch_complex_prod_f32, __m256, |old, x| {
        let real = _mm256_mul_ps(_mm256_moveldup_ps(old), x);
        let exchanged = _mm256_permute_ps::<0b10_11_00_01>(x);
        _mm256_addsub_ps(real, _mm256_mul_ps(_mm256_movehdup_ps(old), exchanged))
    });
    kernel!(replace, fetch_replace, __m256d, |_, x| x,
        wide wide_replace, fetch_wide_replace, __m512d, |_, x| x);

    // Integers; sums and products wrap.
    kernel!(sum_i64, fetch_sum_i64, __m256i, |old, x| _mm256_add_epi64(old, x),
        wide wide_sum_i64, fetch_wide_sum_i64, __m512i, |old, x| _mm512_add_epi64(old, x));
    kernel!(sum_i32, fetch_sum_i32, __m256i, |old, x| _mm256_add_epi32(old, x),
        wide wide_sum_i32, fetch_wide_sum_i32, __m512i, |old, x| _mm512_add_epi32(old, x));
    // Of the halves that make the lower 64 bits.
    kernel!(prod_i64, fetch_prod_i64, __m256i, |old, x| {
        let crossed = _mm256_add_epi64(
            _mm256_mul_epu32(_mm256_srli_epi64::<32>(old), x),
            _mm256_mul_epu32(old, _mm256_srli_epi64::<32>(x)),
        );
        _mm256_add_epi64(_mm256_mul_epu32(old, x), _mm256_slli_epi64::<32>(crossed))
    });
    kernel!(prod_i32, fetch_prod_i32, __m256i, |old, x| _mm256_mullo_epi32(old, x),
        wide wide_prod_i32, fetch_wide_prod_i32, __m512i, |old, x| _mm512_mullo_epi32(old, x));
    kernel!(and, fetch_and, __m256i, |old, x| _mm256_and_si256(old, x),
        wide wide_and, fetch_wide_and, __m512i, |old, x| _mm512_and_si512(old, x));
    kernel!(or, fetch_or, __m256i, |old, x| _mm256_or_si256(old, x),
        wide wide_or, fetch_wide_or, __m512i, |old, x| _mm512_or_si512(old, x));
    kernel!(xor, fetch_xor, __m256i, |old, x| _mm256_xor_si256(old, x),
        wide wide_xor, fetch_wide_xor, __m512i, |old, x| _mm512_xor_si512(old, x));
    kernel!(min_i32, fetch_min_i32, __m256i, |old, x| _mm256_min_epi32(old, x),
        wide wide_min_i32, fetch_wide_min_i32, __m512i, |old, x| _mm512_min_epi32(old, x));
    kernel!(max_i32, fetch_max_i32, __m256i, |old, x| _mm256_max_epi32(old, x),
        wide wide_max_i32, fetch_wide_max_i32, __m512i, |old, x| _mm512_max_epi32(old, x));
    kernel!(min_u32, fetch_min_u32, __m256i, |old, x| _mm256_min_epu32(old, x),
        wide wide_min_u32, fetch_wide_min_u32, __m512i, |old, x| _mm512_min_epu32(old, x));
    kernel!(max_u32, fetch_max_u32, __m256i, |old, x| _mm256_max_epu32(old, x),
        wide wide_max_u32, fetch_wide_max_u32, __m512i, |old, x| _mm512_max_epu32(old, x));
    kernel!(min_i64, fetch_min_i64, __m256i, |old, x| {
        _mm256_blendv_epi8(old, x, _mm256_cmpgt_epi64(old, x))
    }, wide wide_min_i64, fetch_wide_min_i64, __m512i, |old, x| _mm512_min_epi64(old, x));
    kernel!(max_i64, fetch_max_i64, __m256i, |old, x| {
        _mm256_blendv_epi8(old, x, _mm256_cmpgt_epi64(x, old))
    }, wide wide_max_i64, fetch_wide_max_i64, __m512i, |old, x| _mm512_max_epi64(old, x));
    // As of signed ones, whose upper bit is the other.
    kernel!(min_u64, fetch_min_u64, __m256i, |old, x| {
        let upper = _mm256_set1_epi64x(i64::MIN);
        let greater = _mm256_cmpgt_epi64(_mm256_xor_si256(old, upper), _mm256_xor_si256(x, upper));
        _mm256_blendv_epi8(old, x, greater)
    }, wide wide_min_u64, fetch_wide_min_u64, __m512i, |old, x| _mm512_min_epu64(old, x));
    kernel!(max_u64, fetch_max_u64, __m256i, |old, x| {
        let upper = _mm256_set1_epi64x(i64::MIN);
        let greater = _mm256_cmpgt_epi64(_mm256_xor_si256(x, upper), _mm256_xor_si256(old, upper));
        _mm256_blendv_epi8(old, x, greater)
    }, wide wide_max_u64, fetch_wide_max_u64, __m512i, |old, x| _mm512_max_epu64(old, x));

    pub(super) type Update = unsafe fn(*mut u8, *const u8, usize, How) -> bool;
    pub(super) type Fetch = unsafe fn(*mut u8, *const u8, *mut u8, usize, How) -> bool;

    /// The kernels of each type and operation that has some: one that updates and one that fetches,
    /// and behind the comma the two of wide vectors, where there are these.
    macro_rules! kernels {
        ($($basic:pat, $op:ident: $update:ident $fetch:ident
        $(, $wide_update:ident $wide_fetch:ident)?;)*) => {
        /// Narrow and wide ones.
        const fn kernels_of(basic: BasicType, op: Op) -> [Option<(Update, Fetch)>; 2] {
            match (basic, op) {
                $(($basic, Op::$op) => [
                    Some(($update, $fetch)),
                    kernels!(@ $($wide_update $wide_fetch)?),
                ],)*
                _ => [None; 2],
            }
        }
        };
        (@) => { None };
        (@ $update:ident $fetch:ident) => { Some(($update, $fetch)) };
    }
    kernels! {
        BasicType::F64 | BasicType::COMPLEX_F64, Sum:
            sum_f64 fetch_sum_f64, wide_sum_f64 fetch_wide_sum_f64;
        BasicType::F32 | BasicType::COMPLEX_F32, Sum:
            sum_f32 fetch_sum_f32, wide_sum_f32 fetch_wide_sum_f32;
        BasicType::F64, Prod: prod_f64 fetch_prod_f64, wide_prod_f64 fetch_wide_prod_f64;
        BasicType::F32, Prod: prod_f32 fetch_prod_f32, wide_prod_f32 fetch_wide_prod_f32;
        BasicType::F64, Min: min_f64 fetch_min_f64;
        BasicType::F32, Min: min_f32 fetch_min_f32;
        BasicType::F64, Max: max_f64 fetch_max_f64;
        BasicType::F32, Max: max_f32 fetch_max_f32;
        BasicType::COMPLEX_F64, Prod: complex_prod_f64 fetch_complex_prod_f64;
        BasicType::COMPLEX_F32, Prod: complex_prod_f32 fetch_complex_prod_f32;
        BasicType::I64 | BasicType::U64, Sum:
            sum_i64 fetch_sum_i64, wide_sum_i64 fetch_wide_sum_i64;
        BasicType::I32 | BasicType::U32, Sum:
            sum_i32 fetch_sum_i32, wide_sum_i32 fetch_wide_sum_i32;
        BasicType::I64 | BasicType::U64, Prod: prod_i64 fetch_prod_i64;
        BasicType::I32 | BasicType::U32, Prod:
            prod_i32 fetch_prod_i32, wide_prod_i32 fetch_wide_prod_i32;
        BasicType::I64, Min: min_i64 fetch_min_i64, wide_min_i64 fetch_wide_min_i64;
        BasicType::I32, Min: min_i32 fetch_min_i32, wide_min_i32 fetch_wide_min_i32;
        BasicType::U64, Min: min_u64 fetch_min_u64, wide_min_u64 fetch_wide_min_u64;
        BasicType::U32, Min: min_u32 fetch_min_u32, wide_min_u32 fetch_wide_min_u32;
        BasicType::I64, Max: max_i64 fetch_max_i64, wide_max_i64 fetch_wide_max_i64;
        BasicType::I32, Max: max_i32 fetch_max_i32, wide_max_i32 fetch_wide_max_i32;
        BasicType::U64, Max: max_u64 fetch_max_u64, wide_max_u64 fetch_wide_max_u64;
        BasicType::U32, Max: max_u32 fetch_max_u32, wide_max_u32 fetch_wide_max_u32;
        BasicType::I64 | BasicType::U64 | BasicType::I32 | BasicType::U32, BitAnd:
            and fetch_and, wide_and fetch_wide_and;
        BasicType::I64 | BasicType::U64 | BasicType::I32 | BasicType::U32, BitOr:
            or fetch_or, wide_or fetch_wide_or;
        BasicType::I64 | BasicType::U64 | BasicType::I32 | BasicType::U32, BitXor:
            xor fetch_xor, wide_xor fetch_wide_xor;
        BasicType::F64 | BasicType::F32 | BasicType::COMPLEX_F64 | BasicType::COMPLEX_F32
        | BasicType::I64 | BasicType::U64 | BasicType::I32 | BasicType::U32, Replace:
            replace fetch_replace, wide_replace fetch_wide_replace;
    }

    /// By the code of the type, and the operation: one load finds a kernel.
    type Kernels<K> = [[Option<K>; Op::ALL.len()]; BasicType::ALL.len()];

    macro_rules! table {
        ($kernel:ty, $width:literal, $which:tt) => {{
            let mut table: Kernels<$kernel> = [[None; Op::ALL.len()]; BasicType::ALL.len()];
            let mut code = 0;
            while code < table.len() {
                let basic = BasicType::ALL[code];
                assert!(basic.to_wire() as usize == code);
                let mut at = 0;
                while at < Op::ALL.len() {
                    assert!(Op::ALL[at] as usize == at);
                    if let Some(kernels) = kernels_of(basic, Op::ALL[at])[$width] {
                        table[code][at] = Some(kernels.$which);
                    }
                    at += 1;
                }
                code += 1;
            }
            table
        }};
    }

    static UPDATES: Kernels<Update> = table!(Update, 0, 0);
    static FETCHES: Kernels<Fetch> = table!(Fetch, 0, 1);
    static WIDE_UPDATES: Kernels<Update> = table!(Update, 1, 0);
    static WIDE_FETCHES: Kernels<Fetch> = table!(Fetch, 1, 1);

    #[inline(always)]
    fn find<K: Copy>(table: &Kernels<K>, basic: BasicType, op: Op) -> Option<K> {
        let kernel = *table.get(usize::from(basic.to_wire()))?.get(op as usize)?;
        kernel.filter(|_| is_x86_feature_detected!("avx2"))
    }

    /// As [`find`], in the table of wide ones where `len` bytes are worth them.
    #[inline(always)]
    fn find_for<K: Copy>(
        len: usize,
        [narrow, wide]: [&Kernels<K>; 2],
        basic: BasicType,
        op: Op,
    ) -> Option<K> {
        let is_wide = len >= WIDE_LEAST && has_wide();
        let wide = if is_wide { find(wide, basic, op) } else { None };
        wide.or_else(|| find(narrow, basic, op))
    }

    /// The kernels of an operation, narrow and wide.
    #[cfg(test)]
    pub(super) fn pairs(basic: BasicType, op: Op) -> [(Option<Update>, Option<Fetch>); 2] {
        let (code, op) = (usize::from(basic.to_wire()), op as usize);
        [(UPDATES[code][op], FETCHES[code][op]), (WIDE_UPDATES[code][op], WIDE_FETCHES[code][op])]
    }

    /// Whether there are kernels for that operation.
    #[inline(always)]
    pub(super) fn are_there(basic: BasicType, op: Op) -> bool {
        find(&UPDATES, basic, op).is_some()
    }

    /// # Safety
    ///
    /// `len` bytes are mapped at `at` and readable at `from`, a multiple of [`super::LEAST`]. The
    /// CPU has transactions for what is done at once.
    #[inline]
    pub(super) unsafe fn update(
        at: *mut u8,
        basic: BasicType,
        op: Op,
        from: *const u8,
        len: usize,
        how: How,
    ) -> bool {
        let kernel = find_for(len, [&UPDATES, &WIDE_UPDATES], basic, op);
        let Some(kernel) = kernel else { return false };
        // SAFETY: forwarded to the caller; the CPU has what the kernel needs.
        unsafe { kernel(at, from, len, how) }
    }

    /// # Safety
    ///
    /// As [`update`]; `into` takes as many bytes.
    #[inline]
    pub(super) unsafe fn fetch(
        at: *mut u8,
        basic: BasicType,
        op: Op,
        from: *const u8,
        into: *mut u8,
        len: usize,
        how: How,
    ) -> bool {
        let kernel = find_for(len, [&FETCHES, &WIDE_FETCHES], basic, op);
        let Some(kernel) = kernel else { return false };
        // SAFETY: forwarded to the caller; the CPU has what the kernel needs.
        unsafe { kernel(at, from, into, len, how) }
    }
}

#[cfg(test)]
#[path = "fused_tests.rs"]
mod tests;
