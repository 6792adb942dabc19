//! What to run, and how.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rma_core::{Config, Source};

use super::config;
use super::hosts::Remote;
use super::pattern::FilePattern;
use crate::Job;
use crate::codec::wire_enum;

/// Time that ranks have to end in order, unless told otherwise.
const KILL_AFTER: Duration = Duration::from_secs(10);

/// Where ranks run. Cores are given to the ranks of a host in turn, as [`MapBy`] says; there may be
/// more ranks than cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Bind {
    /// Wherever the launcher may run.
    #[default]
    None,
    /// On a hardware thread: the second one of a core only once each core has a rank, unless ranks
    /// are [mapped](MapBy) by thread.
    Thread,
    /// On all hardware threads of a core.
    Core,
    /// Anywhere in the core's socket.
    Socket,
    /// On all CPUs of the core's NUMA node.
    Numa,
}

impl fmt::Display for Bind {
    /// As the command line has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Bind::None => "none",
            Bind::Thread => "thread",
            Bind::Core => "core",
            Bind::Socket => "socket",
            Bind::Numa => "numa",
        })
    }
}

/// In which order cores, or their hardware threads, are given to ranks that are bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MapBy {
    /// Hardware thread by hardware thread: a core is full before the next one begins.
    Thread,
    /// A socket is full before the next one begins.
    #[default]
    Core,
    /// Each rank on another socket than the one before.
    Socket,
    /// Each rank on another NUMA node than the one before.
    Numa,
}

impl fmt::Display for MapBy {
    /// As the command line has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MapBy::Thread => "thread",
            MapBy::Core => "core",
            MapBy::Socket => "socket",
            MapBy::Numa => "numa",
        })
    }
}

wire_enum!(Bind { 0 = None {}, 1 = Thread {}, 2 = Core {}, 3 = Socket {}, 4 = Numa {} });
wire_enum!(MapBy { 0 = Core {}, 1 = Socket {}, 2 = Numa {}, 3 = Thread {} });

/// What happens when a rank fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnFailure {
    /// The others are ended.
    #[default]
    End,
    /// The others go on; the job has failed all the same.
    Continue,
}

/// What [`Readers`] read; the other ranks read an empty file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Stdin {
    /// Nothing.
    #[default]
    Null,
    /// The launcher's own standard input.
    Inherit,
    /// These bytes.
    Bytes(Vec<u8>),
}

/// Which ranks read [`Stdin`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readers {
    /// That one.
    One {
        /// Its number.
        rank: u32,
    },
    /// Each reads all of it, from the start. The slowest one holds the others back, unless it has
    /// ended or closed its standard input.
    All,
}

impl Default for Readers {
    fn default() -> Readers {
        Readers::One { rank: 0 }
    }
}

impl Readers {
    /// Whether a rank is one of them.
    pub(super) fn has(self, rank: u32) -> bool {
        match self {
            Readers::One { rank: reader } => reader == rank,
            Readers::All => true,
        }
    }
}

wire_enum!(Readers { 0 = One { rank: rank }, 1 = All {} });

/// Where the ranks' output goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Output {
    /// To the launcher's own standard output and standard error, line by line.
    #[default]
    Forward,
    /// Into the [`Report`](super::Report), at most 16 MiB of each stream (its end is kept).
    Capture,
}

/// A further program of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Its first rank; those up to that of the next program are its own.
    pub first: u32,
    /// What is run, as [`Spec::program`].
    pub program: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Folder that its ranks run in.
    pub dir: Option<PathBuf>,
    /// Changes to the environment that its ranks inherit.
    pub env: Vec<(OsString, Option<OsString>)>,
}

/// A job to run.
#[derive(Debug, Clone)]
pub struct Spec {
    /// What the job is called, for a user who asks for it; not a number.
    pub name: Option<String>,
    /// Program of every rank; looked up in `PATH` when it holds no slash.
    pub program: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Folder that ranks run in, instead of the launcher's, from which the program is looked up.
    pub dir: Option<PathBuf>,
    /// Number of ranks, of all programs.
    pub ranks: u32,
    /// Programs that the ranks from [`Program::first`] on run instead, in ascending order.
    pub more: Vec<Program>,
    /// Nodes that this machine is to be taken for, see [`Job::nodes`](crate::Job).
    pub nodes: u32,
    /// Changes to the environment that ranks inherit; `None` removes a variable.
    pub env: Vec<(OsString, Option<OsString>)>,
    /// Put `[rank] ` in front of each line.
    pub label: bool,
    /// Put the time in front of each line, before its label: that of its first byte, by the clock
    /// of the launcher.
    pub timestamp: bool,
    /// Say nothing but why the job failed.
    pub quiet: bool,
    /// Write each rank's output to files of these names instead, with labels and times as they
    /// would be printed.
    pub output_file: Option<FilePattern>,
    /// Besides, let output go where it would without files.
    pub tee: bool,
    /// Where ranks run.
    pub bind: Bind,
    /// In which order, if they are bound.
    pub map_by: MapBy,
    /// More ranks than CPUs are meant: do not mention it.
    pub oversubscribe: bool,
    /// What happens when a rank fails.
    pub on_failure: OnFailure,
    /// End the job after this time.
    pub timeout: Option<Duration>,
    /// From SIGTERM, or the first signal to the launcher that asks a job to end, until ranks that
    /// still run are killed.
    pub kill_after: Duration,
    /// Longest wait inside the ranks' runtime, see [`Job::wait_timeout`](crate::Job).
    pub wait_timeout: Option<Duration>,
    /// Hints for every window, see [`Job::hints`](crate::Job); they go before those of `config`.
    pub hints: Vec<(String, String)>,
    /// Settings of the ranks' runtime. What is not at its default is passed on, and goes before
    /// what the program sets. `nodes` above goes before the setting of that name.
    pub config: Config,
    /// Whether agents may serve messages, see [`Job::progress_agent`](crate::Job).
    pub progress_agent: bool,
    /// Serve PMI-1 to ranks, so that programs of MPI (MPICH and its kin) can be such.
    pub pmi: bool,
    /// Print what is decided, here and in the ranks.
    pub explain: bool,
    /// What ranks read.
    pub stdin: Stdin,
    /// Which of them.
    pub readers: Readers,
    /// Where output goes when there is no `output_file`, or with `tee`.
    pub output: Output,
    /// The hosts that ranks run on, instead of this machine.
    pub remote: Option<Remote>,
    /// This process exists for the job only, as `rma-run` does: pass its signals on, adopt and
    /// end whatever the ranks leave behind, and watch over them with a warden, for which `main`
    /// must begin with [`warden`](super::warden). Leave it off in a process that starts other
    /// children meanwhile.
    pub dedicated: bool,
}

impl Spec {
    /// A job of `ranks` processes of `program`, with nothing special.
    pub fn new(program: impl AsRef<OsStr>, ranks: u32) -> Spec {
        Spec {
            name: None,
            program: program.as_ref().to_owned(),
            args: Vec::new(),
            dir: None,
            ranks,
            more: Vec::new(),
            nodes: 1,
            env: Vec::new(),
            label: false,
            timestamp: false,
            quiet: false,
            output_file: None,
            tee: false,
            bind: Bind::None,
            map_by: MapBy::Core,
            oversubscribe: false,
            on_failure: OnFailure::End,
            timeout: None,
            kill_after: KILL_AFTER,
            wait_timeout: None,
            hints: Vec::new(),
            config: Config::default(),
            progress_agent: true,
            pmi: true,
            explain: false,
            stdin: Stdin::Null,
            readers: Readers::default(),
            output: Output::Forward,
            remote: None,
            dedicated: false,
        }
    }

    /// Nodes, for those that are told nothing else.
    pub(super) fn nodes(&self) -> u32 {
        match self.config.source("nodes") {
            Some(Source::Default) if self.nodes == 1 => self.config.nodes_of(self.ranks),
            _ => self.nodes,
        }
    }

    /// What ranks are told of the job, but for their CPUs and their numbers.
    pub(super) fn job(&self, nodes: u32) -> Job {
        Job {
            rank: 0,
            size: self.ranks,
            nodes,
            cores: 0,
            explain: self.explain,
            wait_timeout: self.wait_timeout,
            hints: self.hints.clone(),
            config: config::told(self),
            progress_agent: self.progress_agent,
            host: None,
        }
    }

    /// Whether files of output are those of ranks, which write them without this process.
    pub(super) fn ranks_write_files(&self) -> bool {
        self.remote.is_none() && !(self.tee || self.label || self.timestamp)
    }

    /// All programs.
    pub(super) fn programs(&self) -> Vec<Program> {
        let first = Program {
            first: 0,
            program: self.program.clone(),
            args: self.args.clone(),
            dir: self.dir.clone(),
            env: self.env.clone(),
        };
        [vec![first], self.more.clone()].concat()
    }

    /// The folder that a rank runs in, if it is another one than this process'.
    pub(super) fn dir_of(&self, rank: u32) -> Option<&Path> {
        match self.more.iter().rev().find(|program| program.first <= rank) {
            Some(program) => program.dir.as_deref(),
            None => self.dir.as_deref(),
        }
    }
}

impl Program {
    /// The value of a variable in its ranks' environment.
    pub(super) fn variable(&self, name: &str) -> Option<OsString> {
        match self.env.iter().rev().find(|(key, _)| key == name) {
            Some((_, value)) => value.clone(),
            None => std::env::var_os(name),
        }
    }
}
