//! What each operation makes of two values: the one implementation that windows and collectives
//! use.
#![allow(unsafe_code)]

use super::sealed::Sealed;
use super::{BasicElement, BasicType, Bool, Pair, Visitor};
use crate::element::Op;
use bytemuck::{Pod, Zeroable, cast_slice, cast_slice_mut};
use core::cmp::Ordering::{Equal, Greater, Less};
use num_complex::Complex;

/// An element at any address: operands in a message are not aligned.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, packed)]
struct Unaligned<E>(E);

impl BasicType {
    /// Combines element by element: `op` applied to the bytes of elements of this type in `old` and
    /// to those of as many in `operands`. Where it is not defined, `old` stays.
    ///
    /// # Panics
    ///
    /// When one of both does not hold a whole number of elements.
    pub(crate) fn combine(self, op: Op, old: &mut [u8], operands: &[u8]) {
        if op == Op::Replace && self != Self::BOOL {
            let len = old.len().min(operands.len());
            return old[..len].copy_from_slice(&operands[..len]);
        }
        let with_code = if self.has_code(op) { self } else { self.unsigned() };
        with_code.visit(Combine { op, old, operands });
    }

    /// Whether its own code combines by `op`. Signed integers have minimum and maximum only: all
    /// else is the same for unsigned ones.
    #[inline]
    const fn has_code(self, op: Op) -> bool {
        match op {
            Op::Min | Op::Max => self.has(op),
            Op::Replace => self.to_wire() == Self::BOOL.to_wire(),
            _ => self.has(op) && self.to_wire() == self.unsigned().to_wire(),
        }
    }
}

/// The one code for every type: all that surrounds it handles bytes.
struct Combine<'a> {
    op: Op,
    old: &'a mut [u8],
    operands: &'a [u8],
}

impl Visitor for Combine<'_> {
    type Output = ();

    fn visit<E: BasicElement>(self) {
        let Self { op, old, operands } = self;
        let (old, operands) = (cast_slice_mut(old), cast_slice(operands));
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        match is_x86_feature_detected!("avx2") {
            // SAFETY: the CPU has what the function is compiled for.
            true => unsafe { loops_wide::<E>(op, old, operands) },
            false => loops_narrow::<E>(op, old, operands),
        }
        #[cfg(any(not(target_arch = "x86_64"), miri))]
        loops::<E>(op, old, operands);
    }
}

/// With the vectors of a CPU that has AVX2.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "avx2")]
fn loops_wide<E: BasicElement>(op: Op, old: &mut [Unaligned<E>], operands: &[Unaligned<E>]) {
    loops(op, old, operands);
}

/// For CPUs that are older than 2013: cold, so that the compiler makes little of it.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[cold]
#[inline(never)]
fn loops_narrow<E: BasicElement>(op: Op, old: &mut [Unaligned<E>], operands: &[Unaligned<E>]) {
    loops(op, old, operands);
}

/// The operation is known in each loop, so that it vectorises; there are none for operations of
/// which the type has no code. S-H1
#[inline(always)]
fn loops<E: BasicElement>(op: Op, old: &mut [Unaligned<E>], operands: &[Unaligned<E>]) {
    macro_rules! by_op { ($($op:ident),*) => {
        match op {
            $(Op::$op => {
                if const { E::BASIC.has_code(Op::$op) } {
                    for (old, operand) in old.iter_mut().zip(operands) {
                        old.0 = E::combine(Op::$op, old.0, operand.0);
                    }
                }
            })*
            Op::NoOp => {}
        }
    } }
    by_op!(
        Sum, Prod, Min, Max, LogicalAnd, LogicalOr, LogicalXor, BitAnd, BitOr, BitXor, MinLoc,
        MaxLoc, Replace
    );
}

/// Sums and products wrap. S-H17
macro_rules! integers { ($($int:ty: $basic:ident),*) => { $(
    impl Sealed for $int {}
    impl BasicElement for $int {
        const BASIC: BasicType = BasicType::$basic;

        #[inline(always)]
        fn combine(op: Op, old: Self, operand: Self) -> Self {
            match op {
                Op::Sum => old.wrapping_add(operand),
                Op::Prod => old.wrapping_mul(operand),
                Op::Min => old.min(operand),
                Op::Max => old.max(operand),
                Op::LogicalAnd => Self::from(old != 0 && operand != 0),
                Op::LogicalOr => Self::from(old != 0 || operand != 0),
                Op::LogicalXor => Self::from((old != 0) != (operand != 0)),
                Op::BitAnd => old & operand,
                Op::BitOr => old | operand,
                Op::BitXor => old ^ operand,
                Op::Replace => operand,
                Op::NoOp | Op::MinLoc | Op::MaxLoc => old,
            }
        }
    }
)* } }
integers!(u8: U8, i8: I8, u16: U16, i16: I16, u32: U32, i32: I32, u64: U64, i64: I64);
#[cfg(target_pointer_width = "64")]
integers!(usize: U64, isize: I64);
#[cfg(target_pointer_width = "32")]
integers!(usize: U32, isize: I32);

/// A minimum or maximum is a number if one operand is. S-H17
macro_rules! floats { ($($float:ty: $basic:ident),*) => { $(
    impl Sealed for $float {}
    impl BasicElement for $float {
        const BASIC: BasicType = BasicType::$basic;

        // Minimum and maximum do not depend on the order in which operands come: a NaN loses
        // against any number, and −0.0 is below 0.0.
        #[inline(always)]
        fn combine(op: Op, old: Self, operand: Self) -> Self {
            let equal = operand == old;
            match op {
                Op::Sum => old + operand,
                Op::Prod => old * operand,
                Op::Min => {
                    let below = operand < old || (equal && operand.is_sign_negative());
                    if below || old.is_nan() { operand } else { old }
                }
                Op::Max => {
                    let above = operand > old || (equal && operand.is_sign_positive());
                    if above || old.is_nan() { operand } else { old }
                }
                Op::Replace => operand,
                _ => old,
            }
        }
    }
)* } }
floats!(f32: F32, f64: F64);

impl Sealed for Bool {}
impl BasicElement for Bool {
    const BASIC: BasicType = BasicType::BOOL;

    #[inline(always)]
    fn combine(op: Op, old: Self, operand: Self) -> Self {
        let (a, b) = (old.get(), operand.get());
        match op {
            Op::LogicalAnd => Self::new(a & b),
            Op::LogicalOr => Self::new(a | b),
            Op::LogicalXor => Self::new(a ^ b),
            Op::Replace => Self::new(b),
            _ => old,
        }
    }
}

macro_rules! complex { ($($float:ty: $basic:ident),*) => { $(
    impl Sealed for Complex<$float> {}
    impl BasicElement for Complex<$float> {
        const BASIC: BasicType = BasicType::$basic;

        #[inline(always)]
        fn combine(op: Op, old: Self, operand: Self) -> Self {
            match op {
                Op::Sum => old + operand,
                Op::Prod => old * operand,
                Op::Replace => operand,
                _ => old,
            }
        }
    }
)* } }
complex!(f32: COMPLEX_F32, f64: COMPLEX_F64);

macro_rules! pairs { ($($value:ty, $index:ty: $basic:ident;)*) => { $(
    impl Sealed for Pair<$value, $index> {}
    impl BasicElement for Pair<$value, $index> {
        const BASIC: BasicType = BasicType::$basic;

        #[inline(always)]
        fn combine(op: Op, old: Self, operand: Self) -> Self {
            match op {
                Op::MinLoc => locate(old, operand, true),
                Op::MaxLoc => locate(old, operand, false),
                Op::Replace => operand,
                _ => old,
            }
        }
    }
)* } }
pairs! {
    i32, i32: PAIR_I32_I32; i32, u32: PAIR_I32_U32; u32, i32: PAIR_U32_I32;
    u32, u32: PAIR_U32_U32; f32, i32: PAIR_F32_I32; f32, u32: PAIR_F32_U32;
    i64, i64: PAIR_I64_I64; i64, u64: PAIR_I64_U64; u64, i64: PAIR_U64_I64;
    u64, u64: PAIR_U64_U64; f64, i64: PAIR_F64_I64; f64, u64: PAIR_F64_U64;
}

/// The pair with the lowest (or highest) value; of equal ones that with the lower index. A NaN
/// loses against any number, and equals a NaN.
#[inline(always)]
fn locate<V, I>(old: Pair<V, I>, operand: Pair<V, I>, lowest: bool) -> Pair<V, I>
where
    V: PartialOrd + Copy,
    I: PartialOrd + Copy,
{
    let is_nan = |value: &V| value.partial_cmp(value).is_none();
    let wins = match operand.value.partial_cmp(&old.value) {
        Some(Less) => lowest,
        Some(Greater) => !lowest,
        Some(Equal) => operand.index < old.index,
        None => match (is_nan(&old.value), is_nan(&operand.value)) {
            (true, true) => operand.index < old.index,
            (old_is_nan, _) => old_is_nan,
        },
    };
    if wins { operand } else { old }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::fmt::Debug;

    /// The loop over slices and the function agree. No NaN may come out: its bits are not defined.
    fn agree<E: BasicElement + Debug>(values: &[E]) {
        for op in Op::ALL {
            let pairs = values.iter().flat_map(|a| values.iter().map(move |b| (*a, *b)));
            let (mut old, operands): (Vec<E>, Vec<E>) = pairs.unzip();
            let one_by_one: Vec<E> =
                old.iter().zip(&operands).map(|(a, b)| E::combine(op, *a, *b)).collect();
            E::combine_all(op, &mut old, &operands);
            let (all, single): (&[u8], &[u8]) =
                (bytemuck::cast_slice(&old), bytemuck::cast_slice(&one_by_one));
            assert_eq!(all, single, "{} on {values:?}", op.name());
        }
    }

    #[test]
    fn slices_and_single_values_agree() {
        agree(&[0u8, 1, 7, 255]);
        agree(&[-128i8, 0, 1, 127]);
        agree(&[0u16, 1, 65_535]);
        agree(&[i16::MIN, -1, 0, i16::MAX]);
        agree(&[0u32, 5, u32::MAX]);
        agree(&[i32::MIN, 0, 3, i32::MAX]);
        agree(&[0u64, 5, u64::MAX]);
        agree(&[i64::MIN, 0, 3, i64::MAX]);
        agree(&[0usize, 9]);
        agree(&[-1isize, 9]);
        agree(&[0.0f32, -0.0, 1.5, -2.5, f32::MAX]);
        agree(&[0.0f64, -0.0, 1.5, -2.5, f64::MIN]);
        agree(&[Bool::FALSE, Bool::TRUE]);
        agree(&[Complex::new(1.0f32, -2.0), Complex::new(0.5, 3.0)]);
        agree(&[Complex::new(1.0f64, -2.0), Complex::new(0.5, 3.0)]);
        agree(&[Pair::new(1i32, 1i32), Pair::new(1, 2), Pair::new(-1, 9)]);
        agree(&[Pair::new(1.0f64, 1u64), Pair::new(1.0, 2), Pair::new(-1.0, 9)]);
    }

    /// S-H17
    #[test]
    fn integers_wrap() {
        assert_eq!(i8::combine(Op::Sum, 127, 1), -128);
        assert_eq!(u16::combine(Op::Prod, 300, 300), 24_464);
        assert_eq!(i32::combine(Op::Sum, i32::MAX, 1), i32::MIN);
        assert_eq!(u64::combine(Op::Prod, u64::MAX, 2), u64::MAX - 1);
    }

    #[test]
    fn logical_operations_give_0_or_1() {
        let table = [(0, 0, [0, 0, 0]), (0, 6, [0, 1, 1]), (5, 0, [0, 1, 1]), (5, 6, [1, 1, 0])];
        for (a, b, [and, or, xor]) in table {
            assert_eq!(i32::combine(Op::LogicalAnd, a, b), and);
            assert_eq!(i32::combine(Op::LogicalOr, a, b), or);
            assert_eq!(i32::combine(Op::LogicalXor, a, b), xor);
            let bits = |op| {
                let operands = (bytemuck::cast(a as u8), bytemuck::cast(b as u8));
                i32::from(bytemuck::cast::<Bool, u8>(Bool::combine(op, operands.0, operands.1)))
            };
            assert_eq!(bits(Op::LogicalAnd), and);
            assert_eq!(bits(Op::LogicalOr), or);
            assert_eq!(bits(Op::LogicalXor), xor);
        }
        let replaced = Bool::combine(Op::Replace, Bool::FALSE, bytemuck::cast(9u8));
        assert_eq!(bytemuck::cast::<Bool, u8>(replaced), 1, "written as 1");
    }

    /// S-H17
    #[test]
    fn float_extremes_do_not_depend_on_the_order() {
        let values = [f64::NAN, -0.0, 0.0, 1.0, -1.0, f64::INFINITY, f64::NEG_INFINITY];
        for a in values {
            for b in values {
                for op in [Op::Min, Op::Max] {
                    let (one, other) = (f64::combine(op, a, b), f64::combine(op, b, a));
                    let same = one.to_bits() == other.to_bits() || (one.is_nan() && other.is_nan());
                    assert!(same, "{} of {a} and {b}: {one} or {other}", op.name());
                }
            }
        }
        assert!(f64::combine(Op::Min, 0.0, -0.0).is_sign_negative());
        assert!(f64::combine(Op::Max, -0.0, 0.0).is_sign_positive());
        assert_eq!(f32::combine(Op::Max, f32::NAN, -3.0), -3.0);
        assert_eq!(f32::combine(Op::Min, 2.0, f32::NAN), 2.0);
        assert!(f64::combine(Op::Min, f64::NAN, f64::NAN).is_nan());
        assert!(f64::combine(Op::Sum, 1.0, f64::NAN).is_nan());
    }

    /// S-H6 S-H17
    #[test]
    fn pairs_are_located() {
        let p = Pair::new;
        assert_eq!(Pair::combine(Op::MinLoc, p(3, 1), p(2, 9)), p(2, 9));
        assert_eq!(Pair::combine(Op::MaxLoc, p(3, 1), p(2, 9)), p(3, 1));
        assert_eq!(Pair::combine(Op::MinLoc, p(3, 4), p(3, 2)), p(3, 2), "the lower index");
        assert_eq!(Pair::combine(Op::MaxLoc, p(3, 4), p(3, 7)), p(3, 4), "the lower index");
        let nan = f32::NAN;
        for op in [Op::MinLoc, Op::MaxLoc] {
            assert_eq!(Pair::combine(op, Pair::new(nan, 0), Pair::new(1.0f32, 5i32)).index, 5);
            assert_eq!(Pair::combine(op, Pair::new(1.0f32, 5i32), Pair::new(nan, 0)).index, 5);
            assert_eq!(Pair::combine(op, Pair::new(nan, 6i32), Pair::new(nan, 2)).index, 2);
        }
    }

    #[test]
    fn complex_numbers_multiply() {
        let (a, b) = (Complex::new(1.0f64, 2.0), Complex::new(3.0, -1.0));
        assert_eq!(Complex::combine(Op::Prod, a, b), Complex::new(5.0, 5.0));
        assert_eq!(Complex::combine(Op::Sum, a, b), Complex::new(4.0, 1.0));
    }
}
