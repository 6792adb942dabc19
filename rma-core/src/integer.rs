//! Integers of any width, where a call takes a displacement or a count.

mod sealed {
    #[expect(unnameable_types, reason = "implemented here only")]
    pub trait Sealed {}
}

/// An integer of any width, as a displacement or a count: neither needs a cast.
///
/// A negative one lies outside of every window, or is too many: it is refused where it is used, as
/// the number of 64 bits that it is in two's complement.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no displacement and no count",
    note = "integers of up to 64 bits are, and a layout at one: `layout.at(5)`"
)]
pub trait Integer: Copy + sealed::Sealed {
    /// The same number of 64 bits, sign-extended.
    #[doc(hidden)]
    fn to_u64(self) -> u64;

    /// The same number, if it is one.
    #[doc(hidden)]
    fn to_i64(self) -> Option<i64>;
}

macro_rules! integers { ($($int:ty),*) => { $(
    impl sealed::Sealed for $int {}
    impl Integer for $int {
        #[inline(always)]
        fn to_u64(self) -> u64 {
            self as u64
        }
        #[inline(always)]
        fn to_i64(self) -> Option<i64> {
            i64::try_from(self).ok()
        }
    }
)* } }
integers!(u8, u16, u32, u64, usize, i8, i16, i32, i64, isize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negative_numbers_are_beyond_everything() {
        assert_eq!((-1i32).to_u64(), u64::MAX);
        assert_eq!((-1isize).to_i64(), Some(-1));
        assert_eq!(u64::MAX.to_i64(), None);
        assert_eq!((7usize.to_u64(), 7u8.to_i64()), (7, Some(7)));
    }
}
