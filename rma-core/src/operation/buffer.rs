//! Buffers that an operation owns while it is under way.
#![expect(private_bounds, reason = "hidden methods of sealed traits")]

use crate::element::{Bool, Element, Pair};
use crate::layout::{LayoutOf, PlacedLayout};
use num_complex::Complex;

pub(crate) mod sealed {
    #[diagnostic::on_unimplemented(
        message = "`{Self}` cannot be made a buffer that a request owns",
        label = "which types can be is for rma to say",
        note = "keep a `Vec<E>`, a `Box<[E]>` or an array in it, and give that to the request"
    )]
    #[expect(unnameable_types, reason = "implemented here only")]
    pub trait Sealed {}
}

/// A buffer that a request owns until it is complete.
///
/// Implemented for `Vec<E>`, `Box<[E]>`, arrays, and single values of the types that can be
/// [combined](crate::BasicElement).
#[diagnostic::on_unimplemented(
    message = "a request cannot own `{Self}`",
    note = "`Vec<E>`, `Box<[E]>`, `[E; N]` and single integers, floats and the like can be given \
            to it, and `layout.of(…)` of one"
)]
pub trait OriginBuffer: Send + 'static + sealed::Sealed {
    /// What it holds.
    type Element: Element;
    // Not a box while an operation is under way: moving a box asserts that nothing else has its
    // address.
    #[doc(hidden)]
    fn into_vec(self) -> Vec<Self::Element>;
    /// The inverse of `into_vec`, for as many elements.
    #[doc(hidden)]
    fn from_vec(vec: Vec<Self::Element>) -> Self;
    #[doc(hidden)]
    fn as_elements(&self) -> &[Self::Element];
    #[doc(hidden)]
    fn as_elements_mut(&mut self) -> &mut [Self::Element];
}

/// What a request takes: a buffer, or a [layout of](crate::Layout::of) one.
#[diagnostic::on_unimplemented(
    message = "a request cannot own `{Self}`",
    note = "`Vec<E>`, `Box<[E]>`, `[E; N]` and single integers, floats and the like can be given \
            to it, and `layout.of(…)` of one"
)]
pub trait OwnedOrigin: sealed::Sealed {
    /// What [`Request::wait`](crate::Request::wait) gives back.
    type Buffer: OriginBuffer;

    /// Gives the buffer away and lends its layout.
    #[doc(hidden)]
    fn give<R>(self, to: impl FnOnce(Self::Buffer, Option<PlacedLayout<'_>>) -> R) -> R;
}

impl<B: OriginBuffer> OwnedOrigin for B {
    type Buffer = B;
    #[inline(always)]
    fn give<R>(self, to: impl FnOnce(B, Option<PlacedLayout<'_>>) -> R) -> R {
        to(self, None)
    }
}

impl<B: OriginBuffer> sealed::Sealed for LayoutOf<'_, B> {}
impl<B: OriginBuffer> OwnedOrigin for LayoutOf<'_, B> {
    type Buffer = B;
    #[inline(always)]
    fn give<R>(self, to: impl FnOnce(B, Option<PlacedLayout<'_>>) -> R) -> R {
        let placed = self.layout_in::<B::Element>();
        to(self.buffer, Some(placed))
    }
}

macro_rules! buffers { ($($buffer:ty $(, $n:ident)?: |$vec:ident| $from_vec:expr;)*) => { $(
    impl<E: Element $(, const $n: usize)?> sealed::Sealed for $buffer {}
    #[diagnostic::do_not_recommend]
    impl<E: Element $(, const $n: usize)?> OriginBuffer for $buffer {
        type Element = E;
        fn into_vec(self) -> Vec<E> {
            self.into()
        }
        fn from_vec($vec: Vec<E>) -> Self {
            $from_vec
        }
        #[inline(always)]
        fn as_elements(&self) -> &[E] {
            self
        }
        #[inline(always)]
        fn as_elements_mut(&mut self) -> &mut [E] {
            self
        }
    }
)* } }
buffers! {
    Vec<E>: |vec| vec;
    Box<[E]>: |vec| vec.into();
    [E; N], N: |vec| vec.try_into().unwrap_or_else(|_| unreachable!("as long as the array was"));
}

macro_rules! single_values { ($($value:ty),*) => { $(
    impl sealed::Sealed for $value {}
    #[diagnostic::do_not_recommend]
    impl OriginBuffer for $value {
        type Element = Self;
        fn into_vec(self) -> Vec<Self> {
            vec![self]
        }
        fn from_vec(vec: Vec<Self>) -> Self {
            vec[0]
        }
        #[inline(always)]
        fn as_elements(&self) -> &[Self] {
            core::slice::from_ref(self)
        }
        #[inline(always)]
        fn as_elements_mut(&mut self) -> &mut [Self] {
            core::slice::from_mut(self)
        }
    }
)* } }
single_values!(u8, u16, u32, u64, usize, i8, i16, i32, i64, isize, f32, f64, Bool);
single_values!(Complex<f32>, Complex<f64>);
single_values!(Pair<i32, i32>, Pair<i32, u32>, Pair<u32, i32>, Pair<u32, u32>);
single_values!(Pair<f32, i32>, Pair<f32, u32>, Pair<f64, i64>, Pair<f64, u64>);
single_values!(Pair<i64, i64>, Pair<i64, u64>, Pair<u64, i64>, Pair<u64, u64>);
