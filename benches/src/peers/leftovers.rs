//! Files in shared memory that a job leaves when it is ended in the middle of making them.
use crate::Result;
use rustix::process::geteuid;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

const FOLDER: &str = "/dev/shm";
/// How often it is looked at what processes of a job have mapped, and how long before its end: not
/// while it measures.
const EVERY: Duration = Duration::from_millis(100);
const BEFORE: Duration = Duration::from_secs(1);

/// Files by their number: that of a name changes when another makes it anew.
type Files = BTreeMap<PathBuf, u64>;

/// Runs a job that its launcher ends after `limit`, and removes what it leaves then: files that are
/// new, that one of its processes has had mapped, and that belong to this user.
pub(super) fn output_of(command: &mut Command, limit: Duration) -> Result<Output> {
    let before = here(Path::new(FOLDER));
    let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = piped.spawn()?;
    let launcher = child.id();
    let (over, is_over) = channel::<()>();
    let (output, seen) = thread::scope(|scope| {
        let look = scope.spawn(move || {
            let (mut seen, mut wait) = (Files::new(), limit.saturating_sub(BEFORE));
            while let Err(RecvTimeoutError::Timeout) = is_over.recv_timeout(wait) {
                seen.extend(job(launcher).into_iter().flat_map(mapped));
                wait = EVERY;
            }
            seen
        });
        let output = child.wait_with_output();
        drop(over);
        (output, look.join())
    });
    remove(&seen.map_err(|_| "looking for files of a job panicked")?, &before);
    Ok(output?)
}

/// Removes what was seen and was not there before, where it is still there.
fn remove(seen: &Files, before: &Files) {
    for (path, number) in seen {
        if before.get(path) != Some(number) && is_ours(path, *number) {
            // Another process that removes it does the same.
            _ = fs::remove_file(path);
        }
    }
}

fn here(folder: &Path) -> Files {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some((entry.path(), entry.metadata().ok()?.ino()))).collect()
}

fn is_ours(path: &Path, number: u64) -> bool {
    fs::symlink_metadata(path).is_ok_and(|file| {
        file.is_file() && file.ino() == number && file.uid() == geteuid().as_raw()
    })
}

/// A launcher, its children and their children.
fn job(launcher: u32) -> BTreeSet<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parent = |pid| parent_in(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?);
    let parents: Vec<(u32, u32)> = pids.filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut job = BTreeSet::from([launcher]);
    loop {
        let known = job.len();
        let of_job = parents.iter().filter(|(_, parent)| job.contains(parent)).map(|(pid, _)| *pid);
        job.extend(of_job.collect::<Vec<_>>());
        if job.len() == known {
            return job;
        }
    }
}

/// The fourth field; the second, a name, may hold anything but ends at `)`.
fn parent_in(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Files of [`FOLDER`] that a process has mapped and that still have a name.
fn mapped(pid: u32) -> Files {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    maps.lines().filter_map(file_in).collect()
}

/// Number and name of the file of a mapping.
fn file_in(line: &str) -> Option<(PathBuf, u64)> {
    let number = line.split_whitespace().nth(4)?.parse().ok()?;
    let name = &line[line.find(FOLDER)?..];
    (!name.ends_with(" (deleted)")).then(|| (PathBuf::from(name), number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn a_mapping_names_its_file_while_that_has_a_name() {
        let line = "7f-8f rw-s 00000000 00:1b 16621                        /dev/shm/a b";
        assert_eq!(file_in(line), Some((PathBuf::from("/dev/shm/a b"), 16621)));
        assert_eq!(file_in(&format!("{line} (deleted)")), None);
        assert_eq!(file_in("7f-8f rw-p 00000000 00:00 0   [heap]"), None);
    }

    #[test]
    fn a_job_is_a_process_and_what_it_started() {
        assert_eq!(parent_in("7 (a ) b) S 41 7 7"), Some(41));
        let own = std::process::id();
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let found = job(own);
        drop(child.stdin.take());
        assert!(found.contains(&own) && found.contains(&child.id()), "{found:?}");
        assert!(!found.contains(&1) || own == 1);
        child.wait().unwrap();
    }

    #[test]
    fn a_file_that_a_job_has_mapped_is_removed_unless_it_was_there_before() {
        let path = Path::new(FOLDER).join(format!("rma-bench-test-{}", std::process::id()));
        // A program has its own file mapped. Where it cannot be run from there, there is no test.
        let copied = fs::copy("/bin/cat", &path).is_ok();
        let child = Command::new(&path).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let seen = child.map(|mut child| {
            // It runs once it answers.
            let mut input = child.stdin.take().unwrap();
            input.write_all(b"x").unwrap();
            child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
            let seen = mapped(child.id());
            drop(input);
            child.wait().unwrap();
            seen
        });
        if let (true, Ok(seen)) = (copied, seen) {
            assert!(seen.contains_key(&path), "{seen:?}");
            remove(&seen, &here(Path::new(FOLDER)));
            assert!(path.exists(), "it was there before");
            remove(&seen, &Files::new());
            assert!(!path.exists());
        }
        _ = fs::remove_file(&path);
    }

    #[test]
    fn what_a_job_says_is_kept() {
        let output = output_of(Command::new("echo").arg("said"), Duration::ZERO).unwrap();
        assert_eq!(output.stdout, b"said\n");
    }
}
