//! Parts on memory that an allocator makes: the seam to storage, which the core does not know.
use crate::collective::Communicator;
use crate::config::{Allocator, Claim, RequestedPart};
use crate::create::WindowBuilder;
use crate::create::material::Material;
use crate::element::Op;
use crate::error::WindowError;
use crate::rank::Rank;
use crate::transport::Beneath;
use crate::window::{Memory, kind};
use bytemuck::{Pod, Zeroable};

/// Parts of several ranks in one file begin at multiples of it: pages of no machine are larger.
const APART: u64 = 64 << 10;

/// Bytes of a file that a rank asked for, as it tells its neighbours; `end` 0 for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
struct ToldClaim {
    device: u64,
    inode: u64,
    start: u64,
    end: u64,
}

impl ToldClaim {
    fn overlaps(&self, other: &Self) -> bool {
        let same = (self.device, self.inode) == (other.device, other.inode);
        same && self.start < other.end && other.start < self.end
    }
}

impl WindowBuilder<'_> {
    pub(super) fn allocator(&self) -> Option<&'static dyn Allocator> {
        self.comm.inner.engine.config.allocator
    }

    /// Bytes of the parts of lower ranks, as files have them. **Collective** if the parts are an
    /// allocator's.
    pub(super) fn before(&self, material: &Material<'_>, size: u64) -> Result<u64, WindowError> {
        if !matches!(material, Material::Requested) {
            return Ok(0);
        }
        let rounded = size.checked_next_multiple_of(APART).unwrap_or(u64::MAX);
        let runtime: Communicator = self.comm.runtime("making a window")?;
        // Of 2^32 ranks, none has as much: a sum that does not wrap is not to be had here.
        let lower = runtime.exscan(&[rounded.min(1 << 47)], Op::Sum)?;
        Ok(lower.map_or(0, |lower| lower[0]))
    }

    pub(super) fn requested(&self, len: u64, before: u64) -> RequestedPart<'_> {
        RequestedPart { hints: &self.requested, len, before }
    }

    /// Memory for this rank's part.
    pub(super) fn request(&self, len: u64, before: u64) -> Result<Memory, WindowError> {
        let (engine, rank) = (&self.comm.inner.engine, self.comm.rank());
        let allocator = self.allocator().ok_or(WindowError::NoAllocator)?;
        let made = allocator.allocate(&Beneath(&engine.transport), &self.requested(len, before));
        let backing = made.map_err(|error| WindowError::Allocator { rank, error })?;
        Memory::of_allocator(engine, backing, self.hints.path())
            .map_err(|error| WindowError::Allocate { rank, error })
    }

    /// The lowest two ranks of this node that ask for the same bytes of a file, if some do.
    /// **Collective** over the node, of ranks of which one could not make its part.
    pub(super) fn find_overlap(
        &self,
        requested: &RequestedPart<'_>,
    ) -> Result<Option<WindowError>, WindowError> {
        let beneath = Beneath(&self.comm.inner.engine.transport);
        let claim = self.allocator().filter(|_| requested.len > 0);
        let claim = claim.and_then(|allocator| allocator.claim(&beneath, requested));
        let told = claim.map_or(ToldClaim::zeroed(), |claim| {
            let Claim { device, inode, start, end } = claim;
            ToldClaim { device, inode, start, end }
        });
        let near: Vec<(Rank, ToldClaim)> =
            self.comm.near_ranks().zip(self.comm.share_near(kind::CLAIM, told)?).collect();
        let mut pairs = near.iter().enumerate().flat_map(|(place, (second, theirs))| {
            near[..place].iter().map(move |(first, bytes)| (*first, *second, bytes, theirs))
        });
        let found = pairs.find(|(_, _, bytes, theirs)| bytes.overlaps(theirs));
        Ok(found.map(|(first, second, bytes, theirs)| {
            let (start, end) = (bytes.start.max(theirs.start), bytes.end.min(theirs.end));
            WindowError::SameBytes { first, second, start, end }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_overlap_in_the_same_file_only() {
        let told = |inode, start, end| ToldClaim { device: 1, inode, start, end };
        assert!(told(1, 0, 10).overlaps(&told(1, 9, 20)));
        assert!(!told(1, 0, 10).overlaps(&told(1, 10, 20)));
        assert!(!told(1, 0, 10).overlaps(&told(2, 0, 10)));
        assert!(!ToldClaim::zeroed().overlaps(&ToldClaim::zeroed()));
    }
}
