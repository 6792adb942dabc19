//! What of a part outlives the machine.
use super::{Part, Window};
use crate::error::RmaError;
use crate::transport::PersistError;
use core::ops::Range;

impl Part {
    /// Makes all that can be durable; fails if there is nothing. Memory that RMA's synchronisation
    /// is not to flush is none of it: what its `persist` does is its owner's to ask for.
    pub(crate) fn persist_all(&self) -> Result<(), PersistError> {
        let Some(regions) = &self.regions else {
            if !self.memory.is_durable() {
                return Err(PersistError::Volatile);
            }
            let durable = self.memory.sync(self.offset..self.offset + self.size)?;
            return if durable { Ok(()) } else { Err(PersistError::Volatile) };
        };
        let durable = regions.durable();
        if durable.is_empty() {
            return Err(PersistError::Volatile);
        }
        durable.into_iter().try_for_each(|(start, len)| {
            // One that is gone meanwhile is its user's.
            let held = self.attached_memory(start, len);
            held.map_or(Ok(()), |(memory, at, _pin)| memory.sync(at..at + len).map(drop))
        })
    }
}

impl Window {
    /// Makes bytes of this rank's own part durable, if they lie on memory that can be; in a dynamic
    /// window, bytes of one region of this rank, by their addresses. Local.
    ///
    /// `range` counts bytes, from the beginning of the part. What is durable is what was there
    /// before the call: synchronise first with the ranks whose operations shall be.
    ///
    /// # Errors
    ///
    /// [`RmaError::Persist`] if the memory ends with the job or the system fails,
    /// [`RmaError::OutOfRange`], [`RmaError::NotAttached`].
    pub fn persist(&self, range: Range<u64>) -> Result<(), RmaError> {
        let (window, rank, Range { start, end }) = (self.id(), self.rank(), range);
        let len = end.saturating_sub(start);
        let failed = |error| RmaError::Persist { window, rank, start, end, error };
        let outside = |size| {
            let (target, disp) = (rank, start);
            RmaError::OutOfRange { window, target, disp, disp_unit: 1, len, size }
        };
        if start > end {
            return Err(outside(self.size()));
        }
        if self.part.regions.is_some() {
            let gone = RmaError::NotAttached { window, target: rank, range: Some((start, len)) };
            let (memory, offset, _pin) = self.part.attached_memory(start, len).ok_or(gone)?;
            return memory.persist(offset..offset + len).map_err(failed);
        }
        if end > self.size() {
            return Err(outside(self.size()));
        }
        // Creation checked that the part lies inside of the memory.
        let offset = self.part.offset;
        self.part.memory.persist(offset + start..offset + end).map_err(failed)
    }

    /// Makes all of this rank's part durable that can be; in a dynamic window, all its regions.
    #[inline]
    pub(crate) fn persist_part(&self) -> Result<(), RmaError> {
        if self.part.memory.is_durable() || self.part.regions.is_some() {
            return self.persist_durable();
        }
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn persist_durable(&self) -> Result<(), RmaError> {
        let (part, window, rank) = (&self.part, self.id(), self.rank());
        let failed = |start, len, error| {
            let end = start + len;
            RmaError::Persist { window, rank, start, end, error }
        };
        let Some(regions) = &part.regions else {
            let synced = part.memory.sync(part.offset..part.offset + part.size);
            return synced.map(drop).map_err(|error| failed(0, part.size, error));
        };
        regions.durable().into_iter().try_for_each(|(start, len)| {
            // One that another thread has detached meanwhile is its user's.
            let Some((memory, at, _pin)) = part.attached_memory(start, len) else { return Ok(()) };
            memory.sync(at..at + len).map(drop).map_err(|error| failed(start, len, error))
        })
    }
}
