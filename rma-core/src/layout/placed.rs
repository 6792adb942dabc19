//! Layouts as operations take them: at a displacement of the target, or of a buffer of the origin.
use crate::element::Element;
use crate::integer::Integer;
use crate::layout::{Layout, PlacedLayout};

/// So many copies of a layout, one extent after the other: MPI's count and datatype.
#[derive(Debug, Clone, Copy)]
pub struct Copies<'l> {
    placed: PlacedLayout<'l>,
}

/// A layout at a displacement of the target's part; from [`Layout::at`].
#[derive(Debug, Clone, Copy)]
pub struct LayoutAt<'l> {
    pub(crate) placed: PlacedLayout<'l>,
    /// Of its position 0, in the target's units.
    pub(crate) disp: u64,
}

/// A layout of a buffer: of its elements, those bytes that the layout describes; from
/// [`Layout::of`].
#[derive(Debug, Clone, Copy)]
pub struct LayoutOf<'l, B> {
    placed: PlacedLayout<'l>,
    pub(crate) buffer: B,
    /// Of its position 0, in elements of the buffer.
    start: u64,
}

impl Layout {
    /// `count` copies, one extent after the other.
    pub fn times(&self, count: impl Integer) -> Copies<'_> {
        Copies { placed: self.placed(count.to_u64()) }
    }

    /// One copy, with position 0 at a displacement of the target's part, in its units: where an
    /// operation finds its bytes there, or leaves them.
    pub fn at(&self, disp: impl Integer) -> LayoutAt<'_> {
        self.times(1).at(disp)
    }

    /// One copy, with position 0 at the first element of a buffer: which bytes of it an operation
    /// sends or fills. The buffer is a slice, or for requests one that is given away.
    ///
    /// The elements need not be those of the layout: it may pick fields out of structs.
    pub fn of<B>(&self, buffer: B) -> LayoutOf<'_, B> {
        self.times(1).of(buffer)
    }
}

impl<'l> Copies<'l> {
    /// As [`Layout::at`].
    pub fn at(self, disp: impl Integer) -> LayoutAt<'l> {
        LayoutAt { placed: self.placed, disp: disp.to_u64() }
    }

    /// As [`Layout::of`].
    pub fn of<B>(self, buffer: B) -> LayoutOf<'l, B> {
        LayoutOf { placed: self.placed, buffer, start: 0 }
    }

    /// The layout.
    pub fn layout(&self) -> &'l Layout {
        self.placed.layout()
    }

    /// How many copies of it.
    pub fn count(&self) -> u64 {
        self.placed.count()
    }
}

impl<'l, B> LayoutOf<'l, B> {
    /// As this, with position 0 at that element of the buffer: room for layouts with bytes at
    /// negative positions. Others take a part of the buffer: `column.of(&matrix[5..])`.
    pub fn starting_at(self, element: impl Integer) -> Self {
        Self { start: element.to_u64(), ..self }
    }

    /// The layout in a buffer of elements of type `E`.
    #[inline(always)]
    pub(crate) fn layout_in<E: Element>(&self) -> PlacedLayout<'l> {
        // What is beyond all bytes is outside of every buffer.
        let start = self.start.saturating_mul(size_of::<E>() as u64);
        self.placed.starting_at(start)
    }
}
