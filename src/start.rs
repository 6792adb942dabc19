//! From a launcher, or none, to a universe.
#![allow(unsafe_code)] // room: joins the ranks

use crate::launched;
use crate::local::Broken;
use crate::{CollectiveError, Config, HintError, ProgressAgent, Universe};
use rma_core::transport::WorldRank;
use rma_launcher::{Client, Start};
use rma_transport_shm::{JoinError, Shm, ShmConfig};

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
    /// A hint that the job was started with cannot be used.
    #[error(transparent)]
    Hint(#[from] HintError),
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

rma_core::debug_as_display!(StartError);

/// Joins the job that this process was started in, or starts one of a single rank.
///
/// Under `rma-run` the process becomes one of its ranks. Without a launcher it is rank 0 of 1.
/// Under a launcher or scheduler that is visible but cannot be used it refuses, instead of running
/// as N silent singletons. **Collective** over the job.
///
/// Call it once per process. The universe is to be dropped, or better
/// [finalized](rma_core::Universe::finalize), before the process exits.
pub fn initialize() -> Result<Universe, StartError> {
    initialize_with(Config::default())
}

/// As [`initialize`], with budgets and deadlines of one's own; what the job was started with goes
/// before them. **Collective** over the job; every rank passes the same.
pub fn initialize_with(mut config: Config) -> Result<Universe, StartError> {
    match rma_launcher::detect_process()? {
        Start::Alone => alone(config),
        Start::Launched(settings) => {
            let client = Client::connect(&settings)?;
            let job = client.job().clone();
            let place = ShmConfig {
                rank: WorldRank(job.rank),
                size: job.size,
                nodes: job.nodes,
                cores: job.cores,
                naps: config.naps,
            };
            // SAFETY: the launcher, which has proved that it is the job's own, lets one process be
            // each rank, and gathers what all of them say.
            let shm = unsafe { Shm::join(place, |mine| client.all_gather(mine)) }?;
            let transport = launched::tell(client, shm.into());
            config.wait_timeout = job.wait_timeout.or(config.wait_timeout);
            if !job.progress_agent {
                config.progress_agent = ProgressAgent::Never;
            }
            for (key, value) in &job.hints {
                config.hint(key, value)?;
            }
            if job.explain {
                config.on_window = Some(|text| eprint!("{text}"));
            }
            let universe = Universe::new(transport, config)?;
            if job.explain && job.rank == 0 {
                eprint!("{}", universe.explain());
            }
            Ok(universe)
        }
    }
}

fn alone(config: Config) -> Result<Universe, StartError> {
    let place = ShmConfig { rank: WorldRank(0), size: 1, nodes: 1, cores: 1, naps: config.naps };
    // SAFETY: a job of one rank.
    let shm = unsafe { Shm::join(place, |mine| Ok::<_, Broken>(vec![mine.to_vec()])) }?;
    Ok(Universe::new(shm, config)?)
}
