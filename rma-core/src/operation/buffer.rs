//! Buffers of origins that an operation may own.
use crate::element::Element;

mod sealed {
    pub trait Sealed {}
}

/// A buffer on the heap: its elements stay where they are when the value moves.
///
/// Implemented for `Vec<E>` and `Box<[E]>`.
pub trait OriginBuffer: Send + 'static + sealed::Sealed {
    /// What it holds.
    type Element: Element;
    // Not a box while an operation is under way: moving a box asserts that nobody else has its
    // address.
    #[doc(hidden)]
    fn into_vec(self) -> Vec<Self::Element>;
    #[doc(hidden)]
    fn from_vec(vec: Vec<Self::Element>) -> Self;
    #[doc(hidden)]
    fn as_elements(&self) -> &[Self::Element];
}

impl<E: Element> sealed::Sealed for Vec<E> {}
impl<E: Element> OriginBuffer for Vec<E> {
    type Element = E;
    fn into_vec(self) -> Vec<E> {
        self
    }
    fn from_vec(vec: Vec<E>) -> Self {
        vec
    }
    fn as_elements(&self) -> &[E] {
        self
    }
}

impl<E: Element> sealed::Sealed for Box<[E]> {}
impl<E: Element> OriginBuffer for Box<[E]> {
    type Element = E;
    fn into_vec(self) -> Vec<E> {
        self.into()
    }
    fn from_vec(vec: Vec<E>) -> Self {
        vec.into()
    }
    fn as_elements(&self) -> &[E] {
        self
    }
}
