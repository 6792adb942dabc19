//! Jobs whose ranks are made of two transports: memory inside of two pretended nodes, and the
//! message rings of another such transport for a network.
#![allow(unsafe_code)] // joins the ranks
use rma::{Config, Universe};
use rma_core::transport::{Network, Parts, Sleep, Transport, Waker, WorldRank};
use rma_transport_shm::{Said, Shm, ShmConfig};
use std::any::Any;
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

/// An all-gather of threads.
struct Exchange {
    /// What each rank has said, one exchange after the other.
    said: Mutex<Vec<Vec<Vec<u8>>>>,
    changed: Condvar,
}

impl Exchange {
    fn new(ranks: u32) -> Self {
        Self { said: Mutex::new(vec![Vec::new(); ranks as usize]), changed: Condvar::new() }
    }

    fn gather(&self, rank: u32, mine: &[u8]) -> Result<Said, Infallible> {
        let mut said = self.said.lock().unwrap();
        let round = said[rank as usize].len();
        said[rank as usize].push(mine.to_vec());
        self.changed.notify_all();
        let waits = |said: &mut Vec<Vec<Vec<u8>>>| said.iter().any(|said| said.len() <= round);
        let said = self.changed.wait_while(said, waits).unwrap();
        Ok(said.iter().map(|said| (1, said[round].clone())).collect())
    }
}

/// The thread of a network that waits for events, as one would at the file of a provider.
struct Watcher {
    over: Arc<AtomicBool>,
    sleep: Arc<dyn Sleep>,
    rank: WorldRank,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    fn start(sleep: Arc<dyn Sleep>, rank: WorldRank, waker: Waker) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let (seen, bell) = (over.clone(), sleep.clone());
        let watch = move || {
            while !seen.load(SeqCst) {
                let ticket = bell.arm();
                // For all that came before: what comes from now on ends the sleep.
                waker.wake();
                match seen.load(SeqCst) {
                    true => bell.disarm(ticket),
                    false => bell.park(ticket, None),
                }
            }
        };
        let thread = thread::Builder::new().name(format!("watcher {rank}")).spawn(watch);
        Self { over, sleep, rank, thread: Some(thread.expect("a thread starts")) }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.over.store(true, SeqCst);
        self.sleep.ring(self.rank);
        _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Runs `body` as so many ranks on two nodes. The first panic goes on.
pub(crate) fn job(config: Config, ranks: u32, body: &(dyn Fn(Universe) + Sync)) {
    let (near_cards, far_cards) = (Exchange::new(ranks), Exchange::new(ranks));
    let first_panic = Mutex::new(None::<Box<dyn Any + Send>>);
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let run = |number: u32| {
        let (rank, naps) = (WorldRank(number), config.naps);
        let place = ShmConfig { rank, size: ranks, nodes: 2, cores, naps };
        // SAFETY: the exchange is this job's own; each of its threads has a rank, and joins once.
        let near = unsafe { Shm::join(place, |mine| near_cards.gather(number, mine)) };
        // SAFETY: as above.
        let far = unsafe { Shm::join(place, |mine| far_cards.gather(number, mine)) };
        let Parts { messages, members, sleep, .. } =
            Transport::from(far.expect("a network")).into_parts();
        let mut watcher = None;
        let network = |waker| {
            watcher = Some(Watcher::start(sleep, rank, waker));
            Ok::<_, Infallible>(Network { name: "shm twice", messages, members, remote: None })
        };
        // SAFETY: both are this rank's, and counted by the same number.
        let transport = unsafe { Transport::from(near.expect("memory")).beside(network) };
        let Ok(transport) = transport;
        let universe = Universe::new(transport, config.clone()).expect("the world can be made");
        let _stay = universe.stay();
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| body(universe))) {
            first_panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
        }
    };
    thread::scope(|scope| {
        for rank in 0..ranks {
            let run = &run;
            let thread = thread::Builder::new().name(format!("rank {rank}"));
            thread.spawn_scoped(scope, move || run(rank)).expect("a thread starts");
        }
    });
    if let Some(panic) = first_panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
        resume_unwind(panic);
    }
}
