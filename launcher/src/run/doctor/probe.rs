//! What is tried in a process of its own: what may hang or crash there, as libraries of others may,
//! or has to be another process than its parent, as a rank is to its peers.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use super::super::hosts;
use super::super::spawn::end_with_parent;
use super::{network, peers};
use crate::codec::Wire;
use crate::wire;

/// How long one may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of its answer at most.
const ANSWER_MAX: usize = 1 << 20;

/// What `rma-run agent WORD` is started for.
pub(super) const LIBFABRIC: &str = "libfabric";
pub(super) const PEER: &str = "peer";

/// Is a process that a doctor has started, if the words behind `agent` say so; returns what to
/// exit with.
pub(in super::super) fn assist(mut words: impl Iterator<Item = OsString>) -> Option<u8> {
    let word = words.next()?;
    let code = match (word.to_str(), words.next()) {
        (Some(hosts::DOCTOR), None) => hosts::answer(),
        (Some(LIBFABRIC), None) => told(network::probe),
        (Some(PEER), Some(pid)) => told(|| peers::reach(&pid)),
        _ => {
            // With nowhere to complain to, the exit status must do.
            let _ = writeln!(io::stderr(), "rma-run agent: {word:?} is not known to this version");
            2
        }
    };
    Some(code)
}

/// Tries that, and tells the answer.
fn told<T: Wire>(tried: impl FnOnce() -> T) -> u8 {
    let told = kept_apart().and_then(|to| wire::write(to, &tried()));
    u8::from(told.is_err())
}

/// Standard output, for the answer alone: what libraries print from here on goes nowhere.
fn kept_apart() -> io::Result<File> {
    let to = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
    let nowhere = OpenOptions::new().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&nowhere)?;
    Ok(to.into())
}

/// What `rma-run agent WORDS` answers, with those variables besides those of this process.
///
/// # Errors
///
/// A sentence: it cannot be started, gives no answer in time, or another one.
pub(super) fn answer<T: Wire>(
    words: &[&OsStr],
    variables: &[(Vec<u8>, Vec<u8>)],
) -> Result<T, String> {
    let mut command = Command::new("/proc/self/exe");
    command.arg("agent").args(words).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    for (name, value) in variables {
        command.env(OsString::from_vec(name.clone()), OsString::from_vec(value.clone()));
    }
    // One that hangs is not left behind.
    end_with_parent(&mut command);
    let mut child =
        command.spawn().map_err(|error| format!("no process could be started: {error}"))?;
    let printed = frame_of(&mut child, Instant::now() + PATIENCE);
    // Libraries may take long to end. Has no effect on one that has ended.
    let _ = child.kill();
    let status = child.wait().map_err(|error| format!("its end is not known: {error}"))?;
    let printed = printed.map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => format!("no answer within {} s", PATIENCE.as_secs()),
        _ => format!("its answer cannot be read: {error}"),
    })?;
    match wire::whole(&printed, ANSWER_MAX) {
        Ok(Some(body)) => wire::decode(body).map_err(|error| error.to_string()),
        _ => Err(format!("the process that tried it gave no answer ({status})")),
    }
}

/// What it prints until there is a frame, or until it closes its output.
fn frame_of(child: &mut Child, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut from = child.stdout.take().ok_or_else(|| io::Error::other("no pipe"))?;
    let (mut all, mut piece) = (Vec::new(), [0; 4096]);
    while wire::whole(&all, ANSWER_MAX)?.is_none() {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = left.try_into().map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&from, PollFlags::IN)], Some(&left)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        match from.read(&mut piece)? {
            0 => break,
            count => all.extend_from_slice(&piece[..count]),
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printing(script: &str) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    }

    #[test]
    fn what_a_process_prints_is_read_until_its_answer_is_there_or_the_deadline() {
        let far = Instant::now() + Duration::from_secs(600);
        let mut child = printing("echo one; echo two");
        let error = frame_of(&mut child, far).unwrap_err();
        assert!(error.to_string().contains("at most 1048576 are allowed"), "{error}");
        child.wait().unwrap();
        let mut child = printing(r"printf '\3\0\0'");
        assert_eq!(frame_of(&mut child, far).unwrap(), [3, 0, 0]);
        child.wait().unwrap();
        // These wait for their input, which is open.
        let mut child = printing(r"printf '\3\0\0\0one'; exec cat");
        assert_eq!(frame_of(&mut child, far).unwrap(), b"\x03\0\0\0one");
        child.kill().unwrap();
        child.wait().unwrap();
        let mut child = printing("exec cat");
        let error = frame_of(&mut child, Instant::now()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_word_of_a_later_version_is_refused() {
        assert_eq!(assist(std::iter::empty()), None, "an agent of a job");
        assert_eq!(assist(["later".into()].into_iter()), Some(2));
        assert_eq!(assist([PEER.into()].into_iter()), Some(2), "which process?");
    }
}
