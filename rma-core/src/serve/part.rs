//! This rank's own part, as messages reach it.
#![allow(unsafe_code)]

use crate::element::{BasicType, Op};
use crate::memory::accumulate::Integers;
use crate::memory::bias::{self, Admission, Holder, Note};
use crate::memory::control_block::ControlBlock;
use crate::memory::directory::Pin;
use crate::memory::target::Span;
use crate::protocol::message::Status;
use crate::transport::ImportError;
use crate::window::{Entered, Part};

impl Part {
    /// First byte of this rank's own part.
    pub(crate) fn base(&self) -> *mut u8 {
        // SAFETY: creation checked that `offset..offset + size` lies inside the memory.
        unsafe { self.memory.mapping().base.add(self.offset as usize) }
    }

    /// Comes to a part, whose block this is, to combine elements there.
    pub(crate) fn admit<'b>(
        &self,
        block: ControlBlock<'b>,
    ) -> Result<Admission<ControlBlock<'b>>, ImportError> {
        if !self.biased {
            return Ok(Admission::Shared(Note::shared(self.integers)));
        }
        let fence_near = || self.comm.inner.engine.transport.shared.fence_near();
        bias::admit(block, Holder::enter(self.comm.rank()), self.integers, fence_near)
    }

    /// Counts elements that are combined at a part, whose block this is, of which the caller holds
    /// no stripe. What only looks at them does not count.
    pub(crate) fn weigh(
        &self,
        block: ControlBlock<'_>,
        (basic, op): (BasicType, Op),
        bytes: usize,
    ) {
        if basic.is_atomic() && op != Op::NoOp && self.integers == Integers::AsTheyCome {
            bias::weigh(block, bytes, self.comm.rank());
        }
    }

    /// `len` bytes at `offset` of this rank's own part; in a dynamic window, at an address.
    pub(crate) fn span(&self, offset: u64, len: usize) -> Option<HeldSpan<'_>> {
        let entered = self.door.enter()?;
        if self.regions.is_some() {
            let (span, pin) = self.attached(offset, len)?;
            return Some(HeldSpan { span, _pin: Some(pin), _entered: entered });
        }
        // SAFETY: the part is mapped while `self` lives. A reference into it exists, or its user
        // has it back, only while the door is shut and no thread is inside.
        let span = unsafe { Span::of_part(self.base(), self.size, offset, len) };
        span.map(|span| HeldSpan { span, _pin: None, _entered: entered })
    }
}

impl Part {
    /// Why there is no [`span`](Self::span) of bytes that there were once.
    pub(crate) fn why_not(&self, offset: u64, len: usize) -> Status {
        let detached = self.regions.is_some() && !self.holds(offset, len as u64);
        if detached { Status::OutOfRange } else { Status::Freed }
    }
}

/// Bytes of this rank's own part, which stay what they are until this is dropped.
pub(crate) struct HeldSpan<'w> {
    span: Span<'w>,
    _pin: Option<Pin<'w>>,
    _entered: Entered<'w>,
}

impl HeldSpan<'_> {
    pub(crate) fn get(&self) -> Span<'_> {
        self.span
    }
}
