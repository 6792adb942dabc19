//! Values that may travel through a window, and those that can be combined there.
mod basic;
mod boolean;
mod combine;
mod op;
mod pair;

pub use basic::BasicType;
pub(crate) use basic::{SwapVisitor, Visitor};
pub use boolean::Bool;
pub use op::Op;
pub use pair::Pair;

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
    #[expect(unnameable_types, reason = "implemented here only")]
    pub trait Sealed {}
}

/// A value that an [`Op`] can combine with another: an operand of the accumulate family and of
/// reductions.
///
/// | types | operations |
/// | --- | --- |
/// | `u8` to `u64`, `i8` to `i64`, `usize`, `isize` | all but minloc and maxloc |
/// | `f32`, `f64` | sum, prod, min, max |
/// | [`Bool`] | land, lor, lxor |
/// | `Complex<f32>`, `Complex<f64>` of [`num_complex`] | sum, prod |
/// | [`Pair`] | minloc, maxloc |
///
/// All have replace and no_op. [`Op::is_defined_on`] tells, and an operation that is not defined
/// is an error when it is issued (MPI 4.1, section 6.9.2).
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no reductions",
    note = "there are integers, floats, `rma::Bool`, `rma::Complex` and `rma::Pair`"
)]
pub trait BasicElement: Element + sealed::Sealed {
    /// What it is in messages and errors.
    #[doc(hidden)]
    const BASIC: BasicType;

    /// `op` applied to the value in the window (`old`) and the operand; `old` where `op` is not
    /// defined.
    #[doc(hidden)]
    fn combine(op: Op, old: Self, operand: Self) -> Self;

    /// [`combine`](Self::combine), element by element, in loops that the compiler vectorises.
    #[doc(hidden)]
    fn combine_all(op: Op, old: &mut [Self], operands: &[Self]) {
        Self::BASIC.combine(op, bytemuck::cast_slice_mut(old), bytemuck::cast_slice(operands));
    }
}

/// A value that is compared and swapped atomically: an integer of any width, or [`Bool`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not atomic: it is neither compared and swapped nor waited for",
    note = "integers and `rma::Bool` are (MPI 4.1, section 12.3.4); of a float, take the bits: \
            `wait_until(disp, |bits: u64| f64::from_bits(bits) > 0.5)`"
)]
pub trait AtomicElement: BasicElement + Eq {
    /// The value, zero-extended.
    #[doc(hidden)]
    fn to_bits(self) -> u64;
    /// The inverse of `to_bits`; upper bits are ignored.
    #[doc(hidden)]
    fn from_bits(bits: u64) -> Self;
}

/// Integers. S-H12
macro_rules! atomics { ($($int:ty as $unsigned:ty),*) => { $(
    impl AtomicElement for $int {
        #[inline]
        fn to_bits(self) -> u64 {
            // Through the unsigned type of the same width: no sign extension on the wire.
            self as $unsigned as u64
        }
        #[inline]
        fn from_bits(bits: u64) -> Self {
            bits as Self
        }
    }
)* } }
atomics!(u8 as u8, i8 as u8, u16 as u16, i16 as u16, u32 as u32, i32 as u32, u64 as u64);
atomics!(i64 as u64, usize as usize, isize as usize);

impl AtomicElement for Bool {
    #[inline]
    fn to_bits(self) -> u64 {
        u64::from(self.get())
    }
    #[inline]
    fn from_bits(bits: u64) -> Self {
        Self::new(bits as u8 != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_round_trip() {
        assert_eq!(<i32 as AtomicElement>::from_bits((-5i32).to_bits()), -5);
        assert_eq!((-1i32).to_bits(), 0xffff_ffff);
        assert_eq!((-1i8).to_bits(), 0xff);
        assert_eq!(<i16 as AtomicElement>::from_bits((-2i16).to_bits()), -2);
        assert_eq!(<i64 as AtomicElement>::from_bits(AtomicElement::to_bits(i64::MIN)), i64::MIN);
        assert_eq!(Bool::from_bits(Bool::TRUE.to_bits()), Bool::TRUE);
    }
}
