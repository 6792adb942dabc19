//! What reductions combine elements with.
use super::tree::elements;
use crate::element::{BasicElement, Element, Op};
use bytemuck::{cast_slice, try_cast_slice, try_cast_slice_mut};
use core::marker::PhantomData;

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

/// A reduction, told of its elements' bytes only: what passes these on, piece by piece, is code
/// that no type of elements has a copy of.
pub(super) trait ReduceBytes {
    /// Bytes of an element.
    fn width(&self) -> usize;
    /// As [`Reduction::combine_all`], of the bytes of as many elements.
    fn combine(&self, earlier: &mut [u8], later: &[u8]);
}

/// A reduction of elements `E`.
pub(super) struct Typed<'a, E, R> {
    reduction: &'a R,
    elements: PhantomData<fn(E)>,
}

impl<'a, E: Element, R: Reduction<E>> Typed<'a, E, R> {
    pub(super) fn new(reduction: &'a R) -> Self {
        Self { reduction, elements: PhantomData }
    }
}

impl<E: Element, R: Reduction<E>> ReduceBytes for Typed<'_, E, R> {
    fn width(&self) -> usize {
        size_of::<E>()
    }

    fn combine(&self, earlier: &mut [u8], later: &[u8]) {
        let copied: Vec<E>;
        let later = match try_cast_slice(later) {
            Ok(later) => later,
            Err(_) => {
                copied = elements(later);
                &copied
            }
        };
        match try_cast_slice_mut(&mut *earlier) {
            Ok(earlier) => self.reduction.combine_all(earlier, later),
            Err(_) => {
                let mut aligned: Vec<E> = elements(earlier);
                self.reduction.combine_all(&mut aligned, later);
                earlier.copy_from_slice(cast_slice(&aligned));
            }
        }
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
