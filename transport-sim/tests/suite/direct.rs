//! Collectives whose payloads are read where their senders have them, by a system that does not
//! let ranks do so, or while their senders give up.
#![allow(unsafe_code)] // makes transports of parts, and copies as the system does
use crate::common::{config, seeds};
use core::time::Duration;
use core::{ptr, slice};
use rma_core::transport::{Cma, CmaError, Parts, Sleep, Ticket, Transport, WorldRank};
use rma_core::{CollectiveError, Communicator, Config, Rank, Universe};
use rma_transport_sim::{NetConfig, run};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};

/// Copies out of the memory of a peer, or does not.
struct Copies<C> {
    /// What it says when it is asked whether it does.
    reaches: bool,
    copy: C,
}

impl<C> Cma for Copies<C>
where
    C: Fn(WorldRank, u64, &mut [u8]) -> Result<(), CmaError> + Send + Sync,
{
    fn reaches(&self, peer: WorldRank) -> Result<(), CmaError> {
        if self.reaches { Ok(()) } else { refused(peer) }
    }

    fn copy_from(&self, peer: WorldRank, address: u64, bytes: &mut [u8]) -> Result<(), CmaError> {
        (self.copy)(peer, address, bytes)
    }

    unsafe fn copy_to(&self, peer: WorldRank, _: u64, _: &[u8]) -> Result<(), CmaError> {
        refused(peer)
    }
}

fn refused(peer: WorldRank) -> Result<(), CmaError> {
    Err(CmaError::System { peer, errno: 1 })
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

/// Runs `body` as two ranks of a node with a CPU each, which copy as `cma` says of each: it is
/// given what the rank sleeps by.
fn with_cma(
    seed: u64,
    wait_timeout: Option<Duration>,
    cma: impl Fn(Rank, Arc<dyn Sleep>) -> Arc<dyn Cma> + Sync,
    body: impl Fn(&Communicator) + Sync,
) {
    let net = NetConfig { nodes: Some(1), step_max: 20_000_000, ..config(2, seed) };
    run(&net, |sim| {
        let rank = Rank(sim.rank().0);
        let parts = Transport::from(sim).into_parts();
        let cma = cma(rank, parts.sleep.clone());
        let sleep = Arc::new(CpuEach(parts.sleep.clone()));
        let parts = Parts { cma: Some(cma), sleep, ..parts };
        // SAFETY: of one rank, for the one universe that is made of it.
        let transport = unsafe { Transport::from_parts(parts) };
        let mut config = Config::default();
        config.wait_timeout = wait_timeout;
        (config.collective_direct_from, config.collective_direct_to) = (1, u64::MAX);
        let universe = Universe::new(transport, config).expect("the world can be made");
        body(universe.world());
    })
    .unwrap_or_else(|failure| panic!("{failure}"));
}

/// As [`with_cma`], of ranks whose copies are refused: one says so when it is asked, the rest find
/// out when they copy. Answers with how often they tried to.
fn with_refusing(seed: u64, says_so: Option<Rank>, body: impl Fn(&Communicator) + Sync) -> u32 {
    let copies = Arc::new(AtomicU32::new(0));
    let cma = |rank, _| -> Arc<dyn Cma> {
        let copies = copies.clone();
        let copy = move |peer, _, _: &mut [u8]| {
            copies.fetch_add(1, Relaxed);
            refused(peer)
        };
        Arc::new(Copies { reaches: says_so != Some(rank), copy })
    };
    with_cma(seed, None, cma, body);
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
    for (seed, says_so) in seeds(20).zip([0, 1].into_iter().cycle()) {
        // Both hear of it in the first operation, whichever it is, in which that rank reads.
        let gathers_first = seed / 2 % 2 == 0;
        let copies = with_refusing(seed, Some(Rank(says_so)), |world| {
            for root in [Rank(1 - says_so), Rank(says_so)] {
                let mut all = mine(world);
                if gathers_first {
                    assert_eq!(world.allgather(&all).unwrap(), gathered());
                }
                world.bcast(&mut all, root).unwrap();
                assert_eq!(all, vec![u64::from(root) + 1; WORDS]);
                if !gathers_first {
                    assert_eq!(world.allgather(&mine(world)).unwrap(), gathered());
                }
            }
        });
        assert_eq!(copies, 0, "no rank tries");
    }
}

#[test]
fn a_copy_that_is_refused_is_an_error_at_both_ranks_once() {
    for seed in seeds(20) {
        let failed = AtomicU32::new(0);
        let tried = with_refusing(seed, None, |world| {
            let end = match seed % 2 {
                0 => world.allgather(&mine(world)).map(drop),
                _ => world.bcast(&mut mine(world), Rank(1)),
            };
            match end.unwrap_err() {
                error @ CollectiveError::Import(_) => {
                    let text = error.to_string();
                    assert!(text.contains("process_vm_readv") && text.contains("os error 1"));
                    failed.fetch_add(1, Relaxed);
                }
                CollectiveError::GaveUp { .. } => {}
                other => panic!("{other}"),
            }
            // The next is as good as any: a rank has lost its lane, and both go by messages.
            assert_eq!(world.allgather(&mine(world)).unwrap(), gathered());
            // Elsewhere, too, a rank that was refused does not try again.
            let other = world.dup().unwrap();
            for root in [Rank(1), Rank(0)] {
                let mut all = mine(&other);
                other.bcast(&mut all, root).unwrap();
                assert_eq!(all, vec![u64::from(root) + 1; WORDS]);
            }
            assert_eq!(other.allgather(&mine(&other)).unwrap(), gathered());
        });
        assert!(failed.into_inner() > 0, "the rank that was refused says why");
        assert!((1..=2).contains(&tried), "once each at most");
    }
}

/// A reader whose copy takes longer than its peer waits finds out that the peer has given up, and
/// used its memory for something else.
#[test]
fn what_the_owner_has_taken_back_is_not_taken_for_the_payload() {
    for seed in seeds(20) {
        let is_changed = Arc::new(AtomicBool::new(false));
        let copied = Arc::new(AtomicU64::new(0));
        let cma = |_, sleep: Arc<dyn Sleep>| -> Arc<dyn Cma> {
            let (is_changed, copied) = (is_changed.clone(), copied.clone());
            let copy = move |_, address: u64, bytes: &mut [u8]| {
                while !is_changed.load(Acquire) {
                    let ticket = sleep.arm();
                    sleep.park(ticket, Some(Duration::from_millis(10)));
                }
                let from = ptr::with_exposed_provenance::<u8>(address as usize);
                // SAFETY: rank 1 keeps that memory, and does not write there any more.
                bytes.copy_from_slice(unsafe { slice::from_raw_parts(from, bytes.len()) });
                copied.store(u64::from(bytes[0]), Relaxed);
                Ok(())
            };
            Arc::new(Copies { reaches: true, copy })
        };
        let kept = Mutex::new(Vec::new());
        with_cma(seed, Some(Duration::from_millis(100)), cma, |world| {
            let mut all = mine(world);
            if world.rank() == Rank(0) {
                let error = world.bcast(&mut all, Rank(1)).unwrap_err();
                assert!(matches!(error, CollectiveError::GaveUp { .. }), "{error}");
                return;
            }
            let start = all.as_mut_ptr();
            _ = start.expose_provenance();
            // SAFETY: the whole vector, which is not used meanwhile.
            let shown = unsafe { slice::from_raw_parts_mut(start, WORDS) };
            let error = world.bcast(shown, Rank(1)).unwrap_err();
            assert!(matches!(error, CollectiveError::Timeout { .. }), "{error}");
            // SAFETY: as above; no rank reads it before `is_changed`.
            unsafe { slice::from_raw_parts_mut(start, WORDS) }.fill(9);
            kept.lock().unwrap().push(all);
            is_changed.store(true, Release);
        });
        assert_eq!(copied.load(Relaxed), 9, "what came later");
    }
}

/// Memory goes with its process, before its reader has it.
#[test]
fn memory_that_is_gone_is_a_peer_that_left() {
    for seed in seeds(20) {
        let cma = |_, _| -> Arc<dyn Cma> {
            let copy = |peer, _, _: &mut [u8]| Err(CmaError::PeerGone(peer));
            Arc::new(Copies { reaches: true, copy })
        };
        with_cma(seed, None, cma, |world| {
            let error = world.bcast(&mut mine(world), Rank(1)).unwrap_err();
            match (world.rank(), &error) {
                (_, CollectiveError::PeerLeft { world: WorldRank(1), .. })
                | (Rank(1), CollectiveError::GaveUp { .. }) => {}
                _ => panic!("{error}"),
            }
        });
    }
}
