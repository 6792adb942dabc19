//! Messages that no honest peer sends, made of any bytes: what a fuzzer plays.
//!
//! Rank 1 lies to rank 0, past the engine and straight through the transport, about three windows
//! of every kind. Whatever it says, no rank panics, only parts that it named change, and everything
//! else goes on. Not a case of the suite: `tests/forged.rs` and `fuzz/` run it.
#![allow(unsafe_code)] // room: vouches for memory between canaries

mod accept;

pub use accept::accept;

use crate::help::{pattern, still_works};
use rma_core::transport::{SubmitError, WorldRank};
use rma_core::{Attached, Config, LockAll, Op, ProgressAgent};
use rma_core::{Rank, RawPart, RmaError, Universe, Window};
use std::time::Duration;

/// Most messages of one run.
const MESSAGES_MAX: usize = 64;
/// Bytes of a message before its body, in the input.
const FIXED: usize = 36;
/// Bytes of each part that is named in messages, and of each canary around them.
const PART: usize = 64;
/// Bytes of the longest payload of a collective.
const PAYLOAD: u64 = 1 << 16;
/// Bytes of a put by rendezvous.
const LARGE: usize = 400;
/// Bytes of a put that is a message.
const SMALL: usize = 48;
/// Words of each guard. The honest operations use the first half, the rest is never named.
const GUARD: usize = 128;

/// One message, as the input describes it. [`encode`](Self::encode) and [`decode`] agree.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    /// As in the header; so are the next three.
    pub kind: u8,
    /// Operation.
    pub op: u8,
    /// Basic type.
    pub basic: u8,
    /// Status of an answer.
    pub status: u8,
    /// Modulo 5: allocated, created or dynamic window, the world, or an id of no object.
    pub object: u8,
    /// Sum of [`RELATIVE`], [`FITTING`], [`HONEST`], [`CUT`] and [`WITHIN`].
    pub flags: u8,
    /// Tag.
    pub tag: u32,
    /// Offset.
    pub offset: u64,
    /// Length.
    pub length: u64,
    /// Slot.
    pub slot: u64,
    /// What follows the header, at most 255 bytes.
    pub body: Vec<u8>,
}

/// The offset counts from the address of the attached region.
pub const RELATIVE: u8 = 1;
/// The length is that of the body.
pub const FITTING: u8 = 2;
/// Honest operations follow.
pub const HONEST: u8 = 4;
/// Of the header, only as many bytes as `tag` says, and no body.
pub const CUT: u8 = 8;
/// The first eight bytes of the body count from the address of the attached region.
pub const WITHIN: u8 = 16;

/// In the number of what the runtime itself uses a communicator or a window's ranks for.
const RUNTIME: u64 = 1 << 39;
/// The operation of one that asks for room.
const REQUEST: u8 = 1;
/// They are about slots of rank 0.
pub const ANSWERS: [&str; 5] = ["Done", "Data", "Value", "Cts", "Granted"];
/// In their slots is something else, which no answer repeats.
const NO_SLOTS: [&str; 2] = ["Collective", "Unlock"];

/// Number and name of every kind of message, in order: a test of the core compares the list.
pub fn kinds() -> impl Iterator<Item = (u8, &'static str)> {
    let lines = include_str!("../../rma-core/src/protocol/kinds.txt").lines();
    lines.map(|line| {
        let (number, name) = line.split_once(' ').expect("a number and a name");
        (number.parse().expect("a byte"), name)
    })
}

/// The number of a kind. Panics if there is none of that name.
pub fn kind(name: &str) -> u8 {
    let found = kinds().find(|(_, known)| *known == name);
    found.unwrap_or_else(|| panic!("{name} is no kind of message")).0
}

impl Message {
    /// Appends it to an input.
    pub fn encode(&self, input: &mut Vec<u8>) {
        let body = &self.body[..self.body.len().min(255)];
        let Self { kind, op, basic, status, object, flags, .. } = *self;
        input.extend([kind, op, basic, status, object, flags, body.len() as u8, 0]);
        input.extend(self.tag.to_le_bytes());
        input.extend([self.offset, self.length, self.slot].map(u64::to_le_bytes).concat());
        input.extend(body);
    }

    /// The header, as rank 1 sends it.
    fn head(&self, named: &Named) -> Vec<u8> {
        let object = match self.object % 5 {
            3 => 0,
            // No rank counts that far.
            4 => self.length | 1 << 63,
            window => named.windows[usize::from(window)],
        };
        let is_collective = self.kind == kind("Collective");
        // What the ranks of a window tell each other has a number of its own.
        let object = object | if is_collective && object != 0 { RUNTIME } else { 0 };
        // The world's collectives are how the ranks meet in the end: its messages have tags that
        // it does not reach.
        let hidden = is_collective && object == 0;
        let tag = self.tag | if hidden { 1 << 31 } else { 0 };
        let base = if self.flags & RELATIVE == 0 { 0 } else { named.region };
        let fitting = self.flags & FITTING != 0;
        let length = if fitting { self.body.len() as u64 } else { self.length };
        // What rank 0 answers must not be taken for an answer to an honest operation of rank 1,
        // which has no slots that high: a liar that harms itself shows nothing.
        let free = ANSWERS.iter().chain(&NO_SLOTS).any(|name| self.kind == kind(name));
        let slot = self.slot | if free { 0 } else { 1 << 31 };
        let mut head = vec![self.kind, self.op, self.basic, self.status];
        head.extend(tag.to_le_bytes());
        let words = [object, base.wrapping_add(self.offset), length, slot];
        head.extend(words.map(u64::to_le_bytes).concat());
        head
    }

    /// Header and body, as rank 1 sends them.
    fn parts(&self, named: &Named) -> (Vec<u8>, Vec<u8>) {
        let (mut head, mut body) = (self.head(named), self.body.clone());
        if self.flags & CUT != 0 {
            head.truncate(self.tag as usize % head.len());
            body.clear();
        }
        if let Some(address) = body.first_chunk_mut().filter(|_| self.flags & WITHIN != 0) {
            *address = named.region.wrapping_add(u64::from_le_bytes(*address)).to_le_bytes();
        }
        (head, body)
    }
}

/// Reads any input; what is missing at its end is zero.
pub fn decode(mut input: &[u8]) -> Vec<Message> {
    let mut messages = Vec::new();
    while !input.is_empty() && messages.len() < MESSAGES_MAX {
        let mut fixed = [0; FIXED];
        let (first, rest) = input.split_at(input.len().min(FIXED));
        fixed[..first.len()].copy_from_slice(first);
        let (body, rest) = rest.split_at(rest.len().min(fixed[6].into()));
        input = rest;
        let word = |at: usize| {
            let bytes = fixed[at..].first_chunk();
            u64::from_le_bytes(*bytes.expect("eight bytes before the end"))
        };
        messages.push(Message {
            kind: fixed[0],
            op: fixed[1],
            basic: fixed[2],
            status: fixed[3],
            object: fixed[4],
            flags: fixed[5],
            tag: word(8) as u32,
            offset: word(12),
            length: word(20),
            slot: word(28),
            body: body.to_vec(),
        });
    }
    messages
}

/// Budgets so small that the messages of one run reach their ends.
pub fn config(rank: WorldRank) -> Config {
    let mut config = Config::default();
    // Operations of rank 0 may lose their answers to forged ones; rank 1 waits for their end.
    let seconds = if rank.0 == 0 { 1 } else { 100 };
    config.wait_timeout = Some(Duration::from_secs(seconds));
    (config.outstanding_messages, config.credit_messages) = (4, 4);
    (config.eager_bytes, config.rendezvous_bytes) = (64, 512);
    (config.collective_bytes, config.dynamic_regions) = (PAYLOAD, 4);
    config.progress_agent = ProgressAgent::Never;
    config
}

/// With room for two of the longest payloads.
pub fn flooded(rank: WorldRank) -> Config {
    let mut config = config(rank);
    config.unexpected_bytes = 2 * PAYLOAD;
    config
}

/// What messages name.
struct Named {
    /// Ids of the allocated, created and dynamic window.
    windows: [u64; 3],
    /// Address of what rank 0 has attached to the last of them.
    region: u64,
}

/// The id of a window in messages, from how it is shown: a rank and its count of objects.
fn number(window: &Window) -> u64 {
    let shown = window.id().to_string();
    let (rank, count) = shown.strip_prefix('#').and_then(|id| id.split_once('.')).unwrap();
    rank.parse::<u64>().unwrap() << 40 | count.parse::<u64>().unwrap()
}

/// Windows of one rank. Nothing is done with the middle three after they were named: forged
/// control words may have locked them for ever.
struct Windows {
    left: Window,
    allocated: Window,
    right: Window,
    created: Window,
    dynamic: Window,
    attached: Attached<RawPart>,
}

/// Memory with canaries on both sides of what is named.
fn fenced() -> Vec<u8> {
    pattern(7, 3 * PART)
}

impl Windows {
    fn new(universe: &Universe, created: RawPart, attached: RawPart) -> Self {
        let world = universe.world();
        let guard = || {
            let window = world.window(GUARD, 8).allocate().unwrap();
            window.local().write(GUARD as u64 / 2, &pattern(9, GUARD * 4)).unwrap();
            window
        };
        let left = guard();
        let allocated = world.window(PART, 1).allocate().unwrap();
        let right = guard();
        let created = world.window(PART, 1).create(created).unwrap();
        let dynamic = world.window(0, 1).create_dynamic().unwrap();
        let attached = dynamic.attach(attached).unwrap();
        Self { left, allocated, right, created, dynamic, attached }
    }

    fn check_guards(&self) {
        for (name, guard) in [("left", &self.left), ("right", &self.right)] {
            let mut bytes = vec![0u8; GUARD * 4];
            guard.local().read(GUARD as u64 / 2, &mut bytes).unwrap();
            assert_eq!(bytes, pattern(9, GUARD * 4), "the {name} guard, which no message named");
        }
    }
}

/// One of two ranks of a job that was made with [`config`]. Panics if forged messages do more than
/// they may.
pub fn play(universe: Universe, input: &[u8]) {
    _ = between(|over, at| play_between(universe, over, at, input));
}

/// With parts between canaries, for a universe that is dropped within; what is there then.
fn between(act: impl FnOnce(RawPart, RawPart)) -> [Vec<u8>; 2] {
    let (mut created, mut attached) = (fenced(), fenced());
    // SAFETY: `created` lives, and is not touched, until the universe is dropped.
    let over = unsafe { RawPart::new(created.as_mut_ptr().wrapping_add(PART), PART) };
    // SAFETY: as above, of `attached`.
    let to_attach = unsafe { RawPart::new(attached.as_mut_ptr().wrapping_add(PART), PART) };
    act(over, to_attach);
    let whole = fenced();
    for (name, memory) in [("created", &created), ("attached", &attached)] {
        assert_eq!(memory[..PART], whole[..PART], "before the {name} part");
        assert_eq!(memory[2 * PART..], whole[2 * PART..], "behind the {name} part");
    }
    [created, attached]
}

fn play_between(universe: Universe, over: RawPart, at: RawPart, input: &[u8]) {
    let world = universe.world();
    assert_eq!(world.size(), 2, "one lies, one listens");
    let windows = Windows::new(&universe, over, at);
    let region = world.allgather(&[windows.attached.address()]).unwrap()[0];
    let ids = [&windows.allocated, &windows.created, &windows.dynamic];
    let named = Named { windows: ids.map(number), region };
    let (left, right) = (windows.left.lock_all().unwrap(), windows.right.lock_all().unwrap());
    world.barrier().unwrap();
    if world.rank() == Rank(1) {
        let mut honest = 0;
        for message in decode(input) {
            forge(&universe, &named, &message, &left);
            if message.flags & HONEST != 0 {
                honest += 1;
                operate(&left, Rank(0), (honest, LARGE), true).unwrap();
            }
        }
        operate(&right, Rank(0), (1, LARGE), true).unwrap();
    } else {
        for round in 1..=4 {
            // Forged answers may stand for those that do not come any more.
            _ = operate(&left, Rank(1), (round, LARGE), false);
        }
    }
    drain(&universe);
    // Waits that ended early are told here, at the victim only.
    let unlocked = [left.unlock(), right.unlock()];
    assert!(world.rank() == Rank(0) || unlocked.iter().all(Result::is_ok), "{unlocked:?}");
    world.barrier().unwrap();
    windows.check_guards();
    let fresh = world.window(GUARD, 8).allocate().unwrap();
    still_works(&fresh);
    let peer = world.rank().on_ring(1, 2);
    // A liar that clears what it was not asked for yet drops the data, and clears for ever what it
    // is asked for then: with its own budget it has harmed itself, and takes no large puts.
    let cleared = decode(input).iter().any(|message| message.kind == kind("Cts"));
    let bytes = if cleared && peer == Rank(1) { SMALL } else { LARGE };
    fresh.local().write(0, &[0u64; GUARD]).unwrap();
    world.barrier().unwrap();
    let epoch = fresh.lock_all().unwrap();
    operate(&epoch, peer, (1, bytes), true).unwrap();
    epoch.unlock().unwrap();
    fresh.free().unwrap();
    drop(windows);
    universe.finalize().unwrap();
}

/// One of two ranks of a job that was made with [`config`], but for [`flooded`]: rank 1 asks for
/// more payloads of a collective than rank 0 can expect, and for more bytes than it keeps.
pub fn flood(universe: Universe) {
    const OPERATIONS: u32 = 40;
    const ROUNDS: u32 = 5;
    // Few bytes always have room.
    const ELEMENTS: usize = 2000;
    let world = universe.world();
    let (guard, flooded) =
        (world.window(GUARD, 8).allocate().unwrap(), world.window(PART, 1).allocate().unwrap());
    let named = Named { windows: [number(&flooded); 3], region: 0 };
    let epoch = guard.lock_all().unwrap();
    world.barrier().unwrap();
    if world.rank() == Rank(1) {
        for tag in 0..OPERATIONS * ROUNDS {
            // The operation, above eight bits that are its own.
            let tag = ((tag / ROUNDS) << 8) | (tag % ROUNDS);
            let kind = kind("Collective");
            let message = Message { kind, op: REQUEST, tag, length: PAYLOAD, ..<_>::default() };
            forge(&universe, &named, &message, &epoch);
        }
    }
    drain(&universe);
    let shared = world.allgather(&[world.rank().0; ELEMENTS]);
    if world.rank() == Rank(0) {
        // Three for each operation that a rank may be in: the present one, 16 ahead, a barrier.
        let expected = u64::from(OPERATIONS * ROUNDS - 3 * 18);
        assert_eq!(universe.counters().messages_dropped(), expected);
    } else {
        operate(&epoch, Rank(0), (1, LARGE), true).unwrap();
    }
    // Honest origins find room.
    assert_eq!(shared.unwrap(), [[0; ELEMENTS], [1; ELEMENTS]].concat());
    epoch.unlock().unwrap();
    // What came for it goes with it.
    drop(flooded);
    world.barrier().unwrap();
    assert_eq!(world.allgather(&[world.rank().0]).unwrap(), [0, 1]);
    guard.free().unwrap();
    universe.finalize().unwrap();
}

/// Sends one message past the engine.
fn forge(universe: &Universe, named: &Named, message: &Message, epoch: &LockAll<'_>) {
    let (head, body) = message.parts(named);
    while submit(universe, &head, &body) == Err(SubmitError::Again) {
        // Makes progress.
        epoch.get(Rank(0), 0, &mut [0u8]).unwrap();
    }
}

fn submit(universe: &Universe, head: &[u8], body: &[u8]) -> Result<(), SubmitError> {
    // SAFETY: to no message of these does a receiver by messages alone do more than to answer, or
    // to write inside its part: that is what the tests show.
    unsafe { universe.transport().send(WorldRank(0), head, body) }
}

/// The honest operations of one round, small ones and one of so many bytes, which needs to be
/// cleared if they are [`LARGE`]. `strict` if their results are those of this rank alone.
fn operate(
    epoch: &LockAll<'_>,
    target: Rank,
    (round, bytes): (u64, usize),
    strict: bool,
) -> Result<(), RmaError> {
    let large = pattern(round as u32, bytes);
    epoch.put(target, 1, &[round])?;
    epoch.put(target, 8, &large)?;
    let before = epoch.fetch_and_op(target, 0, Op::Sum, 1u64)?;
    epoch.accumulate(target, 2, Op::Sum, &[round])?;
    epoch.flush(target)?;
    let (mut small, mut got) = ([0u64; 3], vec![0u8; bytes]);
    epoch.get(target, 0, &mut small)?;
    epoch.get(target, 8, &mut got)?;
    if strict {
        assert_eq!(before + 1, round);
        assert_eq!(small, [round, round, round * (round + 1) / 2]);
        assert_eq!(got, large);
    }
    Ok(())
}

/// Until every forged message has arrived and what follows from it is done: a message travels for
/// less than a millisecond of the simulator.
fn drain(universe: &Universe) {
    for _ in 0..4 {
        universe.world().barrier().unwrap();
        pause(universe, 1);
    }
    universe.world().barrier().unwrap();
}

/// Serves nothing meanwhile.
fn pause(universe: &Universe, millis: u64) {
    let end = universe.transport().now() + Duration::from_millis(millis);
    while universe.transport().now() < end {
        universe.transport().relax(0);
    }
}
