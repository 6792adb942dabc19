//! What this machine has for a job, and what is wrong with it, before one is started.

use std::fmt::Write;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Resource, getrlimit, pidfd_getfd, pidfd_open,
};

use super::bootstrap::REACHED_IN;
use super::query::quoted;
use super::warden::NAME;
use super::{capacity, cpus, groups};

/// How something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// As it should be.
    Good,
    /// It works, but not as well as it could.
    Poor,
    /// Jobs, or most of them, will not work.
    Bad,
}

/// What was found about one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Which thing.
    pub topic: &'static str,
    /// How it is.
    pub health: Health,
    /// In a sentence; what to do, if something is wrong.
    pub text: String,
}

/// Examines this machine, by trying what a job needs.
pub fn examine() -> Vec<Finding> {
    let examined = [cpu(), room(), open_files(), proc(), loop_back(), memory(), peers(), pages()];
    examined.into_iter().chain(memory_groups()).collect()
}

/// The findings, a line each.
pub fn text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for Finding { topic, health, text: found } in findings {
        let mark = match health {
            Health::Good => "ok",
            Health::Poor => "note",
            Health::Bad => "BAD",
        };
        _ = writeln!(text, "{mark:<5}{topic}: {found}");
    }
    text
}

/// The findings, as a JSON array of objects.
pub fn json(findings: &[Finding]) -> String {
    let objects = findings.iter().map(|Finding { topic, health, text }| {
        let health = match health {
            Health::Good => "good",
            Health::Poor => "poor",
            Health::Bad => "bad",
        };
        let (topic, text) = (quoted(topic), quoted(text));
        format!("  {{\"topic\": {topic}, \"health\": \"{health}\", \"text\": {text}}}")
    });
    format!("[\n{}\n]\n", objects.collect::<Vec<_>>().join(",\n"))
}

fn good(topic: &'static str, text: impl Into<String>) -> Finding {
    Finding { topic, health: Health::Good, text: text.into() }
}

fn poor(topic: &'static str, text: impl Into<String>) -> Finding {
    Finding { topic, health: Health::Poor, text: text.into() }
}

fn bad(topic: &'static str, text: impl Into<String>) -> Finding {
    Finding { topic, health: Health::Bad, text: text.into() }
}

fn cpu() -> Finding {
    const TOPIC: &str = "CPUs";
    match cpus::available() {
        Ok(cpus) => good(
            TOPIC,
            format!(
                "{} ({}); with more ranks than that, waiting ranks sleep instead of spinning",
                cpus.len(),
                cpus::ranges(&cpus)
            ),
        ),
        Err(error) => bad(TOPIC, error.to_string()),
    }
}

fn room() -> Finding {
    const TOPIC: &str = "ranks";
    match capacity::check(1, true) {
        Ok(room) => good(TOPIC, room),
        Err(shortage) => bad(TOPIC, shortage.to_string()),
    }
}

fn open_files() -> Finding {
    const TOPIC: &str = "open files";
    // A rank with many windows holds a few descriptors for each of its peers.
    const FEW: u64 = 1024;
    match getrlimit(Resource::Nofile).maximum {
        Some(hard) if hard < FEW => poor(
            TOPIC,
            format!("the hard limit of {hard} bounds ranks and windows; raise it (ulimit -Hn)"),
        ),
        Some(hard) => good(TOPIC, format!("at most {hard} (ulimit -Hn)")),
        None => good(TOPIC, "no limit"),
    }
}

fn proc() -> Finding {
    const TOPIC: &str = "/proc";
    match std::fs::read_link("/proc/self/exe") {
        Ok(_) => good(TOPIC, "a warden ends what is left if rma-run is killed"),
        Err(error) => poor(
            TOPIC,
            format!("/proc/self/exe: {error}: there will be no warden; mount -t proc proc /proc"),
        ),
    }
}

fn loop_back() -> Finding {
    const TOPIC: &str = "loop-back";
    let tried = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| TcpStream::connect_timeout(&listener.local_addr()?, REACHED_IN));
    match tried {
        Ok(_) => good(TOPIC, "ranks join at a port of 127.0.0.1"),
        Err(error) => {
            bad(TOPIC, format!("127.0.0.1 cannot be reached: {error}; ip link set lo up"))
        }
    }
}

fn memory() -> Finding {
    const TOPIC: &str = "memory";
    match memfd_create("rma-doctor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING) {
        Ok(_) => good(TOPIC, "windows are shared by memfd_create"),
        Err(error) => bad(TOPIC, format!("memfd_create, which windows need: {error}")),
    }
}

/// Whether a rank may take a descriptor of its peer's, in either way: it is tried on a warden
/// without a job.
fn peers() -> Finding {
    const TOPIC: &str = "peers";
    let mut child = match idle() {
        Ok(child) => child,
        Err(error) => {
            let text = format!("not tried: no process could be started: {error}");
            return poor(TOPIC, text);
        }
    };
    let opened = std::fs::File::open(format!("/proc/{}/fd/0", child.id()));
    let taken = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())
        .and_then(|process| pidfd_getfd(&process, 0, PidfdGetfdFlags::empty()));
    // It ends with its pipe, or is killed here.
    let _ = child.kill();
    let _ = child.wait();
    match (opened, taken) {
        (Ok(_), _) => good(TOPIC, "ranks reach each other's memory (/proc/PID/fd)"),
        (_, Ok(_)) => good(TOPIC, "ranks reach each other's memory (pidfd_getfd)"),
        (Err(opened), Err(error)) => {
            let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
            let yama = match scope.unwrap_or_default().trim() {
                "" | "0" => String::new(),
                scope => format!(" (kernel.yama.ptrace_scope is {scope})"),
            };
            bad(
                TOPIC,
                format!(
                    "a rank may not take descriptors of another one: /proc/PID/fd: {opened}, \
                     pidfd_getfd: {error}{yama}; a container needs --cap-add=SYS_PTRACE, or a \
                     seccomp profile that allows it"
                ),
            )
        }
    }
}

/// A process that waits for the end of its standard input.
fn idle() -> std::io::Result<Child> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(NAME).stdin(Stdio::piped()).stdout(Stdio::null()).spawn()
}

fn pages() -> Finding {
    const TOPIC: &str = "huge pages";
    let file = Path::new("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    match chosen.map(|(chosen, _)| chosen) {
        None => poor(TOPIC, "this kernel has none for shared memory"),
        Some("never" | "deny") => {
            poor(TOPIC, format!("large windows could use them: echo advise > {}", file.display()))
        }
        Some(chosen) => good(TOPIC, format!("for shared memory: {chosen}")),
    }
}

fn memory_groups() -> Vec<Finding> {
    const TOPIC: &str = "control group";
    let limits = groups::of_this_process("memory").into_iter().filter_map(|group| group.memory());
    // What is more than any machine has is how version 1 says that there is no limit.
    let limits = limits.filter(|limit| limit.max < 1 << 60);
    let text = |limit: groups::Memory| {
        format!("{} bytes, of which {} are used ({})", limit.max, limit.used, limit.file.display())
    };
    limits.map(|limit| good(TOPIC, text(limit))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_lines_or_json() {
        let findings = [good("a", "x \"y\"\n\\"), bad("b", "z")];
        assert_eq!(text(&findings), "ok   a: x \"y\"\n\\\nBAD  b: z\n");
        let expected = "[\n  {\"topic\": \"a\", \"health\": \"good\", \
                        \"text\": \"x \\\"y\\\"\\u000a\\\\\"},\n  \
                        {\"topic\": \"b\", \"health\": \"bad\", \"text\": \"z\"}\n]\n";
        assert_eq!(json(&findings), expected);
    }
}
