//! A rank's port to the network: its endpoint, what has arrived, and what is known of each peer.

mod farewell;
mod reach;

use crate::book::{Book, Missing};
use crate::device::Device;
use crate::flights::Key;
use crate::frame::{HEADER, Header, Kind};
use crate::seal::{self, JobKey, Opener, Refused, Sealer};
use crate::sys::{Completion, Failure, Full, Passive, Slot};
use crate::turns::Turns;
use crate::watcher::Bell;
use rma_core::transport::{Members, Outcome, PeerState, SubmitError, Waker, WorldRank};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Duration;

/// Bytes of the largest message of the core.
pub(crate) const MESSAGE_MAX: usize = 8 << 10;
/// Slots for messages that arrive, and for those that leave.
pub(crate) const RECEIVES: u32 = 256;
pub(crate) const SENDS: u32 = 128;
/// Messages that one poll hands out.
const POLL_MAX: usize = 64;
/// Keys that peers may have asked for and not heard of.
const QUERIES_MOST: usize = 4096;
/// Why a peer has no number.
const NOT_TAKEN: &str =
    "the provider takes no more addresses (fi_av_insert); see the limits of memory";
/// `lost` while no rank is.
const NO_RANK: u64 = u64::MAX;

/// What is known of a peer that this rank has had to do with.
struct Peer {
    /// Its number at the endpoint, once something was sent there.
    number: OnceLock<u64>,
    /// Messages of the core that it was sent, and that came from it.
    sent: AtomicU64,
    came: AtomicU64,
    /// How many it has sent, once it leaves; until then, the largest number.
    of_all: AtomicU64,
    /// Whether its leaving has been answered, and this rank's by it.
    answered: AtomicBool,
    heard: AtomicBool,
    /// Whether it was told that this rank leaves.
    told: AtomicBool,
    /// Whether it knows where this rank is: it was told, or has sent something here.
    knows_here: AtomicBool,
    /// Whether the provider took no message to it when one was tried last: it is busy, or does not
    /// get through.
    waits: reach::Waits,
    /// The user was told that it is not reached.
    noted: AtomicBool,
    /// Why it was lost, although neither launcher nor ranks said that it had failed.
    lost: OnceLock<Failure>,
    /// Held while a message is given to the provider, so that numbers go out in their order.
    sealer: Mutex<Sealer>,
    opener: Mutex<Opener>,
}

impl Peer {
    /// Rank `peer` of a job with that key, as rank `here` knows it.
    fn new(key: &JobKey, here: WorldRank, peer: WorldRank) -> Self {
        Self {
            number: OnceLock::new(),
            sent: AtomicU64::new(0),
            came: AtomicU64::new(0),
            of_all: AtomicU64::new(u64::MAX),
            answered: AtomicBool::new(false),
            heard: AtomicBool::new(false),
            told: AtomicBool::new(false),
            knows_here: AtomicBool::new(false),
            waits: reach::Waits::default(),
            noted: AtomicBool::new(false),
            lost: OnceLock::new(),
            sealer: Mutex::new(Sealer::new(key, here, peer)),
            opener: Mutex::new(Opener::new(key, peer, here)),
        }
    }
}

/// What a rank says when it leaves, and whether its peers know.
pub(crate) enum Leave {
    /// It does not.
    Stays,
    /// It will, as soon as what it sent has arrived.
    Leaving(Outcome),
    /// All know; or this rank has failed, and says nothing.
    Left { in_order: bool },
}

/// One rank's port. Its threads send and poll; its watcher does while they do not.
pub(crate) struct Port {
    pub(crate) endpoint: Arc<Passive>,
    pub(crate) rank: WorldRank,
    key: JobKey,
    /// Where peers are reached.
    pub(crate) book: Arc<Book>,
    /// Those that this rank has had to do with, and no others.
    peers: RwLock<FxHashMap<WorldRank, Arc<Peer>>>,
    inserting: Mutex<()>,
    /// What is said of the other ranks beside the network.
    pub(crate) members: Arc<dyn Members>,
    pub(crate) waker: Arc<OnceLock<Waker>>,
    /// If this job's ranks reach each other's memory.
    pub(crate) device: Option<Arc<Device>>,
    pub(crate) bell: Arc<Bell>,
    /// How long a rank that leaves waits for peers to hear of it.
    pub(crate) farewell: Duration,

    /// Slots for messages that leave.
    free: Mutex<Vec<Slot>>,
    /// To which peer the message in a slot goes.
    destinations: Box<[AtomicU32]>,
    /// A thread was told that there is no room.
    starved: AtomicBool,
    /// Held by the thread that reads what is over.
    reading: Mutex<Reading>,

    /// Messages of the core that have arrived and that no poll has handed out.
    inbox: Mutex<VecDeque<Arrived>>,
    arrived: AtomicU64,
    handled: AtomicU64,
    turns: Turns,
    /// Polls so far: whether the rank's threads look by themselves.
    pub(crate) polls: AtomicU64,

    /// The first peer that was lost.
    lost: AtomicU64,
    /// Why the endpoint has ended: no peer is reached any more.
    ended: OnceLock<Failure>,
    /// Why the provider has refused a slot for what arrives; it is offered again.
    unfit: OnceLock<Failure>,
    lacks_slots: AtomicBool,
    /// Messages without a tag of this job's, those that had come before, and those that did not
    /// arrive whole.
    foreign: AtomicU64,
    repeated: AtomicU64,
    broken: AtomicU64,
    /// Questions of keys that were not answered; the peer that asked does so again.
    dropped: AtomicU64,
    /// Peers that leave and were not told that all has arrived: they wait until they have enough.
    untold: AtomicU64,
    pub(crate) leave: Mutex<Leave>,
    /// Peers that leave may have to be answered.
    pub(crate) due: AtomicBool,
    /// Which peers to answer about which key.
    queried: Mutex<Vec<(WorldRank, Key)>>,
}

#[derive(Default)]
struct Reading {
    over: Vec<Completion>,
    /// Slots that wait to be given to the provider again.
    rooms: Vec<Slot>,
}

/// A message of the core, in its slot behind a header.
struct Arrived {
    slot: Slot,
    len: usize,
    from: WorldRank,
}

/// What reading brought.
#[derive(Clone, Copy, Default)]
pub(crate) struct Brought {
    /// Messages, or news of peers.
    pub(crate) news: bool,
    /// Slots to send from.
    pub(crate) room: bool,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Port {
    pub(crate) fn new(
        (endpoint, mut slots): (Arc<Passive>, Vec<Slot>),
        (rank, key): (WorldRank, JobKey),
        book: Arc<Book>,
        members: Arc<dyn Members>,
        (bell, waker): (Arc<Bell>, Arc<OnceLock<Waker>>),
        (device, farewell): (Option<Arc<Device>>, Duration),
    ) -> Self {
        let free = slots.split_off(RECEIVES as usize);
        let reading = Reading { over: Vec::new(), rooms: slots };
        let port = Self {
            endpoint,
            rank,
            key,
            book,
            peers: RwLock::default(),
            inserting: Mutex::default(),
            members,
            waker,
            device,
            bell,
            farewell,
            free: Mutex::new(free),
            destinations: (0..RECEIVES + SENDS).map(|_| AtomicU32::new(0)).collect(),
            starved: AtomicBool::new(false),
            reading: Mutex::new(reading),
            inbox: Mutex::default(),
            arrived: AtomicU64::new(0),
            handled: AtomicU64::new(0),
            turns: Turns::default(),
            polls: AtomicU64::new(0),
            lost: AtomicU64::new(NO_RANK),
            ended: OnceLock::new(),
            unfit: OnceLock::new(),
            lacks_slots: AtomicBool::new(false),
            foreign: AtomicU64::new(0),
            repeated: AtomicU64::new(0),
            broken: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            untold: AtomicU64::new(0),
            leave: Mutex::new(Leave::Stays),
            due: AtomicBool::new(false),
            queried: Mutex::default(),
        };
        // Until this rank has left in order (`Port::may_close`).
        port.endpoint.stay_open(port.endpoint.is_delicate);
        // What the provider does not take now, later reads offer again.
        port.offer(&mut lock(&port.reading).rooms);
        port
    }

    pub(crate) fn size(&self) -> u32 {
        self.book.size()
    }

    pub(crate) fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }

    /// The first rank that was lost, if one was.
    pub(crate) fn lost(&self) -> Option<WorldRank> {
        u32::try_from(self.lost.load(Acquire)).ok().map(WorldRank)
    }

    pub(crate) fn is_lost(&self, peer: WorldRank) -> bool {
        if self.ended.get().is_some() {
            return peer != self.rank;
        }
        // Most often no peer is.
        self.lost().is_some() && self.met(peer).is_some_and(|peer| peer.lost.get().is_some())
    }

    /// Whether no peer is reached any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.get().is_some()
    }

    /// Whether there is no peer to be told anything: it was lost, has left or has failed.
    fn is_gone(&self, peer: WorldRank) -> bool {
        self.is_lost(peer) || self.members.peer_state(peer) != PeerState::Alive
    }

    /// A peer says where it is.
    fn learn(&self, from: WorldRank, address: &[u8]) {
        if !self.book.learn(from, address) {
            self.broken.fetch_add(1, Relaxed);
        }
    }

    /// Messages that were not taken, for want of a tag or since they had come before.
    pub(crate) fn refused(&self) -> u64 {
        self.foreign.load(Relaxed) + self.repeated.load(Relaxed)
    }

    /// What a user may want to know of it, in a few words.
    pub(crate) fn troubles(&self) -> String {
        let mut text = String::new();
        let counts = [&self.foreign, &self.repeated, &self.broken];
        let [foreign, repeated, broken] = counts.map(|count| count.load(Relaxed));
        if foreign + repeated + broken > 0 {
            text += &format!(
                "; dropped {foreign} messages without a tag of the job, {repeated} that had come \
                 before, {broken} not whole"
            );
        }
        let dropped = self.dropped.load(Relaxed);
        if dropped > 0 {
            text += &format!("; left {dropped} questions of keys without an answer");
        }
        let untold = self.untold.load(Relaxed);
        if untold > 0 {
            text += &format!("; left {untold} farewells without an answer");
        }
        for (what, failure) in [("the network ended", &self.ended), ("no room", &self.unfit)] {
            if let Some(Failure { call, code, .. }) = failure.get() {
                text += &format!("; {what}: {call} failed (error {code}), see FI_LOG_LEVEL=warn");
            }
        }
        text += &self.book.shown();
        for (rank, peer) in self.known() {
            if let Some(Failure { code, reason, .. }) = peer.lost.get() {
                text += &format!("; rank {rank} was lost: {reason} (error {code})");
            }
        }
        text
    }

    /// A peer that this rank has had to do with.
    fn met(&self, rank: WorldRank) -> Option<Arc<Peer>> {
        self.peers.read().unwrap_or_else(PoisonError::into_inner).get(&rank).cloned()
    }

    /// A rank of the job, which this one has to do with from now on.
    fn peer(&self, rank: WorldRank) -> Arc<Peer> {
        self.met(rank).unwrap_or_else(|| {
            let mut peers = self.peers.write().unwrap_or_else(PoisonError::into_inner);
            peers
                .entry(rank)
                .or_insert_with(|| Arc::new(Peer::new(&self.key, self.rank, rank)))
                .clone()
        })
    }

    /// The number of a peer's address, which is asked for when it is first needed.
    fn number(&self, rank: WorldRank, peer: &Peer) -> Result<u64, Missing> {
        if let Some(number) = peer.number.get() {
            return Ok(*number);
        }
        let address = self.book.address(rank)?;
        // No address gets two numbers.
        let _inserting = lock(&self.inserting);
        if let Some(number) = peer.number.get() {
            return Ok(*number);
        }
        let number = self.endpoint.insert(&address).ok_or(Missing::Unknown(NOT_TAKEN))?;
        Ok(*peer.number.get_or_init(|| number))
    }

    /// Sends a message of the core.
    pub(crate) fn send(&self, to: WorldRank, head: &[u8], body: &[u8]) -> Result<(), SubmitError> {
        if self.is_lost(to) || self.members.told(to) != PeerState::Alive {
            return Err(SubmitError::PeerFailed(to));
        }
        let peer = self.peer(to);
        let number = self.number(to, &peer).map_err(|missing| {
            match missing {
                Missing::Awaited => self.starve(),
                // Replies that wait for it are given up, and so is what waits for its replies.
                Missing::Unknown(why) => self.lose(to, nowhere(why)),
            }
            missing.submit(to)
        })?;
        match self.say((to, number), &peer, Kind::Data, [head, body]) {
            Ok(true) => {
                peer.sent.fetch_add(1, AcqRel);
                Ok(())
            }
            Ok(false) => Err(SubmitError::Again),
            Err(failure) => {
                self.lose(to, failure);
                // Of one that leaves there will be word; it takes no message any more.
                if peer.leaves() { Ok(()) } else { Err(SubmitError::PeerFailed(to)) }
            }
        }
    }

    /// Sends a message, behind this rank's own address if the peer may not know it: so it can
    /// answer also where no launcher tells it. False if there is no room now, as of `submit`.
    fn say(
        &self,
        to: (WorldRank, u64),
        peer: &Peer,
        kind: Kind,
        parts: [&[u8]; 2],
    ) -> Result<bool, Failure> {
        if !peer.knows_here.load(Acquire) {
            if !self.submit(to, peer, Kind::Here, [self.endpoint.address(), &[]])? {
                return Ok(false);
            }
            // Threads that do so at once say it twice, which is no harm.
            peer.knows_here.store(true, Release);
        }
        self.submit(to, peer, kind, parts)
    }

    /// False if there is no room now: a thread that sleeps until there is will be woken.
    fn submit(
        &self,
        to: (WorldRank, u64),
        peer: &Peer,
        kind: Kind,
        parts: [&[u8]; 2],
    ) -> Result<bool, Failure> {
        if self.offer_message(to, peer, kind, parts)? {
            return Ok(true);
        }
        // To read makes room, and the provider's progress.
        let brought = self.read();
        if brought.news {
            self.wake();
        }
        self.starve();
        // Pairs with the fence in `fed`: either that sees the flag, or this the room.
        fence(SeqCst);
        self.offer_message(to, peer, kind, parts)
    }

    /// A thread is told that there is no room.
    fn starve(&self) {
        if !self.starved.swap(true, AcqRel) {
            // It looks again by itself, also where the provider tells nothing.
            self.bell.ring();
        }
    }

    fn offer_message(
        &self,
        (to, number): (WorldRank, u64),
        peer: &Peer,
        kind: Kind,
        [head, body]: [&[u8]; 2],
    ) -> Result<bool, Failure> {
        let Some(mut slot) = lock(&self.free).pop() else { return Ok(false) };
        let len = HEADER + head.len() + body.len();
        let header = Header { from: self.rank, kind }.to_bytes();
        self.destinations[slot.index()].store(to.0, Relaxed);
        let bytes = &mut self.endpoint.bytes_mut(&mut slot)[..len];
        bytes[..HEADER].copy_from_slice(&header);
        bytes[HEADER..][..head.len()].copy_from_slice(head);
        bytes[HEADER + head.len()..].copy_from_slice(body);
        let mut sealer = lock(&peer.sealer);
        sealer.seal(bytes);
        let Err(Full(slot, failure)) = self.endpoint.send(slot, len, number) else {
            sealer.sent();
            peer.waits.end();
            return Ok(true);
        };
        drop(sealer);
        if failure.is_none() {
            peer.waits.begin();
        }
        lock(&self.free).push(slot);
        failure.map_or(Ok(false), Err)
    }

    /// Hands out what has arrived.
    pub(crate) fn poll(&self, sink: &mut dyn FnMut(WorldRank, &[u8])) -> usize {
        self.polls.fetch_add(1, Relaxed);
        let Some(turn) = self.turns.begin() else { return 0 };
        let brought = self.read();
        if brought.room {
            self.fed();
        }
        let mut count = 0;
        // Threads that sleep, the agent among them, do not wait for this one's next call.
        let is_left = loop {
            let mut inbox = lock(&self.inbox);
            let next = if count < POLL_MAX { inbox.pop_front() } else { None };
            let is_left = !inbox.is_empty();
            drop(inbox);
            let Some(Arrived { slot, len, from }) = next else { break is_left };
            sink(from, &self.endpoint.bytes(&slot)[HEADER..len]);
            count += 1;
            self.handled.fetch_add(1, Release);
            if let Err(Full(slot, failure)) = self.endpoint.receive(slot) {
                failure.into_iter().for_each(|failure| self.note_unfit(failure));
                lock(&self.reading).rooms.push(slot);
                self.lacks_slots.store(true, Release);
            }
        };
        if self.turns.end(turn) || is_left {
            self.wake();
        }
        count
    }

    pub(crate) fn arrived(&self) -> u64 {
        self.arrived.load(Acquire)
    }

    pub(crate) fn is_handled(&self, mark: u64) -> bool {
        self.handled.load(Acquire) >= mark
    }

    /// There is room: wakes those that were told that there is none.
    pub(crate) fn fed(&self) {
        fence(SeqCst);
        if self.starved.swap(false, AcqRel) {
            self.wake();
        }
    }

    pub(crate) fn is_starved(&self) -> bool {
        self.starved.load(Acquire)
    }

    /// Whether all that was sent is out of this rank's hands.
    pub(crate) fn is_idle(&self) -> bool {
        lock(&self.free).len() == SENDS as usize
    }

    /// Whether there is progress to be made that no file tells of: what the provider has taken and
    /// not sent, and what it had no room for.
    pub(crate) fn is_hasty(&self) -> bool {
        !self.is_idle() || self.is_starved() || self.lacks_slots()
    }

    /// Makes the provider's progress, and takes what is over.
    pub(crate) fn read(&self) -> Brought {
        let mut brought = Brought::default();
        // Another thread that reads takes what there is, and wakes.
        let Ok(mut reading) = self.reading.try_lock() else { return brought };
        let Reading { over, rooms } = &mut *reading;
        loop {
            let more = self.endpoint.read(over);
            for completion in over.drain(..) {
                self.take(completion, rooms, &mut brought);
            }
            if !more {
                break;
            }
        }
        self.offer(rooms);
        brought
    }

    fn take(&self, completion: Completion, rooms: &mut Vec<Slot>, brought: &mut Brought) {
        match completion {
            Completion::Sent(slot, result) => {
                let to = WorldRank(self.destinations[slot.index()].load(Relaxed));
                lock(&self.free).push(slot);
                brought.room = true;
                if let Err(failure) = result {
                    self.lose(to, failure);
                    brought.news = true;
                }
            }
            Completion::Received(slot, Ok(len)) => {
                let message = &self.endpoint.bytes(&slot)[..len];
                let (header, rest, peer) = match self.open(message) {
                    Ok(opened) => opened,
                    Err(refused) => {
                        let count = match refused {
                            Refused::Foreign => &self.foreign,
                            Refused::Again => &self.repeated,
                        };
                        count.fetch_add(1, Relaxed);
                        return rooms.push(slot);
                    }
                };
                let from = header.from;
                peer.knows_here.store(true, Release);
                brought.news = true;
                match (header.kind, rest.split_first_chunk()) {
                    (Kind::Data, _) => {
                        lock(&self.inbox).push_back(Arrived { slot, len, from });
                        peer.came.fetch_add(1, Release);
                        self.arrived.fetch_add(1, Release);
                        return;
                    }
                    (Kind::Farewell, Some((count, address))) => {
                        self.learn(from, address);
                        peer.of_all.store(u64::from_le_bytes(*count), Release);
                        self.due.store(true, Release);
                        self.bell.ring();
                    }
                    (Kind::Here, _) => {
                        self.learn(from, rest);
                        // It may have asked already.
                        self.bell.ring();
                    }
                    (Kind::Farewell, None) => _ = self.broken.fetch_add(1, Relaxed),
                    (Kind::KeyQuery, _) => self.note_query(from, rest),
                    (Kind::KeyTold, _) => self.note_told(from, rest),
                    (Kind::Heard, _) => {
                        peer.heard.store(true, Release);
                        self.bell.ring();
                    }
                }
                rooms.push(slot);
            }
            Completion::Received(slot, Err(_)) => {
                self.broken.fetch_add(1, Relaxed);
                rooms.push(slot);
            }
            Completion::Transferred(..) | Completion::Stray => {
                _ = self.broken.fetch_add(1, Relaxed)
            }
            Completion::Ended(failure) => {
                self.end(failure);
                brought.news = true;
            }
        }
    }

    /// What a message says, and the peer that has sent it.
    fn open<'m>(&self, message: &'m [u8]) -> Result<(Header, &'m [u8], Arc<Peer>), Refused> {
        let parsed = Header::parse(message, self.size()).ok_or(Refused::Foreign)?;
        let (header, rest) = parsed;
        let peer = match self.met(header.from) {
            Some(peer) => peer,
            // No stranger has this rank know peers.
            None if !seal::is_of(&self.key, (header.from, self.rank), message) => {
                return Err(Refused::Foreign);
            }
            None => self.peer(header.from),
        };
        lock(&peer.opener).open(message)?;
        Ok((header, rest, peer))
    }

    /// Gives slots to the provider for what comes next, as many as it takes.
    fn offer(&self, rooms: &mut Vec<Slot>) {
        while let Some(slot) = rooms.pop() {
            if let Err(Full(slot, failure)) = self.endpoint.receive(slot) {
                failure.into_iter().for_each(|failure| self.note_unfit(failure));
                rooms.push(slot);
                return self.lacks_slots.store(true, Release);
            }
        }
        self.lacks_slots.store(false, Release);
    }

    /// Whether slots for what arrives are to be offered again: the provider tells of no messages
    /// for which it has none.
    pub(crate) fn lacks_slots(&self) -> bool {
        self.lacks_slots.load(Acquire)
    }

    fn note_unfit(&self, failure: Failure) {
        let Failure { call, code, .. } = &failure;
        let text = format!(
            "rank {}: the provider refuses slots for messages ({call}, error {code}), which are \
             offered again; see FI_LOG_LEVEL=warn",
            self.rank.0
        );
        if self.unfit.set(failure).is_ok() {
            self.members.note(&text);
        }
    }

    /// The endpoint has ended: all peers are lost, those that it will have to do with among them.
    fn end(&self, failure: Failure) {
        let Failure { call, code, .. } = &failure;
        let text = format!(
            "rank {}: the network ended ({call}, error {code}), so this rank fails; see \
             FI_LOG_LEVEL=warn, or take another by --provider NAME",
            self.rank.0
        );
        let Ok(()) = self.ended.set(failure) else { return };
        self.members.note(&text);
        self.bell.ring();
        // Threads that wait for any rank hear of that at once.
        for peer in (0..self.size()).map(WorldRank).filter(|peer| *peer != self.rank) {
            if self.members.peer_state(peer) == PeerState::Alive {
                _ = self.lost.compare_exchange(NO_RANK, peer.0.into(), AcqRel, Relaxed);
                self.device.iter().for_each(|device| device.hear_of(peer, None));
            }
        }
        self.wake();
    }

    /// What was sent to a peer has not arrived there. One that has left, or said farewell, does not
    /// need it: it closes its endpoint, and word of how it left may come later than news of that.
    fn lose(&self, peer: WorldRank, failure: Failure) {
        let its = self.peer(peer);
        if its.leaves() || self.members.peer_state(peer) != PeerState::Alive {
            // Its process may have ended: it waits for no farewell any more.
            return its.heard.store(true, Release);
        }
        if its.lost.set(failure.clone()).is_ok() {
            _ = self.lost.compare_exchange(NO_RANK, peer.0.into(), AcqRel, Relaxed);
            // Threads that wait for it hear of that at once.
            self.device.iter().for_each(|device| device.hear_of(peer, None));
            self.wake();
            if its.came.load(Acquire) == 0 {
                self.note_undelivered(peer, &failure);
            }
        }
    }

    /// Peers that this rank has had to do with, in order.
    fn known(&self) -> Vec<(WorldRank, Arc<Peer>)> {
        let peers = self.peers.read().unwrap_or_else(PoisonError::into_inner);
        let mut known: Vec<_> = peers.iter().map(|(rank, peer)| (*rank, peer.clone())).collect();
        known.sort_unstable_by_key(|(rank, _)| *rank);
        known
    }

    /// A peer asks for a key: the watcher answers.
    fn note_query(&self, from: WorldRank, message: &[u8]) {
        let Ok(key) = message.try_into() else {
            self.broken.fetch_add(1, Relaxed);
            return;
        };
        self.keep_query(from, key);
        self.bell.ring();
    }

    /// A question is to be answered, by the watcher.
    fn keep_query(&self, from: WorldRank, key: Key) {
        let mut queried = lock(&self.queried);
        if queried.contains(&(from, key)) {
            return;
        }
        // As many as a rank may have under way, and no more, whatever a peer sends.
        if queried.len() < QUERIES_MOST {
            queried.push((from, key));
        } else {
            self.dropped.fetch_add(1, Relaxed);
        }
    }

    /// A peer tells of a key.
    fn note_told(&self, from: WorldRank, message: &[u8]) {
        match (message.split_first_chunk(), &self.device) {
            (Some((key, [has @ (0 | 1)])), Some(device)) => {
                device.hear_of(from, Some((*key, *has == 1)));
            }
            _ => _ = self.broken.fetch_add(1, Relaxed),
        }
    }

    /// Asks peers for keys, and answers those that ask. Says whether all were.
    pub(crate) fn talk_of_keys(&self) -> bool {
        let Some(device) = &self.device else { return true };
        let mut all = true;
        for (peer, key) in device.questions() {
            if !self.say_of_key(peer, Kind::KeyQuery, &key) {
                device.put_back(peer, key);
                all = false;
            }
        }
        let queried = std::mem::take(&mut *lock(&self.queried));
        for (peer, key) in queried {
            let told = [&key[..], &[u8::from(device.has(&key))]].concat();
            if !self.say_of_key(peer, Kind::KeyTold, &told) {
                self.keep_query(peer, key);
                all = false;
            }
        }
        all
    }

    /// False if it is to be tried again. A peer that cannot be asked is lost.
    fn say_of_key(&self, peer: WorldRank, kind: Kind, bytes: &[u8]) -> bool {
        if self.is_gone(peer) {
            self.device.iter().for_each(|device| device.hear_of(peer, None));
            return true;
        }
        let its = self.peer(peer);
        let number = match self.number(peer, &its) {
            Ok(number) => number,
            Err(Missing::Awaited) => return false,
            // The peer that asked does so again.
            Err(Missing::Unknown(_)) if kind == Kind::KeyTold => {
                self.dropped.fetch_add(1, Relaxed);
                return true;
            }
            Err(Missing::Unknown(why)) => {
                self.lose(peer, nowhere(why));
                return true;
            }
        };
        match self.say((peer, number), &its, kind, [bytes, &[]]) {
            Ok(is_said) => is_said,
            Err(failure) => {
                self.lose(peer, failure);
                true
            }
        }
    }
}

/// A peer of which it is not known where it is.
fn nowhere(why: &str) -> Failure {
    Failure { call: "fi_av_insert", code: libc::EHOSTUNREACH, reason: why.to_owned() }
}

/// Bytes of a slot.
pub(crate) const SLOT_BYTES: usize = HEADER + MESSAGE_MAX;

/// Number of slots.
pub(crate) const SLOTS: u32 = RECEIVES + SENDS;

#[cfg(test)]
#[path = "port_fault_tests.rs"]
mod fault_tests;
#[cfg(test)]
#[path = "port_tests.rs"]
pub(crate) mod tests;
