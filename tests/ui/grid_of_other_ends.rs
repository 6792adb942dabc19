//! A grid has as many answers to whether it is periodic as it has dimensions.
use rma::Communicator;

fn misuse(world: &Communicator) {
    world.cartesian([2, 2], [false, true, true]).unwrap();
}

fn main() {}
