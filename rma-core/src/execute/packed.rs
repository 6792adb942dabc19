//! What is fetched for a layout: it arrives packed, and is dealt out when all of it is there.
use crate::engine::Buffer;
use crate::layout::{Cursor, Layout, PlacedLayout, unpack};

/// Bytes that one operation, or all of a scope, keep packed at a time.
pub(crate) const BOUNCE_BYTES: u64 = 1 << 20;

/// The bytes of a layout, packed, and where they belong.
pub(crate) struct Packed {
    // Not a box: moving that asserts that nothing else has the address of its bytes.
    bytes: Vec<u8>,
    layout: Layout,
    count: u64,
    start: u64,
}

impl Packed {
    /// Room for the bytes of a layout, and its address. They are not looked at before
    /// [`unpack`](Self::unpack).
    pub(super) fn of(placed: PlacedLayout<'_>) -> (Self, Buffer) {
        let mut bytes = vec![0; placed.bytes().unwrap_or(0) as usize];
        let buffer = Buffer { at: bytes.as_mut_ptr(), len: bytes.len() };
        let (layout, count, start) = (placed.layout().clone(), placed.count(), placed.start());
        (Self { bytes, layout, count, start }, buffer)
    }

    /// Bytes that wait here.
    pub(crate) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Puts the bytes where they belong; they are all there.
    pub(crate) fn unpack(&self, origin: &mut [u8]) {
        let placed = self.layout.placed(self.count).starting_at(self.start);
        unpack(&mut Cursor::new(placed), &self.bytes, origin);
    }
}
