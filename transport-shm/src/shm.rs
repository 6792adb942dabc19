//! The transport itself.
#![allow(unsafe_code)] // room: promises `Shared`

use std::hint;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use rma_core::transport::{
    AllocateError, Cma, CmaError, DescribeError, Descriptor, ImportError, Job, Limits, Mapped,
    Members, Messages, Outcome, Parts, PeerState, Region, Shared, Sleep, SubmitError, Ticket,
    Transport, WorldRank,
};
use rma_core::{Extent, Place};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use crate::card;
use crate::control::{ControlSegment, MESSAGE_MAX, SLOT_BYTES, SLOTS};
use crate::doorbell::Doorbell;
use crate::fence;
use crate::heap::{ARENA_BYTES, Heap, SMALL_MAX};
use crate::inbox::{Inbox, Wake};
use crate::join::ShmConfig;
use crate::neighbour::Neighbour;
use crate::parent::Parent;
use crate::patience::{Pass, Patience};
use crate::roster::Roster;
use crate::segment;

/// Longest sleep at a stretch. A rank that was killed rings none: a waiter looks again.
/// It hides a ring that is forgotten, so tests of anything else do without it.
const NAP_MAX: Duration = Duration::from_millis(250);

/// One rank's end of the shared-memory transport.
///
/// Dropping it departs: in order, or as failed if the thread is panicking. Regions and imports
/// may outlive it.
pub struct Shm {
    pub(crate) rank: WorldRank,
    cores: u32,
    /// Ranks of this machine.
    here: Range<u32>,
    /// Those of them on each pretended node.
    node_ranks: u32,
    /// Longest sleep at a stretch, if there is a longest.
    nap: Option<Duration>,
    pub(crate) own: ControlSegment,
    /// Neighbours open it by its number.
    _own_file: Option<OwnedFd>,
    pub(crate) roster: Arc<Roster>,
    /// By rank, those that this rank has had to do with; its own is used for imports only.
    neighbours: Box<[OnceLock<Box<Neighbour>>]>,
    heap: Arc<Heap>,
    pub(crate) inbox: Inbox<SLOTS, SLOT_BYTES, MESSAGE_MAX>,
    /// The thread of the progress agent.
    pub(crate) agent: Mutex<Option<JoinHandle<()>>>,
    left: AtomicBool,
    patience: Patience,
    parent: Parent,
}

impl Shm {
    pub(crate) fn new(
        config: ShmConfig,
        here: Range<u32>,
        own: ControlSegment,
        own_file: Option<OwnedFd>,
        roster: Roster,
        heap: Arc<Heap>,
    ) -> Self {
        let neighbours = (0..roster.ranks()).map(|_| OnceLock::new()).collect();
        let ranks = here.end - here.start;
        let patience = Patience::new(ranks.div_ceil(config.cores.max(1)));
        let nodes = if ranks == config.size { config.nodes.max(1) } else { 1 };
        Self {
            rank: config.rank,
            cores: config.cores,
            here,
            node_ranks: ranks.div_ceil(nodes).max(1),
            nap: config.naps.then_some(NAP_MAX),
            own,
            _own_file: own_file,
            roster: Arc::new(roster),
            neighbours,
            heap,
            inbox: Inbox::new(),
            agent: Mutex::default(),
            left: AtomicBool::new(false),
            patience,
            parent: Parent::new(),
        }
    }

    /// This process.
    pub fn rank(&self) -> WorldRank {
        self.rank
    }

    /// Processes of the job.
    pub fn size(&self) -> u32 {
        self.ranks()
    }

    /// Messages dropped because their slot held nonsense; 0 unless a peer writes where it must
    /// not.
    pub fn corrupt_messages(&self) -> u64 {
        self.inbox.corrupt()
    }

    /// What tells the ranks of this machine of those elsewhere.
    pub fn others(&self) -> Others {
        Others { roster: self.roster.clone(), here: self.here.clone() }
    }

    fn ranks(&self) -> u32 {
        self.roster.ranks()
    }

    /// Ranks of this machine, which share its CPUs.
    fn ranks_here(&self) -> u32 {
        self.here.end - self.here.start
    }

    /// Which pretended node of this machine a rank is on; `None` if it is elsewhere.
    #[inline]
    fn node_of(&self, rank: WorldRank) -> Option<u32> {
        self.here.contains(&rank.0).then(|| (rank.0 - self.here.start) / self.node_ranks)
    }

    fn neighbour(&self, rank: WorldRank) -> Result<&Neighbour, ImportError> {
        let place = self.neighbours.get(rank.0 as usize).ok_or(ImportError::PeerGone(rank))?;
        match place.get() {
            Some(neighbour) => Ok(neighbour),
            None => {
                let card = self.roster.card(rank).ok_or(ImportError::Malformed(rank))?;
                Ok(place.get_or_init(|| Box::new(Neighbour::new(card))))
            }
        }
    }

    #[inline]
    fn control(&self, rank: WorldRank) -> Result<&ControlSegment, ImportError> {
        if rank == self.rank { Ok(&self.own) } else { self.neighbour(rank)?.control() }
    }

    /// This rank's doorbell.
    #[inline]
    pub(crate) fn bell(&self) -> &Doorbell {
        self.roster.bell(self.rank).expect("a rank of the job is on its roster")
    }

    /// A peer failed, and did not say so: the first rank to notice tells the others.
    #[cold]
    fn lost(&self, peer: WorldRank) -> PeerState {
        // A rank that has left says nothing of others any more.
        if self.left.load(Relaxed) {
            return PeerState::Failed;
        }
        if self.roster.tell(peer, Outcome::Failed) && self.roster.failed() == Some(peer) {
            self.roster.ring_all();
        }
        self.roster.state(peer)
    }

    /// Puts a message into a message ring, and rings no bell; where it ends there.
    #[inline]
    fn push(
        &self,
        to: WorldRank,
        head: &[u8],
        body: &[u8],
    ) -> Result<(&ControlSegment, u64), SubmitError> {
        // A line that seldom changes; a ring whose receiver is gone would take a lapful more.
        if self.roster.state(to) != PeerState::Alive {
            return Err(SubmitError::PeerFailed(to));
        }
        let control = self.control(to).map_err(|error| match error {
            ImportError::System { .. } => SubmitError::Unreachable(error),
            _ => SubmitError::PeerFailed(to),
        })?;
        match control.ring.push(self.rank.0, head, body) {
            Ok(end) => Ok((control, end)),
            Err(_) => Err(self.full(to)),
        }
    }

    /// Wakes the senders that found the message ring full; a bit stands for every 64th rank.
    #[cold]
    fn wake(&self, wake: Wake) {
        if wake.own {
            self.bell().ring_for_work();
        }
        for rank in (0..self.ranks()).filter(|rank| wake.refused & 1 << (rank % 64) != 0) {
            self.ring_for_work(WorldRank(rank));
        }
    }

    #[inline]
    fn ring_for_work(&self, rank: WorldRank) {
        if let Some(bell) = self.roster.bell(rank) {
            bell.ring_for_work();
        }
    }

    /// Gives the CPU to another thread, and learns from the time that it took.
    fn yield_cpu(&self) {
        let from = self.now();
        rustix::thread::sched_yield();
        self.patience.yielded(from, self.now());
    }

    #[cold]
    fn full(&self, to: WorldRank) -> SubmitError {
        self.ring_for_work(to);
        match self.peer_state(to) {
            PeerState::Alive => SubmitError::Again,
            _ => SubmitError::PeerFailed(to),
        }
    }
}

/// Tells the ranks of a machine how ranks elsewhere have left.
pub struct Others {
    roster: Arc<Roster>,
    here: Range<u32>,
}

impl Others {
    /// They have left so. Word of ranks of this machine, which tell of themselves, is dropped.
    pub fn left(&self, ranks: Range<u32>, outcome: Outcome) {
        let elsewhere = ranks.filter(|rank| !self.here.contains(rank));
        let news = elsewhere.filter(|rank| self.roster.tell(WorldRank(*rank), outcome)).count();
        if news > 0 {
            self.roster.ring_all();
        }
    }
}

fn cma_error(peer: WorldRank, error: Errno) -> CmaError {
    match error {
        Errno::SRCH => CmaError::PeerGone(peer),
        error => CmaError::System { peer, errno: error.raw_os_error() },
    }
}

/// All that it can do.
impl From<Shm> for Transport {
    fn from(shm: Shm) -> Self {
        let job = Job { name: "shm", rank: shm.rank, size: shm.ranks() };
        let shm = Arc::new(shm);
        let parts = Parts {
            job,
            messages: shm.clone(),
            sleep: shm.clone(),
            members: shm.clone(),
            shared: shm.clone(),
            cma: Some(shm.clone()),
            remote: None,
            agent: Some(shm),
            views: None,
        };
        // SAFETY: of one rank, which gives itself away.
        unsafe { Self::from_parts(parts) }
    }
}

// SAFETY: the message ring gives each message once, and its sender as the slot says that it took;
// `send` is the core's alone.
unsafe impl Messages for Shm {
    fn explain(&self) -> String {
        let (ranks, cores) = (self.ranks_here(), self.cores);
        let waiting = self.patience.explain();
        let barriers =
            if self.is_crowded() { "are counted at the first rank" } else { "by dissemination" };
        format!(
            "shm: memfd segments (regions up to {} KiB in arenas of {} KiB, larger ones on their \
             own), message ring of {SLOTS} slots of {SLOT_BYTES} bytes for messages up to \
             {MESSAGE_MAX} bytes, {ranks} ranks on {cores} \
             CPUs, {waiting}; barriers {barriers}",
            SMALL_MAX >> 10,
            ARENA_BYTES >> 10,
        )
    }

    fn limits(&self) -> Limits {
        Limits { message_max: MESSAGE_MAX }
    }

    unsafe fn send(&self, to: WorldRank, head: &[u8], body: &[u8]) -> Result<(), SubmitError> {
        self.push(to, head, body)?;
        self.ring_for_work(to);
        Ok(())
    }

    unsafe fn answer(&self, to: WorldRank, head: &[u8], body: &[u8]) -> Result<(), SubmitError> {
        let (control, end) = self.push(to, head, body)?;
        // What came behind it while it was not published has rung in vain.
        if let Some(bell) = self.roster.bell(to) {
            bell.ring_unless_work(|| control.ring.claimed() != end);
        }
        Ok(())
    }

    /// Each sender's positions follow each other in the ring, which is read in their order.
    fn keeps_order(&self, _to: WorldRank) -> bool {
        true
    }

    /// At most 64 messages a call. Each is copied to private memory before `sink` sees it, and no
    /// lock that `send` needs is held, so `sink` may send, also to this rank; it must not poll.
    ///
    /// A thread that is turned away because another one polls is rung when that one is done.
    #[inline]
    fn poll(&self, sink: &mut dyn FnMut(WorldRank, &[u8])) -> usize {
        self.inbox.drain(&self.own.ring, self.ranks(), sink, |wake| self.wake(wake))
    }

    fn arrived(&self) -> u64 {
        self.own.ring.claimed()
    }

    fn is_handled(&self, mark: u64) -> bool {
        self.inbox.is_handled(mark)
    }
}

impl Sleep for Shm {
    #[inline]
    fn ring(&self, peer: WorldRank) {
        if let Some(bell) = self.roster.bell(peer) {
            bell.ring();
        }
    }

    fn arm(&self) -> Ticket {
        Ticket(self.bell().arm())
    }

    fn disarm(&self, _ticket: Ticket) {
        self.bell().disarm();
    }

    fn park(&self, ticket: Ticket, timeout: Option<Duration>) {
        let from = self.now();
        self.bell().park(ticket.0, timeout.into_iter().chain(self.nap).min());
        self.patience.slept(from, self.now(), self.bell().is_rung_since(ticket.0));
    }

    #[inline]
    fn is_crowded(&self) -> bool {
        self.ranks_here() > self.cores
    }

    #[inline]
    fn relax(&self, round: u32) -> bool {
        match self.patience.pass(round, || self.now()) {
            Pass::Look => {}
            Pass::Spin => hint::spin_loop(),
            Pass::Yield => self.yield_cpu(),
            Pass::Sleep => return false,
        }
        true
    }

    #[inline]
    fn now(&self) -> Duration {
        // Never before boot, so never negative.
        clock_gettime(ClockId::Monotonic).try_into().unwrap_or_default()
    }
}

// SAFETY: `is_fork` looks at a page that the kernel wipes in a child, and in no other process.
unsafe impl Members for Shm {
    fn told(&self, peer: WorldRank) -> PeerState {
        self.roster.state(peer)
    }

    /// Notices a killed process too, within some milliseconds.
    fn peer_state(&self, peer: WorldRank) -> PeerState {
        let state = self.roster.state(peer);
        if peer == self.rank || state != PeerState::Alive {
            return state;
        }
        if peer.0 >= self.ranks() {
            return PeerState::Failed;
        }
        // Its process is not seen from here.
        if !self.here.contains(&peer.0) {
            return state;
        }
        if self.neighbour(peer).is_ok_and(|neighbour| neighbour.is_there(self.now())) {
            return PeerState::Alive;
        }
        // It may have said so between the two looks.
        match self.roster.state(peer) {
            PeerState::Alive => self.lost(peer),
            state => state,
        }
    }

    #[inline]
    fn failed(&self) -> Option<WorldRank> {
        self.roster.failed()
    }

    fn is_fork(&self) -> bool {
        self.parent.is_fork()
    }

    fn depart(&self, outcome: Outcome) {
        if self.is_fork() {
            return;
        }
        self.left.store(true, Relaxed);
        // Of several threads, the one that changes something wakes the others.
        if self.roster.tell(self.rank, outcome) {
            self.roster.ring_all();
        }
    }
}

// SAFETY: `Heap::allocate` returns zeroed memory of a memfd that only descriptors lead to, and its
// free list (property-tested) or a mapping of its own keep regions apart. What is imported was
// verified to be the file that its owner describes.
unsafe impl Shared for Shm {
    fn allocate(&self, len: usize, align: usize) -> Result<Box<dyn Region>, AllocateError> {
        Ok(Box::new(self.heap.allocate(len, align)?))
    }

    fn available(&self) -> (u64, &'static str) {
        let available = self.heap.limits().of_all();
        (available.bytes, available.limit)
    }

    fn is_near(&self, peer: WorldRank) -> bool {
        self.node_of(peer).is_some_and(|node| self.node_of(self.rank) == Some(node))
    }

    unsafe fn describe(&self, extent: &Extent, start: u64) -> Result<Descriptor, DescribeError> {
        let (number, offset, synchronous) = match extent.place {
            Place::Region(descriptor) => return Ok(descriptor),
            Place::File { number, offset, synchronous } => (number, offset, synchronous),
            _ => return Err(DescribeError::Unsupported),
        };
        let page = rustix::param::page_size() as u64;
        if !start.is_multiple_of(page) || !offset.is_multiple_of(page) {
            return Err(DescribeError::Unfit("does not begin with a page"));
        }
        if number < 0 {
            return Err(DescribeError::Unfit("is of no file"));
        }
        // SAFETY: caller: the backing whose extent it is lives, and keeps the file open.
        let file = unsafe { BorrowedFd::borrow_raw(number) };
        let system =
            |errno: Errno| DescribeError::System { call: "fstat", errno: errno.raw_os_error() };
        let file = segment::identify(file).map_err(system)?;
        if offset.checked_add(extent.len).is_none_or(|end| end > file.len) {
            return Err(DescribeError::Unfit("ends behind its file"));
        }
        let range = offset..offset + extent.len;
        Ok(card::describe_file(file, number, range, synchronous))
    }

    fn import(
        &self,
        owner: WorldRank,
        descriptors: &[Descriptor],
    ) -> Result<Box<dyn Mapped>, ImportError> {
        let neighbour = self.neighbour(owner)?;
        let places: Option<Vec<_>> = descriptors.iter().map(card::read).collect();
        let places = places.ok_or(ImportError::Malformed(owner))?;
        let imported: Result<Box<dyn Mapped>, _> = match places[..] {
            [place] if place.device.is_none() => {
                neighbour.import(place).map(|import| Box::new(import) as _)
            }
            _ => neighbour.import_all(&places).map(|joined| Box::new(joined) as _),
        };
        imported.map_err(|error| match error {
            // Its descriptors are closed because it left.
            ImportError::Malformed(_) if self.roster.state(owner) != PeerState::Alive => {
                ImportError::PeerGone(owner)
            }
            error => error,
        })
    }

    fn fences_near(&self) -> bool {
        self.roster.is_fenced()
    }

    fn fence_near(&self) -> Result<(), ImportError> {
        fence::all().map_err(|_| ImportError::Unfenced(self.rank))
    }
}

impl Cma for Shm {
    #[inline]
    fn reaches(&self, peer: WorldRank) -> Result<(), CmaError> {
        let neighbour = self.neighbour(peer).map_err(|_| CmaError::PeerGone(peer))?;
        if !self.is_near(peer) {
            return Err(CmaError::Far(peer));
        }
        neighbour.reaches().map_err(|error| cma_error(peer, error))
    }

    fn copy_from(&self, peer: WorldRank, address: u64, bytes: &mut [u8]) -> Result<(), CmaError> {
        let neighbour = self.neighbour(peer).map_err(|_| CmaError::PeerGone(peer))?;
        let copied = neighbour.copy_from(address, bytes);
        copied.map_err(|error| cma_error(peer, error))
    }

    unsafe fn copy_to(&self, peer: WorldRank, address: u64, bytes: &[u8]) -> Result<(), CmaError> {
        let neighbour = self.neighbour(peer).map_err(|_| CmaError::PeerGone(peer))?;
        // SAFETY: forwarded to the caller.
        let copied = unsafe { neighbour.copy_to(address, bytes) };
        copied.map_err(|error| cma_error(peer, error))
    }
}

impl Drop for Shm {
    fn drop(&mut self) {
        let panicking = std::thread::panicking();
        self.depart(if panicking { Outcome::Failed } else { Outcome::Departed });
    }
}

#[cfg(test)]
#[path = "shm_tests.rs"]
mod tests;
