//! Starting ranks: their environment, their streams.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};

use rustix::process::{Pid, Rlimit, Signal, kill_process_group};
use tokio::sync::mpsc::UnboundedSender;

use super::bootstrap::Plan;
use super::cpus;
use super::driver::{Driver, Input};
use super::hosts::Streams;
use super::input;
use super::lines::{Front, Lines};
use super::machine::Event;
use super::output::{Outlet, Source, Stream, forward, line_limit, lock, receiver};
use super::pmi;
use super::program;
use super::report::RunError;
use super::spawn::{Confinement, confine};
use super::spec::{Output, Spec};
use super::stamp::{self, Clock};
use super::warden::Orders;
use crate::inherited;
use crate::{BOOTSTRAP_VAR, BULLETIN_VAR, JOB_VAR, PMI_VAR, RANK_VAR, SECRET_VAR};

/// To how many peers an endpoint of libfabric talks.
const UNIVERSE_VAR: &str = "FI_UNIVERSE_SIZE";
/// Other variables of PMI: a port instead of a descriptor, a job of PMI-2, a job that another one
/// has started.
const OTHER_PMI: [&str; 4] = ["PMI_PORT", "PMI_ID", "PMI_JOBID", "PMI_SPAWNED"];

/// For how many endpoints of peers libfabric makes room; by itself for 256, which some devices do
/// not have. A rank has one for each of its threads that communicate.
fn universe_of(ranks: u32) -> u32 {
    const ITSELF: u32 = 256;
    const THREADS: u32 = 8;
    ranks.max(ranks.saturating_mul(THREADS).min(ITSELF))
}

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
    /// What they read.
    pub(super) input: input::Streams,
    /// Which of several hosts this is, if it is one.
    pub(super) node: Option<u32>,
}

/// What ranks write into their `oom_score_adj`: before this process, which can tell what happened,
/// the kernel ends one of them.
pub(super) fn oom_score() -> String {
    const ADDED: i32 = 100;
    const MOST: i32 = 1000;
    let mine = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap_or_default();
    (mine.trim().parse().unwrap_or(0) + ADDED).min(MOST).to_string()
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
    /// Of each rank's two streams, instead of pipes.
    pub(super) files: Vec<[Option<File>; 2]>,
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

    fn rank(&self, rank: u32, files: [Option<File>; 2]) -> Result<Newborn, RunError> {
        let failed = |source| RunError::Spawn { rank, ranks: self.spec.ranks, source };
        let (mut command, pmi) = self.command(rank).map_err(failed)?;
        let [out, err] = files.map(|file| file.map_or_else(Stdio::piped, Stdio::from));
        command.stdin(self.common.input.of_rank(rank)).stdout(out).stderr(err);
        let child = command.spawn().map_err(|source| match source.raw_os_error() {
            Some(error) if error == rustix::io::Errno::NOEXEC.raw_os_error() => {
                let why = "it is neither a program of this machine nor a script".to_owned();
                RunError::NotExecutable { program: self.file(rank).to_owned(), why }
            }
            _ => failed(source),
        })?;
        Ok(Newborn { rank, child: Some(child), pmi })
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
        if std::env::var_os(UNIVERSE_VAR).is_none() {
            command.env(UNIVERSE_VAR, universe_of(spec.ranks).to_string());
        }
        for (name, value) in &program.env {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let place = match common.node {
            Some(node) => {
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
        if let (Some(stdin), Some(flow)) = (pipes.0, self.flow.clone()) {
            let tell = move |fed| flow.note(rank, fed);
            self.feeds.start(rank, stdin, tell).map_err(failed)?;
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

    /// Reads what ranks of other hosts print.
    pub(super) fn read_hosts(&mut self, streams: Streams) {
        for (rank, stream, relayed) in streams {
            self.read(rank, stream, Source::Host(relayed));
        }
    }

    /// Has a stream of a rank printed, or written to its file, and its end kept.
    fn read(&mut self, rank: u32, stream: Stream, source: Source) {
        let file = self.files.take(rank, stream);
        let sink = self.files.are_besides().then(|| self.sink.clone());
        let is_text = self.spec.output == Output::Forward || file.is_some();
        let clock: Option<Clock> = (self.spec.timestamp && is_text).then_some(stamp::now);
        let front = Front::new(clock, (self.spec.label && is_text).then_some(rank));
        let limit = match (&sink, front.is_empty(), clock) {
            // Nothing is between the bytes of a file.
            (None, true, _) => 0,
            // The two streams of a rank that is alone may be mixed as they come, but for times.
            (.., Some(_)) => line_limit(self.spec.ranks.max(2)),
            _ => line_limit(self.spec.ranks),
        };
        let of_errors = self.error_tails.get(rank as usize).filter(|_| stream == Stream::Err);
        let tails = self.tails.get(rank as usize).into_iter().chain(of_errors);
        let tails = tails.map(Arc::clone).collect();
        let outlet = Outlet { of: (rank, stream), sink, file };
        let (lines, stop) = (Lines::new(front, limit), self.stop.subscribe());
        self.readers.spawn(forward(source, lines, tails, outlet, stop));
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
