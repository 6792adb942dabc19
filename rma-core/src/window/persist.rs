//! What of a part outlives the machine.
use super::memory::Memory;
use super::{Part, Window};
use crate::error::RmaError;
use crate::transport::PersistError;
use core::ops::Range;

impl Part {
    /// Makes all that can be durable; fails if there is nothing. Memory that RMA's synchronisation
    /// is not to flush is none of it: what its `persist` does is its owner's to ask for.
    pub(crate) fn persist_all(&self) -> Result<(), PersistError> {
        let (mut some, mut all) = (false, true);
        self.each_durable(|_, memory, range| {
            all &= memory.sync(range)?;
            some = true;
            Ok(())
        })?;
        if some && all { Ok(()) } else { Err(PersistError::Volatile) }
    }

    /// Each piece of memory that can be durable: that of the part, or of each region of a dynamic
    /// window; with the bytes of the part, or addresses, and where these are in the memory.
    fn each_durable<E>(
        &self,
        mut look: impl FnMut(Range<u64>, &Memory, Range<u64>) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(regions) = &self.regions else {
            let (at, size) = (self.offset, self.size);
            let is_durable = self.memory.is_durable();
            return if is_durable { look(0..size, &self.memory, at..at + size) } else { Ok(()) };
        };
        regions.durable().into_iter().try_for_each(|(start, len)| {
            // One that another thread has detached meanwhile is its user's.
            let Some((memory, at, _pin)) = self.attached_memory(start, len) else { return Ok(()) };
            look(start..start + len, &memory, at..at + len)
        })
    }

    /// Whether an attached region has transactions.
    pub(crate) fn has_versioned_region(&self) -> bool {
        let found = self.each_durable(|_, memory, _| match memory.transactional() {
            Some(_) => Err(()),
            None => Ok(()),
        });
        self.regions.is_some() && found.is_err()
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

    /// Makes all of this rank's part durable that can be without a commit; in a dynamic window, all
    /// its regions.
    #[inline]
    pub(crate) fn persist_part(&self) -> Result<(), RmaError> {
        if self.part.memory.is_durable() || self.part.regions.is_some() {
            return self.persist_durable(|memory, range| memory.sync(range).map(drop));
        }
        Ok(())
    }

    /// As [`persist_part`](Self::persist_part), and makes each region that has transactions a
    /// version by itself.
    pub(crate) fn commit_regions(&self) -> Result<(), RmaError> {
        self.persist_durable(|memory, range| match memory.transactional() {
            Some(memory) => memory.commit(None),
            None => memory.sync(range).map(drop),
        })
    }

    #[cold]
    #[inline(never)]
    fn persist_durable(
        &self,
        persist: impl Fn(&Memory, Range<u64>) -> Result<(), PersistError>,
    ) -> Result<(), RmaError> {
        let (window, rank) = (self.id(), self.rank());
        self.part.each_durable(|Range { start, end }, memory, range| {
            let failed = |error| RmaError::Persist { window, rank, start, end, error };
            persist(memory, range).map_err(failed)
        })
    }
}
