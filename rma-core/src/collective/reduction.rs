//! What reductions combine elements with.
use crate::element::{Element, Number};
use crate::ops::Op;

/// A way to combine two elements into one: an [`Op`] for numbers, or a function `Fn(E, E) -> E`
/// for any element.
///
/// The function must be associative. It is applied in rank order, so it need not commute.
pub trait Reduction<E: Element> {
    /// `earlier` comes from lower ranks than `later`.
    fn combine(&self, earlier: E, later: E) -> E;
    /// The name of an operation that `E` does not have, if this is one.
    fn undefined(&self) -> Option<&'static str> {
        None
    }
}

impl<E: Number> Reduction<E> for Op {
    fn combine(&self, earlier: E, later: E) -> E {
        E::combine(*self, earlier, later)
    }

    fn undefined(&self) -> Option<&'static str> {
        (E::FLOAT && !self.allowed_on_floats()).then(|| self.name())
    }
}

impl<E: Element, F: Fn(E, E) -> E> Reduction<E> for F {
    fn combine(&self, earlier: E, later: E) -> E {
        self(earlier, later)
    }
}
