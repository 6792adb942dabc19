//! The warden: a small process that outlives a killed launcher, to kill what ranks had started:
//! their process groups, and what went to a group or session of its own and kept the job's mark
//! in its environment.
//!
//! The kernel kills the ranks themselves; but a rank may be a script, and its children are told
//! nothing. Each new process writes its group to the warden's pipe before it executes its program.
//! The pipe ends with the launcher.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};

use super::output::lock;
use crate::JOB_VAR;

/// What a warden is called: its first argument, and its name in `ps`.
pub const NAME: &str = "rma-warden";

/// Looks for what is left of a job, at most: a process may start others while it is looked for.
const SWEEPS: u32 = 200;
/// Looks in a row that find nothing, until nothing is left: a process that is just executing its
/// program has no environment for a moment.
const EMPTY_SWEEPS: u32 = 3;
const SWEEP_PAUSE: Duration = Duration::from_millis(5);
/// Wardens that are replaced, at most: a user who kills each does so on purpose.
const REPLACEMENTS: u32 = 16;

/// If this process was started to be a warden, is one until the launcher is gone, and then
/// returns true. The first thing in `main` of a program that runs a dedicated job.
pub fn warden() -> bool {
    let mut args = std::env::args_os();
    if args.next().as_deref() != Some(OsStr::new(NAME)) {
        return false;
    }
    // Only for a user who looks at `ps`.
    let _ = rustix::thread::set_name(c"rma-warden");
    for group in surviving(io::stdin().lock()) {
        // Most of them are gone already.
        let _ = kill_process_group(group, Signal::KILL);
    }
    if let Some(job) = args.next() {
        sweep(&job);
    }
    true
}

/// Reads until the launcher is gone; returns the groups that are left.
fn surviving(orders: impl BufRead) -> Vec<Pid> {
    let mut groups = Vec::new();
    for line in orders.lines().map_while(Result::ok) {
        let Some((sign, number)) = line.split_at_checked(1) else { continue };
        // 0 and 1 would be this warden's own group and every process.
        let Some(group) = number.parse().ok().filter(|raw| *raw > 1).and_then(Pid::from_raw) else {
            continue;
        };
        match sign {
            "+" => groups.push(group),
            "-" => groups.retain(|other| *other != group),
            _ => {}
        }
    }
    groups
}

/// Kills every process with the job's mark, until there is none; without /proc, none is seen.
fn sweep(job: &OsStr) {
    let mut mark = OsString::from(JOB_VAR);
    mark.push("=");
    mark.push(job);
    let mut empty = 0;
    for _ in 0..SWEEPS {
        let Ok(processes) = std::fs::read_dir("/proc") else { return };
        let numbers = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let left = numbers.filter_map(Pid::from_raw).filter(|pid| may_be_left(*pid, &mark));
        empty = if left.count() == 0 { empty + 1 } else { 0 };
        if empty == EMPTY_SWEEPS {
            return;
        }
        std::thread::sleep(SWEEP_PAUSE);
    }
}

/// Kills a process if its environment holds `mark`; whether it did, or the process is executing
/// its program, which it has no environment meanwhile to tell.
fn may_be_left(pid: Pid, mark: &OsStr) -> bool {
    // Before the environment is read: so no later process with that number is killed.
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
    let folder = format!("/proc/{}", pid.as_raw_nonzero());
    // Processes of other users cannot be read, nor killed.
    let Ok(environment) = std::fs::read(format!("{folder}/environ")) else { return false };
    if environment.is_empty() {
        // Threads of the kernel have no program, nor have processes that wait for their parent. A
        // process that was started without any environment keeps the look from being an empty
        // one, and so lengthens the search, which is bounded.
        return std::fs::read_link(format!("{folder}/exe")).is_ok();
    }
    let marked = environment.split(|byte| *byte == 0).any(|entry| entry == mark.as_encoded_bytes());
    marked && pidfd_send_signal(&process, Signal::KILL).is_ok()
}

/// The launcher's end of a warden's pipe, and that of processes it starts; none while there is no
/// warden.
pub(super) type Orders = Arc<Mutex<Option<Arc<OwnedFd>>>>;

/// The launcher's end.
#[derive(Debug)]
pub(super) struct Warden {
    job: String,
    child: Child,
    orders: Orders,
    replaced: u32,
}

impl Warden {
    /// Starts a warden of that job.
    pub(super) fn start(job: &str) -> io::Result<Warden> {
        let (child, pipe) = start(job)?;
        let orders = Arc::new(Mutex::new(Some(Arc::new(pipe))));
        Ok(Warden { job: job.to_owned(), child, orders, replaced: 0 })
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The pipe that a new process tells its group.
    pub(super) fn orders(&self) -> Orders {
        Arc::clone(&self.orders)
    }

    /// Has another warden watch over `groups` if this one has ended.
    pub(super) fn replace_if_gone(&mut self, groups: impl Iterator<Item = Pid>) -> io::Result<()> {
        if matches!(self.child.try_wait(), Ok(None)) {
            return Ok(());
        }
        *lock(&self.orders) = None;
        if self.replaced >= REPLACEMENTS {
            return Err(io::Error::other("it was killed again and again"));
        }
        self.replaced += 1;
        let (child, pipe) = start(&self.job)?;
        self.child = child;
        *lock(&self.orders) = Some(Arc::new(pipe));
        for group in groups {
            self.watch(group);
        }
        Ok(())
    }

    /// From now on, kills `group` when the launcher dies. Its first process has said so itself,
    /// but maybe to a warden before this one.
    pub(super) fn watch(&mut self, group: Pid) {
        self.order('+', group);
    }

    /// No longer: the number of the group may soon be another process'.
    pub(super) fn release(&mut self, group: Pid) {
        self.order('-', group);
    }

    fn order(&mut self, sign: char, group: Pid) {
        let Some(pipe) = lock(&self.orders).clone() else { return };
        let line = format!("{sign}{}\n", group.as_raw_nonzero());
        if rustix::io::write(&*pipe, line.as_bytes()) == Ok(line.len()) {
            return;
        }
        // It was killed, or is stopped and has taken nothing for long. Its end is noticed, and
        // another takes its place.
        *lock(&self.orders) = None;
        let _ = self.child.kill();
    }
}

/// A new warden, and its pipe.
fn start(job: &str) -> io::Result<(Child, OwnedFd)> {
    let mut child = Command::new("/proc/self/exe")
        .arg0(NAME)
        .arg(job)
        // It is no part of a job that this launcher may be a rank of.
        .env_remove(JOB_VAR)
        // A group of its own: a terminal's Ctrl-C is not meant for it.
        .process_group(0)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let pipe = child.stdin.take().ok_or_else(|| io::Error::other("no pipe"))?;
    let pipe = OwnedFd::from(pipe);
    // A warden that is stopped does not hold up its parent.
    let flags = rustix::fs::fcntl_getfl(&pipe)?;
    rustix::fs::fcntl_setfl(&pipe, flags | rustix::fs::OFlags::NONBLOCK)?;
    Ok((child, pipe))
}

impl Drop for Warden {
    fn drop(&mut self) {
        // The job is over, and nothing left to be done; a stopped one would not end with its pipe.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_groups_that_were_not_released_are_left() {
        let orders = "+100\n+200\n-100\n+1\n+0\n+-5\n+x\n\n*300\n+99999999999\n+400\n";
        let left: Vec<i32> = surviving(orders.as_bytes())
            .into_iter()
            .map(|pid| pid.as_raw_nonzero().get())
            .collect();
        assert_eq!(left, [200, 400]);
    }

    #[test]
    fn only_processes_with_the_mark_are_killed() {
        let start = |value: &str| {
            let child = Command::new("sleep").arg("1000").env(JOB_VAR, value).spawn().unwrap();
            let environment = format!("/proc/{}/environ", child.id());
            // It may be executing its program still.
            while std::fs::read(&environment).unwrap().is_empty() {
                std::thread::yield_now();
            }
            child
        };
        let (mut marked, mut other) = (start("this-1"), start("this-12"));
        sweep(OsStr::new("this-1"));
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(marked.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn an_ordinary_process_is_no_warden() {
        assert!(!warden());
    }
}
