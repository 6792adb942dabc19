//! Two ports of one process. Where no libfabric is, or no tcp, each test says so and passes.
#![allow(unsafe_code)] // room: promises Members

use super::{Leave, NO_RANK, Port, SLOT_BYTES, SLOTS, lock, nowhere};
use crate::book::Book;
use crate::frame::{HEADER, Header, Kind};
use crate::seal::{JobKey, Sealer};
use crate::sys::{Caps, Endpoint, Full, Opened, Passive, Slot, here};
use crate::watcher::{Bell, FAREWELL};
use rma_core::transport::{ImportError, Members, Outcome, PeerState, SubmitError, WorldRank};
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

pub(super) const ONE: WorldRank = WorldRank(0);
pub(super) const OTHER: WorldRank = WorldRank(1);
pub(super) const KEY: JobKey = JobKey([7; 32]);
const PATIENCE: Duration = Duration::from_secs(20);

/// Peers that are as a test says.
pub(crate) struct Said {
    pub(crate) state: Mutex<PeerState>,
    /// How this rank has left.
    pub(crate) departed: Mutex<Option<Outcome>>,
    /// What the user is told.
    pub(crate) notes: Mutex<Vec<String>>,
}

impl Said {
    pub(crate) fn new(state: PeerState) -> Arc<Self> {
        let (departed, notes) = (Mutex::default(), Mutex::default());
        Arc::new(Self { state: Mutex::new(state), departed, notes })
    }
}

// SAFETY: what a test says of ranks that are no processes.
unsafe impl Members for Said {
    fn peer_state(&self, _: WorldRank) -> PeerState {
        *lock(&self.state)
    }

    fn failed(&self) -> Option<WorldRank> {
        None
    }

    fn note(&self, text: &str) {
        lock(&self.notes).push(text.to_owned());
    }

    fn depart(&self, outcome: Outcome) {
        *lock(&self.departed) = Some(outcome);
    }
}

/// The port of a rank whose launcher is asked, or is gone, and never answers.
fn port(rank: WorldRank, is_asked: bool) -> Option<Port> {
    let (library, offer) = here::provider("tcp", false)?;
    let opened = Opened::open(&library, &offer, Some("127.0.0.1"), Caps::Messages).unwrap();
    Some(port_of(&opened, (rank, KEY), is_asked))
}

/// The port of a rank of a job with that key.
pub(super) fn port_of(opened: &Opened, its: (WorldRank, JobKey), is_asked: bool) -> Port {
    let (endpoint, slots) = opened.endpoint((SLOTS, SLOT_BYTES)).unwrap();
    port_at((Passive::new(opened, endpoint), slots), its, is_asked)
}

fn port_at(
    (endpoint, slots): (Passive, Vec<Slot>),
    its: (WorldRank, JobKey),
    is_asked: bool,
) -> Port {
    let (endpoint, waker) = (Arc::new(endpoint), Arc::new(OnceLock::new()));
    let query = Box::new(move |_| is_asked);
    let book = Arc::new(Book::new((2, endpoint.address().len()), query, waker.clone()));
    let bells = (Arc::new(Bell::new().unwrap()), waker);
    let port = Port::new(
        (endpoint, slots),
        its,
        book,
        Said::new(PeerState::Alive),
        bells,
        (None, FAREWELL),
    );
    // No watcher looks whether it may be closed.
    port.endpoint.stay_open(false);
    port
}

/// Repeats `attempt` until it says that it is done.
pub(super) fn until(mut attempt: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !attempt() {
        assert!(Instant::now() < deadline, "not done in {PATIENCE:?}");
    }
}

/// A rank that leaves sends its last replies once: it does not wait for a launcher.
#[test]
fn a_rank_that_sent_something_can_be_answered_at_once() {
    let Some(one) = port(ONE, true) else { return };
    let Some(other) = port(OTHER, true) else { return };
    assert!(one.book.learn(OTHER, other.endpoint.address()));
    until(|| {
        one.poll(&mut |_, _| ());
        other.poll(&mut |_, _| ());
        one.send(OTHER, b"ask", b"ed").is_ok()
    });
    let mut asked = Vec::new();
    until(|| {
        one.poll(&mut |_, _| ());
        other.poll(&mut |from, message| asked.push((from, message.to_vec())));
        !asked.is_empty()
    });
    assert_eq!(asked, [(ONE, b"asked".to_vec())], "what says where it is, is no message");
    assert_eq!(&*other.book.address(ONE).unwrap(), one.endpoint.address());
    let mut answered = Vec::new();
    until(|| {
        other.poll(&mut |_, _| ());
        _ = other.send(ONE, b"answer", b"");
        one.poll(&mut |from, message| answered.push((from, message.to_vec())));
        !answered.is_empty()
    });
    assert_eq!(answered[0], (OTHER, b"answer".to_vec()));
    assert_eq!(other.troubles(), "; the addresses of 1 of 2 ranks are known");
}

/// As of a provider whose endpoints are closed when no message may come.
fn delicate_port(rank: WorldRank) -> Option<Port> {
    let (library, offer) = here::provider("tcp", false)?;
    let opened = Opened::open(&library, &offer, Some("127.0.0.1"), Caps::Messages).unwrap();
    let (endpoint, slots) = opened.endpoint((SLOTS, SLOT_BYTES)).unwrap();
    let endpoint = Passive::new(&opened, endpoint);
    assert!(!endpoint.is_delicate);
    Some(port_at((endpoint.delicate(), slots), (rank, KEY), true))
}

/// Where no message may come meanwhile, an endpoint is closed when both ends have left, and have
/// heard that of each other; also where the job says of both that they have left.
#[test]
fn a_peer_that_sent_something_and_stays_keeps_an_endpoint_open() {
    let Some(mut one) = delicate_port(ONE) else { return };
    let Some(mut other) = delicate_port(OTHER) else { return };
    assert!(other.book.learn(ONE, one.endpoint.address()));
    let said = [(); 2].map(|()| Said::new(PeerState::Alive));
    (one.members, other.members) = (said[0].clone(), said[1].clone());
    assert_eq!(one.may_close(), None, "it stays");
    for port in [&one, &other] {
        *lock(&port.leave) = Leave::Left { in_order: true };
        assert_eq!(port.may_close(), Some(false), "a peer may send its first message");
    }
    let mut came = 0;
    let mut poll = || {
        one.poll(&mut |_, _| came += 1);
        other.poll(&mut |_, _| ());
        came
    };
    until(|| {
        poll();
        other.send(ONE, b"sent", b"").is_ok()
    });
    until(|| poll() == 1);
    said.iter().for_each(|said| *lock(&said.state) = PeerState::Departed);
    assert_eq!(one.may_close(), Some(false), "the peer has not said that it leaves");
    until(|| {
        poll();
        assert_eq!(other.may_close(), Some(false), "no answer has come");
        one.peer(OTHER).of_all.load(Acquire) == 1
    });
    until(|| {
        poll();
        one.may_close() == Some(true) && other.may_close() == Some(true)
    });
    assert!(one.peer(OTHER).answered.load(Acquire) && other.peer(ONE).heard.load(Acquire));
    *lock(&said[0].state) = PeerState::Failed;
    assert_eq!(one.may_close(), None, "of a peer that has failed nothing is known");
}

/// A peer that has left is not reached, as its process has ended: it waits for no farewell.
#[test]
fn a_farewell_that_does_not_arrive_is_not_waited_for() {
    let Some(mut one) = delicate_port(ONE) else { return };
    one.members = Said::new(PeerState::Departed);
    *lock(&one.leave) = Leave::Left { in_order: true };
    one.peer(OTHER).sent.store(1, Release);
    assert_eq!(one.may_close(), Some(false));
    one.lose(OTHER, nowhere("a test"));
    assert_eq!(one.may_close(), Some(true));
}

#[test]
fn a_peer_that_cannot_be_asked_for_a_key_is_lost() {
    let Some(one) = port(ONE, false) else { return };
    assert!(one.say_of_key(OTHER, Kind::KeyQuery, &[0; 16]));
    assert!(one.is_lost(OTHER));
    assert!(one.troubles().contains("rank 1 was lost"), "{}", one.troubles());
}

/// No peer that asked for a key is lost for that: it asks again.
#[test]
fn an_answer_that_goes_nowhere_is_counted() {
    let Some(one) = port(ONE, false) else { return };
    assert!(one.say_of_key(OTHER, Kind::KeyTold, &[0; 17]));
    assert_eq!(one.lost.load(Acquire), NO_RANK);
    assert!(one.troubles().contains("left 1 questions of keys"), "{}", one.troubles());
    assert!(one.say_heard(OTHER, &one.peer(OTHER)), "it is not tried again");
    assert!(one.troubles().contains("left 1 farewells"), "{}", one.troubles());
}

/// So a thread that sleeps until there is room is woken.
#[test]
fn an_address_that_is_awaited_is_as_room_that_is() {
    let Some(one) = port(ONE, true) else { return };
    assert!(!one.is_starved());
    assert_eq!(one.send(OTHER, b"", b""), Err(SubmitError::Again));
    assert!(one.is_starved());
    // What says that there is no answer ends the wait.
    one.book.end();
    let error = one.send(OTHER, b"", b"").unwrap_err();
    let SubmitError::Unreachable(ImportError::NoAddress { owner, .. }) = error else {
        panic!("{error:?}")
    };
    assert_eq!(owner, OTHER);
    // What else waits to be sent there, as replies do, is given up.
    assert_eq!(one.send(OTHER, b"", b""), Err(SubmitError::PeerFailed(OTHER)));
    assert!(one.is_lost(OTHER));
}

/// An end of the network that is no rank's.
struct Stranger {
    endpoint: Endpoint,
    free: Vec<Slot>,
    /// The number of the port that it sends to.
    to: u64,
}

impl Stranger {
    fn beside(port: &Port) -> Self {
        let (library, offer) = here::provider("tcp", false).expect("the port has it");
        let opened = Opened::open(&library, &offer, Some("127.0.0.1"), Caps::Messages).unwrap();
        let (endpoint, free) = opened.endpoint((16, SLOT_BYTES)).unwrap();
        let to = endpoint.insert(port.endpoint.address()).unwrap();
        Self { endpoint, free, to }
    }

    /// Sends those bytes, and has the port read until it has dropped or taken them.
    fn send(&mut self, message: &[u8], port: &Port, taken: &mut Vec<Vec<u8>>) {
        let count = |taken: &[Vec<u8>]| port.refused() as usize + taken.len();
        let before = count(taken);
        let mut slot = Some(self.free.pop().unwrap());
        until(|| {
            if let Some(mut own) = slot.take() {
                self.endpoint.bytes_mut(&mut own)[..message.len()].copy_from_slice(message);
                let sent = self.endpoint.send(own, message.len(), self.to);
                slot = sent.err().map(|Full(own, failure)| {
                    assert_eq!(failure, None);
                    own
                });
            }
            self.endpoint.read(&mut Vec::new());
            port.poll(&mut |_, message| taken.push(message.to_vec()));
            count(taken) > before
        });
    }
}

/// Messages of no rank, altered ones, and such as were sent before, are dropped and counted; what
/// they were made of is taken all the same.
#[test]
fn what_is_made_up_altered_or_sent_again_is_dropped_and_counted() {
    let Some(one) = port(ONE, true) else { return };
    let mut stranger = Stranger::beside(&one);
    let message = |key: &JobKey, from: WorldRank, to: WorldRank, kind| {
        let mut message = Header { from, kind }.to_bytes().to_vec();
        message.extend(b"text");
        Sealer::new(key, from, to).seal(&mut message);
        message
    };
    let genuine = message(&KEY, OTHER, ONE, Kind::Data);
    let mut taken = Vec::new();
    let mut altered = genuine.clone();
    altered[HEADER] ^= 1;
    let made_up = [
        b"what is no message".to_vec(),
        message(&JobKey([8; 32]), OTHER, ONE, Kind::Data),
        message(&JobKey([8; 32]), OTHER, ONE, Kind::Farewell),
        // What this rank said itself, sent back to it.
        message(&KEY, ONE, OTHER, Kind::Data),
        altered.clone(),
        genuine[..genuine.len() - 1].to_vec(),
    ];
    for message in &made_up {
        stranger.send(message, &one, &mut taken);
    }
    assert!(one.known().is_empty(), "nobody who lacks the key has a rank know peers");
    stranger.send(&genuine, &one, &mut taken);
    assert_eq!(taken, [b"text"]);
    stranger.send(&genuine, &one, &mut taken);
    stranger.send(&altered, &one, &mut taken);
    assert_eq!(taken.len(), 1);
    let counts =
        "; dropped 7 messages without a tag of the job, 1 that had come before, 0 not whole";
    assert!(one.troubles().starts_with(counts), "{}", one.troubles());
    assert_eq!((one.arrived(), one.refused(), one.lost()), (1, 8, None));
}
