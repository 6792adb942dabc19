//! Ranks taken for a grid (FEATURES A8).
use crate::help::{local_words, says, words};
use rma_core::{Assert, Cartesian, CartesianError, ErrorClass, Rank, Universe};

/// Every rank puts to its four neighbours, of which those beyond an open end are null
/// targets.
pub fn neighbours(universe: &Universe) {
    let world = universe.world();
    let dims = Cartesian::balanced(world.size(), [0, 0]).unwrap();
    for periodic in [[false; 2], [true, false], [true; 2]] {
        let grid = world.cartesian(dims, periodic).unwrap();
        assert_eq!((grid.rank(), grid.size()), (world.rank(), world.size()));
        let window = words(world, 4);
        let epoch = window.fence(Assert::NONE).unwrap();
        let ways = [(0, 1), (0, -1), (1, 1), (1, -1)];
        for ((dimension, by), disp) in ways.into_iter().zip(0..) {
            let (_, destination) = grid.shift(dimension, by).unwrap();
            epoch.put(destination, disp, &[u64::from(world.rank()) + 1]).unwrap();
        }
        epoch.end().unwrap();
        let from = |rank: Rank| if rank == Rank::NULL { 0 } else { u64::from(rank) + 1 };
        let expected = ways.map(|(dimension, by)| from(grid.shift(dimension, by).unwrap().0));
        assert_eq!(local_words(&window), expected);
        window.free().unwrap();
    }
}

/// All ranks agree which is where, without asking.
pub fn places(universe: &Universe) {
    let world = universe.world();
    let dims = Cartesian::balanced(world.size(), [0, 2, 0]).unwrap();
    let grid = world.cartesian(dims, [true, false, false]).unwrap();
    let mine = grid.coordinates(world.rank()).unwrap();
    let all = world.allgather(&mine).unwrap();
    for (rank, coordinates) in world.ranks().zip(all.as_chunks::<3>().0) {
        assert_eq!(grid.coordinates(rank), Some(*coordinates));
        assert_eq!(grid.rank_at(*coordinates), rank);
    }
    let own = world.cartesian([world.size()], [true]).unwrap();
    assert_eq!(own.shift(0, 1).unwrap().1, world.rank().on_ring(1, world.size()));
}

/// Grids that do not have the size of the communicator.
pub fn refused(universe: &Universe) {
    let world = universe.world();
    let error = world.cartesian([7, world.size()], [true; 2]).unwrap_err();
    assert!(matches!(error, CartesianError::WrongSize { .. }));
    assert_eq!(error.class(), ErrorClass::Dims);
    let size = world.size().to_string();
    says(&error, &[&format!("7 x {size}"), &format!("{size} ranks"), "Cartesian::balanced"]);
    assert!(world.cartesian([0, world.size()], [true; 2]).is_err());
    let error = Cartesian::balanced(world.size(), [world.size() + 1, 0]).unwrap_err();
    says(&error, &[&format!("{} x 0", world.size() + 1), "divides"]);
}
