//! Faults of a provider's memory, on a libfabric that is pretended: what the core is told of each,
//! and that nothing waits for ever.
#![allow(unsafe_code)] // room: lends memory to transfers

use super::{Posting, Queue, TRANSFER_BYTES, error_of};
use crate::book::Book;
use crate::device::{DIRECT, Device, Memory, TRANSFERS, TRANSFERS_TO_ONE, not_registered};
use crate::port::tests::Said;
use crate::sys::pretended::{Does, Script, library, records};
use crate::sys::{Atomics, Caps, Exposed, Failure, NoAlias, Opened, Passive};
use crate::watcher::{Bell, TICK};
use crate::{Wanted, choose};
use rma_core::transport::{
    DeviceError, Endpoint, PeerState, PostError, Posted, Purpose, Remote, RemoteKey, There,
    Transfer, WorldRank,
};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

const PEER: WorldRank = WorldRank(1);
const OTHER: WorldRank = WorldRank(2);
const THERE: There = There { peer: PEER, key: RemoteKey([7; RemoteKey::LEN]), at: 0 };
const EOVERRUN: i32 = 268;
const OVERRUN: DeviceError = DeviceError::System { call: "fi_cq_read", errno: EOVERRUN };

fn device(record: &str) -> (Arc<Device>, &'static Script) {
    let (library, script) = library(records(record));
    let offers = library.offers().unwrap();
    let offer = choose(&offers, &Wanted::default()).unwrap();
    let opened = Opened::open(&library, offer, None, Caps::Memory).unwrap();
    let passive = Arc::new(Passive::new(&opened, opened.endpoint((1, 64)).unwrap().0));
    let waker = Arc::new(OnceLock::new());
    let book = Arc::new(Book::new((3, 8), Box::new(|_| true), waker.clone()));
    for peer in [PEER, OTHER] {
        assert!(book.learn(peer, &u64::from(peer.0).to_le_bytes()));
    }
    let (its, ends) = (("tcp;ofi_rxm", 1 << 30, Atomics::default()), (passive, book));
    let bells = (Arc::new(Bell::new().unwrap()), waker);
    let device = Device::new(opened, its, ends, None, Said::new(PeerState::Alive), bells).unwrap();
    (Arc::new(device), script)
}

fn queue() -> (Posting, &'static Script) {
    queue_of(include_str!("sys/recorded/tcp.txt"))
}

fn queue_of(record: &str) -> (Posting, &'static Script) {
    let (device, script) = device(record);
    (Posting(Arc::new(Queue::open(device).unwrap())), script)
}

fn put(queue: &Posting, id: u64, from: &[u8], there: &There) -> Result<Posted, PostError> {
    let transfer = Transfer::Put { from: from.as_ptr(), len: from.len() };
    // SAFETY: the tests keep the bytes until the put is complete.
    unsafe { queue.post(id, &transfer, there) }
}

fn get(queue: &Posting, id: u64, into: &mut [u8]) -> Result<Posted, PostError> {
    let transfer = Transfer::Get { into: into.as_mut_ptr(), len: into.len() };
    // SAFETY: as above.
    unsafe { queue.post(id, &transfer, &THERE) }
}

fn polled(queue: &Posting) -> Vec<(u64, Result<(), DeviceError>)> {
    let mut told = Vec::new();
    queue.poll(&mut |id, result| told.push((id, result)));
    told.sort_unstable_by_key(|(id, _)| *id);
    told
}

/// All that it had under way is told, the puts that were complete by the next flush, and what
/// comes later goes another way. An endpoint of `tcp` that was fetching stays open.
#[test]
fn an_overrun_queue_ends_what_it_had_and_another_takes_its_place() {
    ends_and_is_replaced(include_str!("sys/recorded/opx.txt"), true);
    ends_and_is_replaced(include_str!("sys/recorded/tcp.txt"), false);
}

fn ends_and_is_replaced(record: &str, is_closed: bool) {
    let (queue, script) = queue_of(record);
    let mut got = [3; 8];
    assert_eq!(put(&queue, 1, &[1; 8], &THERE), Ok(Posted::Done));
    assert_eq!(get(&queue, 2, &mut got), Ok(Posted::Pending));
    assert_eq!(queue.flush(3, PEER), Ok(Posted::Pending));
    assert_eq!(put(&queue, 4, &[1; 8], &There { peer: OTHER, ..THERE }), Ok(Posted::Done));
    script.overrun(Does::Write, EOVERRUN);
    assert_eq!(polled(&queue), [(2, Err(OVERRUN)), (3, Err(OVERRUN))]);
    assert_eq!(got, [3; 8], "nothing was fetched");
    assert_eq!(queue.flush(5, OTHER), Err(PostError::Device(OVERRUN)), "the put is lost");
    assert_eq!(queue.flush(6, OTHER), Ok(Posted::Done), "which is told once");
    assert_eq!(queue.0.rest(), (false, true), "nothing is under way");

    let before = script.calls().len();
    assert_eq!(put(&queue, 7, &[1; 8], &THERE), Ok(Posted::Done));
    let calls = script.calls();
    assert_eq!(calls[before..].contains(&"close endpoint"), is_closed, "{calls:?}");
    // Of the endpoint that has ended, two more are on record.
    let under_way = script.begun(Does::Write);
    assert_eq!(queue.flush(8, PEER), Ok(Posted::Pending));
    script.complete_last(Does::Write, Ok(8));
    assert_eq!(polled(&queue), [(8, Ok(()))]);
    assert_eq!(script.begun(Does::Write), under_way - 1);
}

/// A program that fetches again and again, and finds room each time, makes no progress by itself:
/// what the core has not heard of does not grow.
#[test]
fn what_the_core_has_not_heard_of_is_bounded() {
    let (queue, script) = queue();
    let mut into = [0; 8];
    let mut posted = 0;
    let refused = loop {
        match get(&queue, posted, &mut into) {
            Ok(Posted::Pending) => posted += 1,
            other => break other,
        }
        script.complete(Does::Read, Ok(8));
        assert!(posted < 1000, "the core is never told to poll");
    };
    assert_eq!(refused, Err(PostError::Again));
    let most = u64::from(TRANSFERS) + TRANSFERS_TO_ONE as u64;
    assert!((u64::from(TRANSFERS)..=most).contains(&posted), "{posted}");
    assert_eq!(polled(&queue).len() as u64, posted);
    assert_eq!(get(&queue, posted, &mut into), Ok(Posted::Pending));
    script.complete(Does::Read, Ok(8));
    assert_eq!(polled(&queue), [(posted, Ok(()))]);
}

/// What the watcher read in between would be room that a thread finds, which then has not looked.
#[test]
fn a_queue_is_left_to_a_thread_that_posts_or_polls_for_a_while() {
    let (queue, script) = queue();
    let begin = Instant::now();
    assert!(!queue.0.looks.is_left(begin));
    let looks: [fn(&Posting); 3] = [
        |queue| assert_eq!(put(queue, 1, &[1; 8], &THERE), Ok(Posted::Done)),
        |queue| assert_eq!(queue.flush(2, PEER), Ok(Posted::Pending)),
        |queue| assert!(polled(queue).is_empty()),
    ];
    for (now, look) in (0..).map(|round| begin + 3 * round * TICK).zip(looks) {
        look(&queue);
        let ends = now + TICK;
        assert!(queue.0.looks.is_left(now) && queue.0.looks.is_left(ends - TICK / 2));
        assert!(!queue.0.looks.is_left(ends), "no thread has looked since");
    }
    script.complete(Does::Write, Ok(8));
}

/// Its thread computes meanwhile, or posts small ones beside it, which looks at nothing as long as
/// there are slots.
#[test]
fn a_large_transfer_has_the_watcher() {
    let (queue, script) = queue();
    let now = Instant::now();
    let bytes = vec![1; TRANSFER_BYTES + 1];
    assert_eq!(put(&queue, 1, &[1; 8], &THERE), Ok(Posted::Done));
    assert!(queue.0.looks.is_left(now));
    assert_eq!(put(&queue, 2, &bytes, &THERE), Ok(Posted::Pending));
    assert!(!queue.0.looks.is_left(now));
    assert_eq!(put(&queue, 3, &[1; 8], &THERE), Ok(Posted::Done));
    assert!(!queue.0.looks.is_left(now));
    script.complete(Does::Write, Ok(8));
    script.complete(Does::Write, Ok(bytes.len()));
    assert_eq!(polled(&queue), [(2, Ok(()))]);
    let later = now + 2 * TICK;
    assert!(queue.0.looks.is_left(later) && !queue.0.looks.is_left(later + TICK));
    assert_eq!(put(&queue, 4, &[1; 8], &THERE), Ok(Posted::Done));
    assert!(queue.0.looks.is_left(later + TICK));
}

#[test]
fn a_large_transfer_that_finds_room_by_a_look_has_the_watcher_too() {
    let (queue, script) = queue();
    let now = Instant::now();
    let bytes = vec![1; TRANSFER_BYTES + 1];
    for id in 0..u64::from(DIRECT) {
        assert_eq!(put(&queue, id, &bytes, &THERE), Ok(Posted::Pending));
    }
    script.complete(Does::Write, Ok(bytes.len()));
    assert_eq!(put(&queue, u64::from(DIRECT), &bytes, &THERE), Ok(Posted::Pending));
    assert!(!queue.0.looks.is_left(now));
    for _ in 0..DIRECT {
        script.complete(Does::Write, Ok(bytes.len()));
    }
    assert_eq!(polled(&queue).len() as u32, DIRECT + 1);
}

/// One thread that posts without end has the watcher away from its own queue, and no other; and the
/// watcher does not wait for threads that have nothing under way.
#[test]
fn a_queue_that_is_left_hides_no_other() {
    let (device, script) = device(include_str!("sys/recorded/tcp.txt"));
    let memory = Memory(device.clone());
    let [one, other] = [(); 2].map(|()| memory.endpoint(Purpose::Parts).unwrap());
    let bytes = vec![1; TRANSFER_BYTES + 1];
    let transfer = |bytes: &[u8]| Transfer::Put { from: bytes.as_ptr(), len: bytes.len() };
    let now = Instant::now();
    assert!(!device.are_left(now), "no thread has looked");
    // SAFETY: the bytes are taken at once.
    assert_eq!(unsafe { one.post(1, &transfer(&[1; 8]), &THERE) }, Ok(Posted::Done));
    assert!(device.are_left(now), "the other one has nothing under way");
    assert!(!device.are_left(now + TICK), "and this one no thread that looks any more");
    // SAFETY: the bytes stay until the put is complete.
    assert_eq!(unsafe { other.post(2, &transfer(&bytes), &THERE) }, Ok(Posted::Pending));
    // SAFETY: as the first.
    assert_eq!(unsafe { one.post(3, &transfer(&[1; 8]), &THERE) }, Ok(Posted::Done));
    assert!(!device.are_left(now), "a large put is under way, and no thread looks");
    for len in [8, bytes.len(), 8] {
        script.complete(Does::Write, Ok(len));
    }
    device.look(true);
    // SAFETY: as before.
    assert_eq!(unsafe { one.post(4, &transfer(&[1; 8]), &THERE) }, Ok(Posted::Done));
    assert!(device.are_left(now + 2 * TICK));
    script.complete(Does::Write, Ok(8));
    device.look(true);
    assert!(!device.are_left(now + 9 * TICK), "nothing is under way, and no thread looks");
}

/// Memory of the program is out of the provider's reach when the core hears of it.
#[test]
fn an_overrun_queue_of_direct_transfers_is_closed_first() {
    let (queue, script) = queue();
    let bytes = vec![1; TRANSFER_BYTES + 1];
    assert_eq!(put(&queue, 1, &bytes, &THERE), Ok(Posted::Pending));
    assert_eq!(put(&queue, 2, &[1; 8], &THERE), Ok(Posted::Done));
    script.overrun(Does::Write, EOVERRUN);
    let before = script.calls().len();
    assert_eq!(polled(&queue), [(1, Err(OVERRUN))]);
    assert!(script.calls()[before..].contains(&"close endpoint"));
    script.complete_last(Does::Write, Ok(8));
    assert!(polled(&queue).is_empty());
    assert_eq!(queue.flush(3, PEER), Ok(Posted::Done), "the other endpoint goes on");
    assert_eq!(put(&queue, 4, &bytes, &THERE), Ok(Posted::Pending));
    script.complete_last(Does::Write, Ok(bytes.len()));
    assert_eq!(polled(&queue), [(4, Ok(()))]);
}

/// An error that a provider gives for one transfer is told of that, whatever it is.
#[test]
fn an_error_completion_is_of_its_transfer() {
    let broken = |errno| DeviceError::System { call: "fi_cq_readerr", errno };
    for (code, expected) in [
        (libc::EIO, broken(libc::EIO)),
        (265, broken(265)),
        (libc::EKEYREVOKED, DeviceError::Refused),
        (libc::EKEYREJECTED, DeviceError::Refused),
        (libc::ENOKEY, DeviceError::Refused),
        (libc::EACCES, DeviceError::Refused),
        (libc::EHOSTUNREACH, DeviceError::Unreachable(PEER)),
    ] {
        let (queue, script) = queue();
        let (mut one, mut two) = ([0; 8], [0; 8]);
        assert_eq!(get(&queue, 1, &mut one), Ok(Posted::Pending));
        assert_eq!(get(&queue, 2, &mut two), Ok(Posted::Pending));
        script.complete(Does::Read, Err(code));
        script.complete(Does::Read, Ok(8));
        assert_eq!(polled(&queue), [(1, Err(expected)), (2, Ok(()))], "{code}");
    }
}

/// As in libfabric: refused by the call itself, or as soon as it is tried.
#[test]
fn what_is_refused_by_the_call_is_told_as_well() {
    let (queue, script) = queue();
    let mut got = [0; 8];
    script.refuse(Does::Read, libc::EIO);
    assert_eq!(get(&queue, 1, &mut got), Ok(Posted::Pending));
    let broken = DeviceError::System { call: "fi_readmsg", errno: libc::EIO };
    assert_eq!(polled(&queue), [(1, Err(broken))]);
    assert_eq!(
        broken.to_string(),
        "the device's driver failed in fi_readmsg (error 5): put again what matters, or run with \
         rma_path=messages"
    );
}

/// A key of few bits that other memory has is drawn anew; what is refused otherwise, and always,
/// is told.
#[test]
fn a_key_that_is_in_use_is_drawn_anew() {
    let (device, script) = device(include_str!("sys/recorded/cxi.txt"));
    script.refuse_keys(&[libc::ENOKEY, libc::EKEYREJECTED]);
    let first = script.keys().len();
    let expose = |key| Exposed::fresh(&device.opened, device.passive.clone(), 4096, key);
    assert!(device.drawn(|key| Ok(expose(key)?)).is_ok());
    let keys = script.keys()[first..].to_vec();
    assert_eq!(keys.len(), 3);
    assert!(keys.iter().all(|key| *key <= u64::from(u32::MAX)), "{keys:?}");
    script.refuse_keys(&[libc::EINVAL]);
    let refused = device.drawn(|key| Ok(expose(key)?)).err();
    assert_eq!(refused, Some(NoAlias::System("fi_mr_reg", libc::EINVAL)));
    script.refuse_keys(&[libc::ENOKEY; 100]);
    let refused = device.drawn(|key| Ok(expose(key)?)).err();
    assert_eq!(
        refused,
        Some(NoAlias::System("fi_mr_reg", libc::ENOKEY)),
        "it is not tried for ever"
    );
    assert!(Memory(device).explain().contains("keys are 32 random bits"));
}

/// A limit of memory that is locked is named, where there is one.
#[test]
fn memory_that_may_not_be_locked() {
    let (device, script) = device(include_str!("sys/recorded/cxi.txt"));
    script.refuse_keys(&[libc::ENOMEM]);
    let expose = |key| Exposed::fresh(&device.opened, device.passive.clone(), 4096, key);
    let why = device.drawn(|key| Ok(expose(key)?)).err().expect("it is refused");
    let text = |lockable| not_registered(why, 4096, lockable).to_string();
    let limited = "4096 bytes to be registered, 0 left (of memory that is locked: ulimit -l)";
    assert!(text(Some(0)).starts_with(limited), "{}", text(Some(0)));
    let unlimited = "the device's driver failed in fi_mr_reg (os error 12)";
    assert_eq!([text(None), text(Some(4096))], [unlimited; 2]);
    let other = NoAlias::System("mremap", libc::ENOMEM);
    let text = not_registered(other, 4096, Some(0)).to_string();
    assert_eq!(text, "the device's driver failed in mremap (os error 12)");
}

#[test]
fn only_a_refused_key_is_refused() {
    let peer = WorldRank(3);
    let (cut, gone) = (DeviceError::Cancelled(peer), DeviceError::Unreachable(peer));
    let broken = DeviceError::System { call: "fi_writemsg", errno: libc::EIO };
    for (code, is_alive, expected) in [
        (libc::EKEYREJECTED, true, DeviceError::Refused),
        (libc::ECANCELED, true, cut),
        (libc::ENOTCONN, true, cut),
        (libc::EIO, true, broken),
        (libc::ETIMEDOUT, true, gone),
        (libc::ECANCELED, false, gone),
    ] {
        let failure = Failure { call: "fi_writemsg", code, reason: String::new() };
        assert_eq!(error_of(peer, is_alive, &failure), expected, "{code} {is_alive}");
    }
}
