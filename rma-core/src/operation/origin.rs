//! Buffers of the origin: slices, and layouts of slices.
#![expect(private_interfaces, private_bounds, reason = "hidden methods of sealed traits")]

use crate::element::Element;
use crate::layout::{LayoutOf, PlacedLayout};

pub(crate) mod sealed {
    #[expect(unnameable_types, reason = "implemented here only")]
    pub trait Sealed {}
    /// What a layout may be of: a slice, and no layout of one, which would be ignored.
    #[expect(unnameable_types, reason = "implemented here only")]
    pub trait Slice {}
}

/// What an operation sends: a slice, or a [layout of](crate::Layout::of) one.
///
/// Implemented for references to slices, arrays, vectors and boxed slices of
/// [elements](Element), and for [`LayoutOf`] such a reference.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no origin buffer",
    label = "neither a slice of elements nor a layout of one",
    note = "`&[E]`, `&[E; N]`, `&Vec<E>` are, and `layout.of(&matrix)`; an element `E` is \
            `bytemuck::Pod`: every bit pattern valid, no padding, no pointers"
)]
pub trait Origin: sealed::Sealed {
    /// What the buffer holds.
    type Element: Element;

    /// What stays borrowed while an operation of a scope is under way: the buffer, not its layout.
    type Buffer;

    #[doc(hidden)]
    fn elements(&self) -> &[Self::Element];

    #[doc(hidden)]
    fn placed(&self) -> Option<PlacedLayout<'_>>;
}

/// What an operation fills: a mutable slice, or a [layout of](crate::Layout::of) one.
///
/// Implemented for mutable references to slices, arrays, vectors and boxed slices of
/// [elements](Element), and for [`LayoutOf`] such a reference. A reference that is used again after
/// the call is lent anew: `&mut *slice`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no origin buffer to be filled",
    label = "neither a mutable slice of elements nor a layout of one",
    note = "`&mut [E]`, `&mut [E; N]`, `&mut Vec<E>` are, and `layout.of(&mut matrix)`; an element \
            `E` is `bytemuck::Pod`: every bit pattern valid, no padding, no pointers"
)]
pub trait OriginMut<'b>: sealed::Sealed {
    /// What the buffer holds.
    type Element: Element;

    /// Lends the buffer and its layout.
    #[doc(hidden)]
    fn lend<R>(self, to: impl FnOnce(&'b mut [Self::Element], Option<PlacedLayout<'_>>) -> R) -> R;
}

/// Hands the kinds of slices of elements `E` to a macro, which implements something for each.
macro_rules! for_each_slice {
    ($implement:ident) => {
        $implement! {
            [E];
            [E; N], N;
            Vec<E>;
            Box<[E]>;
        }
    };
}
pub(crate) use for_each_slice;

macro_rules! slices { ($($buffer:ty $(, $n:ident)?;)*) => { $(
    impl<E: Element $(, const $n: usize)?> sealed::Sealed for &$buffer {}
    impl<E: Element $(, const $n: usize)?> sealed::Slice for &$buffer {}
    #[diagnostic::do_not_recommend]
    impl<'b, E: Element $(, const $n: usize)?> Origin for &'b $buffer {
        type Element = E;
        type Buffer = &'b $buffer;
        #[inline(always)]
        fn elements(&self) -> &[E] {
            &self[..]
        }
        #[inline(always)]
        fn placed(&self) -> Option<PlacedLayout<'_>> {
            None
        }
    }
    impl<E: Element $(, const $n: usize)?> sealed::Sealed for &mut $buffer {}
    impl<E: Element $(, const $n: usize)?> sealed::Slice for &mut $buffer {}
    #[diagnostic::do_not_recommend]
    impl<'b, E: Element $(, const $n: usize)?> OriginMut<'b> for &'b mut $buffer {
        type Element = E;
        #[inline(always)]
        fn lend<R>(self, to: impl FnOnce(&'b mut [E], Option<PlacedLayout<'_>>) -> R) -> R {
            to(self, None)
        }
    }
)* } }
for_each_slice!(slices);

impl<B: sealed::Sealed> sealed::Sealed for LayoutOf<'_, B> {}
#[diagnostic::do_not_recommend]
impl<B: Origin + sealed::Slice> Origin for LayoutOf<'_, B> {
    type Element = B::Element;
    type Buffer = B::Buffer;
    #[inline(always)]
    fn elements(&self) -> &[B::Element] {
        self.buffer.elements()
    }
    #[inline(always)]
    fn placed(&self) -> Option<PlacedLayout<'_>> {
        Some(self.layout_in::<B::Element>())
    }
}
#[diagnostic::do_not_recommend]
impl<'b, B: OriginMut<'b> + sealed::Slice> OriginMut<'b> for LayoutOf<'_, B> {
    type Element = B::Element;
    #[inline(always)]
    fn lend<R>(self, to: impl FnOnce(&'b mut [B::Element], Option<PlacedLayout<'_>>) -> R) -> R {
        let placed = self.layout_in::<B::Element>();
        self.buffer.lend(|elements, _| to(elements, Some(placed)))
    }
}
