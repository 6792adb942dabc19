//! A process, counted inside one communicator.
use core::fmt;
use core::num::TryFromIntError;

/// A rank of a communicator or window, 0-based.
///
/// Ranks of different communicators name different processes; what a transport counts is a
/// [`WorldRank`](crate::transport::WorldRank).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(pub u32);

impl Rank {
    /// The null target: operations on it are no-ops (MPI's `MPI_PROC_NULL`).
    pub const NULL: Self = Self(u32::MAX);

    /// The rank `distance` after this one on a ring of `size` ranks; negative goes backwards.
    ///
    /// `size` 0 gives [`Rank::NULL`].
    pub fn on_ring(self, distance: i64, size: u32) -> Self {
        if size == 0 {
            return Self::NULL;
        }
        let sum = i128::from(self.0) + i128::from(distance);
        Self(u32::try_from(sum.rem_euclid(i128::from(size))).unwrap_or(u32::MAX))
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NULL { f.write_str("NULL") } else { self.0.fmt(f) }
    }
}

impl From<u32> for Rank {
    fn from(rank: u32) -> Self {
        Self(rank)
    }
}

impl TryFrom<usize> for Rank {
    type Error = TryFromIntError;

    /// The rank of that place in a list by rank.
    fn try_from(place: usize) -> Result<Self, TryFromIntError> {
        u32::try_from(place).map(Self)
    }
}

impl TryFrom<u64> for Rank {
    type Error = TryFromIntError;

    /// The rank of that number, which came from a window, say.
    fn try_from(number: u64) -> Result<Self, TryFromIntError> {
        u32::try_from(number).map(Self)
    }
}

impl From<Rank> for u32 {
    fn from(rank: Rank) -> Self {
        rank.0
    }
}

impl From<Rank> for u64 {
    fn from(rank: Rank) -> Self {
        Self::from(rank.0)
    }
}

impl From<Rank> for usize {
    fn from(rank: Rank) -> Self {
        rank.0 as Self
    }
}

/// A process of the job, 0-based: what transports and the bootstrap count.
///
/// Not to be mixed up with [`Rank`](crate::Rank), which counts inside one communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorldRank(pub u32);

impl fmt::Display for WorldRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_convert_without_casts() {
        assert_eq!((Rank::from(3), Rank::try_from(4usize)), (Rank(3), Ok(Rank(4))));
        assert!(Rank::try_from(usize::MAX).is_err());
        assert_eq!((u32::from(Rank(5)), u64::from(Rank(5)), usize::from(Rank(5))), (5, 5, 5));
    }

    #[test]
    fn ring_wraps_both_ways() {
        assert_eq!(Rank(3).on_ring(1, 4), Rank(0));
        assert_eq!(Rank(0).on_ring(-1, 4), Rank(3));
        assert_eq!(Rank(2).on_ring(-11, 4), Rank(3));
        assert_eq!(Rank(0).on_ring(1, 0), Rank::NULL);
    }
}
