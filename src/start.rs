//! From a launcher, or none, to a universe.
#![allow(unsafe_code)] // room: joins the ranks

use crate::launched;
use crate::local::Broken;
#[cfg(feature = "network")]
use crate::network;
use crate::{CollectiveError, Config, ConfigError, Source, Universe};
use rma_core::transport::WorldRank;
use rma_launcher::{Client, Job, SettingSource, Start};
#[cfg(feature = "network")]
use rma_transport_ofi::OfiJoinError;
use rma_transport_shm::{JoinError, Shm, ShmConfig};
use std::sync::Arc;

/// Why a rank could not start.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The environment, or the launcher in it, cannot be used.
    #[error(transparent)]
    Launcher(#[from] rma_launcher::StartError),
    /// The ranks of this node could not find each other.
    #[error(transparent)]
    Join(#[from] JoinError<rma_launcher::StartError>),
    /// The ranks of this process could not find each other.
    #[error(transparent)]
    Local(#[from] JoinError<Broken>),
    /// The ranks of the job could not reach each other by libfabric.
    #[cfg(feature = "network")]
    #[error("joining by libfabric: {0}")]
    Network(#[from] OfiJoinError<rma_launcher::StartError>),
    /// The ranks of this process could not.
    #[cfg(feature = "network")]
    #[error("joining by libfabric: {0}")]
    LocalNetwork(#[from] OfiJoinError<Broken>),
    /// A transport was asked for that this program was not built with.
    #[error("transport {name}: this program has {}; {REMEDY}", TRANSPORTS.join(" and "))]
    NoTransport {
        /// Its name.
        name: String,
    },
    /// A setting, or a hint of the whole job, cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Ranks have different values of a setting that must be the same on all.
    #[error(
        "setting {key}: rank {rank} has {value}, this one {mine}; give all ranks the same, best by \
         rma-run --config {key}=VALUE"
    )]
    ConfigDiffers {
        /// The setting.
        key: &'static str,
        /// A rank that has another value than this one.
        rank: u32,
        /// Its value.
        value: String,
        /// This rank's.
        mine: String,
    },
    /// The first communication failed.
    #[error("making the world: {0}")]
    World(#[from] CollectiveError),
    /// The thread of a rank could not be started.
    #[error("starting rank {rank} as a thread: {error}; run fewer ranks in one process")]
    Thread {
        /// Rank.
        rank: u32,
        /// What the system said.
        error: std::io::Error,
    },
    /// No rank was asked for.
    #[error("a job of 0 ranks was asked for; ask for at least 1")]
    NoRanks,
}

/// What the setting `transport` chooses from.
const TRANSPORTS: &[&str] = if cfg!(feature = "network") { &["shm", "ofi"] } else { &["shm"] };

/// What to do where it is another.
const REMEDY: &str = if cfg!(feature = "network") {
    "ask for one of them"
} else {
    "for ofi, build it with the feature `network` of rma, which is on by default"
};

rma_core::debug_as_display!(StartError);

/// Joins the job that this process was started in, or starts one of a single rank.
///
/// Under `rma-run` the process becomes one of its ranks, and so it does under launchers of others
/// that speak PMI-1, PMI-2 or PMIx (`mpiexec` of hydra, `srun --mpi=pmi2`, `mpirun`), where a
/// thread of rank 0 stands in for `rma-run`. Without a launcher it is rank 0 of 1. Under a launcher
/// or scheduler that is visible but cannot be spoken to it refuses, instead of running as N silent
/// singletons. **Collective** over the job.
///
/// Call it once per process. The universe is to be dropped, or better
/// [finalized](rma_core::Universe::finalize), before the process exits.
pub fn initialize() -> Result<Universe, StartError> {
    initialize_with(Config::default())
}

/// As [`initialize`], with budgets and deadlines of one's own; what the job was started with goes
/// before them, by options and files of `rma-run` (see [`Config`]). **Collective** over the job;
/// every rank passes the same.
///
/// # Errors
///
/// As [`initialize`], and [`StartError::ConfigDiffers`].
pub fn initialize_with(mut config: Config) -> Result<Universe, StartError> {
    config.root = rma_launcher::root().or(config.root);
    match rma_launcher::detect_process()? {
        Start::Alone => alone(config),
        Start::Launched(settings) => of_job(config, Client::connect(&settings)?),
        Start::Managed(managed) => of_job(config, Client::join(&managed)?),
    }
}

/// A rank of a job with several.
fn of_job(mut config: Config, client: Client) -> Result<Universe, StartError> {
    let job = client.job().clone();
    take(&mut config, &job)?;
    compare(&config, &client)?;
    check_transport(&config)?;
    let client = Arc::new(client);
    let place = ShmConfig {
        rank: WorldRank(job.rank),
        size: job.size,
        nodes: config.nodes_of(job.size),
        cores: config.cpus.unwrap_or(job.cores),
        naps: config.naps,
    };
    let here = job.here();
    // SAFETY: the launcher, which has proved that it is the job's own, lets one process be
    // each rank, and gathers what all of them say.
    let shm = unsafe { Shm::join_on_host(place, here, |mine| client.all_gather(mine)) }?;
    let near = launched::across(&client, shm, config.transport() == "ofi");
    #[cfg(feature = "network")]
    // SAFETY: as above.
    let near = unsafe { network::of_job(near, &config, &client) }?;
    let transport = launched::tell(client, near);
    let universe = Universe::new(transport, with_storage(config))?;
    if job.explain && job.rank == 0 {
        eprint!("{}", universe.explain());
    }
    Ok(universe)
}

/// Refuses a job whose ranks are to reach each other by what this program does not have.
pub(crate) fn check_transport(config: &Config) -> Result<(), StartError> {
    let name = config.transport();
    let is_there = TRANSPORTS.contains(&name);
    if is_there { Ok(()) } else { Err(StartError::NoTransport { name: name.to_owned() }) }
}

/// Windows of the job can lie on storage.
#[cfg(feature = "storage")]
pub(crate) fn with_storage(mut config: Config) -> Config {
    config.set_allocator(&crate::StorageAllocator);
    config
}

/// No window of the job can lie on storage.
#[cfg(not(feature = "storage"))]
pub(crate) fn with_storage(config: Config) -> Config {
    config
}

/// Takes what the job was started with.
fn take(config: &mut Config, job: &Job) -> Result<(), ConfigError> {
    let option = |name: &str| Source::CommandLine(name.into());
    // Those of the ranks of a process: processes have their launcher's.
    let nodes = if job.nodes == 1 { Source::Default } else { option("--nodes") };
    config.set_by("nodes", &job.nodes.to_string(), nodes)?;
    config.set_by("cpus", "auto", Source::Default)?;
    for (key, value, source) in &job.config {
        let source = match source {
            SettingSource::File(path) => Source::File(path.as_str().into()),
            SettingSource::Option(name) => option(name),
        };
        config.set_by(key, value, source)?;
    }
    config.nodes = job.nodes;
    for (key, value) in &job.hints {
        config.hint_by(key, value, option("--hint"))?;
    }
    if let Some(timeout) = job.wait_timeout {
        let milliseconds = format!("{}ms", timeout.as_secs_f64() * 1e3);
        config.set_by("wait_timeout", &milliseconds, option("--wait-timeout"))?;
        // As it is, and not as it is written.
        config.wait_timeout = Some(timeout);
    }
    if !job.progress_agent {
        config.set_by("progress_agent", "never", option("--no-progress-agent"))?;
    }
    if job.explain {
        config.on_window = Some(|text| eprint!("{text}"));
    }
    Ok(())
}

/// Whether all ranks have the same where they must. **Collective.**
fn compare(config: &Config, client: &Client) -> Result<(), StartError> {
    let mine: Vec<u8> = config.common().into_iter().flat_map(u64::to_le_bytes).collect();
    let mut rank = 0;
    for (count, theirs) in client.all_gather(&mine)? {
        let (words, _) = theirs.as_chunks::<8>();
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        if let Some((key, value)) = config.differs(&words) {
            let mine = config.get(key).unwrap_or_default();
            return Err(StartError::ConfigDiffers { key, rank, value, mine });
        }
        rank += count;
    }
    Ok(())
}

fn alone(config: Config) -> Result<Universe, StartError> {
    let place = ShmConfig { rank: WorldRank(0), size: 1, nodes: 1, cores: 1, naps: config.naps };
    // SAFETY: a job of one rank.
    let shm = unsafe { Shm::join(place, |mine| Ok::<_, Broken>(vec![(1, mine.to_vec())])) }?;
    Ok(Universe::new(shm, with_storage(config))?)
}
