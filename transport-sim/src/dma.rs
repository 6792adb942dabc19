//! Memory that a device was given: registered for peers, or lent by a transfer.
#![allow(unsafe_code)] // copies to and from memory of ranks

use rma_core::transport::{Atomic, Mapping};

/// Memory that a transfer reads or writes at its origin.
#[derive(Debug)]
pub(crate) struct Lent {
    at: *mut u8,
    len: usize,
}

// SAFETY: the caller of `new` lends the memory to the holder of the value, on any thread.
unsafe impl Send for Lent {}

impl Lent {
    /// `len` bytes from `at` on.
    ///
    /// # Safety
    ///
    /// Until the value is dropped, the bytes are valid for what is done with it: to be read, or to
    /// be written. Meanwhile nothing else writes what is read here, or accesses what is written, at
    /// the same time.
    pub(crate) const unsafe fn new(at: *mut u8, len: usize) -> Self {
        Self { at, len }
    }

    /// What is there now.
    pub(crate) fn read(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        if self.len > 0 {
            // SAFETY: `new`: readable for `len` bytes, and not written now; `bytes` is as
            // long, and new.
            unsafe { self.at.copy_to_nonoverlapping(bytes.as_mut_ptr(), self.len) };
        }
        bytes
    }

    /// Writes what has its length.
    pub(crate) fn write(&self, bytes: &[u8]) {
        let len = bytes.len().min(self.len);
        if len > 0 {
            // SAFETY: `new`: writable for `len` bytes and used by nothing else now; `bytes` is
            // memory of the simulator.
            unsafe { self.at.copy_from_nonoverlapping(bytes.as_ptr(), len) };
        }
    }
}

/// Memory of a rank that peers reach. Everything checks where it goes.
///
/// Accesses are plain: one thread of the network runs at a time, and hands on to the next through
/// a mutex.
#[derive(Debug)]
pub(crate) struct Registered {
    base: *mut u8,
    len: usize,
}

// SAFETY: the caller of `new` gives the memory to the holder of the value, on any thread.
unsafe impl Send for Registered {}

impl Registered {
    /// All of `memory`.
    ///
    /// # Safety
    ///
    /// Until the value is dropped, the memory stays mapped, and is read and written here at any
    /// time at which the caller of the simulator holds its lock.
    pub(crate) const unsafe fn new(memory: Mapping) -> Self {
        Self { base: memory.base, len: memory.len }
    }

    /// Bytes.
    pub(crate) const fn len(&self) -> u64 {
        self.len as u64
    }

    /// Where it is in its process.
    pub(crate) fn address(&self) -> u64 {
        self.base.addr() as u64
    }

    /// `len` bytes from the one at `start` on; `None` if they are not all in it.
    fn span(&self, start: u64, len: usize) -> Option<*mut u8> {
        let start = usize::try_from(start).ok()?;
        if len > self.len.checked_sub(start)? {
            return None;
        }
        // SAFETY: `start <= self.len`.
        Some(unsafe { self.base.add(start) })
    }

    /// What is there; `None` outside.
    pub(crate) fn read(&self, start: u64, len: usize) -> Option<Vec<u8>> {
        let from = self.span(start, len)?;
        let mut bytes = vec![0; len];
        // SAFETY: `span`: inside of what is mapped; nothing else runs now; `bytes` is new, and as
        // long.
        unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr(), len) };
        Some(bytes)
    }

    /// Writes that; `None` outside.
    pub(crate) fn write(&self, start: u64, bytes: &[u8]) -> Option<()> {
        let to = self.span(start, bytes.len())?;
        // SAFETY: `span`: inside of what is mapped; nothing else runs now; `bytes` is memory of
        // the simulator.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Some(())
    }

    /// Does it to `count` elements, with the operands that there are, and gives what was there.
    /// `None` outside, or for elements that are not aligned.
    pub(crate) fn perform(
        &self,
        start: u64,
        atomic: Atomic,
        count: usize,
        operands: &[u8],
    ) -> Option<Vec<u8>> {
        let width = atomic.width();
        let first = self.span(start, width.checked_mul(count)?)?;
        if !first.addr().is_multiple_of(atomic.align()) {
            return None;
        }
        let mut fetched = vec![0; width * count];
        let each = operands.len() / count.max(1);
        for (i, fetched) in fetched.chunks_exact_mut(width).enumerate() {
            // SAFETY: element `i` of `count`, which are inside.
            let at = unsafe { first.add(i * width) };
            let operands = &operands[i * each..(i + 1) * each];
            // SAFETY: mapped for the width, and aligned: as the first is, since the width is a
            // multiple of the alignment. The core has no references to window memory.
            unsafe { atomic.perform(at, operands, fetched) };
        }
        Some(fetched)
    }
}
