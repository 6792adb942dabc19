//! Where an operation works on its target.
#![expect(private_interfaces, reason = "hidden methods of sealed traits")]

use crate::integer::Integer;
use crate::layout::{LayoutAt, PlacedLayout};

mod sealed {
    #[expect(unnameable_types, reason = "implemented here only")]
    pub trait Sealed {}
}

/// Where an operation works on its target: a displacement in the target's units, or a
/// [layout at](crate::Layout::at) one.
///
/// Implemented for integers and [`LayoutAt`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no displacement",
    note = "integers are, and a layout at one: `layout.at(5)`"
)]
pub trait Displacement: sealed::Sealed {
    #[doc(hidden)]
    fn spot(&self) -> Spot<'_>;
}

/// A displacement, and the layout there unless the bytes lie one behind the other.
#[derive(Clone, Copy)]
pub(crate) struct Spot<'l> {
    pub(crate) disp: u64,
    pub(crate) placed: Option<PlacedLayout<'l>>,
}

impl<I: Integer> sealed::Sealed for I {}
impl<I: Integer> Displacement for I {
    #[inline(always)]
    fn spot(&self) -> Spot<'_> {
        Spot { disp: self.to_u64(), placed: None }
    }
}

impl sealed::Sealed for LayoutAt<'_> {}
impl Displacement for LayoutAt<'_> {
    #[inline(always)]
    fn spot(&self) -> Spot<'_> {
        Spot { disp: self.disp, placed: Some(self.placed) }
    }
}
