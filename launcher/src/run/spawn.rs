//! What a new process does between fork and exec, and how its end is watched for. The only unsafe
//! room of this crate.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::FdFlags;
use rustix::process::{
    Pid, Resource, Rlimit, Signal, getpid, getppid, set_parent_process_death_signal, setrlimit,
};
use rustix::thread::{CpuSet, sched_setaffinity};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Conditions under which a rank runs.
pub(super) struct Confinement {
    /// The launcher.
    pub(super) parent: Pid,
    /// CPUs it is bound to.
    pub(super) cpus: Option<CpuSet>,
    /// Limit of descriptors, if it is another than the launcher's.
    pub(super) descriptors: Option<Rlimit>,
    /// The pipe with the job's secret, which the program inherits.
    pub(super) secret: OwnedFd,
    /// The file of bulletins, which the program inherits.
    pub(super) bulletin: Arc<OwnedFd>,
    /// The socket for PMI-1, which the program inherits, if there is one.
    pub(super) pmi: Option<OwnedFd>,
    /// What the kernel adds when it chooses a process to end for lack of memory, as text.
    pub(super) oom_score: String,
    /// The warden's pipe, which is told of the new group before the program runs.
    pub(super) warden: Option<Arc<OwnedFd>>,
}

impl Confinement {
    /// Runs in the new process; makes system calls only.
    fn apply(&self) -> io::Result<()> {
        end_with(self.parent)?;
        if let Some(warden) = &self.warden {
            // Without a warden the job goes on, too.
            without_sigpipe(|| rustix::io::write(warden, watch_order(&mut [0; 16])).ok());
        }
        rustix::io::fcntl_setfd(&self.secret, FdFlags::empty())?;
        rustix::io::fcntl_setfd(&self.bulletin, FdFlags::empty())?;
        if let Some(pmi) = &self.pmi {
            rustix::io::fcntl_setfd(pmi, FdFlags::empty())?;
        }
        // Where there is no such file, ranks and launcher are ended alike.
        if let Ok(score) =
            open(c"/proc/self/oom_score_adj", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
        {
            let _ = rustix::io::write(&score, self.oom_score.as_bytes());
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

/// Does `write`, which may be to a pipe without a reader: here, SIGPIPE would end this process,
/// since the standard library has made it what programs expect already.
fn without_sigpipe(write: impl FnOnce() -> Option<usize>) {
    // SAFETY: SIGPIPE may be ignored. The call is async-signal-safe, and this process, between fork
    // and exec, has this one thread.
    let before = unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    write();
    if before != libc::SIG_ERR {
        // SAFETY: as above; `before` is what the signal did, so its code is there.
        unsafe { libc::signal(libc::SIGPIPE, before) };
    }
}

/// What tells the warden to watch over this process' group, see [`super::warden`]. Without
/// allocating: this may be a process between fork and exec.
fn watch_order(line: &mut [u8; 16]) -> &[u8] {
    let mut number = getpid().as_raw_nonzero().get().unsigned_abs();
    let last = line.len() - 1;
    line[last] = b'\n';
    let mut start = last;
    while number > 0 {
        start -= 1;
        line[start] = b'0' + (number % 10) as u8;
        number /= 10;
    }
    start -= 1;
    line[start] = b'+';
    &line[start..]
}

/// Has `command` run under `confinement`, as the leader of a process group of its own.
pub(super) fn confine(command: &mut Command, confinement: Confinement) {
    command.process_group(0);
    let apply = move || confinement.apply();
    // SAFETY: `apply` runs after a fork that may have copied locks held by other threads. It
    // only makes system calls (rustix' linux_raw backend calls the kernel without libc, and its
    // wrappers allocate nothing; `signal` is async-signal-safe), reads its own copy of
    // plain data, and its errors are made from an errno, which does not allocate. So it takes no
    // lock, and needs no other thread.
    unsafe { command.pre_exec(apply) };
}

/// Has `command` run as the leader of a session of its own, without a terminal: a Ctrl-C there is
/// not meant for it, and it can ask no user for a password.
pub(super) fn detach(command: &mut Command) {
    let detach = || {
        rustix::process::setsid()?;
        Ok(())
    };
    // SAFETY: as in `confine`: one system call, without libc, and an error made of an errno.
    unsafe { command.pre_exec(detach) };
}

/// Has `command` killed when this thread ends, which is to be there when it is started.
pub(super) fn end_with_parent(command: &mut Command) {
    let parent = getpid();
    let end_with = move || end_with(parent);
    // SAFETY: as in `confine`: system calls, without libc, and an error made of an errno.
    unsafe { command.pre_exec(end_with) };
}

/// Has this process killed with the thread of `parent` that has started it. Makes system calls only.
fn end_with(parent: Pid) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // One that died in between sends no signal any more.
    match getppid() == Some(parent) {
        true => Ok(()),
        false => Err(rustix::io::Errno::SRCH.into()),
    }
}

/// Lets this thread have signals again that this process' parent had blocked.
pub(super) fn unblock(signals: &[Signal]) {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the call writes a whole `sigset_t`, for which there is room.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: it was written above.
    let mut set = unsafe { set.assume_init() };
    for signal in signals {
        // SAFETY: `set` is a `sigset_t` that `sigemptyset` has made; a number that is no signal
        // would be an error.
        unsafe { libc::sigaddset(&raw mut set, signal.as_raw()) };
    }
    // SAFETY: the call reads `set`, and no old mask is asked for. It changes which signals this
    // thread takes, whose handlers are those that the event loop has put there.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut()) };
}

/// Registers a descriptor with the event loop, for reading.
pub(super) fn watch(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is open, and no other code may close it or put another file in its
    // place; it moves into the `AsyncFd`, which keeps it as long as the registration. Its
    // `as_raw_fd` always returns the same number.
    let registered = unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) };
    Ok(registered?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_process_tells_the_warden_its_number() {
        let expected = format!("+{}\n", std::process::id());
        assert_eq!(watch_order(&mut [0; 16]), expected.as_bytes());
    }
}
