//! Memory that users bring along: for [`create`](crate::WindowBuilder::create) and
//! [`attach`](crate::Window::attach).
#![allow(unsafe_code)]

use crate::operation::OriginBuffer;
use crate::transport::{Backing, Extent, Mapped, Mapping};
use core::any::Any;
use std::sync::Arc;

mod sealed {
    #[expect(unnameable_types, reason = "implemented here only")]
    pub trait Sealed {}
}

/// What a window can be made over: `Vec<E>`, `Box<[E]>`, a [`RawPart`], an `Arc` of a [`Backing`].
///
/// A vector or boxed slice is given away. Its contents move into memory that the ranks of the node
/// share, where operations go by load and store, and come back as a buffer of the same kind
/// (docs/adr/0007-windows-over-user-memory.md). A [`RawPart`] stays where it is. A [`Backing`] is
/// used where it lies, too, and neighbours map it if it says how.
pub trait WindowMemory: Send + 'static + sealed::Sealed {
    #[doc(hidden)]
    fn contents(&self) -> Contents<'_>;
    /// Whether [`rebuild`](Self::rebuild) can make one of so many bytes, or of what was brought.
    #[doc(hidden)]
    fn fits(brought: Option<&dyn Backing>, len: usize) -> bool;
    /// From `len` bytes that `fill` writes, or from what was brought along.
    #[doc(hidden)]
    fn rebuild(place: Rebuild<'_>) -> Option<Self>
    where
        Self: Sized;
}

/// What is there to begin with.
#[doc(hidden)]
#[expect(unnameable_types, reason = "of hidden methods of a sealed trait")]
pub enum Contents<'b> {
    /// Bytes to be copied.
    Bytes(&'b [u8]),
    /// A part that stays where it is.
    At(RawPart),
    /// Memory that is used where it lies.
    On(Arc<dyn Backing>),
}

impl Contents<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::At(part) => part.len(),
            Self::On(backing) => backing.mapping().len,
        }
    }
}

/// What is there in the end.
#[doc(hidden)]
#[expect(unnameable_types, reason = "of hidden methods of a sealed trait")]
pub enum Rebuild<'f> {
    Bytes { len: usize, fill: &'f mut dyn FnMut(&mut [u8]) },
    From(Arc<dyn Backing>),
}

impl<B: OriginBuffer> sealed::Sealed for B {}
impl<B: OriginBuffer> WindowMemory for B {
    fn contents(&self) -> Contents<'_> {
        Contents::Bytes(bytemuck::cast_slice(self.as_elements()))
    }

    fn fits(brought: Option<&dyn Backing>, len: usize) -> bool {
        // Of nothing, elements without a byte can be made.
        brought.is_none() && len.is_multiple_of(size_of::<B::Element>())
    }

    fn rebuild(place: Rebuild<'_>) -> Option<Self> {
        let Rebuild::Bytes { len, fill } = place else { return None };
        let width = size_of::<B::Element>().max(1);
        let mut elements = vec![<B::Element as bytemuck::Zeroable>::zeroed(); len / width];
        fill(bytemuck::cast_slice_mut(&mut elements));
        Some(B::from_vec(elements))
    }
}

/// Memory of this process that stays where it is: on the stack, static, of a foreign library.
///
/// Other ranks reach it by copies of the operating system where a probe shows that this is
/// allowed, and by messages otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawPart {
    base: *mut u8,
    len: usize,
}

// SAFETY: the address is used under the contract of `RawPart::new` only, which names no thread.
unsafe impl Send for RawPart {}
// SAFETY: as above.
unsafe impl Sync for RawPart {}

impl RawPart {
    /// `len` bytes from `base` on.
    ///
    /// # Safety
    ///
    /// From the call that makes a window of it or attaches it, until `free`, `free_into` or
    /// `detach` has returned without an error (if none does, for ever): the bytes are mapped,
    /// readable and writable, and no reference to them is used, because other ranks and threads of
    /// the library read and write them at any time. Code that looks at them meanwhile does so as
    /// for memory that other processes share: through volatile or atomic accesses, or a
    /// [`View`](crate::View). Atomic updates of its own are not among the operations of the
    /// library, which may lose them while elements are combined.
    ///
    /// A call that makes no window of it leaves it as it was, unless the error is
    /// [`WindowError::Collective`](crate::WindowError::Collective): peers may have the window then.
    pub unsafe fn new(base: *mut u8, len: usize) -> Self {
        Self { base, len }
    }

    /// The first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// A raw part that a window lies on.
#[derive(Debug)]
pub(super) struct Raw(pub(super) RawPart);

// SAFETY: such a value lives while the contract of `RawPart::new` holds, which demands no less.
unsafe impl Mapped for Raw {
    fn mapping(&self) -> Mapping {
        Mapping { base: self.0.base, len: self.0.len }
    }
}

// SAFETY: as above; no rank is told how to map it.
unsafe impl Backing for Raw {
    fn extents(&self) -> Vec<Extent> {
        Vec::new()
    }
}

impl sealed::Sealed for RawPart {}
impl WindowMemory for RawPart {
    fn contents(&self) -> Contents<'_> {
        Contents::At(*self)
    }

    fn fits(brought: Option<&dyn Backing>, _: usize) -> bool {
        brought.is_some_and(|backing| (backing as &dyn Any).is::<Raw>())
    }

    fn rebuild(place: Rebuild<'_>) -> Option<Self> {
        Some(brought::<Raw>(place)?.0)
    }
}

impl<B: Backing> sealed::Sealed for Arc<B> {}
impl<B: Backing> WindowMemory for Arc<B> {
    fn contents(&self) -> Contents<'_> {
        Contents::On(self.clone())
    }

    fn fits(brought: Option<&dyn Backing>, _: usize) -> bool {
        brought.is_some_and(|backing| (backing as &dyn Any).is::<B>())
    }

    fn rebuild(place: Rebuild<'_>) -> Option<Self> {
        brought(place)
    }
}

fn brought<B: Backing>(place: Rebuild<'_>) -> Option<Arc<B>> {
    let Rebuild::From(backing) = place else { return None };
    let backing: Arc<dyn Any + Send + Sync> = backing;
    backing.downcast().ok()
}

#[cfg(test)]
mod tests {
    use crate::config::Config;
    use crate::error::RmaError;
    use crate::window::accumulate_tests::with_universe;

    /// Elements without a byte hold no part that has some.
    #[test]
    fn a_part_does_not_vanish_in_elements_of_no_size() {
        with_universe(Config::default(), |universe| {
            let window = |count| universe.world().window(count, 8).allocate().unwrap();
            let refused = window(3).free_into::<Vec<()>>().unwrap_err();
            assert!(matches!(refused.error, RmaError::WrongFlavor { .. }), "{refused}");
            refused.value.unwrap().free().unwrap();
            assert_eq!(window(0).free_into::<Vec<()>>().unwrap(), []);
        });
    }
}
