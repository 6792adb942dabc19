//! Memory for messages: slots of one size, each with room for the provider's own.
#![allow(unsafe_code)]

use super::layout::Context;
use super::object::MemoryRegion;
use std::alloc::{self, Layout};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

/// The memory of an endpoint's operations.
pub(super) enum Buffers {
    /// As the provider takes it.
    Plain(Slots),
    /// Registered, as the provider wants it to be: that is over first.
    Registered(MemoryRegion<Slots>),
}

impl Buffers {
    pub(super) fn slots(&self) -> &Slots {
        match self {
            Self::Plain(slots) => slots,
            Self::Registered(region) => &region.below.1,
        }
    }

    /// What operations name the memory by.
    pub(super) fn desc(&self) -> *mut c_void {
        match self {
            Self::Plain(_) => std::ptr::null_mut(),
            Self::Registered(region) => region.desc(),
        }
    }
}

/// What an operation does with its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flight {
    Send,
    Receive,
    /// A transfer to memory of a peer, or an atomic operation there.
    Transfer,
    /// A transfer from memory of a peer.
    Fetch,
}

const IDLE: u8 = 0;
const SENDING: u8 = 1;
const RECEIVING: u8 = 2;
const TRANSFERRING: u8 = 3;
const FETCHING: u8 = 4;

/// The one handle of a slot that no operation uses. One that is dropped is not used again.
#[derive(Debug)]
pub(crate) struct Slot {
    index: u32,
    /// Address of the memory that it is of.
    of: usize,
}

impl Slot {
    /// Its number among those of its endpoint.
    pub(crate) fn index(&self) -> usize {
        self.index as usize
    }
}

/// Memory cut into slots. A slot is in the hands of the holder of its [`Slot`], or of an operation.
pub(super) struct Slots {
    memory: NonNull<u8>,
    layout: Layout,
    /// From one slot to the next.
    stride: usize,
    /// Bytes of a message.
    bytes: usize,
    flights: Box<[AtomicU8]>,
}

// SAFETY: memory of its own, whose slots are handed out one by one.
unsafe impl Send for Slots {}
// SAFETY: as above: a slot is touched through its one handle, or by the operation that has it.
unsafe impl Sync for Slots {}

impl Slots {
    /// So many of so many bytes each, and the handles of all of them.
    pub(super) fn new(count: u32, bytes: usize) -> Option<(Self, Vec<Slot>)> {
        let stride = bytes.checked_next_multiple_of(64)?.checked_add(size_of::<Context>())?;
        let size = stride.checked_mul(count as usize).filter(|size| *size > 0)?;
        let layout = Layout::from_size_align(size, 4096).ok()?;
        // SAFETY: of a size that is not zero.
        let memory = NonNull::new(unsafe { alloc::alloc_zeroed(layout) })?;
        let flights = (0..count).map(|_| AtomicU8::new(IDLE)).collect();
        let of = memory.as_ptr() as usize;
        let handles = (0..count).map(|index| Slot { index, of }).collect();
        Some((Self { memory, layout, stride, bytes, flights }, handles))
    }

    /// Bytes of a message.
    pub(super) fn each(&self) -> usize {
        self.bytes
    }

    /// Its first byte, and how many there are.
    pub(super) fn span(&self) -> (*const u8, usize) {
        (self.memory.as_ptr(), self.layout.size())
    }

    /// Where the provider's room of a slot is, and the message behind it.
    fn place(&self, slot: &Slot) -> (*mut c_void, *mut u8) {
        assert_eq!(slot.of, self.memory.as_ptr() as usize, "a slot of another endpoint");
        let offset = slot.index as usize * self.stride;
        // SAFETY: handles of this memory are made for slots that lie in it.
        let context = unsafe { self.memory.as_ptr().add(offset) };
        // SAFETY: the message lies in its slot, behind the context.
        let message = unsafe { context.add(size_of::<Context>()) };
        (context.cast(), message)
    }

    pub(super) fn bytes<'s>(&'s self, slot: &'s Slot) -> &'s [u8] {
        let (_, message) = self.place(slot);
        // SAFETY: initialised memory that lives as long as `self`; no operation has the slot, and
        // a caller that writes there borrows its one handle mutably.
        unsafe { std::slice::from_raw_parts(message, self.bytes) }
    }

    pub(super) fn bytes_mut<'s>(&'s self, slot: &'s mut Slot) -> &'s mut [u8] {
        let (_, message) = self.place(slot);
        // SAFETY: as above, and the handle is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(message, self.bytes) }
    }

    /// Whether an operation fetches something that is not complete.
    pub(super) fn is_fetching(&self) -> bool {
        self.flights.iter().any(|flight| flight.load(Acquire) == FETCHING)
    }

    /// Gives a slot to an operation: its context and its message.
    pub(super) fn give(&self, slot: Slot, flight: Flight) -> (*mut c_void, *mut u8) {
        let state = match flight {
            Flight::Send => SENDING,
            Flight::Receive => RECEIVING,
            Flight::Transfer => TRANSFERRING,
            Flight::Fetch => FETCHING,
        };
        let place = self.place(&slot);
        self.flights[slot.index()].store(state, Release);
        place
    }

    /// Takes a slot back from the operation with that context, which is over. `None` if no
    /// operation has such a one.
    ///
    /// # Safety
    ///
    /// The provider does not touch the slot any more.
    pub(super) unsafe fn take(&self, context: *mut c_void) -> Option<(Slot, Flight)> {
        let of = self.memory.as_ptr() as usize;
        let offset = (context as usize).checked_sub(of)?;
        let index = offset / self.stride;
        let flight = self.flights.get(index).filter(|_| offset.is_multiple_of(self.stride))?;
        let flight = match flight.swap(IDLE, AcqRel) {
            SENDING => Flight::Send,
            RECEIVING => Flight::Receive,
            TRANSFERRING => Flight::Transfer,
            FETCHING => Flight::Fetch,
            _ => return None,
        };
        Some((Slot { index: u32::try_from(index).ok()?, of }, flight))
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout; the endpoint that used it is closed.
        unsafe { alloc::dealloc(self.memory.as_ptr(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::{Flight, Slots};
    use std::ffi::c_void;

    #[test]
    fn a_slot_comes_back_once() {
        let (slots, mut handles) = Slots::new(3, 100).unwrap();
        let mut slot = handles.remove(1);
        slots.bytes_mut(&mut slot).fill(7);
        let (context, message) = slots.give(slot, Flight::Send);
        assert_eq!(context as usize % 64, 0);
        // SAFETY: nothing uses it.
        let (slot, flight) = unsafe { slots.take(context) }.unwrap();
        assert_eq!((slot.index(), flight), (1, Flight::Send));
        assert!(!slots.is_fetching());
        assert_eq!(slots.bytes(&slot).as_ptr(), message.cast_const());
        assert!(slots.bytes(&slot).iter().all(|byte| *byte == 7));
        // SAFETY: as above.
        assert!(unsafe { slots.take(context) }.is_none(), "no operation has it");
        let (context, _) = slots.give(slot, Flight::Fetch);
        assert!(slots.is_fetching());
        // SAFETY: as above.
        assert_eq!(unsafe { slots.take(context) }.unwrap().1, Flight::Fetch);
        assert!(!slots.is_fetching());
    }

    #[test]
    fn contexts_of_no_operation_are_refused() {
        let (slots, handles) = Slots::new(2, 64).unwrap();
        for slot in handles {
            slots.give(slot, Flight::Receive);
        }
        let (start, len) = slots.span();
        let start = start as usize;
        for wrong in [0, start - 64, start + 1, start + 64, start + len] {
            // SAFETY: nothing uses any slot.
            assert!(unsafe { slots.take(wrong as *mut c_void) }.is_none(), "{wrong:#x}");
        }
        // SAFETY: as above.
        assert!(unsafe { slots.take(start as *mut c_void) }.is_some());
    }

    #[test]
    #[should_panic(expected = "a slot of another endpoint")]
    fn slots_of_others_are_refused() {
        let (one, other) = (Slots::new(1, 64).unwrap(), Slots::new(1, 64).unwrap());
        one.0.bytes(&other.1[0]);
    }

    #[test]
    fn no_slots_and_too_many_are_refused() {
        assert!(Slots::new(0, 64).is_none());
        assert!(Slots::new(u32::MAX, usize::MAX / 2).is_none());
    }
}
