//! Transfers to and from memory of another endpoint of this process. Where no libfabric is, or no
//! tcp, each says so and passes.

#![allow(unsafe_code)]

use super::alias::NoAlias;
use super::atomics::Combining;
use super::endpoint::{Completion, Direction, Endpoint, Failure, Far, Full};
use super::here;
use super::opened::{Caps, Exposed, Opened, Passive};
use super::slots::Slot;
use rma_core::transport::Atomic;
use rma_core::{BasicElement, Op};
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

fn tcp() -> Option<Opened> {
    opened("tcp", Caps::Memory)
}

fn opened(provider: &str, caps: Caps) -> Option<Opened> {
    let (library, offer) = here::provider(provider, true)?;
    let opened = Opened::open(&library, &offer, Some("127.0.0.1"), caps).unwrap();
    opened.check_memory(caps).unwrap();
    Some(opened)
}

/// Memory as windows have it.
struct Shared(*mut u8, usize);

impl Shared {
    fn new(len: usize) -> Self {
        let (rights, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: new memory, wherever the system has room.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, rights, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        Self(start.cast(), len)
    }

    fn at(&self, place: usize) -> u8 {
        assert!(place < self.1);
        // SAFETY: mapped, and no transfer is under way.
        unsafe { self.0.wrapping_add(place).read_volatile() }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; what exposes it is dropped first.
        unsafe { libc::munmap(self.0.cast(), self.1) };
    }
}

/// The number of a port that is free.
fn unused_port() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port().to_string()
}

fn expose(opened: &Opened, passive: &Arc<Passive>, memory: &Shared, key: u64) -> Exposed {
    // SAFETY: the tests drop it before the memory.
    unsafe { Exposed::new(opened, passive.clone(), (memory.0, memory.1), key) }.unwrap()
}

fn ends(opened: &Opened) -> (Endpoint, Vec<Slot>, Arc<Passive>, u64) {
    let (active, slots) = opened.endpoint((4, 256)).unwrap();
    let passive = Arc::new(Passive::new(opened, opened.endpoint((1, 0)).unwrap().0));
    let peer = active.insert(passive.address()).unwrap();
    (active, slots, passive, peer)
}

/// Begins a transfer of a slot as a caller does: tries again as long as there is no room.
fn begin(
    (active, passive): (&Endpoint, &Passive),
    mut slot: Slot,
    len: usize,
    direction: Direction,
    far: Far,
) {
    let deadline = Instant::now() + PATIENCE;
    while let Err(Full(again, failure)) = active.transfer(slot, len, direction, &far) {
        assert_eq!(failure, None);
        assert!(Instant::now() < deadline, "no room in {PATIENCE:?}");
        slot = again;
        assert!(!active.read(&mut Vec::new()));
        passive.read(&mut Vec::new());
    }
}

/// Has both make progress until a transfer is complete.
fn end(active: &Endpoint, passive: &Passive) -> (Slot, Result<(), Failure>) {
    let deadline = Instant::now() + PATIENCE;
    let mut over = Vec::new();
    loop {
        passive.read(&mut Vec::new());
        active.read(&mut over);
        match over.pop() {
            Some(Completion::Transferred(slot, result)) => return (slot, result),
            Some(other) => panic!("{other:?}"),
            None => assert!(Instant::now() < deadline, "nothing is complete in {PATIENCE:?}"),
        }
    }
}

#[test]
fn bytes_go_there_and_come_back() {
    let Some(opened) = tcp() else { return };
    let (active, mut slots, passive, peer) = ends(&opened);
    let memory = Shared::new(8192);
    let exposed = expose(&opened, &passive, &memory, 0x1234_5678_9abc_def0);
    let (key, start) = exposed.key();
    let mut slot = slots.pop().unwrap();
    active.bytes_mut(&mut slot)[..100].fill(7);
    let far = Far { peer, key, at: start + 4000 };
    begin((&active, &passive), slot, 100, Direction::Write, far);
    let (mut slot, result) = end(&active, &passive);
    assert_eq!(result, Ok(()));
    assert_eq!([3999, 4000, 4099, 4100].map(|place| memory.at(place)), [0, 7, 7, 0]);
    active.bytes_mut(&mut slot).fill(0);
    begin((&active, &passive), slot, 60, Direction::Read, Far { at: start + 4050, ..far });
    let (slot, result) = end(&active, &passive);
    assert_eq!(result, Ok(()));
    let bytes = &active.bytes(&slot)[..61];
    assert!(bytes[..50].iter().all(|byte| *byte == 7) && bytes[50..].iter().all(|byte| *byte == 0));
}

/// Each form of an atomic: what it does there, and what comes back.
#[test]
fn elements_are_combined_there() {
    let Some(opened) = opened("sockets", Caps::Atomics) else { return };
    let atomics = opened.atomics();
    assert!(atomics.has(Atomic::Swap(u32::BASIC)) && atomics.most() >= 16, "{atomics:?}");
    let (active, mut slots, passive, peer) = ends(&opened);
    let memory = Shared::new(4096);
    let exposed = expose(&opened, &passive, &memory, 80);
    let (key, start) = exposed.key();
    let far = Far { peer, key, at: start + 8 };
    let [operands, compared, was] = active.parts();
    let sum = |fetches| Combining::new(Atomic::Combine(Op::Sum, u32::BASIC), 2, fetches).unwrap();
    let swap = Combining::new(Atomic::Swap(u32::BASIC), 2, true).unwrap();
    let word = |bytes: &[u8], at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().unwrap());
    let mut slot = slots.pop().unwrap();
    for (combining, came, is) in [
        (sum(false), None, [5, 7]),
        (sum(true), Some([5, 7]), [10, 14]),
        // Only the first is what it is compared with.
        (swap, Some([10, 14]), [5, 14]),
    ] {
        let bytes = active.bytes_mut(&mut slot);
        bytes.fill(0);
        for (at, value) in [(operands, 5_u32), (operands + 4, 7), (compared, 10)] {
            bytes[at..][..4].copy_from_slice(&value.to_le_bytes());
        }
        active.combine(slot, combining, &far).unwrap();
        let (back, result) = end(&active, &passive);
        assert_eq!(result, Ok(()), "{combining:?}");
        if let Some(came) = came {
            let bytes = active.bytes(&back);
            assert_eq!([word(bytes, was), word(bytes, was + 4)], came, "{combining:?}");
        }
        let there = [0, 4, 8, 12, 16].map(|at| {
            let bytes = [0, 1, 2, 3].map(|byte| memory.at(at + byte));
            u32::from_le_bytes(bytes)
        });
        assert_eq!(there, [0, 0, is[0], is[1], 0], "{combining:?}");
        slot = back;
    }
    drop(exposed);
    active.combine(slot, sum(true), &far).unwrap();
    let (_, result) = end(&active, &passive);
    assert!(result.is_err(), "the memory is nobody's any more");
    assert_eq!([8, 12].map(|at| memory.at(at)), [5, 14]);
}

/// A key that is none, one that was, and bytes beyond the memory: an error, and no byte is touched.
#[test]
fn what_is_not_exposed_is_refused() {
    let Some(opened) = tcp() else { return };
    let memory = Shared::new(4096);
    for case in 0..3 {
        let (active, mut slots, passive, peer) = ends(&opened);
        let exposed = expose(&opened, &passive, &memory, 77);
        let (key, start) = exposed.key();
        let mut slot = slots.pop().unwrap();
        active.bytes_mut(&mut slot).fill(9);
        let (key, at) = match case {
            0 => (key + 1, start),
            1 => (key, start + 4000),
            _ => (key, start),
        };
        let kept = (case != 2).then_some(exposed);
        begin((&active, &passive), slot, 200, Direction::Write, Far { peer, key, at });
        let (_, result) = end(&active, &passive);
        println!("{case}: {result:?}");
        assert!(result.is_err(), "{case}");
        assert!((0..4096).all(|place| memory.at(place) == 0), "{case}");
        drop(kept);
    }
}

/// Another process at the address of one that had memory there: its key is refused.
#[test]
fn what_is_at_the_address_of_another_is_not_reached_by_its_key() {
    let Some((library, offer)) = here::provider("tcp", true) else { return };
    let port = unused_port();
    let open = || {
        let place = (Some("127.0.0.1"), Some(&*port));
        let opened = Opened::open_at(&library, &offer, place, Caps::Memory).unwrap();
        let passive = Arc::new(Passive::new(&opened, opened.endpoint((1, 0)).unwrap().0));
        (opened, passive)
    };
    let memory = Shared::new(4096);
    let (active, mut slots) = tcp().unwrap().endpoint((4, 256)).unwrap();
    let (opened, before) = open();
    let exposed = expose(&opened, &before, &memory, 80);
    let (key, at) = exposed.key();
    let far = Far { peer: active.insert(before.address()).unwrap(), key, at };
    begin((&active, &before), slots.pop().unwrap(), 8, Direction::Write, far);
    assert_eq!(end(&active, &before).1, Ok(()));
    let address = before.address().to_vec();
    drop((exposed, before, opened));

    let (opened, now) = open();
    assert_eq!(now.address(), address);
    let _exposed = expose(&opened, &now, &memory, 81);
    let mut refused = None;
    let deadline = Instant::now() + PATIENCE;
    // What is lost with the old connection says nothing of the key.
    while refused.is_none_or(|code| code != libc::ECANCELED) && !slots.is_empty() {
        assert!(Instant::now() < deadline, "{refused:?}");
        let mut slot = slots.pop().unwrap();
        active.bytes_mut(&mut slot).fill(9);
        match active.transfer(slot, 200, Direction::Write, &far) {
            Ok(()) => refused = Some(end(&active, &now).1.unwrap_err().code),
            Err(Full(slot, _)) => {
                slots.push(slot);
                active.read(&mut Vec::new());
                now.read(&mut Vec::new());
            }
        }
    }
    assert!(refused.is_some());
    assert!((0..4096).all(|place| memory.at(place) == 0), "no byte of another process");
}

/// A target that stands still, whose memory dies in the middle of a large transfer: it is not
/// touched afterwards, by whatever comes later. The origin gives up in the middle, too.
#[test]
fn what_is_cut_off_is_touched_no_more() {
    const LEN: usize = 32 << 20;
    let Some(opened) = tcp() else { return };
    let (active, mut slots, passive, peer) = ends(&opened);
    let memory = Shared::new(LEN);
    let exposed = expose(&opened, &passive, &memory, 78);
    let (key, start) = exposed.key();
    let mut source = vec![5_u8; LEN];
    let far = Far { peer, key, at: start };
    let deadline = Instant::now() + PATIENCE;
    let mut slot = slots.pop().unwrap();
    loop {
        assert!(Instant::now() < deadline, "not begun in {PATIENCE:?}");
        let local = (source.as_mut_ptr(), LEN);
        // SAFETY: `source` lives until the endpoint is closed, and nothing changes it before.
        let begun = unsafe { active.transfer_direct(slot, local, Direction::Write, &far) };
        let Err(Full(again, failure)) = begun else { break };
        assert_eq!(failure, None);
        slot = again;
        active.read(&mut Vec::new());
        passive.read(&mut Vec::new());
    }
    while memory.at(0) == 0 {
        assert!(Instant::now() < deadline, "no byte arrived in {PATIENCE:?}");
        active.read(&mut Vec::new());
        passive.read(&mut Vec::new());
    }
    assert_eq!(memory.at(LEN - 1), 0, "it has begun, and is not over");
    drop(exposed);
    let arrived = (0..LEN).take_while(|place| memory.at(*place) == 5).count();
    assert!(arrived < LEN);
    // The origin goes on as long as it is not closed.
    for _ in 0..1000 {
        active.read(&mut Vec::new());
        passive.read(&mut Vec::new());
    }
    assert!((arrived..LEN).all(|place| memory.at(place) == 0), "nothing came after the end");
    assert_eq!(active.close(), Ok(()));
}

#[test]
fn private_memory_is_refused() {
    let Some(opened) = tcp() else { return };
    let passive = Arc::new(Passive::new(&opened, opened.endpoint((1, 0)).unwrap().0));
    let mut private = vec![0_u8; 64];
    let span = (private.as_mut_ptr(), 64);
    // SAFETY: memory that lives longer.
    let refused = unsafe { Exposed::new(&opened, passive, span, 79) };
    assert_eq!(refused.err(), Some(NoAlias::Unfit));
}

/// An origin that gives up in the middle of what it fetches: no byte comes afterwards, whatever is
/// done by another endpoint, which fetches all of it. So often, and then no more.
#[test]
fn what_is_half_fetched_is_given_up() {
    const LEN: usize = 32 << 20;
    let Some(opened) = tcp() else { return };
    let passive = Arc::new(Passive::new(&opened, opened.endpoint((1, 0)).unwrap().0));
    let memory = Shared::new(LEN);
    let exposed = expose(&opened, &passive, &memory, 79);
    let (key, start) = exposed.key();
    // SAFETY: mapped, and no transfer is under way.
    unsafe { memory.0.write_bytes(5, LEN) };
    let (source, goal) = (&passive, Shared::new(LEN));
    let fetch = |into: &Shared, is_enough: &dyn Fn(&Shared, bool) -> bool| {
        let (active, mut slots) = opened.active((4, 0)).unwrap();
        let far = Far { peer: active.insert(source.address()).unwrap(), key, at: start };
        let deadline = Instant::now() + PATIENCE;
        let (mut next, mut over) = (slots.pop(), Vec::new());
        while !is_enough(into, !over.is_empty()) {
            assert!(Instant::now() < deadline, "not so far in {PATIENCE:?}");
            if let Some(slot) = next.take() {
                // SAFETY: it is there until the endpoint is closed, and looked at between calls.
                let begun =
                    unsafe { active.transfer_direct(slot, (into.0, LEN), Direction::Read, &far) };
                next = begun.err().map(|Full(again, failure)| {
                    assert_eq!(failure, None);
                    again
                });
            }
            active.read(&mut over);
            source.read(&mut Vec::new());
        }
        active
    };
    let halfway = fetch(&goal, &|into, _| into.at(0) == 5);
    assert_eq!(goal.at(LEN - 1), 0, "it has begun, and is not over");
    assert_eq!(halfway.close(), Ok(()));
    let came = (0..LEN).take_while(|place| goal.at(*place) == 5).count();
    assert!(came < LEN);
    let again = Shared::new(LEN);
    let whole = fetch(&again, &|_, is_over| is_over);
    assert!((0..LEN).all(|place| again.at(place) == 5));
    // `ofi_rxm` looks for what concerns connections every 10 ms, and has all of a fabric go on.
    let end = Instant::now() + Duration::from_millis(50);
    while Instant::now() < end {
        whole.read(&mut Vec::new());
        source.read(&mut Vec::new());
    }
    assert_eq!(whole.close(), Ok(()));
    assert!((came..LEN).all(|place| goal.at(place) == 0), "nothing came after the end");
    let mut rest = Vec::new();
    let refused = loop {
        if let Err(failed) = opened.active((1, 0)) {
            break failed;
        }
        let goal = Shared::new(LEN);
        assert_eq!(fetch(&goal, &|into, _| into.at(0) == 5).close(), Ok(()));
        // What was left open may still touch it, for all that a test knows.
        rest.push(goal);
        assert!(rest.len() <= 8, "without end");
    };
    assert_eq!((refused, rest.len()), (("fi_close", libc::EBUSY), 7));
}
