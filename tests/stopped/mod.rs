//! Processes that are stopped.
use rustix::process::{Pid, Signal, kill_process};
use std::fs;

/// Stops a process, and waits until none of its threads runs.
pub(crate) fn stop(process: Pid) {
    kill_process(process, Signal::STOP).unwrap();
    while !is_stopped(process) {
        std::thread::yield_now();
    }
}

/// Whether all threads are in state T.
pub(crate) fn is_stopped(process: Pid) -> bool {
    let threads = format!("/proc/{}/task", process.as_raw_nonzero());
    fs::read_dir(threads).unwrap().all(|thread| {
        // One that has ended since runs no more.
        let stat = fs::read_to_string(thread.unwrap().path().join("stat"));
        // After the name, which may hold anything, in parentheses.
        stat.map_or(true, |stat| stat.rsplit_once(") ").unwrap().1.starts_with('T'))
    })
}
