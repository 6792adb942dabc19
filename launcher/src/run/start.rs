//! Starting ranks: their environment, their streams.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, mpsc};

use rustix::process::{Pid, Rlimit, Signal, kill_process_group};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use super::bootstrap::Plan;
use super::cpus;
use super::driver::{Driver, Input};
use super::hosts::{Relayed, Streams};
use super::lines::{Lines, Tail, last_lines};
use super::machine::Event;
use super::output::{Source, Stream, forward, line_limit, lock, receiver};
use super::pmi;
use super::program;
use super::report::RunError;
use super::spawn::{Confinement, confine};
use super::spec::{Output, Spec, Stdin};
use super::warden::Orders;
use crate::inherited;
use crate::{BOOTSTRAP_VAR, BULLETIN_VAR, JOB_VAR, PMI_VAR, RANK_VAR, SECRET_VAR};

/// Other variables of PMI: a port instead of a descriptor, a job of PMI-2, a job that another one
/// has started.
const OTHER_PMI: [&str; 4] = ["PMI_PORT", "PMI_ID", "PMI_JOBID", "PMI_SPAWNED"];

/// The same for all ranks.
pub(super) struct Common {
    /// The job's name.
    pub(super) job: String,
    pub(super) programs: Vec<program::Found>,
    pub(super) plan: Arc<Plan>,
    pub(super) address: SocketAddr,
    /// Limit of descriptors that ranks get back.
    pub(super) descriptors: Option<Rlimit>,
    /// The file of bulletins, and what names it.
    pub(super) bulletin: (Arc<OwnedFd>, String),
    /// See [`oom_score`].
    pub(super) oom_score: String,
    /// Where the ranks are, if this is one of several hosts.
    pub(super) host: Option<OnHost>,
}

/// One of several hosts.
#[derive(Debug, Clone, Copy)]
pub(super) struct OnHost {
    /// Which of them this is.
    pub(super) node: u32,
    /// Rank 0 reads a pipe, into which its [`Newborn`] leads.
    pub(super) has_input: bool,
}

/// What ranks write into their `oom_score_adj`: before this process, which can tell what happened,
/// the kernel ends one of them.
pub(super) fn oom_score() -> String {
    const ADDED: i32 = 100;
    const MOST: i32 = 1000;
    let mine = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap_or_default();
    (mine.trim().parse().unwrap_or(0) + ADDED).min(MOST).to_string()
}

/// Whether nothing more can be written in that folder.
pub(super) fn is_full(folder: &Path) -> bool {
    // File systems that count no blocks or no files say 0 of 0.
    rustix::fs::statvfs(folder).is_ok_and(|disk| {
        (disk.f_blocks > 0 && disk.f_bavail == 0) || (disk.f_files > 0 && disk.f_favail == 0)
    })
}

/// The last lines that a rank printed into the file of its standard error.
pub(super) fn last_words(folder: &Path, rank: u32) -> String {
    let mut tail = Tail::default();
    let [_, path] = file_paths(folder, rank);
    if push_end(&mut tail, path).is_err() {
        return String::new();
    }
    last_lines(&tail.text())
}

/// Adds the end of a file.
fn push_end(tail: &mut Tail, path: PathBuf) -> io::Result<()> {
    let mut file = File::open(path)?;
    let len = file.metadata()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(Tail::LEN as u64)))?;
    let mut end = Vec::new();
    file.take(Tail::LEN as u64).read_to_end(&mut end)?;
    tail.push(&end);
    Ok(())
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
        push_end(&mut tail, path).ok()?;
    }
    Some(tail.text())
}

/// Refuses what cannot be the name of a variable; the standard library would panic or lie.
pub(super) fn check_environment(spec: &Spec) -> Result<(), RunError> {
    let bad = |name: &OsStr| name.is_empty() || name.as_bytes().iter().any(|b| b"=\0".contains(b));
    let programs = spec.programs();
    match programs.iter().flat_map(|program| &program.env).find(|(name, _)| bad(name)) {
        Some((name, _)) => Err(RunError::BadVariable { name: name.clone() }),
        None => Ok(()),
    }
}

/// A rank that was just started. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Newborn {
    pub(super) rank: u32,
    /// None once it was taken.
    pub(super) child: Option<Child>,
    /// This process' end of its socket for PMI-1.
    pub(super) pmi: Option<OwnedFd>,
    feed: Option<Feed>,
}

impl Drop for Newborn {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
            let _ = child.wait();
        }
    }
}

/// Starts ranks one after the other, in a thread of its own: until a process executes its program
/// may take as long as a file system takes. The kernel ends ranks with this thread, which stays
/// until `hold` ends.
pub(super) struct Starter {
    pub(super) spec: Spec,
    pub(super) common: Common,
    pub(super) files: Vec<Files>,
    pub(super) warden: Orders,
    pub(super) inputs: UnboundedSender<Input>,
    /// Anything said there means that no more ranks are wanted.
    pub(super) hold: mpsc::Receiver<()>,
}

impl Starter {
    pub(super) fn start(self) -> io::Result<()> {
        std::thread::Builder::new().name("starter".into()).spawn(move || self.run()).map(drop)
    }

    fn run(mut self) {
        let here = self.common.plan.here();
        for (rank, files) in here.zip(std::mem::take(&mut self.files)) {
            if !matches!(self.hold.try_recv(), Err(mpsc::TryRecvError::Empty)) {
                break;
            }
            let (input, started) = match self.rank(rank, files) {
                Ok(newborn) => (Input::Started(newborn), true),
                Err(error) => (Input::NotStarted(error), false),
            };
            // When the driver is gone, this drops the rank.
            if self.inputs.send(input).is_err() {
                return;
            }
            if !started {
                break;
            }
        }
        // What ranks inherit is closed before the job can be over: the thread ends after it.
        let Self { inputs, hold, common, .. } = self;
        drop(common);
        let _ = inputs.send(Input::Event(Event::StartEnded));
        while hold.recv().is_ok() {}
    }

    fn rank(&self, rank: u32, files: Files) -> Result<Newborn, RunError> {
        let failed = |source| RunError::Spawn { rank, ranks: self.spec.ranks, source };
        let (mut command, pmi) = self.command(rank).map_err(failed)?;
        let feed = self.streams(rank, &mut command, files);
        let child = command.spawn().map_err(|source| match source.raw_os_error() {
            Some(error) if error == rustix::io::Errno::NOEXEC.raw_os_error() => {
                let why = "it is neither a program of this machine nor a script".to_owned();
                RunError::NotExecutable { program: self.file(rank).to_owned(), why }
            }
            _ => failed(source),
        })?;
        Ok(Newborn { rank, child: Some(child), pmi, feed })
    }

    fn file(&self, rank: u32) -> &Path {
        &program::of(&self.common.programs, rank).1
    }

    /// What starts a rank, and this process' end of its socket for PMI-1.
    fn command(&self, rank: u32) -> io::Result<(Command, Option<OwnedFd>)> {
        let (spec, common) = (&self.spec, &self.common);
        let (secret, secret_name) = inherited::pipe(&common.plan.secret)?;
        let (program, file) = program::of(&common.programs, rank);
        let mut command = Command::new(file);
        command.arg0(&program.program).args(&program.args);
        if let Some(dir) = &program.dir {
            command.current_dir(dir);
        }
        for (name, value) in &program.env {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let place = match common.host {
            Some(OnHost { node, .. }) => {
                let here = common.plan.here();
                Place { node, local_rank: rank - here.start, local_size: here.len() as u32 }
            }
            None => Place::of(rank, spec.ranks, spec.nodes()),
        };
        command
            .env(BOOTSTRAP_VAR, common.address.to_string())
            .env(JOB_VAR, &common.job)
            .env(RANK_VAR, rank.to_string())
            .env(SECRET_VAR, secret_name)
            .env(BULLETIN_VAR, &common.bulletin.1)
            .env("RMA_SIZE", spec.ranks.to_string())
            .env("RMA_NODE", place.node.to_string())
            .env("RMA_LOCAL_RANK", place.local_rank.to_string())
            .env("RMA_LOCAL_SIZE", place.local_size.to_string());
        let (mut socket, mut ours) = (None, None);
        if spec.pmi {
            let (theirs, name, end) = pmi::pair()?;
            // What another launcher has set for this process would be heard first, or besides.
            OTHER_PMI.iter().for_each(|name| _ = command.env_remove(name));
            command
                .env("PMI_FD", theirs.as_raw_fd().to_string())
                .env("PMI_RANK", rank.to_string())
                .env("PMI_SIZE", spec.ranks.to_string())
                .env(PMI_VAR, name);
            (socket, ours) = (Some(theirs), Some(end));
        }
        confine(
            &mut command,
            Confinement {
                parent: rustix::process::getpid(),
                cpus: common.plan.place(rank).map(cpus::set),
                descriptors: common.descriptors,
                secret,
                bulletin: Arc::clone(&common.bulletin.0),
                pmi: socket,
                oom_score: common.oom_score.clone(),
                warden: lock(&self.warden).clone(),
            },
        );
        Ok((command, ours))
    }

    /// Connects a rank's streams; returns what is to be written to its standard input.
    fn streams(&self, rank: u32, command: &mut Command, files: Files) -> Option<Feed> {
        match files {
            Some([out, err]) => command.stdout(out).stderr(err),
            None => command.stdout(Stdio::piped()).stderr(Stdio::piped()),
        };
        let (stdin, feed) = match &self.spec.stdin {
            _ if rank != 0 => (Stdio::null(), None),
            _ if self.common.host.is_some_and(|host| host.has_input) => (Stdio::piped(), None),
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

/// Where a rank is, for wrappers that choose a device or a file by it.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    node: u32,
    local_rank: u32,
    local_size: u32,
}

impl Place {
    /// As the runtime sees it: nodes hold as many ranks in a row each, the last one the rest.
    fn of(rank: u32, ranks: u32, nodes: u32) -> Place {
        let each = ranks.div_ceil(nodes.max(1)).max(1);
        let node = rank / each;
        Place {
            node,
            local_rank: rank % each,
            local_size: each.min(ranks - (node * each).min(ranks)),
        }
    }
}

/// Ranks of each node, where nodes are [pretended](Place::of).
pub(super) fn ranks_of_nodes(ranks: u32, nodes: u32) -> impl Iterator<Item = u32> {
    let each = ranks.div_ceil(nodes.max(1)).max(1);
    (0..ranks).step_by(each as usize).map(move |first| each.min(ranks - first))
}

impl Driver<'_> {
    /// Looks after a rank that was started, and everything of it.
    pub(super) fn adopt(&mut self, mut newborn: Newborn) -> Result<(), RunError> {
        let (rank, ranks) = (newborn.rank, self.spec.ranks);
        let failed = |source| RunError::Spawn { rank, ranks, source };
        let Some(mut child) = newborn.child.take() else { return Ok(()) };
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        self.processes.add(child, self.sender.clone()).map_err(failed)?;
        if let (Some(pmi), Some(socket)) = (&self.pmi, newborn.pmi.take()) {
            pmi.add(rank, socket);
        }
        if let (Some(stdin), Some(feed)) = (pipes.0, newborn.feed.take()) {
            feed.start(stdin).map_err(failed)?;
        }
        let out = pipes.1.map(receiver).transpose().map_err(failed)?;
        let err = pipes.2.map(receiver).transpose().map_err(failed)?;
        for (stream, pipe) in [(Stream::Out, out), (Stream::Err, err)] {
            if let Some(pipe) = pipe {
                self.read(rank, stream, Source::Pipe(pipe));
            }
        }
        Ok(())
    }

    /// Reads what ranks of other hosts print; to their files, if they have some.
    pub(super) fn read_hosts(
        &mut self,
        streams: Streams,
        files: Vec<Files>,
    ) -> Result<(), RunError> {
        let what = "starting a thread for output files";
        let writer = write_files().map_err(|source| RunError::System { what, source })?;
        let mut files: Vec<_> = files.into_iter().flatten().flatten().map(Some).collect();
        for (rank, stream, relayed) in streams {
            let file = files.get_mut(rank as usize * 2 + stream as usize).and_then(Option::take);
            match file {
                Some(file) => _ = self.readers.spawn(keep(relayed, Arc::new(file), writer.clone())),
                None => self.read(rank, stream, Source::Host(relayed)),
            }
        }
        Ok(())
    }

    /// Has a stream of a rank printed, and its end kept.
    fn read(&mut self, rank: u32, stream: Stream, source: Source) {
        let label = (self.spec.label && self.spec.output == Output::Forward).then_some(rank);
        let lines = Lines::new(label, line_limit(self.spec.ranks));
        let of_errors = self.error_tails.get(rank as usize).filter(|_| stream == Stream::Err);
        let tails = self.tails.get(rank as usize).into_iter().chain(of_errors);
        let tails = tails.map(Arc::clone).collect();
        let (sink, stop) = (self.sink.clone(), self.stop.subscribe());
        self.readers.spawn(forward((rank, stream), source, lines, tails, sink, stop));
    }
}

/// Bytes for a file, and the task that waits until they are there.
struct Writing {
    file: Arc<File>,
    bytes: Vec<u8>,
    done: oneshot::Sender<()>,
}

/// Starts a thread that writes to files, which may block. Where a file system is full, the rest is
/// lost, as of ranks that write it themselves.
fn write_files() -> std::io::Result<mpsc::Sender<Writing>> {
    let (sender, writings) = mpsc::channel::<Writing>();
    let write = move || {
        for Writing { file, bytes, done } in writings {
            let _ = (&*file).write_all(&bytes);
            // Fails when the task waits no more.
            let _ = done.send(());
        }
    };
    std::thread::Builder::new().name("files".into()).spawn(write)?;
    Ok(sender)
}

/// Has a stream written to a file, piece by piece.
async fn keep(mut relayed: Relayed, file: Arc<File>, to: mpsc::Sender<Writing>) {
    while let Some(bytes) = relayed.next().await {
        let (done, written) = oneshot::channel();
        let writing = Writing { file: Arc::clone(&file), bytes, done };
        if to.send(writing).is_err() || written.await.is_err() {
            return;
        }
        relayed.taken();
    }
}

/// Whether the terminal on standard input lets this process read.
pub(super) fn in_foreground() -> bool {
    rustix::termios::tcgetpgrp(rustix::stdio::stdin()) == Ok(rustix::process::getpgrp())
}

/// What rank 0 reads through a pipe.
#[derive(Debug)]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_placed_in_rows() {
        let places = |ranks, nodes| {
            let place = |rank| Place::of(rank, ranks, nodes);
            (0..ranks)
                .map(|rank| (place(rank).node, place(rank).local_rank, place(rank).local_size))
                .collect::<Vec<_>>()
        };
        assert_eq!(places(2, 1), [(0, 0, 2), (0, 1, 2)]);
        assert_eq!(places(3, 2), [(0, 0, 2), (0, 1, 2), (1, 0, 1)]);
        assert_eq!(places(4, 4), [(0, 0, 1), (1, 0, 1), (2, 0, 1), (3, 0, 1)]);
    }
}
