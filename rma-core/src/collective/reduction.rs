//! What reductions combine elements with.
use crate::element::{BasicElement, Element, Op};

/// A way to combine two elements into one: an [`Op`] for basic types, or a function `Fn(E, E) -> E`
/// for any element.
///
/// The function must be associative. It is applied in rank order, so it need not commute.
pub trait Reduction<E: Element> {
    /// `earlier` comes from lower ranks than `later`.
    fn combine(&self, earlier: E, later: E) -> E;
    /// [`combine`](Self::combine), element by element, into `earlier`.
    fn combine_all(&self, earlier: &mut [E], later: &[E]) {
        for (earlier, later) in earlier.iter_mut().zip(later) {
            *earlier = self.combine(*earlier, *later);
        }
    }
    /// The operation and the name of `E`, if `E` does not have it.
    fn undefined(&self) -> Option<(Op, &'static str)> {
        None
    }
}

impl<E: BasicElement> Reduction<E> for Op {
    fn combine(&self, earlier: E, later: E) -> E {
        E::combine(*self, earlier, later)
    }

    fn combine_all(&self, earlier: &mut [E], later: &[E]) {
        E::combine_all(*self, earlier, later);
    }

    fn undefined(&self) -> Option<(Op, &'static str)> {
        (!self.is_defined_on::<E>()).then(|| (*self, E::BASIC.name()))
    }
}

impl<E: Element, F: Fn(E, E) -> E> Reduction<E> for F {
    fn combine(&self, earlier: E, later: E) -> E {
        self(earlier, later)
    }
}
