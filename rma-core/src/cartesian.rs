//! Ranks taken for a grid: arithmetic on their numbers, and nothing else.
use crate::class::ErrorClass;
use crate::rank::Rank;
use core::fmt;

/// The ranks of a communicator, taken for a grid of `N` dimensions in row-major order
/// (MPI 4.1, chapter 8). [`Communicator::cartesian`](crate::Communicator::cartesian) makes it.
///
/// A value of its own: it is copied, outlives its communicator and sends nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cartesian<const N: usize> {
    rank: Rank,
    dims: [u32; N],
    periodic: [bool; N],
}

/// Why there is no such grid of ranks.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CartesianError {
    /// The grid has more or fewer places than there are ranks.
    #[error(
        "a grid of {} does not have the size of the communicator, {ranks} ranks; pass dims whose \
         product that is, as Cartesian::balanced finds them, or split off the ranks that the grid \
         shall have",
        Product(dims)
    )]
    WrongSize {
        /// Ranks in each dimension.
        dims: Box<[u32]>,
        /// Ranks of the communicator.
        ranks: u32,
    },
    /// The dimensions that are given leave no whole number of ranks to the others.
    #[error(
        "{ranks} ranks do not fill a grid of {}, where 0 is to be chosen; pass dims whose product \
         divides the number of ranks, or is that number where none is 0",
        Product(dims)
    )]
    Uneven {
        /// Ranks in each dimension; 0 is one to be chosen.
        dims: Box<[u32]>,
        /// Ranks to be dealt.
        ranks: u32,
    },
    /// The grid has fewer dimensions.
    #[error("dimension {dimension} of a grid of {dims} dimensions, which are counted from 0")]
    NoSuchDimension {
        /// Which one, from 0.
        dimension: usize,
        /// How many there are.
        dims: usize,
    },
}

crate::debug_as_display!(CartesianError);

impl CartesianError {
    /// The MPI error class.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::WrongSize { .. } | Self::Uneven { .. } | Self::NoSuchDimension { .. } => {
                ErrorClass::Dims
            }
        }
    }
}

/// Dimensions, as errors show them.
struct Product<'a>(&'a [u32]);

impl fmt::Display for Product<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("no dimensions");
        }
        for (i, dim) in self.0.iter().enumerate() {
            write!(f, "{}{dim}", if i > 0 { " x " } else { "" })?;
        }
        Ok(())
    }
}

/// `None` if 64 bits do not hold it.
fn product(dims: impl IntoIterator<Item = u32>) -> Option<u64> {
    dims.into_iter().try_fold(1u64, |product, dim| product.checked_mul(dim.into()))
}

impl<const N: usize> Cartesian<N> {
    pub(crate) fn new(
        rank: Rank,
        ranks: u32,
        dims: [u32; N],
        periodic: [bool; N],
    ) -> Result<Self, CartesianError> {
        if product(dims) != Some(ranks.into()) {
            return Err(CartesianError::WrongSize { dims: dims.into(), ranks });
        }
        Ok(Self { rank, dims, periodic })
    }

    /// `dims` with a number for each 0, so that `ranks` is the product of all, and those that were
    /// chosen are as close to each other as can be, the larger ones first.
    ///
    /// ```
    /// use rma_core::Cartesian;
    ///
    /// assert_eq!(Cartesian::balanced(24, [0, 0, 4])?, [3, 2, 4]);
    /// assert_eq!(Cartesian::balanced(72, [0, 0])?, [9, 8]);
    /// # Ok::<(), rma_core::CartesianError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`CartesianError::Uneven`] if the product of the others does not divide `ranks`, or is
    /// another number and no 0 is left.
    ///
    /// MPI 4.1, section 8.5.2 (`MPI_DIMS_CREATE`). Of all ways, the one whose largest number is the
    /// smallest; of these, the one whose second is, and so on.
    pub fn balanced(ranks: u32, dims: [u32; N]) -> Result<[u32; N], CartesianError> {
        let uneven = || CartesianError::Uneven { dims: dims.into(), ranks };
        let given = product(dims.into_iter().filter(|dim| *dim > 0));
        let given = given.and_then(|given| u32::try_from(given).ok());
        let given = given.filter(|given| ranks > 0 && ranks.is_multiple_of(*given));
        let rest = ranks / given.ok_or_else(uneven)?;
        let free = dims.iter().map(|dim| usize::from(*dim == 0)).sum();
        let mut factors = Vec::with_capacity(free);
        if !factorize(rest, free, rest, &divisors(rest), &mut factors) {
            return Err(uneven());
        }
        let mut chosen = factors.into_iter();
        Ok(dims.map(|dim| if dim == 0 { chosen.next().unwrap_or(1) } else { dim }))
    }

    /// Ranks in each dimension.
    pub fn dims(&self) -> [u32; N] {
        self.dims
    }

    /// Which dimensions are rings.
    pub fn periodic(&self) -> [bool; N] {
        self.periodic
    }

    /// This process, in the communicator and in the grid.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> u32 {
        // That of the communicator.
        self.dims.iter().product()
    }

    /// Where `rank` is, from 0 in each dimension; `None` if it is [`Rank::NULL`] or otherwise not
    /// in the grid.
    ///
    /// MPI 4.1, section 8.5.5 (`MPI_CART_COORDS`).
    pub fn coordinates(&self, rank: Rank) -> Option<[i64; N]> {
        if rank.0 >= self.size() {
            return None;
        }
        let (mut coordinates, mut rest) = ([0; N], rank.0);
        for (coordinate, dim) in coordinates.iter_mut().zip(self.dims).rev() {
            *coordinate = i64::from(rest % dim);
            rest /= dim;
        }
        Some(coordinates)
    }

    /// The rank there. Coordinates beyond an end go on at the other where the dimension is
    /// periodic, and otherwise name [`Rank::NULL`].
    ///
    /// MPI 4.1, section 8.5.5 (`MPI_CART_RANK`, which refuses those beyond an open end).
    pub fn rank_at(&self, coordinates: [i64; N]) -> Rank {
        self.at(coordinates.map(i128::from))
    }

    /// The partners of this rank when all shift by `displacement` along a dimension: the rank that
    /// is so far before this one, whose data comes here, and the rank that is so far behind it,
    /// where those of this one go. [`Rank::NULL`] stands for one beyond an open end.
    ///
    /// # Errors
    ///
    /// [`CartesianError::NoSuchDimension`].
    ///
    /// MPI 4.1, section 8.5.6 (`MPI_CART_SHIFT`).
    pub fn shift(
        &self,
        dimension: usize,
        displacement: i64,
    ) -> Result<(Rank, Rank), CartesianError> {
        if dimension >= N {
            return Err(CartesianError::NoSuchDimension { dimension, dims: N });
        }
        let displacement = i128::from(displacement);
        let at = |displacement: i128| {
            let Some(own) = self.coordinates(self.rank) else { return Rank::NULL };
            let mut coordinates = own.map(i128::from);
            coordinates[dimension] += displacement;
            self.at(coordinates)
        };
        Ok((at(-displacement), at(displacement)))
    }

    fn at(&self, coordinates: [i128; N]) -> Rank {
        let mut rank = 0;
        for ((coordinate, dim), periodic) in
            coordinates.into_iter().zip(self.dims).zip(self.periodic)
        {
            let dim_wide = i128::from(dim);
            let inside = if periodic { coordinate.rem_euclid(dim_wide) } else { coordinate };
            if !(0..dim_wide).contains(&inside) {
                return Rank::NULL;
            }
            // Below the size, as the coordinate is below its dimension.
            rank = rank * dim + inside as u32;
        }
        Rank(rank)
    }
}

/// In order.
fn divisors(n: u32) -> Vec<u32> {
    let low = (1..).take_while(|d| u64::from(*d) * u64::from(*d) <= n.into());
    let mut all: Vec<u32> = low.filter(|d| n.is_multiple_of(*d)).flat_map(|d| [d, n / d]).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Appends `count` numbers whose product is `n`, none larger than the one before nor than `most`:
/// the smallest that there are. False if there are none.
fn factorize(n: u32, count: usize, most: u32, divisors: &[u32], found: &mut Vec<u32>) -> bool {
    if count == 0 {
        return n == 1;
    }
    // Those after it are no larger.
    let suffices = |first: &u32| {
        let limit =
            u32::try_from(count).ok().and_then(|count| u64::from(*first).checked_pow(count));
        limit.is_none_or(|limit| limit >= n.into())
    };
    let fits = |first: &&u32| n.is_multiple_of(**first) && suffices(first);
    for first in divisors.iter().take_while(|first| **first <= most).filter(fits) {
        found.push(*first);
        if factorize(n / first, count - 1, *first, divisors, found) {
            return true;
        }
        found.pop();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid<const N: usize>(rank: u32, dims: [u32; N], periodic: [bool; N]) -> Cartesian<N> {
        Cartesian::new(Rank(rank), dims.iter().product(), dims, periodic).unwrap()
    }

    #[test]
    fn ranks_are_in_row_major_order() {
        let grid = grid(0, [2, 3, 4], [false; 3]);
        assert_eq!((grid.size(), grid.dims(), grid.periodic()), (24, [2, 3, 4], [false; 3]));
        let places = (0..2).flat_map(|x| (0..12).map(move |yz| [x, yz / 4, yz % 4]));
        for (coordinates, rank) in places.zip((0..).map(Rank)) {
            assert_eq!(grid.rank_at(coordinates), rank);
            assert_eq!(grid.coordinates(rank), Some(coordinates));
        }
        assert_eq!((grid.coordinates(Rank(24)), grid.coordinates(Rank::NULL)), (None, None));
    }

    #[test]
    fn ends_are_open_or_joined() {
        let at = |coordinates| grid(0, [3, 4], [true, false]).rank_at(coordinates);
        assert_eq!(at([-1, 3]), Rank(11));
        assert_eq!(at([3, 0]), Rank(0));
        assert_eq!(at([i64::MIN, 1]), at([i64::MIN.rem_euclid(3), 1]));
        for outside in [-1, 4, i64::MIN, i64::MAX] {
            assert_eq!(at([0, outside]), Rank::NULL);
        }
    }

    #[test]
    fn a_source_has_that_destination() {
        for rank in 0..12 {
            let of = |rank| grid(rank, [3, 4], [true, false]);
            for (dimension, by) in (0..2).flat_map(|d| (-5..6).map(move |by| (d, by))) {
                let (source, destination) = of(rank).shift(dimension, by).unwrap();
                for (other, back) in [(source, by), (destination, -by)] {
                    if other != Rank::NULL {
                        assert_eq!(of(other.0).shift(dimension, back).unwrap().1, Rank(rank));
                    }
                }
                assert!(dimension == 1 || source != Rank::NULL && destination != Rank::NULL);
            }
        }
        let corner = grid(3, [3, 4], [true, false]);
        assert_eq!(corner.shift(0, 1), Ok((Rank(11), Rank(7))));
        assert_eq!(corner.shift(1, 1), Ok((Rank(2), Rank::NULL)));
        assert_eq!(corner.shift(1, i64::MIN), Ok((Rank::NULL, Rank::NULL)));
        assert_eq!(corner.shift(1, 0), Ok((Rank(3), Rank(3))));
        let wrong = CartesianError::NoSuchDimension { dimension: 2, dims: 2 };
        assert_eq!(corner.shift(2, 1), Err(wrong));
    }

    #[test]
    fn grids_have_a_place_for_each_rank() {
        let error = Cartesian::new(Rank(0), 4, [2, 3], [false; 2]).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Dims);
        let text = error.to_string();
        assert!(text.contains("2 x 3") && text.contains("4 ranks"), "{text}");
        for dims in [[0, 4], [u32::MAX, u32::MAX], [4, 2]] {
            assert!(Cartesian::new(Rank(0), 4, dims, [false; 2]).is_err());
        }
        let point = Cartesian::new(Rank(0), 1, [], []).unwrap();
        assert_eq!((point.coordinates(Rank(0)), point.rank_at([])), (Some([]), Rank(0)));
        let none = Cartesian::new(Rank(0), 2, [], []).unwrap_err().to_string();
        assert!(none.contains("no dimensions"), "{none}");
    }

    /// All ways to write `n` as a product of three numbers, none larger than the one before.
    fn ways(n: u32) -> impl Iterator<Item = [u32; 3]> {
        let splits =
            |n: u32| (1..=n).filter(move |d| n.is_multiple_of(*d)).map(move |d| (d, n / d));
        let all = splits(n).flat_map(move |(a, rest)| splits(rest).map(move |(b, c)| [a, b, c]));
        all.filter(|[a, b, c]| a >= b && b >= c)
    }

    #[test]
    fn balanced_dims_are_as_close_as_can_be() {
        for n in 1..if cfg!(miri) { 20 } else { 400 } {
            assert_eq!(Cartesian::balanced(n, [0; 3]).ok(), ways(n).min(), "{n}");
        }
        assert_eq!(Cartesian::balanced(6, [0]), Ok([6]));
        assert_eq!(Cartesian::balanced(1, []), Ok([]));
        assert_eq!(Cartesian::balanced(12, [0, 3, 0]), Ok([2, 3, 2]));
        assert_eq!(Cartesian::balanced(6, [2, 3]), Ok([2, 3]));
        assert_eq!(
            Cartesian::balanced(1 << 31, [0; 40]).unwrap()[..32],
            [[2; 31].as_slice(), &[1]].concat()
        );
    }

    #[test]
    fn dims_that_leave_no_whole_number_are_refused() {
        for (ranks, dims) in
            [(4, [3, 0]), (4, [2, 1]), (0, [0, 0]), (4, [u32::MAX; 2]), (4, [8, 0])]
        {
            let error = Cartesian::balanced(ranks, dims).unwrap_err();
            assert_eq!(error, CartesianError::Uneven { dims: dims.into(), ranks });
            let text = error.to_string();
            assert!(text.contains(&format!("{ranks} ranks do not")), "{text}");
        }
    }

    /// Numbers with many divisors, or large ones.
    #[test]
    fn large_jobs_are_balanced_too() {
        for n in [223_092_870, 3_491_888_400, 4_294_967_291, 2 * 2_147_483_629, u32::MAX] {
            let dims = Cartesian::balanced(n, [0; 6]).unwrap();
            assert_eq!(product(dims), Some(n.into()));
            assert!(dims.is_sorted_by(|a, b| a >= b));
        }
    }
}
