//! Kernels against what they are defined as, and against each other.
#![allow(unsafe_code)]

use super::*;
use crate::element::BasicElement;
use bytemuck::{cast_slice, cast_slice_mut};
use num_complex::Complex;

/// Each operation on arrays whose elements are drawn from `values`, against the definition.
fn check<E: BasicElement>(values: &[E], fused: &[Op]) {
    let has_kernels = cfg!(all(target_arch = "x86_64", not(miri)));
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    let has_kernels = has_kernels && is_x86_feature_detected!("avx2");
    let of = |i: usize| values[i % values.len()];
    // Without kernels nothing is done, of any length.
    let most = if has_kernels { 304 } else { 4 };
    let counts = || (0..18).chain([100, 300, 303]).filter(|count| *count < most);
    for op in Op::ALL {
        for count in counts() {
            for (skip, fetches) in [(0, false), (1, false), (0, true), (1, true)] {
                let mut window: Vec<E> = (0..count + 2).map(of).collect();
                let operands: Vec<E> =
                    (0..count).map(|i| of(i / values.len() + 2 * i + 1)).collect();
                let (before, mut old) = (window.clone(), vec![E::zeroed(); count]);
                let bytes: &[u8] = cast_slice(&operands);
                let (at, result) = (window[skip..].as_mut_ptr().cast(), cast_slice_mut(&mut old));
                // SAFETY: as many elements lie behind `skip`.
                let done = unsafe { combine(at, E::BASIC, op, bytes, fetches.then_some(result)) };
                let expected = if has_kernels && fused.contains(&op) { bytes.len() } else { 0 };
                assert_eq!(done, expected, "{} of {count}", op.name());
                let done = done / size_of::<E>();
                let mut expected = before.clone();
                E::combine_all(op, &mut expected[skip..skip + done], &operands[..done]);
                let bytes = |elements: &[E]| cast_slice::<E, u8>(elements).to_vec();
                assert_eq!(bytes(&window), bytes(&expected), "{} of {count}", op.name());
                let fetched = if fetches { done } else { 0 };
                assert_eq!(bytes(&old[..fetched]), bytes(&before[skip..skip + fetched]));
                assert!(bytes(&old[fetched..]).iter().all(|byte| *byte == 0));
            }
        }
    }
}

#[test]
fn kernels_agree_with_the_definition() {
    let real = [Op::Sum, Op::Prod, Op::Min, Op::Max, Op::Replace];
    let other_nan = f64::from_bits(f64::NAN.to_bits() | 5);
    let values =
        [0.75, -3.0, 0.0, -0.0, f64::INFINITY, f64::NAN, 1e-310, -f64::INFINITY, other_nan];
    // What a sum of two NaNs is, the language leaves open.
    let numbers = &values[..5];
    check(numbers, &real);
    check(&numbers.iter().map(|value| *value as f32).collect::<Vec<_>>(), &real);
    let one_nan = &values[..7];
    check(one_nan, &real);
    check(&one_nan.iter().map(|value| *value as f32).collect::<Vec<_>>(), &real);
    let complex = [Op::Sum, Op::Prod, Op::Replace];
    let pairs = |i: usize| (numbers[i % 4] + i as f64, numbers[(i + 2) % 4] - 0.5);
    check(&(0..7).map(pairs).map(|(a, b)| Complex::new(a, b)).collect::<Vec<_>>(), &complex);
    let narrow = |(a, b)| Complex::new(a as f32, b as f32);
    check(&(0..7).map(pairs).map(narrow).collect::<Vec<_>>(), &complex);
    check(&[1u16, 2, 0xffff], &[]);
}

#[test]
fn kernels_of_integers_agree_with_the_definition() {
    let ops = [Op::Sum, Op::Prod, Op::Min, Op::Max, Op::BitAnd, Op::BitOr, Op::BitXor, Op::Replace];
    let odd = 0x9e37_79b9_7f4a_7c15u64;
    let values = [0, 1, u64::MAX, 1 << 63, (1 << 63) - 1, odd, odd >> 31, 1 << 32, 1 << 31];
    check(&values, &ops);
    check(&values.map(u64::cast_signed), &ops);
    let halves: Vec<u32> = values.iter().flat_map(|it| [*it as u32, (*it >> 32) as u32]).collect();
    check(&halves, &ops);
    check(&halves.iter().map(|half| half.cast_signed()).collect::<Vec<_>>(), &ops);
}

/// Each operation that has kernels, of all lengths around those that are worth it.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[test]
fn what_is_done_at_once_agrees_with_the_definition() {
    let value = |i: usize| (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let lens = [56, 64, 72, 128, 500 * 8, AT_ONCE_MOST, AT_ONCE_MOST + 8];
    for (op, len) in Op::ALL.into_iter().flat_map(|op| lens.map(|len| (op, len))) {
        for fetches in [false, true] {
            let before: Vec<u64> = (0..len / 8).map(value).collect();
            let operands: Vec<u64> = (0..len / 8).map(|i| value(i + 99)).collect();
            let (mut window, mut old) = (before.clone(), vec![0u64; len / 8]);
            let result = fetches.then(|| cast_slice_mut(&mut old));
            let (at, bytes) = (window.as_mut_ptr().cast(), cast_slice(&operands));
            // SAFETY: as many elements are there.
            let done = unsafe { combine_at_once(at, BasicType::U64, op, bytes, result) };
            let most = if len < AT_ONCE_LEAST { 0 } else { len.min(AT_ONCE_MOST) };
            assert!(done == 0 || done == most, "{} of {len}: {done}", op.name());
            let mut expected = before.clone();
            if done > 0 {
                u64::combine_all(op, &mut expected[..done / 8], &operands[..done / 8]);
            }
            assert_eq!(window, expected, "{} of {len}", op.name());
            let fetched = if fetches { done / 8 } else { 0 };
            assert_eq!(old[..fetched], before[..fetched]);
            assert!(old[fetched..].iter().all(|old| *old == 0));
        }
    }
}

/// Where the CPU has wide kernels, `combine` takes these for long arrays: so each of both widths is
/// held against the other, of all remainders and off their lines.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[test]
fn wide_kernels_agree_with_narrow_ones() {
    if !is_x86_feature_detected!("avx2") || !is_x86_feature_detected!("avx512f") {
        return;
    }
    // No byte makes a number infinite, or none.
    let fill = |seed: usize, len: usize| -> Vec<u8> {
        (0..len).map(|i| ((i * 37 + seed) % 0x6b) as u8).collect()
    };
    let (mut compared, lens) = (0, [4, 252, 256, 260, 508, 512, 700, 2 * 512 + 60, 4096]);
    for (basic, op) in BasicType::ALL.iter().flat_map(|basic| Op::ALL.map(|op| (*basic, op))) {
        let [narrow, wide] = kernels::pairs(basic, op);
        let (Some(narrow), Some(wide)) = (narrow.0.zip(narrow.1), wide.0.zip(wide.1)) else {
            assert!(wide.0.is_none() && wide.1.is_none(), "{}: {basic:?}", op.name());
            continue;
        };
        compared += 1;
        for (len, skip) in lens.into_iter().flat_map(|len| [0, 4].map(|skip| (len, skip))) {
            // Whole elements only.
            let len = len / basic.width() * basic.width();
            let operands = fill(5, len);
            let run = |kernels: (kernels::Update, kernels::Fetch)| {
                let (mut updated, mut fetched) = (fill(11, skip + len), fill(11, skip + len));
                let (mut old, how) = (vec![0u8; len], How::UnderLock);
                let (from, into) = (operands.as_ptr(), old.as_mut_ptr());
                // SAFETY: as many bytes lie behind `skip` and in the others, and the CPU has both.
                let done = unsafe { kernels.0(updated[skip..].as_mut_ptr(), from, len, how) };
                // SAFETY: as above.
                let and = unsafe { kernels.1(fetched[skip..].as_mut_ptr(), from, into, len, how) };
                assert!(done && and && updated == fetched && old == fill(11, skip + len)[skip..]);
                updated
            };
            assert_eq!(run(narrow), run(wide), "{} of {len}: {basic:?}", op.name());
        }
    }
    // All of integers but two products; sums, products and replacements of floats; no products of
    // complex numbers.
    assert_eq!(compared, 4 * 8 - 2 + 2 * 3 + 2 * 2);
}

#[test]
fn minima_and_maxima_of_all_kinds_of_numbers() {
    let nans = [f64::NAN, f64::from_bits(f64::NAN.to_bits() | 5), -f64::NAN];
    let numbers = [0.0, -0.0, 1.5, -2.5, f64::INFINITY, -f64::INFINITY, 5e-324];
    let all: Vec<f64> = nans.into_iter().chain(numbers).collect();
    let narrow: Vec<f32> = all.iter().map(|value| *value as f32).collect();
    for op in [Op::Min, Op::Max] {
        for first in 0..all.len() {
            for second in 0..all.len() {
                each_lane(op, all[first], all[second]);
                each_lane(op, narrow[first], narrow[second]);
            }
        }
    }
}

fn each_lane<E: BasicElement>(op: Op, old: E, operand: E) {
    let lanes = VECTOR / size_of::<E>();
    let (mut window, operands) = (vec![old; lanes], vec![operand; lanes]);
    let bytes: &[u8] = cast_slice(&operands);
    // SAFETY: as many elements are there.
    let done = unsafe { combine(window.as_mut_ptr().cast(), E::BASIC, op, bytes, None) };
    if done > 0 {
        let expected = vec![E::combine(op, old, operand); lanes];
        let (found, expected): (&[u8], &[u8]) = (cast_slice(&window), cast_slice(&expected));
        assert_eq!(found, expected, "{}", op.name());
    }
}
