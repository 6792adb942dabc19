//! What a new process does between fork and exec, and how its end is watched for. The only unsafe
//! room of this crate.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{
    Pid, Resource, Rlimit, Signal, getppid, set_parent_process_death_signal, setrlimit,
};
use rustix::thread::{CpuSet, sched_setaffinity};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Conditions under which a rank runs.
#[derive(Clone, Copy)]
pub(super) struct Confinement {
    /// The launcher.
    pub(super) parent: Pid,
    /// CPUs it is bound to.
    pub(super) cpus: Option<CpuSet>,
    /// Limit of descriptors, if it is another than the launcher's.
    pub(super) descriptors: Option<Rlimit>,
}

impl Confinement {
    /// Runs in the new process; makes system calls only.
    fn apply(&self) -> io::Result<()> {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // A launcher that died in between sends no signal any more.
        if getppid() != Some(self.parent) {
            return Err(rustix::io::Errno::SRCH.into());
        }
        if let Some(cpus) = &self.cpus {
            sched_setaffinity(None, cpus)?;
        }
        if let Some(limit) = self.descriptors {
            setrlimit(Resource::Nofile, limit)?;
        }
        Ok(())
    }
}

/// Has `command` run under `confinement`, as the leader of a process group of its own.
pub(super) fn confine(command: &mut Command, confinement: Confinement) {
    command.process_group(0);
    let apply = move || confinement.apply();
    // SAFETY: `apply` runs after a fork that may have copied locks held by other threads. It
    // only makes system calls (rustix' linux_raw backend calls the kernel without libc, and its
    // wrappers allocate nothing), reads its own copy of plain data, and its errors are made from
    // an errno, which does not allocate. So it takes no lock, and needs no other thread.
    unsafe { command.pre_exec(apply) };
}

/// Registers a descriptor with the event loop, for reading.
pub(super) fn watch(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is open, and no other code may close it or put another file in its
    // place; it moves into the `AsyncFd`, which keeps it as long as the registration. Its
    // `as_raw_fd` always returns the same number.
    let registered = unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) };
    Ok(registered?)
}
