//! File systems that tests mount: each in a mount namespace of its own, so that the kernel unmounts
//! and detaches all that is left, however the test ends.
#![allow(dead_code)] // each test uses a part of it

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};

/// Set in processes that a test has started from itself: what they are to do.
const TOLD: &str = "RMA_TEST_TOLD";

/// Says that a test, or a part of it, is not run here. To the real standard error: what `println!`
/// says in a test that passes is not shown.
pub(crate) fn skip(test: &str, reason: &str) {
    _ = writeln!(std::io::stderr(), "skipped: {test}: {}", reason.trim());
}

/// The test of that name in a process of its own, which is told something; `before` are a program
/// and arguments that run it.
fn again(before: &[&str], test: &str, told: &str) -> Command {
    let this = std::env::current_exe().unwrap();
    let mut command = Command::new(before[0]);
    command.args(&before[1..]).arg(this);
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(TOLD, told);
    command
}

/// Runs a part of a test in a process of its own.
pub(crate) fn job(test: &str, told: &str) -> Output {
    again(&["timeout", "--kill-after=5", "120"], test, told).output().unwrap()
}

/// As [`job`], by a user who has nothing and may run this program; an error is the reason why there
/// is none.
pub(crate) fn without_rights(test: &str, told: &str) -> Result<Output, String> {
    let before = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"];
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    run(before[0], &[&before[1], &before[2], &before[3], &before[4], &this, &"--list"])?;
    again(&before, test, told).output().map_err(|error| error.to_string())
}

/// What such a process was told.
pub(crate) fn told() -> Option<String> {
    std::env::var(TOLD).ok().filter(|told| told != NAMESPACE)
}

const NAMESPACE: &str = "in a mount namespace";
const UNSHARE: [&str; 5] = ["unshare", "--mount", "--propagation", "private", "--"];

/// Whether this is the process with a mount namespace of its own that is to run the test; if not,
/// runs it there.
pub(crate) fn in_namespace(test: &str) -> bool {
    if std::env::var(TOLD).is_ok_and(|told| told == NAMESPACE) {
        return true;
    }
    if let Err(reason) = run(UNSHARE[0], &[&UNSHARE[1], &UNSHARE[2], &UNSHARE[3], &"true"]) {
        skip(test, &reason);
        return false;
    }
    let output = again(&UNSHARE, test, NAMESPACE).output().unwrap();
    let said = text(&output);
    for line in said.lines().filter(|line| line.starts_with("skipped: ")) {
        _ = writeln!(std::io::stderr(), "{line}");
    }
    assert!(output.status.success() && said.contains("1 passed"), "{}: {said}", output.status);
    false
}

/// How many trials a test of crashes makes, unless the environment says so.
pub(crate) fn crash_trials(usual: u64) -> u64 {
    let told = std::env::var("RMA_CRASH_TRIALS").ok();
    told.map_or(usual, |told| told.parse().expect("RMA_CRASH_TRIALS is a number"))
}

/// What a process has said.
pub(crate) fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes)).concat()
}

/// Runs a program; an error is what it says.
pub(crate) fn run(
    program: &str,
    arguments: &[&dyn AsRef<std::ffi::OsStr>],
) -> Result<String, String> {
    let output = Command::new(program).args(arguments.iter().map(|one| one.as_ref())).output();
    match output {
        Ok(output) if output.status.success() => Ok(text(&output)),
        Ok(output) => Err(format!("{program}: {}", text(&output).trim())),
        Err(error) => Err(format!("{program}: {error}")),
    }
}

/// A disk that fails when it is told to (`tests/programs/disk`).
pub(crate) struct Disk {
    child: Child,
    tell: Option<ChildStdin>,
    says: Lines<BufReader<ChildStdout>>,
    folder: tempfile::TempDir,
}

impl Disk {
    /// `None`, and said why, where a user may not serve file systems.
    pub(crate) fn mount(test: &str, how: &[&str]) -> Option<Self> {
        let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
        if let Err(error) = device {
            skip(test, &format!("/dev/fuse: {error}"));
            return None;
        }
        let this = std::env::current_exe().unwrap();
        let program = this.parent().and_then(Path::parent).unwrap().join("examples/disk");
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(program);
        command.arg(folder.path()).args(how).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("cargo build --examples");
        let (tell, says) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        let mut disk = Self { child, tell, says: says.lines(), folder };
        let said = disk.line();
        if let Some(reason) = said.strip_prefix("refused: ") {
            skip(test, &format!("mounting a file system of /dev/fuse: {reason}"));
            return None;
        }
        assert_eq!(said, "mounted");
        Some(disk)
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    fn line(&mut self) -> String {
        self.says.next().expect("the disk goes on").unwrap()
    }

    fn order(&mut self, order: &str) -> String {
        writeln!(self.tell.as_mut().unwrap(), "{order}").unwrap();
        self.line()
    }

    /// Call `number` from now on, of those that this may hit, fails.
    pub(crate) fn fail(&mut self, kind: &str, number: u64) {
        assert_eq!(self.order(&format!("fail {kind} {number}")), "ok");
    }

    /// What has failed since, if anything has.
    pub(crate) fn hit(&mut self) -> Option<String> {
        let told = self.order("hit");
        let (_, hit) = told.split_once(' ').unwrap();
        (hit != "nothing").then(|| hit.to_owned())
    }

    /// It answers nothing, until [`go_on`](Self::go_on).
    pub(crate) fn stand_still(&self) {
        kill_process(Pid::from_child(&self.child), Signal::STOP).unwrap();
    }

    pub(crate) fn go_on(&self) {
        kill_process(Pid::from_child(&self.child), Signal::CONT).unwrap();
    }

    /// Cuts the power, and mounts what is left.
    pub(crate) fn cut(&mut self, seed: u64) {
        assert_eq!(self.order(&format!("cut {seed}")), "ok");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.go_on();
        // It unmounts, and ends.
        self.tell = None;
        let ended = self.child.wait();
        if !std::thread::panicking() {
            assert!(ended.unwrap().success(), "the disk could not be unmounted");
        }
    }
}

/// A file system in a file or in memory; it ends with the value, or with the process.
pub(crate) struct Volume {
    folder: tempfile::TempDir,
}

impl Volume {
    /// Makes one of so many bytes by `mkfs`; an error is the reason why there is none.
    pub(crate) fn of(kind: &str, mkfs: &[&str], options: &str, bytes: u64) -> Result<Self, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let volume = Self { folder };
        let (image, at) = (volume.image(), volume.path());
        std::fs::create_dir(&at).map_err(|error| error.to_string())?;
        if kind == "tmpfs" {
            let options = format!("size={bytes},{options}");
            run("mount", &[&"-t", &kind, &"-o", &options, &"tmpfs", &at])?;
            return Ok(volume);
        }
        let file = std::fs::File::create(&image).and_then(|file| file.set_len(bytes));
        file.map_err(|error| error.to_string())?;
        let mut arguments: Vec<&dyn AsRef<std::ffi::OsStr>> = Vec::new();
        arguments.extend(mkfs.iter().map(|argument| argument as &dyn AsRef<std::ffi::OsStr>));
        arguments.push(&image);
        run(&format!("mkfs.{kind}"), &arguments)?;
        volume.mount(options)?;
        Ok(volume)
    }

    /// Mounts it as it is; the loop device goes with the last use of it.
    pub(crate) fn mount(&self, options: &str) -> Result<(), String> {
        let options = format!("loop,{options}");
        run("mount", &[&"-o", &options, &self.image(), &self.path()]).map(drop)
    }

    pub(crate) fn unmount(&self) -> Result<(), String> {
        run("umount", &[&self.path()]).map(drop)
    }

    pub(crate) fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("at")
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // It may be unmounted already; what is not goes with the namespace.
        _ = self.unmount();
    }
}
