//! Real jobs, and a watchdog over them.
#![allow(dead_code)] // each test program uses its own part

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Once;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

/// Far more than any test takes: only a hang reaches it.
const WATCHDOG: Duration = Duration::from_secs(300);

/// `rma-run`, watched over. It gets the signals that the parent of the tests ignores, as a shell
/// does for what it runs in the background.
pub(crate) fn rma_run(args: &[&str]) -> Command {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        std::thread::spawn(|| {
            let (_silent, silence) = std::sync::mpsc::channel::<()>();
            let _ = silence.recv_timeout(WATCHDOG);
            eprintln!("watchdog: a test hangs");
            std::process::abort();
        });
    });
    let mut command = Command::new("env");
    command.args(["--default-signal", env!("CARGO_BIN_EXE_rma-run")]);
    command.args(args).stdin(Stdio::null());
    for foreign in ["RMA_BOOTSTRAP", "RMA_RANK", "RMA_SECRET_FD", "RMA_BULLETIN_FD"] {
        command.env_remove(foreign);
    }
    command
}

/// A script that stands for a remote shell, and its folder.
pub(crate) fn remote_shell(script: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let shell = folder.path().join("rsh");
    std::fs::write(&shell, script).unwrap();
    std::fs::set_permissions(&shell, PermissionsExt::from_mode(0o755)).unwrap();
    (folder, shell)
}

/// Runs a job to its end.
pub(crate) fn job(args: &[&str]) -> Output {
    rma_run(args).output().unwrap()
}

/// Runs a shell script as the ranks of a job.
pub(crate) fn sh(options: &[&str], script: &str) -> Output {
    job(&[options, &["sh", "-c", script]].concat())
}

/// The example `rank`, next to the launcher.
pub(crate) fn rank_program() -> String {
    let folder = Path::new(env!("CARGO_BIN_EXE_rma-run")).parent().unwrap();
    let program: PathBuf = folder.join("examples/rank");
    assert!(program.exists(), "no {program:?}: cargo build -p rma-launcher --example rank");
    program.into_os_string().into_string().unwrap()
}

/// Runs the example as the ranks of a job.
pub(crate) fn ranks(options: &[&str], mode: &str) -> Output {
    job(&[options, &[&rank_program(), mode]].concat())
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Standard output's lines in order, since ranks print in any.
pub(crate) fn sorted(output: &Output) -> Vec<String> {
    let mut lines: Vec<_> = stdout(output).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[track_caller]
pub(crate) fn succeeds(output: &Output) {
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(output), stderr(output));
}

/// A job that runs while the test does something to it. Dropping it ends it.
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) stdout: BufReader<std::process::ChildStdout>,
    pub(crate) stderr: BufReader<std::process::ChildStderr>,
}

impl Running {
    pub(crate) fn start(args: &[&str]) -> Running {
        Running::of(rma_run(args))
    }

    pub(crate) fn of(mut command: Command) -> Running {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let stderr = BufReader::new(child.stderr.take().unwrap());
        Running { child, stdout, stderr }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// The next line of standard output.
    #[track_caller]
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        if self.stdout.read_line(&mut line).unwrap() == 0 {
            let mut why = String::new();
            self.stderr.read_to_string(&mut why).unwrap();
            panic!("the job ended: {why}");
        }
        line.trim_end().to_owned()
    }

    /// Numbers of the processes that print `pid NUMBER…`.
    pub(crate) fn pids(&mut self, count: usize) -> Vec<Pid> {
        (0..count).map(|_| pid_in(&self.line())).collect()
    }

    /// The exit status, and what is left of both streams.
    pub(crate) fn end(mut self) -> (Option<i32>, String, String) {
        drop(self.child.stdin.take());
        let (mut out, mut err) = (String::new(), String::new());
        self.stdout.read_to_string(&mut out).unwrap();
        self.stderr.read_to_string(&mut err).unwrap();
        (self.child.wait().unwrap().code(), out, err)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The process number in a line such as `pid 12 at …`.
pub(crate) fn pid_in(line: &str) -> Pid {
    let number = line.split_once("pid ").unwrap().1.split(' ').next().unwrap();
    Pid::from_raw(number.parse().unwrap()).unwrap()
}

/// Processes whose end can be waited for.
pub(crate) struct Watched(Vec<std::os::fd::OwnedFd>);

impl Watched {
    pub(crate) fn new(pids: &[Pid]) -> Watched {
        Watched(pids.iter().map(|pid| pidfd_open(*pid, PidfdFlags::empty()).unwrap()).collect())
    }

    /// Waits until one of them ended, or that time went by; whether one did.
    pub(crate) fn wait_for(self, time: Duration) -> bool {
        let mut fds: Vec<_> = self.0.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        poll(&mut fds, Some(&time.try_into().unwrap())).unwrap() > 0
    }

    /// Waits until all of them ended.
    pub(crate) fn wait(self) {
        for fd in &self.0 {
            poll(&mut [PollFd::new(fd, PollFlags::IN)], None).unwrap();
        }
    }
}

/// Processes with `mark` in their environment, the marks of this test's jobs.
pub(crate) fn marked(mark: &str) -> Vec<i32> {
    let processes = std::fs::read_dir("/proc").unwrap();
    processes
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
        })
        .collect()
}

/// Waits until no process with `mark` is left; those that stay.
pub(crate) fn left_behind(mark: &str) -> Vec<i32> {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let left = marked(mark);
        if left.is_empty() || Instant::now() > end {
            return left;
        }
        std::thread::yield_now();
    }
}

/// The warden of a launcher, other than `but`; waits until there is one.
pub(crate) fn warden_of(launcher: Pid, but: Option<Pid>) -> Pid {
    let launcher = launcher.as_raw_nonzero();
    loop {
        let children =
            std::fs::read_to_string(format!("/proc/{launcher}/task/{launcher}/children"));
        let children = children.unwrap_or_default();
        let warden = children.split_whitespace().find(|child| {
            let name = std::fs::read_to_string(format!("/proc/{child}/comm"));
            name.is_ok_and(|name| name.trim() == rma_launcher::run::WARDEN_NAME)
        });
        let warden = warden.and_then(|pid| Pid::from_raw(pid.parse().unwrap()));
        if let Some(warden) = warden.filter(|warden| Some(*warden) != but) {
            return warden;
        }
        std::thread::yield_now();
    }
}

/// Waits until a process is in `state`, a letter of /proc/PID/stat.
pub(crate) fn wait_for_state(pid: Pid, state: char) {
    let path = format!("/proc/{}/stat", pid.as_raw_nonzero());
    while !std::fs::read_to_string(&path).unwrap().rsplit_once(") ").unwrap().1.starts_with(state) {
        std::thread::yield_now();
    }
}

/// A mark that no other test and no other run has.
pub(crate) fn mark(name: &str) -> String {
    format!("RMA_TEST_MARK={name}-{}", std::process::id())
}

pub(crate) fn send(pid: Pid, signal: Signal) {
    kill_process(pid, signal).unwrap();
}

/// A remote shell that is a script: it runs the agent on this machine, with an environment and a
/// session of its own.
pub(crate) const SHELL: &str = "\
#!/bin/sh
cd /
exec setsid --wait env -i PATH=\"$PATH\" sh -c \"exec $2\"
";

/// Where two ranks of a job may be.
pub(crate) const WAYS: [&str; 4] = ["one machine", "nodes", "hosts", "hosts that join"];

/// What became of a job.
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: Vec<u8>,
    pub(crate) err: String,
}

/// Runs a job of two ranks in one of the [`WAYS`], on hosts `a` and `b` if on several, and has it
/// read that.
pub(crate) fn run_in(way: &str, rest: &[&str], input: &[u8]) -> Ran {
    let (folder, shell) = remote_shell(SHELL);
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "x".repeat(32)).unwrap();
    std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
    let (shell, secret) = (shell.to_str().unwrap(), secret.to_str().unwrap());
    let start = |options: &[&str]| Running::start(&[options, &["--oversubscribe"], rest].concat());
    let mut hosts = Vec::new();
    let job = match way {
        "one machine" => start(&["-n", "2"]),
        "nodes" => start(&["--nodes", "2x1"]),
        "hosts" => start(&["--hosts", "a:1,b:1", "--ssh-command", shell]),
        _ => {
            let at = ["serve", "--joins", "2", "--listen", "127.0.0.1:0", "--secret-file", secret];
            let mut job = start(&[&at[..], &["-n", "2"]].concat());
            let mut said = String::new();
            job.stderr.read_line(&mut said).unwrap();
            let address = said.split_once("`rma-run join ").expect(&said).1;
            let address = address.split(' ').next().unwrap();
            let join = ["join", address, "--secret-file", secret, "--name"];
            hosts = ["a", "b"].map(|name| Running::start(&[&join[..], &[name]].concat())).into();
            job
        }
    };
    let ran = job.ran(input);
    drop(hosts);
    ran
}

impl Running {
    /// Gives it that to read, and waits for its end.
    pub(crate) fn ran(mut self, input: &[u8]) -> Ran {
        let Running { child, stdout, stderr } = &mut self;
        let mut stdin = child.stdin.take().unwrap();
        let (mut out, mut err) = (Vec::new(), String::new());
        std::thread::scope(|scope| {
            // It need not read that.
            scope.spawn(move || drop(std::io::Write::write_all(&mut stdin, input)));
            scope.spawn(|| stderr.read_to_string(&mut err).unwrap());
            stdout.read_to_end(&mut out).unwrap();
        });
        Ran { code: child.wait().unwrap().code(), out, err }
    }
}

/// Bytes of [`long_line`] without its end.
pub(crate) const LONG_LINE: usize = 50_000_000;

/// A file of one line.
pub(crate) fn long_line(folder: &Path) -> PathBuf {
    let line = folder.join("line");
    let mut bytes = vec![b'x'; LONG_LINE];
    bytes.push(b'\n');
    std::fs::write(&line, bytes).unwrap();
    line
}

/// Returns once a pipe takes no more.
pub(crate) fn until_full(fifo: &std::fs::File) {
    let room = rustix::pipe::fcntl_getpipe_size(fifo).unwrap();
    while rustix::io::ioctl_fionread(fifo).unwrap() < room as u64 {
        std::thread::yield_now();
    }
}
