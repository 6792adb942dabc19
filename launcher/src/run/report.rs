//! How a job ended.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::PathBuf;

use rma_core::ConfigError;
use rustix::process::Signal;

use super::capacity::Shortage;
use super::signals;
use super::summary::named;
use crate::pmi::server::PmiFault;

/// How a rank failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum How {
    /// It exited with a status other than 0.
    Exited(i32),
    /// A signal ended it.
    Signal(i32),
    /// The kernel ended it (or another rank at the same time), for lack of memory.
    OutOfMemory,
    /// Its host could not be reached any more.
    HostLost,
    /// It exited with 0 after it had joined the job, but never said that it leaves.
    NeverLeft,
    /// It exited with 0 and never joined the job, while another rank did.
    NeverJoined,
    /// It said that it failed.
    Announced,
    /// It is a program of MPI, and ended the job with that status (`MPI_Abort`).
    Aborted(i32),
    /// It broke the protocol that programs of MPI speak with the launcher, or was the one that
    /// put when all ranks together had put too much.
    Pmi(PmiFault),
    /// It left in order, while another rank still waited for it, which failed therefore.
    LeftEarly {
        /// The first rank that failed.
        missed_by: u32,
    },
}

impl How {
    /// Whether the process was ended, and did not end itself.
    pub(super) fn is_crash(self) -> bool {
        matches!(self, How::Signal(_) | How::OutOfMemory)
    }

    /// Whether the job ends with that, also where ranks go on when another one fails.
    pub(super) fn ends_all(self) -> bool {
        matches!(self, How::Aborted(_) | How::Pmi(_))
    }
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            How::Exited(status) => write!(f, "exited with status {status}"),
            How::Signal(signal) => {
                write!(f, "was ended by signal {signal} ({})", signals::name(signal))
            }
            How::OutOfMemory => f.write_str(
                "was ended by signal 9 (SIGKILL) when the kernel ran out of memory for it (`dmesg` \
                 tells more): start fewer ranks, or raise the limit of the control group, if there \
                 is one",
            ),
            How::HostLost => f.write_str("was lost with its host"),
            How::NeverLeft => f.write_str(
                "exited with status 0 without finalizing, as after process::exit: ranks that \
                 still wait for it would hang; let its `Universe` drop before it exits (a program \
                 of MPI: call MPI_Finalize)",
            ),
            How::NeverJoined => f.write_str(
                "exited with status 0 without initializing, while other ranks did: they would \
                 wait for it for ever; let every rank call `rma::initialize` (a program of MPI: \
                 MPI_Init)",
            ),
            How::Announced => f.write_str("reported that it failed"),
            How::Aborted(status) => write!(f, "called MPI_Abort with {status}"),
            How::Pmi(fault @ PmiFault::TooMuchOfAll) => write!(
                f,
                "was at work when the job's space of keys of PMI-1 was full: {fault}; that is the \
                 job's fault, and not that rank's: start fewer ranks"
            ),
            How::Pmi(fault) => write!(
                f,
                "broke the protocol of PMI-1 at its descriptor PMI_FD: {fault}; only the library \
                 of MPI may use that (MPICH and its kin; `--no-pmi` does without)"
            ),
            How::LeftEarly { missed_by } => write!(
                f,
                "left while rank {missed_by} still waited for it, which failed therefore; let \
                 every rank end with `Universe::finalize`, which waits for the others"
            ),
        }
    }
}

/// The rank that failed first, or made another one fail by leaving early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Which one.
    pub rank: u32,
    /// How it ended.
    pub how: How,
    /// The end of what it printed, on both streams; of the rank that [failed](Failure::failed).
    pub tail: String,
}

impl Failure {
    /// The rank that failed: it says why.
    pub fn failed(&self) -> u32 {
        match self.how {
            How::LeftEarly { missed_by } => missed_by,
            _ => self.rank,
        }
    }
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ending {
    /// Every rank did what it should.
    Success,
    /// A rank failed, and the others were ended.
    Failed(Failure),
    /// The time was up.
    TimedOut {
        /// Ranks that were still running.
        running: Vec<u32>,
    },
    /// The launcher was asked to end the job by this signal.
    Interrupted(i32),
    /// The reader of the launcher's standard output is gone.
    OutputClosed,
    /// The launcher's standard output could not be written, or a file of ranks' output: which,
    /// and why.
    OutputFailed(String),
    /// Every rank did what it should, but the end of what some have printed may be missing, since
    /// their hosts were lost behind them.
    OutputLost(Vec<LostOutput>),
    /// Every rank did what it should, but standard input, which was to be passed on to them, could
    /// not be read to its end: why, and how much of it they got.
    InputFailed(String),
}

/// Of a host that was lost before all had come that its ranks had printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostOutput {
    /// The host.
    pub host: String,
    /// Those ranks.
    pub ranks: Vec<u32>,
    /// How it was lost.
    pub why: String,
}

impl fmt::Display for LostOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LostOutput { host, ranks, why } = self;
        let ranks = named(ranks);
        write!(
            f,
            "host {host}: {why}; the end of what {ranks} printed may be missing: run the job again"
        )
    }
}

/// What one rank printed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RankOutput {
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
}

/// What became of a job.
#[derive(Debug, Clone)]
pub struct Report {
    /// How it ended.
    pub ending: Ending,
    /// With [`Output::Capture`](super::Output): what the ranks printed, by rank.
    pub output: Vec<RankOutput>,
    /// With [`Output::Capture`](super::Output): what the launcher said.
    pub notes: Vec<String>,
}

impl Report {
    /// What a launcher exits with.
    pub fn exit_code(&self) -> u8 {
        match &self.ending {
            Ending::Success => 0,
            Ending::Failed(failure) => match failure.how {
                How::Exited(status) | How::Aborted(status) => nonzero(status & 0xff),
                How::Signal(signal) => nonzero(128 + signal),
                How::OutOfMemory => nonzero(128 + Signal::KILL.as_raw()),
                How::HostLost | How::NeverLeft | How::NeverJoined => 1,
                How::Announced | How::LeftEarly { .. } | How::Pmi(_) => 1,
            },
            Ending::TimedOut { .. } => 124,
            Ending::Interrupted(signal) => nonzero(128 + signal),
            Ending::OutputClosed => 141,
            Ending::OutputFailed(_) | Ending::OutputLost(_) | Ending::InputFailed(_) => 1,
        }
    }

    /// The rank that failed first, if the job failed by one.
    pub fn failure(&self) -> Option<&Failure> {
        match &self.ending {
            Ending::Failed(failure) => Some(failure),
            _ => None,
        }
    }
}

/// A status to exit with, which is no success.
pub(super) fn nonzero(code: i32) -> u8 {
    u8::try_from(code).ok().filter(|code| *code != 0).unwrap_or(1)
}

/// Why a job could not be started.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// No rank at all.
    #[error("a job has at least one rank; 0 were asked for")]
    NoRanks,
    /// More ranks than this machine holds.
    #[error(transparent)]
    TooMany(#[from] Shortage),
    /// There is no such program.
    #[error("{} not found{}; is it built, and the path right?", shown(program), searched(path))]
    NotFound {
        /// The program asked for.
        program: OsString,
        /// Where it was looked for, if not under its own path.
        path: Option<OsString>,
    },
    /// The program cannot be run.
    #[error("{} cannot be run: {why}", program.display())]
    NotExecutable {
        /// What was found.
        program: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The folder that ranks are to run in cannot be used.
    #[error("ranks cannot run in {}: {source}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// Files for output cannot be made in what is no folder.
    #[error(
        "output of ranks goes to a folder {}, which is no folder: remove it, or name another one \
         (--output-file, --output-dir)",
        path.display()
    )]
    FileForFolder {
        /// It.
        path: PathBuf,
    },
    /// A file for output cannot be made.
    #[error("output of ranks goes to {}, which cannot be written: {source}", path.display())]
    OutputFile {
        /// The file, or a folder that it is in.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// A file for output would be that of two ranks.
    #[error(
        "ranks {} and {} would both write {}: put {{rank}} into the name of the file, and have no \
         link and no `..` lead from two names to one",
        ranks[0], ranks[1], path.display()
    )]
    SharedFile {
        /// It.
        path: PathBuf,
        /// Two of the ranks.
        ranks: [u32; 2],
    },
    /// The name of the job cannot be part of that of a file.
    #[error("{{job}} would be {name:?}, which names a folder: use another --name, or no {{job}}")]
    JobNamesFolder {
        /// The name.
        name: String,
    },
    /// Standard input is for a rank that there is not.
    #[error(
        "standard input is for rank {rank}, but ranks are 0 to {}: name one of these, or all or \
         none", ranks - 1
    )]
    NoReader {
        /// The rank that is to read.
        rank: u32,
        /// Ranks of the job.
        ranks: u32,
    },
    /// A rank could not be started.
    #[error("rank {rank} of {ranks} could not be started: {source}; the others were ended")]
    Spawn {
        /// The rank.
        rank: u32,
        /// Ranks of the job.
        ranks: u32,
        /// What the operating system says.
        source: io::Error,
    },
    /// An environment variable that cannot be passed.
    #[error("{name:?} is no name of an environment variable")]
    BadVariable {
        /// The name.
        name: OsString,
    },
    /// A setting, or a hint of the whole job, that cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A file of settings that cannot be used.
    #[error("settings of {}: {source}", path.display())]
    ConfigFile {
        /// It.
        path: PathBuf,
        /// Why.
        source: ConfigError,
    },
    /// A file of settings that cannot be read.
    #[error("settings of {}: cannot be read: {source}", path.display())]
    ConfigRead {
        /// It.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// More hints and settings than ranks are told.
    #[error("the job's hints and settings have {bytes} bytes, ranks are told {most} at most")]
    ConfigTooLong {
        /// Bytes that they take.
        bytes: usize,
        /// Bytes that there may be.
        most: usize,
    },
    /// A file on a host is not what the launcher has.
    #[error(
        "{what} there, {}, is another build than here: copy it from here (--copy does, of \
         programs), or put it into a folder that the hosts share", path.display()
    )]
    OtherBuild {
        /// The file on the host.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// A host cannot do its part.
    #[error("host {host}: {why}")]
    Host {
        /// Its name.
        host: String,
        /// What is wrong there.
        why: String,
        /// What a launcher exits with.
        code: u8,
    },
    /// The port at which ranks join cannot be opened, or reached.
    #[error(
        "ranks join at a port of 127.0.0.1, which cannot be used: {0}; bring the loop-back \
         interface up (`ip link set lo up`), with that address (`ip addr add 127.0.0.1/8 dev lo`), \
         and have no firewall block it"
    )]
    Port(#[source] io::Error),
    /// This machine reaches itself by IPv6 alone.
    #[error(
        "ranks join at a port of 127.0.0.1, which cannot be used: {0}; this machine reaches itself \
         by IPv6 (::1) alone: give the loop-back interface that address, too (`ip addr add \
         127.0.0.1/8 dev lo`), no other one of IPv4 is needed"
    )]
    OnlyIpv6(#[source] io::Error),
    /// The operating system refused something.
    #[error("{what} failed: {source}")]
    System {
        /// What was asked.
        what: &'static str,
        /// What it says.
        source: io::Error,
    },
}

crate::debug_as_display!(RunError);

impl RunError {
    /// What a launcher exits with: 127 and 126 as shells do, 2 for a request that cannot be met.
    pub fn exit_code(&self) -> u8 {
        match self {
            RunError::Host { code, .. } => *code,
            RunError::NotFound { .. } => 127,
            RunError::NotExecutable { .. } => 126,
            RunError::NoRanks | RunError::TooMany(_) | RunError::BadVariable { .. } => 2,
            RunError::SharedFile { .. } | RunError::JobNamesFolder { .. } => 2,
            RunError::NoReader { .. } => 2,
            RunError::Config(_) | RunError::ConfigFile { .. } => 2,
            RunError::ConfigRead { .. } | RunError::ConfigTooLong { .. } => 2,
            _ => 1,
        }
    }
}

fn shown(program: &OsString) -> String {
    format!("program {:?}", program.to_string_lossy())
}

fn searched(path: &Option<OsString>) -> String {
    match path {
        Some(path) => format!(" in PATH ({})", path.to_string_lossy()),
        None => String::new(),
    }
}
