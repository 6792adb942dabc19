//! Whether ranks reach each other's memory: a process tries it on another one, which is neither its
//! parent nor its child, as ranks are.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::super::warden::NAME;
use super::{Finding, bad, good, poor, probe, system};
use crate::codec::wire_struct;

/// Why a process may not do that to another one; nothing where it may.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Reached {
    /// Open files below its folder in /proc.
    folder: Option<String>,
    /// Take descriptors.
    descriptor: Option<String>,
    /// Copy out of its memory.
    copy: Option<String>,
}

wire_struct!(Reached { folder, descriptor, copy });

/// Tries it.
pub(super) fn reach(pid: &OsStr) -> Reached {
    let number = pid.to_str().and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw);
    let Some(process) = number else {
        let none = Some(format!("{pid:?} is no process"));
        return Reached { folder: none.clone(), descriptor: none.clone(), copy: none };
    };
    let folder = format!("/proc/{}", process.as_raw_nonzero());
    let opened = std::fs::File::open(format!("{folder}/fd/0"));
    let taken = pidfd_open(process, PidfdFlags::empty())
        .and_then(|process| pidfd_getfd(&process, 0, PidfdGetfdFlags::empty()));
    let maps = std::fs::read_to_string(format!("{folder}/maps"));
    let copied = match maps.map(|maps| readable(&maps)) {
        Ok(Some(address)) => system::copy_one_byte(process, address),
        Ok(None) => Err("it has no memory that can be read".to_owned()),
        Err(error) => Err(format!("{folder}/maps: {error}")),
    };
    Reached {
        folder: opened.err().map(|error| error.to_string()),
        descriptor: taken.err().map(|error| error.to_string()),
        copy: copied.err(),
    }
}

/// An address that the process itself may read, by its `maps`.
fn readable(maps: &str) -> Option<u64> {
    let is_readable = |line: &&str| line.split(' ').nth(1).is_some_and(|may| may.starts_with('r'));
    let line = maps.lines().find(is_readable)?;
    u64::from_str_radix(line.split('-').next()?, 16).ok()
}

/// A process that waits for the end of its standard input: a warden without a job.
struct Idle(Child);

impl Idle {
    fn start() -> std::io::Result<Idle> {
        let mut command = Command::new("/proc/self/exe");
        command.arg0(NAME).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().map(Idle)
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        // Has no effect on one that has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn tried() -> Tried {
    let idle = Idle::start().map_err(|error| format!("no process could be started: {error}"))?;
    let pid = idle.0.id().to_string();
    probe::answer(&[OsStr::new(probe::PEER), OsStr::new(&pid)], &[])
}

/// Whether a rank may take a descriptor of its peer's, in either way, and copy out of its memory,
/// by a call of the kernel.
pub(super) fn both() -> [Finding; 2] {
    let (tried, scope) = (tried(), ptrace_scope());
    [of_descriptors(&tried, &scope), of_copies(&tried, &scope)]
}

type Tried = Result<Reached, String>;

/// What Yama says, or nothing where it is not.
fn ptrace_scope() -> String {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    scope.unwrap_or_default().trim().to_owned()
}

/// For a sentence about what is not permitted.
fn yama(scope: &str) -> String {
    match scope {
        "" | "0" => String::new(),
        scope => {
            format!(" (kernel.yama.ptrace_scope is {scope}: sysctl -w kernel.yama.ptrace_scope=0)")
        }
    }
}

const CONTAINERS: &str = "a container needs --cap-add=SYS_PTRACE, or a seccomp profile that allows \
                          it";

fn of_descriptors(tried: &Tried, scope: &str) -> Finding {
    const TOPIC: &str = "peers";
    match tried {
        Err(why) => poor(TOPIC, format!("not tried: {why}")).with("by", "not known"),
        Ok(Reached { folder: None, .. }) => {
            good(TOPIC, "ranks reach each other's memory (/proc/PID/fd)").with("by", "/proc/PID/fd")
        }
        Ok(Reached { descriptor: None, .. }) => {
            good(TOPIC, "ranks reach each other's memory (pidfd_getfd)").with("by", "pidfd_getfd")
        }
        Ok(Reached { folder: Some(opened), descriptor: Some(taken), .. }) => {
            let yama = yama(scope);
            let text = format!(
                "a rank may not take descriptors of another one: /proc/PID/fd: {opened}, \
                 pidfd_getfd: {taken}{yama}; {CONTAINERS}"
            );
            bad(TOPIC, text).with("by", "none")
        }
    }
}

fn of_copies(tried: &Tried, scope: &str) -> Finding {
    const TOPIC: &str = "copies";
    let (finding, works) = match tried.as_ref().map(|reached| reached.copy.as_deref()) {
        Err(why) => (poor(TOPIC, format!("not tried: {why}")), "not known"),
        Ok(None) => {
            let text = "large payloads and memory of programs are copied once, out of the memory \
                        of peers (process_vm_readv)";
            (good(TOPIC, text), "yes")
        }
        Ok(Some(why)) => {
            let yama = yama(scope);
            let text = format!(
                "a rank may not copy out of the memory of another one: process_vm_readv: \
                 {why}{yama}; {CONTAINERS}; windows on memory of the program go by messages, and \
                 large payloads by memory that ranks share"
            );
            (poor(TOPIC, text), "no")
        }
    };
    let scope = if scope.is_empty() { "none" } else { scope };
    finding.with("process_vm_readv", works).with("ptrace_scope", scope)
}

#[cfg(test)]
mod tests {
    use super::super::Health;
    use super::*;

    #[test]
    fn memory_that_may_be_read_is_found() {
        let maps = "00400000-00401000 ---p 00000000 00:00 0\n7f00-7f01 r--p 00000000 08:01 7 /x\n";
        assert_eq!(readable(maps), Some(0x7f00));
        assert_eq!(readable(""), None);
    }

    #[test]
    fn what_is_not_permitted_has_a_remedy() {
        let no = || Some("not permitted".to_owned());
        let none = || Reached { folder: no(), descriptor: no(), copy: no() };
        let found = of_descriptors(&Ok(none()), "1");
        assert_eq!((found.health, found.value("by")), (Health::Bad, Some("none")));
        assert!(
            found.text.contains("ptrace_scope=0") && found.text.contains("--cap-add"),
            "{found:?}"
        );
        let found = of_copies(&Ok(none()), "");
        let values = (found.value("process_vm_readv"), found.value("ptrace_scope"));
        assert_eq!((found.health, values), (Health::Poor, (Some("no"), Some("none"))));
        assert!(!found.text.contains("yama"), "{found:?}");
        let either = Ok(Reached { folder: no(), ..Reached::default() });
        assert_eq!(of_descriptors(&either, "").value("by"), Some("pidfd_getfd"));
        let found = of_copies(&Err("because".into()), "1");
        assert_eq!((found.health, &*found.text), (Health::Poor, "not tried: because"));
    }

    /// The process that runs the tests may look at its own children, whatever Yama says.
    #[test]
    fn a_child_is_reached_and_no_process_is_not() {
        let mut command = Command::new("cat");
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let child = Idle(child);
        let reached = reach(OsStr::new(&child.0.id().to_string()));
        assert_eq!(reached.folder, None);
        for none in ["0", "x"] {
            let reached = reach(OsStr::new(none));
            assert!(reached.folder.is_some() && reached.copy.is_some(), "{none}");
        }
    }
}
