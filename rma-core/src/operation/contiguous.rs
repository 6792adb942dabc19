//! An operation that outlives the call it was given to.
use super::{Action, Operation, Side};
use crate::memory::target::Permit;
use crate::rank::Rank;
use crate::thread;
use std::thread::ThreadId;

/// A put or an accumulate with the bytes that go to its target: one run of them there.
pub(crate) struct OwnedOperation {
    what: &'static str,
    action: Action,
    permit: Permit,
    target: Rank,
    disp: u64,
    at: u64,
    origin: Box<[u8]>,
    /// The thread whose flush tells of it.
    by: ThreadId,
}

/// A put or an accumulate that fetches nothing and has one run of bytes on either side.
#[derive(Clone, Copy)]
pub(crate) struct Contiguous<'o> {
    operation: &'o Operation<'o>,
    at: u64,
    origin: &'o [u8],
}

impl<'o> Contiguous<'o> {
    /// `None` of all other operations.
    pub(crate) fn of(operation: &'o Operation<'o>) -> Option<Self> {
        let fetches = match operation.action {
            Action::Put => false,
            Action::Combine { fetches, .. } => fetches,
            Action::Get | Action::Swap { .. } => true,
        };
        let (Side::Bytes { at, .. }, Side::Bytes { at: begin, len }, false) =
            (operation.there, operation.from, fetches)
        else {
            return None;
        };
        let begin = usize::try_from(begin).ok()?;
        let end = begin.checked_add(usize::try_from(len).ok()?)?;
        Some(Self { operation, at, origin: operation.origin.get(begin..end)? })
    }

    /// Whether the call that has it does not wait.
    pub(crate) fn tries(self) -> bool {
        self.operation.tries
    }

    /// What a copy takes of memory, in bytes.
    pub(crate) fn footprint(self) -> u64 {
        (size_of::<OwnedOperation>() + self.origin.len()) as u64
    }

    /// A copy, of this thread.
    pub(crate) fn to_owned(self) -> OwnedOperation {
        let Operation { what, action, permit, target, disp, .. } = *self.operation;
        let (at, origin, by) = (self.at, self.origin.into(), thread::id());
        OwnedOperation { what, action, permit, target, disp, at, origin, by }
    }
}

impl OwnedOperation {
    pub(crate) fn operation(&self) -> Operation<'_> {
        let Self { what, action, permit, target, disp, at, ref origin, .. } = *self;
        let there = Side::Bytes { at, len: origin.len() as u64 };
        let from = Side::dense(origin.len());
        // The call that queued it has returned.
        let tries = false;
        Operation { what, action, permit, target, disp, there, origin, from, tries }
    }

    /// As [`Contiguous::footprint`].
    pub(crate) fn footprint(&self) -> u64 {
        (size_of::<Self>() + self.origin.len()) as u64
    }

    pub(crate) fn by(&self) -> ThreadId {
        self.by
    }
}
