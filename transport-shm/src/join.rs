//! How the ranks of a node find each other.
#![allow(unsafe_code)] // room: declares what a caller promises of the exchange

use std::ops::Range;

use rma_core::transport::{AllocateError, ImportError, WorldRank};
use rustix::fd::OwnedFd;

use crate::card::{self, Card, Notice};
use crate::control::{ControlSegment, control_len};
use crate::fence;
use crate::heap::Heap;
use crate::memory_limits::MemoryLimits;
use crate::roster::{Roster, roster_len};
use crate::segment::{self, OpenError, Segment};
use crate::shm::Shm;

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
        /// The rank whose card it is.
        rank: WorldRank,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The roster, a segment that the first rank of a machine makes and all there map, cannot be
    /// mapped.
    #[error(
        "the roster of the job, which the first rank here made, cannot be mapped: {0}; all ranks \
         must be of one user and see each other's processes, and that rank must not end while \
         others start"
    )]
    Roster(ImportError),
    /// The memory of another rank of this machine may not be opened.
    #[error(
        "the memory of rank {peer} may not be opened: {call} failed (os error {errno}); all ranks \
         of a machine must be of one user, who may read their programs (`chmod u+r`), and these \
         may have no rights of their own (set-user-ID, capabilities)"
    )]
    Closed {
        /// The other rank.
        peer: WorldRank,
        /// The system call that was refused.
        call: &'static str,
        /// Its error number.
        errno: i32,
    },
}

rma_core::debug_as_display!(JoinError<E: core::fmt::Display>);

/// What the ranks said in an exchange, by rank: how many in a row said the same, and what.
pub type Said = Vec<(u32, Vec<u8>)>;

impl Shm {
    /// Joins the ranks of a node. **Collective** over the ranks of the job: `exchange` is the
    /// bootstrap's all-gather, which gives every rank the bytes of all. It is called twice: to say
    /// where the roster is, and when this rank is on it.
    ///
    /// But for the roster, nothing of a neighbour is mapped before it is needed.
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
        exchange: impl FnMut(&[u8]) -> Result<Said, E>,
    ) -> Result<Self, JoinError<E>> {
        // SAFETY: forwarded to the caller.
        unsafe { Self::join_on_host(config, 0..config.size, exchange) }
    }

    /// As [`join`](Self::join), where `here` are the ranks of this machine, which is one node, and
    /// others are elsewhere: of these, it learns by [`others`](Self::others) alone.
    ///
    /// # Errors
    ///
    /// As [`join`](Self::join).
    ///
    /// # Safety
    ///
    /// As [`join`](Self::join).
    pub unsafe fn join_on_host<E>(
        config: ShmConfig,
        here: Range<u32>,
        mut exchange: impl FnMut(&[u8]) -> Result<Said, E>,
    ) -> Result<Self, JoinError<E>> {
        let ShmConfig { rank, size, .. } = config;
        let invalid = || JoinError::Config { rank, size };
        let is_valid = here.contains(&rank.0) && here.end <= size;
        let roster_len = roster_len(size).filter(|_| is_valid).ok_or_else(invalid)?;
        let limits = MemoryLimits::discover();
        let len = control_len();
        let segment = Segment::create("rma-control", len, len as u64, &limits, true)?;
        let pid = rustix::process::getpid();
        let (descriptor, control) = (segment.descriptor(), segment.identity);
        let (span, file) = segment.into_parts();
        let address = span.at(0).addr() as u64;
        let card = Card { rank: rank.0, size, pid, descriptor, control, address };
        let own = ControlSegment::create(span, rank, size).ok_or_else(invalid)?;

        let made = match rank.0 == here.start {
            true => Some(make_roster(size, roster_len, &limits)?.ok_or_else(invalid)?),
            false => None,
        };
        let mine = match &made {
            Some((_, _, notice)) => notice.to_bytes(size),
            None => card::tag_bytes(size),
        };
        let said = exchange(&mine).map_err(JoinError::Exchange)?;
        let notice = read_notice(&said, size, here.clone(), roster_len as u64)?;
        let (roster, kept) = match made {
            Some((roster, file, _)) => (roster, file),
            None => (map_roster(notice, size, WorldRank(here.start))?, None),
        };
        roster.introduce(rank, &card);
        if !fence::register() {
            roster.set_unfenced();
        }
        exchange(&[]).map_err(JoinError::Exchange)?;
        // All have mapped it.
        drop(kept);
        let next = if rank.0 + 1 < here.end { rank.0 + 1 } else { here.start };
        if next != rank.0 {
            check_access(&roster, WorldRank(next))?;
        }
        Ok(Self::new(config, here, own, file, roster, Heap::new(limits)))
    }
}

/// The roster, its file, and what others have to know of it.
type Made = (Roster, Option<OwnedFd>, Notice);

/// `None`: its parts do not fit, which its length rules out.
fn make_roster(
    size: u32,
    len: usize,
    limits: &MemoryLimits,
) -> Result<Option<Made>, AllocateError> {
    let segment = Segment::create("rma-roster", len, len as u64, limits, true)?;
    let (descriptor, roster) = (segment.descriptor(), segment.identity);
    let notice = Notice { pid: rustix::process::getpid(), descriptor, roster };
    let (span, file) = segment.into_parts();
    Ok(Roster::create(span, size).map(|roster| (roster, file, notice)))
}

/// Opens what the next rank has, of which nothing is mapped before it is needed: a rank that may
/// not be reached would be taken for one that is gone. Each rank is the next one of another.
fn check_access<E>(roster: &Roster, peer: WorldRank) -> Result<(), JoinError<E>> {
    let Some(Card { pid, descriptor, .. }) = roster.card(peer) else { return Ok(()) };
    // One that has ended meanwhile is noticed where it is waited for.
    match segment::open(pid, descriptor).err().and_then(OpenError::refusal) {
        Some((call, errno)) => Err(JoinError::Closed { peer, call, errno }),
        None => Ok(()),
    }
}

fn refused<E>(error: OpenError, peer: WorldRank) -> JoinError<E> {
    match error.refusal() {
        Some((call, errno)) => JoinError::Closed { peer, call, errno },
        None => JoinError::Roster(error.of(peer)),
    }
}

fn map_roster<E>(notice: Notice, size: u32, owner: WorldRank) -> Result<Roster, JoinError<E>> {
    let Notice { pid, descriptor, roster } = notice;
    let span =
        segment::import(pid, descriptor, roster, true).map_err(|error| refused(error, owner))?;
    Roster::import(span, size).ok_or(JoinError::Roster(ImportError::Malformed(owner)))
}

/// What the first rank here says, if all ranks here are of this job.
fn read_notice<E>(
    said: &[(u32, Vec<u8>)],
    size: u32,
    here: Range<u32>,
    roster_len: u64,
) -> Result<Notice, JoinError<E>> {
    let got: u64 = said.iter().map(|(count, _)| u64::from(*count)).sum();
    if got != u64::from(size) {
        return Err(JoinError::Count { got: usize::try_from(got).unwrap_or(usize::MAX), size });
    }
    let (mut notice, mut rank) = (None, 0);
    for (count, bytes) in said {
        // Ranks elsewhere have said the same to those of their host.
        let mut ranks = rank.max(here.start)..(rank + count).min(here.end);
        rank += count;
        let of = |rank| move |problem| JoinError::Card { rank: WorldRank(rank), problem };
        if ranks.contains(&here.start) && ranks.next().is_some() {
            notice = Some(Notice::parse(bytes, size, roster_len).map_err(of(here.start))?);
        }
        if let Some(first) = ranks.next() {
            card::check_tag(bytes, size).map_err(of(first))?;
        }
    }
    notice.ok_or(JoinError::Count { got: 0, size })
}
