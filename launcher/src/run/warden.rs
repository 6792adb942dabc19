//! The warden: a small process that outlives a killed launcher, to kill what ranks had started
//! and is in their process groups. It is no ancestor of what went to a group of its own: that
//! becomes a child of init when launcher and ranks die, and could be any process' by then.
//!
//! The kernel kills the ranks themselves; but a rank may be a script, and its children are told
//! nothing. The warden reads process groups from a pipe whose other end the launcher holds; the
//! pipe ends with the launcher.

use std::ffi::OsStr;
use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};

/// What a warden is called: its first argument, and its name in `ps`.
pub const NAME: &str = "rma-warden";

/// If this process was started to be a warden, is one until the launcher is gone, and then
/// returns true. The first thing in `main` of a program that runs a dedicated job.
pub fn warden() -> bool {
    if std::env::args_os().next().as_deref() != Some(OsStr::new(NAME)) {
        return false;
    }
    // Only for a user who looks at `ps`.
    let _ = rustix::thread::set_name(c"rma-warden");
    for group in surviving(io::stdin().lock()) {
        // Most of them are gone already.
        let _ = kill_process_group(group, Signal::KILL);
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

/// The launcher's end.
#[derive(Debug)]
pub(super) struct Warden {
    child: Child,
    orders: Option<ChildStdin>,
}

impl Warden {
    pub(super) fn start() -> io::Result<Warden> {
        let mut child = Command::new("/proc/self/exe")
            .arg0(NAME)
            // A group of its own: a terminal's Ctrl-C is not meant for it.
            .process_group(0)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let orders = child.stdin.take();
        Ok(Warden { child, orders })
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// From now on, kills `group` when the launcher dies.
    pub(super) fn watch(&mut self, group: Pid) {
        self.order('+', group);
    }

    /// No longer: the number of the group may soon be another process'.
    pub(super) fn release(&mut self, group: Pid) {
        self.order('-', group);
    }

    fn order(&mut self, sign: char, group: Pid) {
        let Some(orders) = &mut self.orders else { return };
        let line = format!("{sign}{}\n", group.as_raw_nonzero());
        if orders.write_all(line.as_bytes()).is_err() {
            // The warden was killed. The job goes on without.
            self.orders = None;
        }
    }
}

impl Drop for Warden {
    fn drop(&mut self) {
        self.orders = None;
        // It ends with its pipe.
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
    fn an_ordinary_process_is_no_warden() {
        assert!(!warden());
    }
}
