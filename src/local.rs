//! Ranks as threads of this process: for tests and doctests.
#![allow(unsafe_code)] // room: joins the ranks

#[cfg(feature = "network")]
use crate::network;
use crate::start::{check_transport, with_storage};
use crate::{Config, StartError, Universe};
use rma_core::transport::{Transport, WorldRank};
use rma_transport_shm::{Said, Shm, ShmConfig};
use std::any::Any;
use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;

/// Runs `body` as `ranks` ranks, threads of this process, over shared memory; returns what each
/// returned, by rank.
///
/// It is the transport that ranks as processes use, so a test needs no launcher. If a rank panics,
/// the others see it as failed, and the first panic goes on here.
///
/// ```
/// let ranks = rma::local(3, |universe| universe.world().rank().0)?;
/// assert_eq!(ranks, [0, 1, 2]);
/// # Ok::<(), rma::StartError>(())
/// ```
///
/// # Errors
///
/// A rank could not start. No `body` has run then, or those that have were told.
pub fn local<R, F>(ranks: u32, body: F) -> Result<Vec<R>, StartError>
where
    R: Send,
    F: Fn(Universe) -> R + Sync,
{
    local_with(Config::default(), ranks, body)
}

/// As [`local`], with budgets and deadlines of one's own.
///
/// ```
/// use rma::{Config, Path, Rank};
///
/// let mut config = Config::default();
/// config.hint("rma_path", "messages").unwrap();
/// let paths = rma::local_with(config, 2, |universe| {
///     let window = universe.world().window(1, 8).allocate().unwrap();
///     window.path(Rank(0))
/// })?;
/// assert_eq!(paths, [Some(Path::Messages); 2]);
/// # Ok::<(), rma::StartError>(())
/// ```
///
/// # Errors
///
/// As [`local`].
pub fn local_with<R, F>(config: Config, ranks: u32, body: F) -> Result<Vec<R>, StartError>
where
    R: Send,
    F: Fn(Universe) -> R + Sync,
{
    if ranks == 0 {
        return Err(StartError::NoRanks);
    }
    check_transport(&config)?;
    let exchange = Exchange::new(ranks);
    let available = || thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let cores = config.cpus.unwrap_or_else(available);
    let first_panic = Mutex::new(None::<Box<dyn Any + Send>>);
    let run = |rank: u32| {
        let place = ShmConfig {
            rank: WorldRank(rank),
            size: ranks,
            nodes: config.nodes_of(ranks),
            cores,
            naps: config.naps,
        };
        // A rank that cannot join breaks the exchange, or the others hang.
        let leaver = Leaver(&exchange);
        // SAFETY: the exchange is this job's own; each of its threads has a rank, and joins once.
        let shm = unsafe { Shm::join(place, |mine| exchange.all_gather(rank, mine)) }?;
        let transport = Transport::from(shm);
        #[cfg(feature = "network")]
        // SAFETY: as above.
        let transport = unsafe { network::of_process(transport, &config, (&exchange, rank)) }?;
        forget(leaver);
        let universe = Universe::new(transport, with_storage(config.clone()))?;
        // A thread that ends takes no universe along that was forgotten.
        let _stay = universe.stay();
        match catch_unwind(AssertUnwindSafe(|| body(universe))) {
            Ok(result) => Ok(Some(result)),
            Err(panic) => {
                first_panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
                Ok(None)
            }
        }
    };
    let results: Vec<Result<Option<R>, StartError>> = thread::scope(|scope| {
        let run = &run;
        let start = |rank| {
            let builder = thread::Builder::new().name(format!("rank {rank}"));
            let thread = builder.spawn_scoped(scope, move || run(rank));
            if thread.is_err() {
                exchange.fail();
            }
            thread.map_err(|error| StartError::Thread { rank, error })
        };
        let threads: Vec<_> = (0..ranks).map(start).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| match thread.join() {
            Ok(result) => result,
            Err(panic) => resume_unwind(panic),
        };
        threads.into_iter().map(|thread| thread.and_then(join)).collect()
    });
    if let Some(panic) = first_panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
        resume_unwind(panic);
    }
    // Without a panic, every rank that started has a result.
    let results: Result<Vec<Option<R>>, _> = results.into_iter().collect();
    Ok(results?.into_iter().flatten().collect())
}

/// The all-gather of ranks that are threads.
pub(crate) struct Exchange {
    state: Mutex<State>,
    changed: Condvar,
    /// Where each is reached over a network.
    #[cfg(feature = "network")]
    pub(crate) cards: network::Cards,
}

struct State {
    /// What each rank has said, one exchange after the other.
    said: Vec<Vec<Vec<u8>>>,
    failed: bool,
}

/// Another rank of this process could not start, so this one cannot either.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("another rank of this process could not start")]
pub struct Broken;

rma_core::debug_as_display!(Broken);

impl Exchange {
    fn new(ranks: u32) -> Self {
        let state = State { said: vec![Vec::new(); ranks as usize], failed: false };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            #[cfg(feature = "network")]
            cards: network::Cards::new(ranks),
        }
    }

    pub(crate) fn all_gather(&self, rank: u32, mine: &[u8]) -> Result<Said, Broken> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let round = state.said[rank as usize].len();
        state.said[rank as usize].push(mine.to_vec());
        self.changed.notify_all();
        let is_open = |state: &State| state.said.iter().any(|said| said.len() <= round);
        let waiting = |state: &mut State| !state.failed && is_open(state);
        let state = self.changed.wait_while(state, waiting).unwrap_or_else(PoisonError::into_inner);
        let of = |said: &Vec<Vec<u8>>| said.get(round).map(|said| (1, said.clone()));
        state.said.iter().map(of).collect::<Option<Said>>().ok_or(Broken)
    }

    fn fail(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).failed = true;
        self.changed.notify_all();
    }
}

/// Breaks the exchange when dropped.
struct Leaver<'a>(&'a Exchange);

impl Drop for Leaver<'_> {
    fn drop(&mut self) {
        self.0.fail();
    }
}
