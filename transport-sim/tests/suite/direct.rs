//! Collectives whose payloads are read where their senders have them, by a system that does not
//! let ranks do so.
#![allow(unsafe_code)] // makes transports of parts
use crate::common::{config, seeds};
use core::time::Duration;
use rma_core::transport::{Cma, CmaError, Parts, Sleep, Ticket, Transport, WorldRank};
use rma_core::{CollectiveError, Communicator, Config, Rank, Universe};
use rma_transport_sim::{NetConfig, run};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Copies nothing.
struct Refusing {
    /// Says so when it is asked whether it does.
    says_so: bool,
    /// How often it was asked for a copy.
    copies: Arc<AtomicU32>,
}

impl Refusing {
    fn refused<R>(peer: WorldRank) -> Result<R, CmaError> {
        Err(CmaError::System { peer, errno: 1 })
    }
}

impl Cma for Refusing {
    fn reaches(&self, peer: WorldRank) -> Result<(), CmaError> {
        if self.says_so { Self::refused(peer) } else { Ok(()) }
    }

    fn copy_from(&self, peer: WorldRank, _: u64, _: &mut [u8]) -> Result<(), CmaError> {
        self.copies.fetch_add(1, Relaxed);
        Self::refused(peer)
    }

    unsafe fn copy_to(&self, peer: WorldRank, _: u64, _: &[u8]) -> Result<(), CmaError> {
        Self::refused(peer)
    }
}

/// As if each rank had a CPU of its own.
struct CpuEach(Arc<dyn Sleep>);

impl Sleep for CpuEach {
    fn ring(&self, peer: WorldRank) {
        self.0.ring(peer);
    }

    fn arm(&self) -> Ticket {
        self.0.arm()
    }

    fn disarm(&self, ticket: Ticket) {
        self.0.disarm(ticket);
    }

    fn park(&self, ticket: Ticket, timeout: Option<Duration>) {
        self.0.park(ticket, timeout);
    }

    fn is_crowded(&self) -> bool {
        false
    }

    fn relax(&self, round: u32) -> bool {
        self.0.relax(round)
    }

    fn now(&self) -> Duration {
        self.0.now()
    }
}

const WORDS: usize = 3000;

/// What each of two ranks of a node does, of which `refused` says that it may not read the memory
/// of the other, while the rest find out when they copy. Answers with how often they tried to.
fn with_refusing(seed: u64, refused: Option<u32>, body: impl Fn(&Communicator) + Sync) -> u32 {
    let copies = Arc::new(AtomicU32::new(0));
    let net = NetConfig { nodes: Some(1), step_max: 20_000_000, ..config(2, seed) };
    run(&net, |sim| {
        let says_so = Some(sim.rank().0) == refused;
        let cma = Refusing { says_so, copies: copies.clone() };
        let parts = Transport::from(sim).into_parts();
        let sleep = Arc::new(CpuEach(parts.sleep.clone()));
        let parts = Parts { cma: Some(Arc::new(cma)), sleep, ..parts };
        // SAFETY: of one rank, for the one universe that is made of it.
        let transport = unsafe { Transport::from_parts(parts) };
        let mut config = Config::default();
        (config.collective_direct_from, config.collective_direct_to) = (1, u64::MAX);
        let universe = Universe::new(transport, config).expect("the world can be made");
        body(universe.world());
    })
    .unwrap_or_else(|failure| panic!("{failure}"));
    copies.load(Relaxed)
}

/// What all ranks have that gather a word of each in so many places.
fn gathered() -> Vec<u64> {
    [vec![1; WORDS], vec![2; WORDS]].concat()
}

fn mine(world: &Communicator) -> Vec<u64> {
    vec![u64::from(world.rank()) + 1; WORDS]
}

#[test]
fn where_one_rank_may_not_read_both_go_through_lanes() {
    for (seed, refused) in seeds(20).zip([0, 1].into_iter().cycle()) {
        let copies = with_refusing(seed, Some(refused), |world| {
            for root in [Rank(0), Rank(1)] {
                let mut all = mine(world);
                // Both hear of it here.
                assert_eq!(world.allgather(&all).unwrap(), gathered());
                world.bcast(&mut all, root).unwrap();
                assert_eq!(all, vec![u64::from(root) + 1; WORDS]);
            }
        });
        assert_eq!(copies, 0, "no rank tries");
    }
}

#[test]
fn a_copy_that_is_refused_is_an_error_at_both_ranks() {
    for seed in seeds(20) {
        let copies = with_refusing(seed, None, |world| {
            let end = match seed % 2 {
                0 => world.allgather(&mine(world)).map(drop),
                _ => world.bcast(&mut mine(world), Rank(1)),
            };
            match end.unwrap_err() {
                error @ CollectiveError::Import(_) => {
                    let text = error.to_string();
                    assert!(text.contains("process_vm_readv") && text.contains("os error 1"));
                }
                CollectiveError::GaveUp { .. } => {}
                other => panic!("{other}"),
            }
            // The next is as good as any: a rank has lost its lane, and both go by messages.
            assert_eq!(world.allgather(&mine(world)).unwrap(), gathered());
        });
        assert!(copies > 0);
    }
}
