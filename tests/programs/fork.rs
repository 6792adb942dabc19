//! A rank that forks in an epoch. The child leaves `main` as its parent will, or panics there.
//! `tests/newcomer.rs` runs it.
#![allow(unsafe_code)] // room: forks
use rma::{LockKind, Rank, Window};
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
        let pids = world.allgather(&[std::process::id()])?;
        // SAFETY: the main thread forks; the child needs no lock that another thread may hold, but
        // the allocator's, which is whole in a child.
        match unsafe { libc::fork() } {
            0 if end == "panics" => panic!("a child"),
            0 => return Ok(()),
            child => {
                let child = Pid::from_raw(child).expect("fork failed");
                let ended = waitpid(Some(child), WaitOptions::empty()).expect("its end");
                let status = ended.and_then(|(_, status)| status.exit_status());
                assert_eq!(status, Some(if end == "panics" { 101 } else { 0 }));
            }
        }
        // They wait for this rank or its lock, and have looked whether it left.
        let others = pids.iter().filter(|pid| **pid != std::process::id());
        others.for_each(|pid| while state(*pid) == 'R' {});
        let mut value = [0u64];
        epoch.get(0, &mut value)?;
        assert_eq!(value, [0], "the lock is still held");
        epoch.put(0, &[7u64])?;
        epoch.unlock()?;
    } else {
        world.allgather(&[std::process::id()])?;
        count(&window)?;
    }
    world.barrier()?;
    if world.rank() == Rank(0) {
        println!("counted {}", window.local().load::<u64>(0)?);
    }
    window.free()?;
    Ok(universe.finalize()?)
}

fn count(window: &Window) -> Result<(), rma::Error> {
    let epoch = window.lock(Rank(0), LockKind::Exclusive)?;
    let mut value = [0u64];
    epoch.get(0, &mut value)?;
    epoch.put(0, &[value[0] + 1])?;
    Ok(epoch.unlock()?)
}

/// State of a process: R if it runs or could, S if it sleeps.
fn state(pid: u32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // After the name, which may hold anything, in parentheses.
    stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap_or('X')
}
