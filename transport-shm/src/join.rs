//! How the ranks of a node find each other.
#![allow(unsafe_code)] // room: declares what a caller promises of the exchange

use rma_core::transport::{AllocateError, WorldRank};

use crate::card::Card;
use crate::control::{ControlSegment, control_len};
use crate::heap::Heap;
use crate::memory_limits::MemoryLimits;
use crate::neighbour::Neighbour;
use crate::segment::Segment;
use crate::shm::{Shm, spare_descriptor};

/// What a rank must know before it joins.
#[derive(Debug, Clone, Copy)]
pub struct ShmConfig {
    /// This rank.
    pub rank: WorldRank,
    /// Ranks of the job, all of them on this machine.
    pub size: u32,
    /// Nodes that the machine is pretended to be: ranks of another one are reached by messages
    /// only. Each has as many ranks in a row, but for the last, which may have fewer; 0 is as 1.
    pub nodes: u32,
    /// CPUs that the job may use; with fewer than ranks, waiting does not spin.
    pub cores: u32,
    /// Whether a sleeping rank looks around now and then although it was not rung: that is how it
    /// notices a rank that was killed. Off in tests: a lost wake-up is a rank that hangs then.
    pub naps: bool,
}

/// Why a rank could not join.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum JoinError<E> {
    /// The configuration contradicts itself.
    #[error("rank {rank} of {size} ranks does not exist; ranks count from 0 to size - 1")]
    Config {
        /// The rank asked for.
        rank: WorldRank,
        /// The number of ranks.
        size: u32,
    },
    /// There is no memory for the control segment.
    #[error("no control segment: {0}")]
    Allocate(#[from] AllocateError),
    /// The bootstrap failed.
    #[error("the exchange of segment cards failed: {0}")]
    Exchange(E),
    /// The bootstrap returned another number of cards than there are ranks.
    #[error(
        "the exchange returned {got} segment cards for {size} ranks; \
         start all ranks of a job with the same launcher and size"
    )]
    Count {
        /// Cards returned.
        got: usize,
        /// The number of ranks.
        size: u32,
    },
    /// A rank sent something else than a card.
    #[error(
        "the segment card of rank {rank} cannot be used: {problem}; \
         run the same build of the program on every rank"
    )]
    Card {
        /// Whose card it is.
        rank: WorldRank,
        /// What is wrong with it.
        problem: &'static str,
    },
}

rma_core::debug_as_display!(JoinError<E: core::fmt::Display>);

impl Shm {
    /// Joins the ranks of a node. **Collective** over the ranks of the job: `exchange` is the
    /// bootstrap's all-gather, which gives every rank the bytes of all, by rank.
    ///
    /// Nothing of a neighbour is mapped before it is needed.
    ///
    /// # Errors
    ///
    /// See [`JoinError`]; nothing is left behind.
    ///
    /// # Safety
    ///
    /// `exchange` gives what the ranks of this job gave to theirs, by rank, and each rank joins
    /// once: a rank that maps a neighbour's memory believes what that says of it.
    pub unsafe fn join<E>(
        config: ShmConfig,
        exchange: impl FnOnce(&[u8]) -> Result<Vec<Vec<u8>>, E>,
    ) -> Result<Self, JoinError<E>> {
        let ShmConfig { rank, size, .. } = config;
        let invalid = || JoinError::Config { rank, size };
        let len = control_len(size).filter(|_| rank.0 < size).ok_or_else(invalid)?;
        let limits = MemoryLimits::discover();
        let segment = Segment::create("rma-control", len, len as u64, &limits, true)?;
        let spare = spare_descriptor().map_err(|errno| AllocateError::System {
            asked: len as u64,
            call: "eventfd",
            errno: errno.raw_os_error(),
        })?;
        let pid = rustix::process::getpid();
        let (descriptor, control) = (segment.descriptor(), segment.identity);
        let (span, file) = segment.into_parts();
        let address = span.at(0).addr() as u64;
        let card = Card { rank: rank.0, size, pid, descriptor, control, address };
        let own = ControlSegment::create(span, rank, size).ok_or_else(invalid)?;
        let cards = exchange(&card.to_bytes()).map_err(JoinError::Exchange)?;
        let neighbours = read_cards(&cards, size, control.len)?;
        Ok(Self::new(config, own, file, spare, neighbours, Heap::new(limits)))
    }
}

fn read_cards<E>(
    cards: &[Vec<u8>],
    size: u32,
    control_len: u64,
) -> Result<Box<[Neighbour]>, JoinError<E>> {
    if cards.len() != size as usize {
        return Err(JoinError::Count { got: cards.len(), size });
    }
    (0..size)
        .zip(cards)
        .map(|(rank, bytes)| {
            let rank_error = |problem| JoinError::Card { rank: WorldRank(rank), problem };
            Card::parse(bytes, rank, size, control_len).map(Neighbour::new).map_err(rank_error)
        })
        .collect()
}
