//! How this process was started, from its environment.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};

use rustix::fs::FileType;

use crate::foreign;
use crate::inherited::{self, Missing};
use crate::pmi::{self, Managed};
use crate::wire::{FRAME_MAX, Refusal};

/// Where the launcher listens, `127.0.0.1:PORT`.
pub const BOOTSTRAP_VAR: &str = "RMA_BOOTSTRAP";
/// This process' rank, decimal.
pub const RANK_VAR: &str = "RMA_RANK";
/// The pipe that this process inherited with the job's secret, as `DESCRIPTOR:DEVICE:INODE`.
pub const SECRET_VAR: &str = "RMA_SECRET_FD";
/// The file that this process inherited with the words in which it tells what it does, as
/// `DESCRIPTOR:DEVICE:INODE`. A rank can do without.
pub const BULLETIN_VAR: &str = "RMA_BULLETIN_FD";
/// The socket that this process inherited to speak PMI-1 with `rma-run`, as
/// `DESCRIPTOR:DEVICE:INODE`: which `PMI_FD` is meant for programs of MPI, and for no others.
pub const PMI_VAR: &str = "RMA_PMI_FD";

/// The job's name, which no other job has: what is left of a killed job is found by it.
pub const JOB_VAR: &str = "RMA_JOB_ID";

/// How this process was started.
#[derive(Debug, Clone)]
pub enum Start {
    /// Without a launcher: it is the only rank of its job.
    Alone,
    /// By `rma-run`: [`Client::connect`](crate::Client::connect) joins the job.
    Launched(Settings),
    /// By a launcher of others that can be spoken to: [`Client::join`](crate::Client::join) joins
    /// the job.
    Managed(Managed),
}

/// What `rma-run` passes to a rank.
#[derive(Debug, Clone)]
pub struct Settings {
    pub(crate) bootstrap: SocketAddr,
    pub(crate) rank: u32,
    pub(crate) secret: Secret,
    /// What names the file of the bulletin, if this process inherited one.
    pub(crate) bulletin: Option<OsString>,
}

impl Settings {
    /// This process' rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Where the launcher listens.
    pub fn bootstrap(&self) -> SocketAddr {
        self.bootstrap
    }
}

/// The job's secret; never printed.
#[derive(Clone)]
pub(crate) struct Secret(pub(crate) [u8; 32]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// Why this process could not join its job.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A part of the launcher's environment is missing.
    #[error(
        "{seen} is set but {missing} is not; rma-run sets both: start this program with \
         `rma-run -n N PROGRAM`, or remove {seen} to run a single rank"
    )]
    Incomplete {
        /// The variable that is there.
        seen: &'static str,
        /// The variable that should be, too.
        missing: &'static str,
    },
    /// A variable of the launcher does not parse.
    #[error(
        "{variable} holds {found}, not {expected}; rma-run sets it: start this program with \
         `rma-run -n N PROGRAM`, or remove it to run a single rank"
    )]
    Malformed {
        /// The variable.
        variable: &'static str,
        /// What it holds.
        found: String,
        /// What it should hold.
        expected: &'static str,
    },
    /// Another library's launcher started this program, and cannot be spoken to; its ranks could
    /// not find each other.
    #[error(
        "{variable}={value} says that {launcher} started this program as one of several \
         processes, which it does not connect for this runtime: each would run alone, as rank 0 \
         of 1; start it with {instead}; `env {without} PROGRAM` runs a single rank on purpose"
    )]
    ForeignLauncher {
        /// The variable that was seen.
        variable: &'static str,
        /// Its value.
        value: String,
        /// The launcher that sets it.
        launcher: &'static str,
        /// What starts the ranks as one job.
        instead: &'static str,
        /// Options of `env` that remove what was seen.
        without: String,
    },
    /// A part of what a launcher with PMI sets is missing.
    #[error(
        "{seen} is set but {missing} is not; a launcher with PMI sets both: a wrapper between it \
         and this program must not remove variables; `rma-run -n N PROGRAM` needs neither"
    )]
    HalfPmi {
        /// The variable that is there.
        seen: &'static str,
        /// The variable that should be, too.
        missing: &'static str,
    },
    /// What a launcher with PMI sets cannot be read.
    #[error(
        "{seen} is not what a launcher with PMI sets; start this program with `mpiexec -n N`, \
         `srun --mpi=pmi2` or `rma-run -n N`"
    )]
    BadPmi {
        /// The variable, with its value.
        seen: String,
    },
    /// The launcher that started this program did not do its part.
    #[error(
        "{seen} says that {launcher} started this program, but {doing} failed: {why}; a wrapper \
         in between must keep descriptors open, and a program that a rank starts is no rank: \
         start it without that variable; `rma-run -n N PROGRAM` needs no other launcher"
    )]
    Exchange {
        /// The variable that says so, with its value.
        seen: String,
        /// The launcher.
        launcher: &'static str,
        /// What was going on.
        doing: &'static str,
        /// What failed.
        why: String,
    },
    /// The processes that a launcher started cannot be one job.
    #[error("the ranks that {launcher} started cannot be a job: {why}")]
    NoJob {
        /// The launcher.
        launcher: &'static str,
        /// Why not.
        why: String,
    },
    /// The launcher could not be reached, or went away.
    #[error(
        "rank {rank} lost the launcher at {address} while it {doing}: {source}; \
         is rma-run, or under another launcher rank 0, still running?"
    )]
    Lost {
        /// This process' rank.
        rank: u32,
        /// Where the launcher listens.
        address: SocketAddr,
        /// What was going on.
        doing: &'static str,
        /// What the operating system says.
        source: io::Error,
    },
    /// The pipe with the job's secret is not there, or empty.
    #[error(
        "{SECRET_VAR}={name} names no pipe with the secret of this job: {why}; a wrapper between \
         rma-run and this program must keep descriptors open (pass_fds of Python's subprocess), \
         and a program that a rank starts is no rank: start it without {BOOTSTRAP_VAR}, \
         {RANK_VAR} and {SECRET_VAR} in its environment"
    )]
    NoSecret {
        /// What the variable holds.
        name: String,
        /// What is wrong.
        why: &'static str,
    },
    /// The launcher does not know this rank's secret.
    #[error(
        "the launcher at {address} refused rank {rank}: its secret is that of another job; \
         {BOOTSTRAP_VAR} and {SECRET_VAR} belong to a job that has ended, or to another one"
    )]
    Unknown {
        /// This process' rank.
        rank: u32,
        /// Where the launcher listens.
        address: SocketAddr,
    },
    /// The process that listens at the address does not know the job's secret.
    #[error(
        "whoever listens at {0} is not the launcher of this job; {BOOTSTRAP_VAR} and \
         {SECRET_VAR} belong to a job that has ended, or to another one"
    )]
    NotTheLauncher(SocketAddr),
    /// The launcher does not let this process join.
    #[error("the launcher refused rank {rank}: {why}")]
    Refused {
        /// The rank that was claimed.
        rank: u32,
        /// Why not.
        why: Refusal,
    },
    /// Another rank is gone, so an exchange cannot complete.
    #[error("rank {rank} left the job or died before an exchange with every rank was complete")]
    Broken {
        /// The rank that is gone.
        rank: u32,
    },
    /// The ranks' parts of an exchange are too large together.
    #[error(
        "{requested} bytes to be exchanged through the launcher by all ranks together, which takes \
         at most {FRAME_MAX}; exchange large data through a window"
    )]
    TooLarge {
        /// Bytes asked for.
        requested: u64,
    },
    /// This rank has left the job already.
    #[error("rank {rank} left the job before this exchange")]
    HasLeft {
        /// This process' rank.
        rank: u32,
    },
    /// The operating system refused something.
    #[error("{call} failed: {source}")]
    System {
        /// What was asked.
        call: &'static str,
        /// What it says.
        source: io::Error,
    },
}

crate::debug_as_display!(StartError);

/// Finds out how this process was started; `vars` reads one environment variable.
///
/// # Errors
///
/// When the launcher's variables are incomplete or malformed, and when another launcher is
/// visible that started several processes: they would all run as rank 0 of 1.
///
/// ```
/// # use rma_launcher::{detect, Start};
/// let start = detect(&|_| None)?;
/// assert!(matches!(start, Start::Alone));
/// # Ok::<(), rma_launcher::StartError>(())
/// ```
pub fn detect(vars: &dyn Fn(&str) -> Option<OsString>) -> Result<Start, StartError> {
    const OURS: [&str; 3] = [BOOTSTRAP_VAR, RANK_VAR, SECRET_VAR];
    let Some(seen) = OURS.into_iter().find(|name| vars(name).is_some()) else {
        let others = pmi::of_others(vars);
        if let Some(managed) = pmi::find(&others)? {
            return Ok(Start::Managed(managed));
        }
        foreign::refuse(&others)?;
        return Ok(Start::Alone);
    };
    let get = |name| vars(name).ok_or(StartError::Incomplete { seen, missing: name });
    let [bootstrap, rank, secret] = [get(BOOTSTRAP_VAR)?, get(RANK_VAR)?, get(SECRET_VAR)?];
    // What a rank starts is no rank, of MPI either, and inherits no socket of one. This process
    // keeps its own.
    vars(PMI_VAR).iter().for_each(|name| drop(inherited::open(name, FileType::Socket)));
    Ok(Start::Launched(Settings {
        bootstrap: parse_address(&bootstrap)?,
        rank: parse_rank(&rank)?,
        secret: secret_in(&secret)?,
        bulletin: vars(BULLETIN_VAR),
    }))
}

fn parse_address(value: &OsStr) -> Result<SocketAddr, StartError> {
    // A rank proves that it knows the secret, and no more, to the process that listens there;
    // still, it has no business outside this machine.
    let address = value.to_str().and_then(|text| text.parse::<SocketAddr>().ok());
    match address {
        Some(address) if is_loopback(address.ip()) && address.port() != 0 => Ok(address),
        _ => Err(malformed(BOOTSTRAP_VAR, value, "a loop-back address such as 127.0.0.1:4711")),
    }
}

fn is_loopback(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V4(ip) if ip.is_loopback())
}

fn parse_rank(value: &OsStr) -> Result<u32, StartError> {
    let digits = value.to_str().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    digits
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| malformed(RANK_VAR, value, "a decimal number"))
}

fn secret_in(name: &OsStr) -> Result<Secret, StartError> {
    let missing = |why| StartError::NoSecret { name: name.to_string_lossy().into_owned(), why };
    inherited::take(name).map_err(|error| match error {
        Missing::Malformed => {
            malformed(SECRET_VAR, name, "a descriptor, a device and an inode such as 10:14:99")
        }
        Missing::Elsewhere => missing("the descriptor is closed, or another file"),
        Missing::Taken => missing("another process has read it"),
    })
}

fn malformed(variable: &'static str, value: &OsStr, expected: &'static str) -> StartError {
    StartError::Malformed { variable, found: shown(value), expected }
}

/// A value fit to be printed: quoted, and not longer than a line.
fn shown(value: &OsStr) -> String {
    const LONGEST: usize = 60;
    let text = value.to_string_lossy();
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// A pipe that this process has inherited, as it were.
    #[cfg(feature = "server")]
    fn secret() -> String {
        use std::os::fd::IntoRawFd;
        let (pipe, name) = inherited::pipe(&Secret([17; 32])).unwrap();
        let _ = pipe.into_raw_fd();
        name
    }

    fn start(vars: &[(&str, &str)]) -> Result<Start, StartError> {
        let map: HashMap<String, OsString> =
            vars.iter().map(|(name, value)| (name.to_string(), value.into())).collect();
        detect(&|name| map.get(name).cloned())
    }

    fn refused(vars: &[(&str, &str)]) -> &'static str {
        match start(vars) {
            Err(StartError::ForeignLauncher { variable, .. }) => variable,
            other => panic!("{vars:?} gave {other:?}"),
        }
    }

    fn alone(vars: &[(&str, &str)]) {
        assert!(matches!(start(vars), Ok(Start::Alone)), "{vars:?}");
    }

    #[test]
    fn an_empty_environment_is_a_single_rank() {
        alone(&[]);
    }

    #[test]
    #[cfg(feature = "server")]
    fn our_launcher_wins_over_the_scheduler_it_runs_under() {
        let vars = [
            ("SLURM_PROCID", "0"),
            ("SLURM_NTASKS", "4"),
            (BOOTSTRAP_VAR, "127.0.0.1:4711"),
            (RANK_VAR, "3"),
            (SECRET_VAR, &secret()),
        ];
        let Ok(Start::Launched(settings)) = start(&vars) else { panic!("not launched") };
        assert_eq!(settings.rank(), 3);
        assert_eq!(settings.bootstrap().to_string(), "127.0.0.1:4711");
        assert_eq!(settings.secret.0, [17; 32]);
        assert!(!format!("{settings:?}").contains("17"), "the secret is not printed");
    }

    #[test]
    fn a_part_of_our_environment_is_an_error_that_names_what_is_missing() {
        match start(&[(RANK_VAR, "3")]) {
            Err(StartError::Incomplete { seen: RANK_VAR, missing: BOOTSTRAP_VAR }) => {}
            other => panic!("{other:?}"),
        }
        match start(&[(RANK_VAR, "3"), (BOOTSTRAP_VAR, "127.0.0.1:1")]) {
            Err(StartError::Incomplete { missing: SECRET_VAR, .. }) => {}
            other => panic!("{other:?}"),
        }
    }

    #[test]
    #[cfg(feature = "server")]
    fn malformed_values_are_errors_that_name_the_variable() {
        let secret = secret();
        let good = [(BOOTSTRAP_VAR, "127.0.0.1:1"), (RANK_VAR, "0"), (SECRET_VAR, &secret)];
        assert!(matches!(start(&good), Ok(Start::Launched(_))));
        let bad = [
            (BOOTSTRAP_VAR, "localhost"),
            (BOOTSTRAP_VAR, "10.0.0.1:80"),
            (BOOTSTRAP_VAR, "127.0.0.1:0"),
            (BOOTSTRAP_VAR, "127.0.0.1:99999"),
            (RANK_VAR, ""),
            (RANK_VAR, "-1"),
            (RANK_VAR, "+1"),
            (RANK_VAR, "4294967296"),
            (SECRET_VAR, "abc"),
            (SECRET_VAR, "0:12"),
        ];
        for (name, value) in bad {
            let mut vars: Vec<_> = good.into_iter().filter(|(other, _)| *other != name).collect();
            vars.push((name, value));
            match start(&vars) {
                Err(StartError::Malformed { variable, .. }) => assert_eq!(variable, name),
                other => panic!("{name}={value} gave {other:?}"),
            }
        }
    }

    #[test]
    fn a_pipe_that_is_gone_is_named() {
        let vars = [(BOOTSTRAP_VAR, "127.0.0.1:1"), (RANK_VAR, "0"), (SECRET_VAR, "99999:1:1")];
        let error = start(&vars).unwrap_err().to_string();
        assert!(error.contains("RMA_SECRET_FD=99999:1:1") && error.contains("closed"), "{error}");
    }

    #[test]
    fn other_launchers_are_refused_by_name() {
        assert_eq!(refused(&[("OMPI_COMM_WORLD_SIZE", "4")]), "OMPI_COMM_WORLD_SIZE");
        assert_eq!(refused(&[("PMI_RANK", "0"), ("PMI_SIZE", "2")]), "PMI_SIZE");
        for mark in ["PMI_ID", "PMIX_RANK", "MPI_LOCALRANKID", "PRTE_LAUNCHED", "LSF_PM_TASKID"] {
            assert_eq!(refused(&[(mark, "0")]), mark);
        }
        assert_eq!(refused(&[("PALS_RANKID", "1")]), "PALS_RANKID");
        assert_eq!(refused(&[("FLUX_TASK_RANK", "0"), ("FLUX_JOB_SIZE", "2")]), "FLUX_JOB_SIZE");
    }

    #[test]
    fn tasks_that_a_scheduler_numbers_are_refused_but_for_the_script_of_a_job() {
        assert_eq!(refused(&[("PBS_TASKNUM", "2")]), "PBS_TASKNUM");
        alone(&[("PBS_TASKNUM", "1"), ("PBS_NODEFILE", "/var/spool/pbs/aux/7")]);
        alone(&[("LSF_PM_TASKID", "1"), ("LSB_DJOB_NUMPROC", "1")]);
    }

    #[test]
    fn what_to_remove_for_a_single_rank_is_all_that_was_seen() {
        let vars = [("OMPI_COMM_WORLD_SIZE", "4"), ("OMPI_COMM_WORLD_RANK", "2")];
        let error = start(&vars).unwrap_err().to_string();
        let without = "`env -u OMPI_COMM_WORLD_SIZE -u OMPI_COMM_WORLD_RANK PROGRAM`";
        assert!(error.contains(without), "{error}");
    }

    #[test]
    fn slurm_is_refused_when_it_has_several_tasks() {
        assert_eq!(refused(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")]), "SLURM_NTASKS");
        assert_eq!(refused(&[("SLURM_PROCID", "1")]), "SLURM_PROCID");
        let step = [
            ("SLURM_PROCID", "0"),
            ("SLURM_NTASKS", "1"),
            ("SLURM_STEP_NUM_TASKS", "8"),
            ("PMI_SIZE", "8"),
        ];
        assert_eq!(refused(&step), "SLURM_STEP_NUM_TASKS");
    }

    #[test]
    fn one_process_of_another_launcher_is_a_single_rank() {
        alone(&[("SLURM_JOB_ID", "7"), ("SLURM_NTASKS", "4")]);
        alone(&[("SLURM_PROCID", "0")]);
        alone(&[("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "1"), ("SLURM_NTASKS", "4")]);
        alone(&[("OMPI_COMM_WORLD_SIZE", "1"), ("PMIX_RANK", "0")]);
        alone(&[("PMI_SIZE", "1"), ("PMI_RANK", "0"), ("PMI_FD", "5")]);
    }

    #[test]
    fn the_refusal_says_what_to_use_instead() {
        let error = start(&[("OMPI_COMM_WORLD_SIZE", "4")]).unwrap_err().to_string();
        assert!(error.contains("OMPI_COMM_WORLD_SIZE=4"), "{error}");
        assert!(error.contains("rma-run -n N PROGRAM"), "{error}");
    }
}
