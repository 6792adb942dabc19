//! A rank that forks in an epoch. The child leaves `main` as its parent will, or panics there.
//! `tests/newcomer.rs` runs it.
#![allow(unsafe_code)] // room: forks
use rma::{LockKind, Rank};
use rustix::process::{Pid, WaitOptions, waitpid};

const FORKS: Rank = Rank(1);

fn main() -> Result<(), rma::Error> {
    let args: Vec<String> = std::env::args().collect();
    let (path, end) = (args[1].as_str(), args[2].as_str());
    let universe = rma::initialize()?;
    let world = universe.world();
    let window = world.window(1, 8).hint("rma_path", path)?.allocate()?;
    if world.rank() == FORKS {
        let epoch = window.lock(Rank(0), LockKind::Exclusive)?;
        // SAFETY: the main thread forks; the child needs no lock that another thread may hold, but
        // the allocator's, which is whole in a child.
        match unsafe { libc::fork() } {
            0 if end == "panics" => panic!("a child"),
            0 => return Ok(()),
            child => {
                let child = Pid::from_raw(child).expect("fork failed");
                waitpid(Some(child), WaitOptions::empty()).expect("its end");
            }
        }
        epoch.put(0, &[7u64])?;
        epoch.unlock()?;
    }
    // A wait for a rank that has left fails, unless it is over at once.
    (0..100).try_for_each(|_| world.barrier())?;
    let epoch = window.lock(Rank(0), LockKind::Exclusive)?;
    let mut value = [0u64];
    epoch.get(0, &mut value)?;
    epoch.put(0, &[value[0] + 1])?;
    epoch.unlock()?;
    world.barrier()?;
    if world.rank() == Rank(0) {
        println!("counted {}", window.local().load::<u64>(0)?);
    }
    window.free()?;
    Ok(universe.finalize()?)
}
