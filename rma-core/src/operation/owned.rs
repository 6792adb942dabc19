//! An operation that outlives the call it was given to.
use super::{Action, Operation, Side};
use crate::memory::target::Permit;
use crate::rank::Rank;

/// A put or an accumulate with the bytes that go to its target: one run of them there.
pub(crate) struct OwnedOperation {
    what: &'static str,
    action: Action,
    permit: Permit,
    target: Rank,
    disp: u64,
    at: u64,
    origin: Box<[u8]>,
}

impl OwnedOperation {
    /// A copy of an operation that fetches nothing and has one run of bytes on either side; `None`
    /// of all others.
    pub(crate) fn of(operation: &Operation<'_>) -> Option<Self> {
        let Operation { what, action, permit, target, disp, there, origin, from } = *operation;
        let fetches = match action {
            Action::Put => false,
            Action::Combine { fetches, .. } => fetches,
            Action::Get | Action::Swap { .. } => true,
        };
        let (Side::Bytes { at, .. }, Side::Bytes { at: begin, len }, false) =
            (there, from, fetches)
        else {
            return None;
        };
        let begin = usize::try_from(begin).ok()?;
        let origin = origin.get(begin..begin.checked_add(usize::try_from(len).ok()?)?)?;
        Some(Self { what, action, permit, target, disp, at, origin: origin.into() })
    }

    /// What it takes of memory, in bytes.
    pub(crate) fn footprint(&self) -> u64 {
        (size_of::<Self>() + self.origin.len()) as u64
    }

    pub(crate) fn operation(&self) -> Operation<'_> {
        let Self { what, action, permit, target, disp, at, ref origin } = *self;
        let there = Side::Bytes { at, len: origin.len() as u64 };
        let from = Side::dense(origin.len());
        Operation { what, action, permit, target, disp, there, origin, from }
    }
}
