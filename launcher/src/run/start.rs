//! Starting one rank: its environment, its streams.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};

use rustix::process::Rlimit;

use super::bootstrap::Plan;
use super::cpus;
use super::driver::Driver;
use super::lines::{Lines, Tail};
use super::output::{Stream, forward, line_limit, receiver};
use super::report::RunError;
use super::spawn::{Confinement, confine};
use super::spec::{Output, Spec, Stdin};
use crate::{BOOTSTRAP_VAR, RANK_VAR, SECRET_VAR};

/// The same for all ranks.
pub(super) struct Common {
    pub(super) program: PathBuf,
    pub(super) plan: Arc<Plan>,
    pub(super) address: SocketAddr,
    /// Limit of descriptors that ranks get back.
    pub(super) descriptors: Option<Rlimit>,
}

/// Files for a rank's two streams, instead of pipes.
pub(super) type Files = Option<[File; 2]>;

/// Opens the files of all ranks before any of them runs.
pub(super) fn output_files(spec: &Spec) -> Result<Vec<Files>, RunError> {
    let Some(folder) = &spec.output_dir else {
        return Ok((0..spec.ranks).map(|_| None).collect());
    };
    let failed = |path: &Path, source| RunError::OutputDir { path: path.to_owned(), source };
    std::fs::create_dir_all(folder).map_err(|error| failed(folder, error))?;
    let create = |path: PathBuf| File::create(&path).map_err(|error| failed(&path, error));
    (0..spec.ranks)
        .map(|rank| {
            let [out, err] = file_paths(folder, rank);
            Ok(Some([create(out)?, create(err)?]))
        })
        .collect()
}

/// Where a rank's streams go.
fn file_paths(folder: &Path, rank: u32) -> [PathBuf; 2] {
    ["out", "err"].map(|end| folder.join(format!("rank-{rank}.{end}")))
}

/// The same, to be read by people.
pub(super) fn file_names(folder: &Path, rank: u32) -> String {
    let [out, err] = file_paths(folder, rank);
    format!("{} and {}", out.display(), err.display())
}

/// The end of what a rank printed into its files.
pub(super) fn file_tail(folder: &Path, rank: u32) -> Option<String> {
    let mut tail = Tail::default();
    for path in file_paths(folder, rank) {
        let mut file = File::open(path).ok()?;
        let len = file.metadata().ok()?.len();
        file.seek(SeekFrom::Start(len.saturating_sub(Tail::LEN as u64))).ok()?;
        let mut end = Vec::new();
        file.take(Tail::LEN as u64).read_to_end(&mut end).ok()?;
        tail.push(&end);
    }
    Some(tail.text())
}

/// Refuses what cannot be the name of a variable; the standard library would panic or lie.
pub(super) fn check_environment(spec: &Spec) -> Result<(), RunError> {
    let bad = |name: &OsStr| name.is_empty() || name.as_bytes().iter().any(|b| b"=\0".contains(b));
    match spec.env.iter().find(|(name, _)| bad(name)) {
        Some((name, _)) => Err(RunError::BadVariable { name: name.clone() }),
        None => Ok(()),
    }
}

impl Driver<'_> {
    /// Starts a rank and everything that looks after it.
    pub(super) fn start_rank(
        &mut self,
        rank: u32,
        common: &Common,
        files: Files,
    ) -> Result<(), RunError> {
        let ranks = self.spec.ranks;
        let failed = |source| RunError::Spawn { rank, ranks, source };
        let mut command = self.command(rank, common);
        let feed = self.streams(rank, &mut command, files);
        let mut child = command.spawn().map_err(|source| match source.raw_os_error() {
            Some(error) if error == rustix::io::Errno::NOEXEC.raw_os_error() => {
                let why = "it is neither a program of this machine nor a script".to_owned();
                RunError::NotExecutable { program: common.program.clone(), why }
            }
            _ => failed(source),
        })?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        self.processes.add(child, self.sender.clone()).map_err(failed)?;
        if let (Some(stdin), Some(feed)) = (pipes.0, feed) {
            feed.start(stdin).map_err(failed)?;
        }
        let tail = Arc::new(Mutex::new(Tail::default()));
        self.tails.push(Arc::clone(&tail));
        let out = pipes.1.map(receiver).transpose().map_err(failed)?;
        let err = pipes.2.map(receiver).transpose().map_err(failed)?;
        let label = (self.spec.label && self.spec.output == Output::Forward).then_some(rank);
        for (stream, pipe) in [(Stream::Out, out), (Stream::Err, err)] {
            let Some(pipe) = pipe else { continue };
            let lines = Lines::new(label, line_limit(ranks));
            let (tail, sink) = (Arc::clone(&tail), self.sink.clone());
            let stop = self.stop.subscribe();
            self.readers.spawn(forward((rank, stream), pipe, lines, tail, sink, stop));
        }
        Ok(())
    }

    fn command(&self, rank: u32, common: &Common) -> Command {
        let mut command = Command::new(&common.program);
        command.arg0(&self.spec.program).args(&self.spec.args);
        for (name, value) in &self.spec.env {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
            .env(BOOTSTRAP_VAR, common.address.to_string())
            .env(RANK_VAR, rank.to_string())
            .env(SECRET_VAR, common.plan.secret.to_hex());
        confine(
            &mut command,
            Confinement {
                parent: rustix::process::getpid(),
                cpus: common.plan.cpu(rank).map(cpus::only),
                descriptors: common.descriptors,
            },
        );
        command
    }

    /// Connects a rank's streams; returns what is to be written to its standard input.
    fn streams(&self, rank: u32, command: &mut Command, files: Files) -> Option<Feed> {
        match files {
            Some([out, err]) => command.stdout(out).stderr(err),
            None => command.stdout(Stdio::piped()).stderr(Stdio::piped()),
        };
        let (stdin, feed) = match &self.spec.stdin {
            _ if rank != 0 => (Stdio::null(), None),
            Stdin::Null => (Stdio::null(), None),
            Stdin::Bytes(bytes) => (Stdio::piped(), Some(Feed::Bytes(bytes.clone()))),
            Stdin::Inherit if !rustix::termios::isatty(rustix::stdio::stdin()) => {
                (Stdio::inherit(), None)
            }
            // A terminal stops a process that reads it from another process group than its own.
            Stdin::Inherit if self.spec.dedicated && in_foreground() => {
                (Stdio::piped(), Some(Feed::Terminal))
            }
            Stdin::Inherit => (Stdio::null(), None),
        };
        command.stdin(stdin);
        feed
    }
}

/// Whether the terminal on standard input lets this process read.
fn in_foreground() -> bool {
    rustix::termios::tcgetpgrp(rustix::stdio::stdin()) == Ok(rustix::process::getpgrp())
}

/// What rank 0 reads through a pipe.
enum Feed {
    Bytes(Vec<u8>),
    Terminal,
}

impl Feed {
    /// Writes it from a thread that may block; it ends with the pipe, or with this process.
    fn start(self, mut to: ChildStdin) -> std::io::Result<()> {
        let feed = move || {
            // Fails when the rank does not want to read more.
            let _ = match self {
                Feed::Bytes(bytes) => to.write_all(&bytes),
                Feed::Terminal => copy_terminal(&mut to),
            };
        };
        std::thread::Builder::new().name("input".into()).spawn(feed).map(drop)
    }
}

fn copy_terminal(to: &mut ChildStdin) -> std::io::Result<()> {
    let mut line = [0; 4096];
    loop {
        match rustix::io::read(rustix::stdio::stdin(), &mut line) {
            Ok(0) => return Ok(()),
            Ok(count) => to.write_all(&line[..count])?,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
