//! A malformed hint is not passed over.
use rma::{Communicator, Window};

fn misuse(world: &Communicator) -> Window {
    world.window(1, 8).hint("no_locks", "maybe").allocate().unwrap()
}

fn main() {}
