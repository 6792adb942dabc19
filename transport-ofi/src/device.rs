//! Memory of peers by a provider's own remote memory access.
//!
//! Peers reach a rank's memory at the endpoint of its messages, which lives as long as the rank.
//! Each queue of the core has an endpoint for transfers that go through slots, which the endpoint
//! owns, and others, each of one peer at a time, for those that move memory of the program: to cut
//! that peer off is to close it. Layers above a provider take tens of megabytes for an endpoint, so
//! there are few.
#![allow(unsafe_code)] // room: promises Remote and Registration

use crate::book::Book;
use crate::error::remedy;
use crate::flights::{Key, key_of};
use crate::offer::core_of;
use crate::port::lock;
use crate::queue::{Posting, Queue};
use crate::sys::{Atomics, Combining, Endpoint as Ends, Exposed, NoAlias, Opened, Passive, Slot};
use crate::watcher::Bell;
use rma_core::transport::{
    Addressing, Atomic, DeviceError, Endpoint, Keys, LayoutCosts, Mapping, Members, Purpose,
    RegisterError, Registration, Remote, RemoteKey, RemoteLimits, Waker, WorldRank,
};
use rustc_hash::FxHashSet;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::process::{Resource, getrlimit};
use std::mem::ManuallyDrop;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

/// Errors of a key that is in use, and how many are drawn at most.
const TAKEN: [i32; 2] = [libc::ENOKEY, libc::EKEYREJECTED];
const KEYS_DRAWN: u32 = 64;
/// Slots of a queue, and bytes in each: what is larger moves memory of the program directly.
pub(crate) const TRANSFERS: u32 = 64;
pub(crate) const TRANSFER_BYTES: usize = 16 << 10;
/// Bytes that an atomic operation combines at most: a slot has its operands, what is compared, and
/// what was there.
const ATOMIC_BYTES: usize = TRANSFER_BYTES / 4;
/// Slots that transfers to one peer may have, so that one which stands still leaves some to others.
pub(crate) const TRANSFERS_TO_ONE: usize = 48;
/// Queues of a rank for memory of either purpose: threads share them.
const QUEUES_OF_PARTS: usize = 2;
const QUEUES_OF_REGIONS: usize = 1;
/// Peers that a queue moves memory of the program to or from at a time, and transfers to each.
pub(crate) const DIRECT_ENDS: usize = 2;
pub(crate) const DIRECT: u32 = 16;
/// Bytes of the largest direct transfer.
const DIRECT_BYTES: u64 = 1 << 30;
/// Runs of at least so many bytes are transfers of their own, where no costs were measured.
const RUN_BYTES: u64 = 4 << 10;
/// Of `tcp`, whose time is that of CPUs: `rma-bench network-layout` (docs/networks.md). A wire adds
/// the same to the first transfer and to the first message.
const TCP_COSTS: LayoutCosts = LayoutCosts {
    transfer_ns: 10_000,
    next_transfer_ns: 4_000,
    message_ns: 12_000,
    next_message_ns: 7_500,
};

/// The device of a rank.
pub(crate) struct Device {
    pub(crate) opened: Opened,
    pub(crate) passive: Arc<Passive>,
    provider: String,
    costs: Option<LayoutCosts>,
    /// Where peers are reached.
    pub(crate) book: Arc<Book>,
    limits: RemoteLimits,
    /// How long a target may take to say whether it has a key.
    pub(crate) wait_timeout: Option<Duration>,
    atomics: Atomics,
    pub(crate) members: Arc<dyn Members>,
    waker: Arc<OnceLock<Waker>>,
    bell: Arc<Bell>,
    queues: Mutex<Vec<(Purpose, Weak<Queue>)>>,
    /// The files of all endpoints, where the watcher sleeps.
    files: OwnedFd,
    /// An endpoint has no file.
    is_blind: AtomicBool,
    /// A thread was told that there is no room.
    starved: AtomicBool,
    /// A queue has refused something, and may have no room yet: what makes room there may be
    /// progress without any transfer, as of a connection.
    refused: AtomicBool,
    /// Transfers that are not complete.
    under_way: AtomicUsize,
    /// Keys of this rank's memory that peers reach.
    keys: Mutex<FxHashSet<Key>>,
    /// Keys that peers are to be asked for, by a message.
    questions: Mutex<Vec<(WorldRank, Key)>>,
}

impl Device {
    pub(crate) fn new(
        opened: Opened,
        (provider, max_message, atomics): (&str, usize, Atomics),
        (passive, book): (Arc<Passive>, Arc<Book>),
        wait_timeout: Option<Duration>,
        members: Arc<dyn Members>,
        (bell, waker): (Arc<Bell>, Arc<OnceLock<Waker>>),
    ) -> rustix::io::Result<Self> {
        // What wants registered memory gets slots only.
        let direct = if opened.wants_registered() { TRANSFER_BYTES as u64 } else { DIRECT_BYTES };
        let limits = RemoteLimits {
            addressing: Addressing::Offset,
            keys: Keys::Chosen,
            inject: TRANSFER_BYTES.min(max_message),
            bounce: TRANSFER_BYTES.min(max_message),
            transfer_max: direct.min(max_message as u64),
            atomic_max: atomics.most().min(ATOMIC_BYTES) as u64,
            run_min: RUN_BYTES,
            coherent: false,
        };
        Ok(Self {
            opened,
            passive,
            provider: provider.to_owned(),
            costs: (core_of(provider) == "tcp").then_some(TCP_COSTS),
            book,
            limits,
            wait_timeout,
            atomics,
            members,
            waker,
            bell,
            queues: Mutex::default(),
            files: epoll::create(CreateFlags::CLOEXEC)?,
            is_blind: AtomicBool::new(false),
            starved: AtomicBool::new(false),
            refused: AtomicBool::new(false),
            under_way: AtomicUsize::new(0),
            keys: Mutex::default(),
            questions: Mutex::default(),
        })
    }

    /// Has the watcher sleep at the file of an endpoint, too, as long as that is open.
    fn watch(&self, endpoint: &Ends) -> rustix::io::Result<()> {
        match endpoint.file() {
            Some(file) => {
                epoll::add(&self.files, file, EventData::new_u64(0), EventFlags::IN)?;
            }
            None => self.is_blind.store(true, Relaxed),
        }
        // One that sleeps already may have asked for too little.
        self.bell.ring();
        Ok(())
    }

    /// Has the watcher sleep at others only: the file of an endpoint that has ended may be readable
    /// for ever.
    pub(crate) fn unwatch(&self, endpoint: &Ends) {
        if let Some(file) = endpoint.own_file() {
            // It fails if it was done before.
            _ = epoll::delete(&self.files, file);
        }
    }

    /// An endpoint for transfers, with so many slots of so many bytes.
    pub(crate) fn open(&self, size: (u32, usize)) -> Result<(Ends, Vec<Slot>), DeviceError> {
        let refused =
            |(call, errno)| DeviceError::NoEndpoint { call, errno, remedy: remedy(errno) };
        let (endpoint, slots) = self.opened.active(size).map_err(refused)?;
        let watched = self.watch(&endpoint);
        watched.map_err(|errno| refused(("epoll_ctl", errno.raw_os_error())))?;
        Ok((endpoint, slots))
    }

    /// An atomic operation, if it is one that the provider has, on as many elements as it takes.
    pub(crate) fn combining(
        &self,
        atomic: Atomic,
        count: usize,
        fetches: bool,
    ) -> Result<Combining, DeviceError> {
        let refused = |errno| DeviceError::System { call: "fi_query_atomic", errno };
        let combining = Combining::new(atomic, count, fetches).filter(|_| self.atomics.has(atomic));
        let combining = combining.ok_or(refused(libc::EOPNOTSUPP))?;
        let is_short = combining.len() as u64 <= self.limits.atomic_max;
        if is_short { Ok(combining) } else { Err(refused(libc::EMSGSIZE)) }
    }

    /// Registers memory with a key that is drawn: once more if other memory has that, as it may
    /// where keys have few bits.
    pub(crate) fn drawn(
        &self,
        expose: impl Fn(u64) -> Result<Exposed, NoAlias>,
    ) -> Result<Exposed, NoAlias> {
        let mut draws = 1;
        loop {
            let key = crate::join::random().map(u64::from_le_bytes);
            let key = key.map_err(|errno| NoAlias::System("getrandom", errno.raw_os_error()))?;
            match expose(key) {
                Err(NoAlias::System(_, errno)) if TAKEN.contains(&errno) && draws < KEYS_DRAWN => {
                    draws += 1;
                }
                exposed => return exposed,
            }
        }
    }

    /// A thread was told that there is no room.
    pub(crate) fn starve(&self) {
        self.refused.store(true, Release);
        self.starved.store(true, Release);
        self.bell.starve();
    }

    /// The watcher, if it sleeps without an eye on transfers, is to look.
    pub(crate) fn call_back(&self) {
        self.bell.call_back();
    }

    /// Transfers are complete, or there is room for one.
    pub(crate) fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake_threads();
        }
    }

    /// A transfer is under way.
    pub(crate) fn began(&self) {
        self.under_way.fetch_add(1, Release);
    }

    /// So many are not any more.
    pub(crate) fn ended(&self, count: usize) {
        self.under_way.fetch_sub(count, Release);
    }

    /// Has a peer asked whether it has that key: a connection that ended may have refused it.
    pub(crate) fn query(&self, peer: WorldRank, key: Key) {
        self.put_back(peer, key);
        self.bell.ring();
    }

    /// It could not be asked now: the watcher tries again soon, and needs no ring for that.
    pub(crate) fn put_back(&self, peer: WorldRank, key: Key) {
        let mut questions = lock(&self.questions);
        if !questions.contains(&(peer, key)) {
            questions.push((peer, key));
        }
    }

    /// What peers are to be asked, of which the watcher has not taken care yet.
    pub(crate) fn questions(&self) -> Vec<(WorldRank, Key)> {
        std::mem::take(&mut *lock(&self.questions))
    }

    /// Whether this rank's memory of that key is reached.
    pub(crate) fn has(&self, key: &Key) -> bool {
        lock(&self.keys).contains(key)
    }

    /// What a peer says of its key; nothing of a peer that cannot be asked.
    pub(crate) fn hear_of(&self, peer: WorldRank, key: Option<(Key, bool)>) {
        let mut news = false;
        self.each_queue(|queue| news |= queue.hear_of(peer, key));
        if news {
            self.wake();
        }
    }

    fn each_queue(&self, mut look: impl FnMut(&Queue)) {
        let queues: Vec<_> =
            lock(&self.queues).iter().filter_map(|(_, queue)| queue.upgrade()).collect();
        queues.iter().for_each(|queue| look(queue));
    }

    /// What the watcher does while the rank's threads sleep or compute: whether they are to look,
    /// and whether some queues are left to those that look by themselves, which `all` are not.
    pub(crate) fn look(&self, all: bool) -> (bool, bool) {
        // Most often peers transfer, and this rank does not.
        if self.under_way.load(Acquire) == 0 && !self.refused.load(Acquire) {
            return (false, false);
        }
        // Before the queues are looked at: one that refuses later says so again.
        self.refused.swap(false, AcqRel);
        let (mut news, mut refused) = (self.starved.swap(false, AcqRel), false);
        let (mut any_left, now) = (false, Instant::now());
        self.each_queue(|queue| {
            if !all && queue.looks.is_left(now) {
                (any_left, refused) = (true, true);
                return;
            }
            let of_queue = queue.look();
            news |= of_queue.0;
            refused |= of_queue.1;
        });
        if refused {
            self.refused.store(true, Release);
        }
        (news, any_left)
    }

    /// Whether some queues are left to threads, and others have nothing under way: a look would be
    /// of no use.
    pub(crate) fn are_left(&self, now: Instant) -> bool {
        let (mut any, mut all) = (false, true);
        self.each_queue(|queue| {
            let is_left = queue.looks.is_left(now);
            any |= is_left;
            all &= is_left || queue.is_at_rest();
        });
        any && all
    }

    /// Looks of threads count from now on.
    pub(crate) fn note_looks(&self, now: Instant) {
        self.each_queue(|queue| _ = queue.looks.is_left(now));
    }

    /// Whether something is under way, and whether its file may be waited at: asked each time
    /// before; if not, there is something to look at already.
    pub(crate) fn rest(&self) -> (bool, bool) {
        let mut is_busy = self.starved.load(Acquire) || self.is_blind.load(Relaxed);
        let mut may_wait = true;
        self.each_queue(|queue| {
            let of_queue = queue.rest();
            is_busy |= of_queue.0;
            may_wait &= of_queue.1;
        });
        (is_busy, may_wait)
    }

    /// What the watcher sleeps at.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.files.as_fd()
    }
}

/// A device, as the core has it.
pub(crate) struct Memory(pub(crate) Arc<Device>);

// SAFETY: a provider reaches this rank's memory by registrations only, which are of aliases: when
// one is dropped it is closed, so that its key is refused, and the alias is cut, so that a transfer
// in the middle touches other memory. Keys are random; where the provider chooses them, and may
// repeat one, places are addresses in aliases, whose remains keep their addresses from others.
unsafe impl Remote for Memory {
    fn explain(&self) -> String {
        let Device { opened, provider, limits, atomics, .. } = &*self.0;
        let keys = match opened.key_bits() {
            _ if opened.chooses_keys() => "the provider's".to_owned(),
            bits => format!("{bits} random bits"),
        };
        let large = if opened.wants_registered() {
            "larger ones in pieces of that, as the provider wants registered memory"
        } else {
            "larger ones move memory of the program directly"
        };
        let atomics = if atomics.is_empty() {
            "atomics go by messages".to_owned()
        } else {
            let most = limits.atomic_max;
            format!(
                "atomics of integers are the provider's, up to {most} bytes each, where no CPU \
                 combines elements, too"
            )
        };
        format!(
            "remote memory access of {provider}: transfers up to {TRANSFER_BYTES} bytes go through \
             {TRANSFERS} slots, {large}; puts are complete when they are in the \
             target's memory; keys are {keys}; {atomics}"
        )
    }

    fn limits(&self) -> RemoteLimits {
        self.0.limits
    }

    fn costs_to(&self, _: WorldRank) -> Option<LayoutCosts> {
        self.0.costs
    }

    fn reaches(&self, peer: WorldRank) -> bool {
        peer.0 < self.0.book.size()
    }

    fn does(&self, atomic: Atomic) -> bool {
        self.0.atomics.has(atomic)
    }

    unsafe fn register(
        &self,
        memory: Mapping,
        _: Option<RemoteKey>,
    ) -> Result<Box<dyn Registration>, RegisterError> {
        let device = &*self.0;
        let span = (memory.base, memory.len);
        // SAFETY: says the caller.
        let expose =
            |key| unsafe { Exposed::new(&device.opened, device.passive.clone(), span, key) };
        let exposed = device.drawn(expose);
        let exposed = exposed.map_err(|why| not_registered(why, span.1, lockable()))?;
        let (key, start) = exposed.key();
        lock(&device.keys).insert(key_of(key, start));
        Ok(Box::new(Registered { exposed: ManuallyDrop::new(exposed), device: self.0.clone() }))
    }

    fn endpoint(&self, purpose: Purpose) -> Result<Box<dyn Endpoint>, DeviceError> {
        let mut queues = lock(&self.0.queues);
        let most = match purpose {
            Purpose::Parts => QUEUES_OF_PARTS,
            Purpose::Regions => QUEUES_OF_REGIONS,
        };
        if queues.iter().filter(|(of, _)| *of == purpose).count() == most {
            // The core shares one.
            return Err(DeviceError::Ended);
        }
        let queue = Arc::new(Queue::open(self.0.clone())?);
        queues.push((purpose, Arc::downgrade(&queue)));
        Ok(Box::new(Posting(queue)))
    }
}

/// Why so many bytes were not registered, where a process may have that much more locked.
pub(crate) fn not_registered(why: NoAlias, len: usize, lockable: Option<u64>) -> RegisterError {
    match (why, lockable) {
        (NoAlias::Unfit, _) => RegisterError::Unsupported,
        // Of the provider: the system's own shortages have nothing to do with that limit.
        (NoAlias::System("fi_mr_reg", libc::ENOMEM), Some(available)) if available < len as u64 => {
            RegisterError::Shortage {
                requested: len as u64,
                available,
                limit: "of memory that is locked: ulimit -l",
            }
        }
        (NoAlias::System(call, errno), _) => RegisterError::System { call, errno },
    }
}

/// How many bytes this process may still have locked for devices, if that is limited.
fn lockable() -> Option<u64> {
    let most = getrlimit(Resource::Memlock).current?;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let pinned = status.lines().find_map(|line| line.strip_prefix("VmPin:"));
    let pinned = pinned.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    Some(most.saturating_sub(pinned.unwrap_or_default().saturating_mul(1024)))
}

/// Memory of this rank that peers reach.
struct Registered {
    exposed: ManuallyDrop<Exposed>,
    device: Arc<Device>,
}

impl Registration for Registered {
    fn key(&self) -> RemoteKey {
        let (key, start) = self.exposed.key();
        let mut bytes = [0; RemoteKey::LEN];
        bytes[..16].copy_from_slice(&key_of(key, start));
        RemoteKey(bytes)
    }
}

/// The key as the provider has it, and where the memory begins.
pub(crate) fn parse(key: &RemoteKey) -> (u64, u64) {
    let word = |at: usize| {
        let bytes = key.0[at..].first_chunk().copied().unwrap_or_default();
        u64::from_le_bytes(bytes)
    };
    (word(0), word(8))
}

impl Drop for Registered {
    fn drop(&mut self) {
        // A fork's copy of the provider shares its files with the rank, to which the memory is.
        if !self.device.members.is_fork() {
            // Before it is closed: a peer that asks then is told that it is gone.
            let (key, start) = self.exposed.key();
            lock(&self.device.keys).remove(&key_of(key, start));
            // SAFETY: dropped here only.
            unsafe { ManuallyDrop::drop(&mut self.exposed) };
        }
    }
}
