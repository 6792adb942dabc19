//! Atomics on the memory of another rank, which does nothing: every rank counts itself on rank 0.
use rma::{Op, Rank};

fn main() -> Result<(), rma::Error> {
    let universe = rma::initialize()?;
    let world = universe.world();
    let window = world.window(1, size_of::<u64>()).allocate()?;
    let epoch = window.lock_all()?;
    let before = epoch.fetch_and_op(Rank(0), 0, Op::Sum, 1u64)?;
    epoch.unlock()?;
    println!("rank {} of {} came as number {before}", world.rank(), world.size());
    world.barrier()?;
    if world.rank() == Rank(0) {
        println!("counted {}", window.local().load::<u64>(0)?);
    }
    window.free()?;
    Ok(universe.finalize()?)
}
