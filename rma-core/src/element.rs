//! Values that may travel through a window, and those that can be combined there.
use crate::ops::Op;

/// A value that may travel: every bit pattern is a value, no padding, no pointer.
///
/// Implemented for every [`bytemuck::Pod`] type; derive `Pod` and `Zeroable` (with `#[repr(C)]`)
/// for your own structs. A type with padding, a reference, a `bool` or a `char` is refused by the
/// compiler: its bytes would not be a valid value at every target.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot travel through a window",
    label = "not plain bytes",
    note = "elements must be `bytemuck::Pod`: every bit pattern valid, no padding, no pointers"
)]
pub trait Element: bytemuck::Pod + Send + Sync {}
impl<E: bytemuck::Pod + Send + Sync> Element for E {}

mod sealed {
    pub trait Sealed {}
}

/// A number that reductions such as [`Op::Sum`] can combine.
pub trait Number: Element + sealed::Sealed {
    /// `op` applied to the value in the window (`old`) and the operand.
    ///
    /// Integers wrap. [`Op::Min`] and [`Op::Max`] of floats ignore a NaN on one side. Bitwise
    /// operations are defined for integers only; [`Op::allowed_on_floats`] says which are.
    #[doc(hidden)]
    fn combine(op: Op, old: Self, operand: Self) -> Self;
    /// Whether this is a floating-point type.
    #[doc(hidden)]
    const FLOAT: bool;
}

/// An integer that a window holds atomically: operands of fetch-and-op and compare-and-swap.
pub trait AtomicElement: Number + Eq {
    /// The value, zero-extended.
    #[doc(hidden)]
    fn to_bits(self) -> u64;
    /// The inverse of `to_bits`; upper bits are ignored.
    #[doc(hidden)]
    fn from_bits(bits: u64) -> Self;
    /// How the bytes are combined.
    #[doc(hidden)]
    const KIND: IntKind;
}

/// Integer types that atomics understand, as they stand in messages.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum IntKind {
    /// `u32`
    U32 = 0,
    /// `i32`
    I32 = 1,
    /// `u64`
    U64 = 2,
    /// `i64`
    I64 = 3,
}

impl IntKind {
    /// Bytes of the type, which is also its alignment in a window.
    pub(crate) const fn width(self) -> usize {
        match self {
            Self::U32 | Self::I32 => 4,
            Self::U64 | Self::I64 => 8,
        }
    }

    pub(crate) fn from_wire(byte: u8) -> Option<Self> {
        [Self::U32, Self::I32, Self::U64, Self::I64].into_iter().find(|kind| *kind as u8 == byte)
    }
}

macro_rules! integers { ($($int:ty),*) => { $(
    impl sealed::Sealed for $int {}
    impl Number for $int {
        const FLOAT: bool = false;
        #[inline]
        fn combine(op: Op, old: Self, operand: Self) -> Self {
            match op {
                Op::Sum => old.wrapping_add(operand),
                Op::Prod => old.wrapping_mul(operand),
                Op::Min => old.min(operand),
                Op::Max => old.max(operand),
                Op::BitAnd => old & operand,
                Op::BitOr => old | operand,
                Op::BitXor => old ^ operand,
                Op::Replace => operand,
                Op::NoOp => old,
            }
        }
    }
)* } }
integers!(u8, i8, u16, i16, u32, i32, u64, i64, usize, isize);

macro_rules! floats { ($($float:ty),*) => { $(
    impl sealed::Sealed for $float {}
    impl Number for $float {
        const FLOAT: bool = true;
        #[inline]
        fn combine(op: Op, old: Self, operand: Self) -> Self {
            match op {
                Op::Sum => old + operand,
                Op::Prod => old * operand,
                Op::Min => old.min(operand),
                Op::Max => old.max(operand),
                Op::Replace => operand,
                Op::BitAnd | Op::BitOr | Op::BitXor | Op::NoOp => old,
            }
        }
    }
)* } }
floats!(f32, f64);

macro_rules! atomics { ($($int:ty: $kind:ident),*) => { $(
    impl AtomicElement for $int {
        const KIND: IntKind = IntKind::$kind;
        #[inline]
        fn to_bits(self) -> u64 {
            // Through the unsigned type of the same width: no sign extension on the wire.
            atomics!(@unsigned $kind, self)
        }
        #[inline]
        fn from_bits(bits: u64) -> Self {
            bits as Self
        }
    }
)* };
    (@unsigned U32, $value:expr) => { u64::from($value) };
    (@unsigned I32, $value:expr) => { u64::from($value.cast_unsigned()) };
    (@unsigned U64, $value:expr) => { $value };
    (@unsigned I64, $value:expr) => { $value.cast_unsigned() };
}
atomics!(u32: U32, i32: I32, u64: U64, i64: I64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_round_trip() {
        assert_eq!(<i32 as AtomicElement>::from_bits((-5i32).to_bits()), -5);
        assert_eq!((-1i32).to_bits(), 0xffff_ffff);
        assert_eq!(<i64 as AtomicElement>::from_bits(AtomicElement::to_bits(i64::MIN)), i64::MIN);
    }

    #[test]
    fn integers_wrap_and_floats_skip_nan() {
        assert_eq!(i32::combine(Op::Sum, i32::MAX, 1), i32::MIN);
        assert_eq!(u32::combine(Op::Max, 3, 9), 9);
        assert_eq!(f64::combine(Op::Min, f64::NAN, 2.0), 2.0);
    }

    #[test]
    fn kinds_parse() {
        assert_eq!(IntKind::from_wire(3), Some(IntKind::I64));
        assert_eq!(IntKind::from_wire(4), None);
    }
}
