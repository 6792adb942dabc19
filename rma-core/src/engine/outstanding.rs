//! Messages that wait for an answer from afar: a fixed number of slots with generations, each of
//! which takes credit at its target.
//!
//! What becomes of a slot is one word: its generation, and a [`State`]. A message that was sent and
//! is not waited for any more still lies at its target, in a queue or half done: its slot and its
//! credit stay used until the late answer comes, or the target is gone, so that a target never
//! keeps more of an origin than the credit says.
//!
//! A slot may hold the address of an origin buffer that an arriving answer is written to. Answers
//! are written while their slot is [held](Slot::hold), and what counts them is released afterwards,
//! so when [`Pending::is_done`] says so none is written any more and the buffer may die. So it may
//! when [`OutstandingTable::cancel`] has returned: it holds each slot in turn, and leaves none that
//! knows the buffer. A slot is held as long as a message is copied, at most, and no thread that
//! holds one waits for another.
#![allow(unsafe_code)]

use super::budget::Budget;
use crate::protocol::message::{Head, Kind, Status};
use crate::protocol::rendezvous::Sender;
use crate::rank::WorldRank;
use crate::thread;
use crate::transport::DeviceError;
use crate::word::{AtomicU64, Content};
use core::any::Any;
use core::ops::Range;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::ThreadId;

/// As many as ids can tell apart, and more than any rank needs.
const SLOTS_MAX: usize = 1 << 20;

/// Names one slot, once: a reused slot has another id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SlotId(pub(crate) u64);

impl SlotId {
    fn new(generation: u32, index: usize) -> Self {
        Self(u64::from(generation) << 32 | index as u64)
    }

    fn index(self) -> usize {
        (self.0 & 0xffff_ffff) as usize
    }

    fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// Operations that are waited for together: those of a scope, of a request, of one target.
#[derive(Default)]
pub(crate) struct Pending {
    outstanding: AtomicU64,
    /// The first [`Status`] other than `Ok`, and above it the peer that answered so; or
    /// [`CANCELLED`].
    failure: AtomicU64,
    /// The thread whose operations these are, if only its own flush ends them for it.
    by: Option<ThreadId>,
    /// Of the failure, that thread was told, or any if there is no such thread: later flushes are
    /// not.
    told: AtomicBool,
    value: AtomicU64,
    /// What few have: a program may keep many requests.
    rare: OnceLock<Box<Rare>>,
}

#[derive(Default)]
struct Rare {
    /// Other threads whose flush has told of the failure.
    heard: Mutex<Vec<ThreadId>>,
    /// Of a failure that is [`BY_DEVICE`].
    device: OnceLock<Lost>,
    /// Owners of the buffers that callers gave away.
    keep: Mutex<Vec<Box<dyn Any + Send>>>,
}

impl Rare {
    fn heard(&self) -> MutexGuard<'_, Vec<ThreadId>> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kept(&self) -> MutexGuard<'_, Vec<Box<dyn Any + Send>>> {
        self.keep.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pending {
    /// Operations of that thread, which hears of a failure from a flush of its own.
    pub(crate) fn of(by: ThreadId) -> Self {
        Self { by: Some(by), ..Self::default() }
    }

    /// An operation of that thread, which another thread gave up.
    pub(crate) fn lost(by: ThreadId) -> Self {
        let lost = Self::of(by);
        lost.fail(CANCELLED);
        lost
    }

    /// The thread whose operations these are; `None` if the waiter knows.
    pub(crate) fn by(&self) -> Option<ThreadId> {
        self.by
    }

    /// Whether every operation has its answer.
    pub(crate) fn is_done(&self) -> bool {
        // pairs with the Release in `release`: what was written to buffers is visible.
        self.outstanding.load(Acquire) == 0
    }

    /// How the operations fared: the first that failed counts.
    pub(crate) fn failure(&self) -> Option<Failure> {
        match self.failure.load(Relaxed) {
            0 => None,
            CANCELLED => Some(Failure::Cancelled),
            BY_DEVICE => self.rare.get()?.device.get().map(|lost| Failure::Device(*lost)),
            failure => {
                let status = Status::parse(failure as u8);
                let by = WorldRank((failure >> 32) as u32);
                Some(Failure::Answered(status.unwrap_or(Status::Malformed), by))
            }
        }
    }

    /// This thread, which waits for the operations, knows how they fared.
    pub(crate) fn set_told(&self) {
        let me = thread::id();
        if self.by.is_none_or(|by| by == me) {
            self.told.store(true, Relaxed);
        } else {
            self.rare().heard().push(me);
        }
    }

    fn rare(&self) -> &Rare {
        self.rare.get_or_init(Box::default)
    }

    /// Whether no flush has anything to wait for, or to tell.
    pub(crate) fn is_over(&self) -> bool {
        self.is_done() && (self.failure().is_none() || self.told.load(Relaxed))
    }

    /// As [`is_over`](Self::is_over), of a flush of this thread.
    pub(crate) fn is_over_here(&self) -> bool {
        let heard = |rare: &Rare| rare.heard().contains(&thread::id());
        let here = || self.rare.get().is_some_and(|rare| heard(rare));
        self.is_over() || (self.is_done() && here())
    }

    /// Whether a flush of another thread has told of the failure.
    pub(crate) fn is_heard(&self) -> bool {
        self.rare.get().is_some_and(|rare| !rare.heard().is_empty())
    }

    /// A transfer of a device has failed.
    pub(crate) fn fail_by_device(&self, lost: Lost) {
        // Before the failure can be seen. The first counts.
        _ = self.rare().device.set(lost);
        self.fail(BY_DEVICE);
    }

    /// One of them is not waited for any more.
    pub(crate) fn cancel(&self) {
        self.fail(CANCELLED);
        self.release();
    }

    fn fail(&self, failure: u64) {
        _ = self.failure.compare_exchange(0, failure, Relaxed, Relaxed);
    }

    /// Not done before it is [released](Self::release): operations are about to be counted.
    pub(crate) fn hold(&self) {
        self.outstanding.fetch_add(1, Relaxed);
    }

    /// Whether everything is done, which a thread may wait for.
    pub(crate) fn release(&self) -> bool {
        // pairs with the Acquire load in `is_done`.
        self.outstanding.fetch_sub(1, Release) == 1
    }

    /// The value that came back last.
    pub(crate) fn value(&self) -> u64 {
        self.value.load(Relaxed)
    }

    /// Keeps `owner` alive as long as this is.
    pub(crate) fn keep(&self, owner: Box<dyn Any + Send>) {
        self.rare().kept().push(owner);
    }

    /// Whether it keeps anything.
    pub(crate) fn keeps(&self) -> bool {
        self.rare.get().is_some_and(|rare| !rare.kept().is_empty())
    }
}

/// In [`Pending::failure`]: no status is that.
const CANCELLED: u64 = u64::MAX;
/// Nor that.
const BY_DEVICE: u64 = u64::MAX - 1;

/// Why operations are over that were not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// That process answered so; or it is the one that [left](Status::HolderLeft).
    Answered(Status, WorldRank),
    /// The device could not move that.
    Device(Lost),
    /// The waiter gave up.
    Cancelled,
}

/// A transfer of a device that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lost {
    pub(crate) error: DeviceError,
    pub(crate) peer: WorldRank,
    /// Where in the peer's part it was to begin, if that is known.
    pub(crate) at: Option<u64>,
}

/// Where the bytes of an answer go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Buffer {
    pub(crate) at: *mut u8,
    pub(crate) len: usize,
}

impl Buffer {
    /// For answers that are an acknowledgement or a value.
    pub(crate) const NONE: Self = Self { at: core::ptr::null_mut(), len: 0 };
}

/// What a message will be answered by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expected {
    /// The kind that answers it.
    pub(crate) kind: Kind,
    /// Units of answer: bytes, or 1 for a value and for the end of a rendezvous.
    pub(crate) units: u64,
    /// Where bytes go.
    pub(crate) buffer: Buffer,
    /// Of a transfer by rendezvous.
    pub(crate) sender: Option<Sender>,
}

impl Expected {
    /// The answer to a request.
    pub(crate) fn of(head: &Head, buffer: Buffer) -> Self {
        let rendezvous = head.kind() == Some(Kind::Rts);
        let kind = head.kind().and_then(Kind::answer).expect("only requests take a slot");
        let one = rendezvous || kind == Kind::Value;
        Self {
            kind,
            units: if one { 1 } else { head.length.get() },
            buffer,
            sender: rendezvous.then(|| Sender::new(head.length.get())),
        }
    }
}

/// What came back: which part of the transfer, and how it went.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answer {
    pub(crate) kind: Kind,
    pub(crate) status: Status,
    pub(crate) value: u64,
    /// Units answered: bytes, or 1 for a value.
    pub(crate) units: u64,
    /// Where in the buffer the bytes belong.
    pub(crate) offset: u64,
}

/// What became of a CTS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clearance {
    Taken,
    /// No thread waits for anything under this id.
    Unknown,
    /// A thread waits, but not for this.
    Wrong,
}

/// What a rendezvous does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Next {
    /// Send these bytes.
    Data(Range<u64>),
    /// Wait for a CTS.
    Wait,
    /// Nothing: it was answered, or its target is gone.
    Answered,
    /// To tell the target that it was cancelled, which has not answered yet.
    Cancelled,
}

/// What becomes of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum State {
    Free,
    /// Its message is not sent: the last attempt found no room.
    Reserved,
    /// Its message was sent, or is just being sent: it may be answered.
    Sent,
    /// As [`Sent`](Self::Sent), and cancelled: the target still has it, or its answer is under way.
    Owed,
}

impl State {
    fn of(word: u64) -> Self {
        match word & 3 {
            0 => Self::Free,
            1 => Self::Reserved,
            2 => Self::Sent,
            _ => Self::Owed,
        }
    }

    /// The state of a slot whose message is not waited for any more.
    fn cancelled(self) -> Self {
        if self == Self::Sent { Self::Owed } else { Self::Free }
    }

    fn is_waited_for(self) -> bool {
        matches!(self, Self::Reserved | Self::Sent)
    }
}

/// In the word of a slot: a thread holds it.
const HELD: u64 = 4;

fn generation(word: u64) -> u32 {
    (word >> 32) as u32
}

struct Slot {
    /// The generation, [`HELD`], and the [`State`].
    word: AtomicU64,
    message: Content<InFlight>,
}

/// A message that waits for its answer.
struct InFlight {
    peer: WorldRank,
    expected: Expected,
    /// `None` if it is not waited for.
    pending: Option<Arc<Pending>>,
}

// SAFETY: the message is touched by the thread that holds the slot, or that has taken it from the
// budget, only; the address in `expected.buffer` is written through by the former, while the slot
// is waited for, and what it points to is exclusively the slot's then (contract of
// `OutstandingTable::start`). So a slot may be another thread's at each turn.
unsafe impl Send for Slot {}
// SAFETY: as above: of several threads that have the slot, one holds it.
unsafe impl Sync for Slot {}

impl InFlight {
    const NOTHING: Expected =
        Expected { kind: Kind::Done, units: 0, buffer: Buffer::NONE, sender: None };

    /// Whether the answer may be taken: it is asked for, and what it says fits.
    fn admits(&self, answer: &Answer, bytes: &[u8], state: State) -> bool {
        let expected = &self.expected;
        let units = answer.units > 0 && answer.units <= expected.units;
        if answer.kind != expected.kind || !units {
            return false;
        }
        match state {
            State::Sent => {}
            // Nothing of it is looked at but how much comes.
            State::Owed => return true,
            State::Free | State::Reserved => return false,
        }
        if answer.status != Status::Ok || expected.buffer.len == 0 {
            let sent = expected.sender.is_none_or(|sender| sender.is_sent());
            return bytes.is_empty() && (sent || answer.status != Status::Ok);
        }
        let len = bytes.len() as u64;
        let end = answer.offset.checked_add(len);
        len == answer.units && end.is_some_and(|end| end <= expected.buffer.len as u64)
    }

    fn is_counted_in(&self, pending: &Arc<Pending>) -> bool {
        self.pending.as_ref().is_some_and(|counted| Arc::ptr_eq(counted, pending))
    }
}

impl Slot {
    fn new() -> Self {
        let nothing = InFlight { peer: WorldRank(0), expected: InFlight::NOTHING, pending: None };
        Self { word: AtomicU64::new(1 << 32), message: Content::new(nothing) }
    }

    fn word(generation: u32, state: State) -> u64 {
        u64::from(generation) << 32 | state as u64
    }

    /// Holds the slot for the caller alone, as long as it is one that is `wanted`, which a free one
    /// never is; answers with its generation and state.
    fn hold(&self, wanted: impl Fn(u32, State) -> bool) -> Option<(u32, State)> {
        let mut pauses = 0;
        // pairs with the Release in `let_go`: what was done to a buffer before is visible, also if
        // the slot is not wanted any more.
        let mut seen = self.word.load(Acquire);
        loop {
            let state = State::of(seen);
            if state == State::Free || !wanted(generation(seen), state) {
                return None;
            }
            if seen & HELD == 0 {
                match self.word.compare_exchange(seen, seen | HELD, Acquire, Acquire) {
                    Ok(_) => return Some((generation(seen), state)),
                    Err(found) => seen = found,
                }
                continue;
            }
            thread::pause(&mut pauses);
            seen = self.word.load(Acquire);
        }
    }

    /// The end of what [`hold`](Self::hold) began. One that is free then has another generation.
    fn let_go(&self, generation: u32, state: State) {
        let freed = state == State::Free;
        let generation = if freed { generation.wrapping_add(1) } else { generation };
        // pairs with the Acquire in `hold`.
        self.word.store(Self::word(generation, state), Release);
    }
}

/// The slots of one rank.
pub(crate) struct OutstandingTable {
    slots: Box<[Slot]>,
    budget: Budget,
}

impl OutstandingTable {
    /// `count` slots, of which `credit` may wait for one peer.
    pub(crate) fn new(count: usize, credit: usize) -> Self {
        let count = count.clamp(1, SLOTS_MAX);
        let slots = (0..count).map(|_| Slot::new()).collect();
        Self { slots, budget: Budget::new(count, credit) }
    }

    /// Changes a slot that is `wanted`, for which no free one is taken, and what becomes of it.
    fn change<R>(
        &self,
        index: usize,
        wanted: impl Fn(u32, State) -> bool,
        change: impl FnOnce(&mut InFlight, &mut State) -> R,
    ) -> Option<R> {
        let slot = self.slots.get(index)?;
        let (generation, mut state) = slot.hold(wanted)?;
        let (result, peer, ended) = slot.message.with_mut(|message| {
            // SAFETY: no other thread has the message while this one holds the slot; what `change`
            // calls knows neither.
            let message = unsafe { &mut *message };
            let result = change(message, &mut state);
            let mut ended = None;
            if !state.is_waited_for() {
                (message.expected.buffer, ended) = (Buffer::NONE, message.pending.take());
            }
            (result, message.peer, ended)
        });
        slot.let_go(generation, state);
        if state == State::Free {
            self.budget.give_back(peer, index);
        }
        if let Some(pending) = ended {
            pending.release();
            // Perhaps the last reference: what it keeps is dropped when the slot is not held.
            drop(pending);
        }
        Some(result)
    }

    /// As [`change`](Self::change), of the slot with this id, if it is in use.
    fn change_one<R>(
        &self,
        id: SlotId,
        change: impl FnOnce(&mut InFlight, &mut State) -> R,
    ) -> Option<R> {
        self.change(id.index(), |generation, _| generation == id.generation(), change)
    }

    /// As [`change`](Self::change), of every slot in use, one after the other.
    fn change_all(&self, mut change: impl FnMut(&mut InFlight, &mut State)) {
        for index in 0..self.slots.len() {
            self.change(index, |_, _| true, &mut change);
        }
    }

    /// Takes a free slot and credit for a message to `peer`, which is about to be sent, counted in
    /// `pending`; `None` if there is none.
    ///
    /// # Safety
    ///
    /// The buffer stays valid, and is touched by nothing else, until `pending` is done or was
    /// [cancelled](Self::cancel); or `pending` [keeps](Pending::keep) its owner.
    pub(crate) unsafe fn start(
        &self,
        peer: WorldRank,
        expected: Expected,
        pending: &Arc<Pending>,
    ) -> Option<SlotId> {
        let index = self.budget.take(peer)?;
        let slot = &self.slots[index];
        pending.hold();
        let message = InFlight { peer, expected, pending: Some(pending.clone()) };
        // SAFETY: the budget gives a slot to one thread at a time, no thread holds one that is
        // free, and what the one before did to it happened before it gave it back.
        slot.message.with_mut(|place| unsafe { *place = message });
        let generation = generation(slot.word.load(Relaxed));
        // pairs with the Acquire in `hold`.
        slot.word.store(Slot::word(generation, State::Sent), Release);
        Some(SlotId::new(generation, index))
    }

    /// How many slots there are, and how many messages one peer may leave unanswered.
    pub(crate) fn limits(&self) -> (usize, usize) {
        self.budget.limits()
    }

    /// How many slots are free, and how many more messages `peer` may leave unanswered.
    pub(crate) fn free(&self, peer: WorldRank) -> (usize, usize) {
        self.budget.free(peer)
    }

    /// The message of a slot was not sent after all; true if the slot is free with that, because it
    /// was cancelled meanwhile.
    pub(crate) fn set_unsent(&self, id: SlotId) -> bool {
        let unsent = |_: &mut InFlight, state: &mut State| {
            let owed = *state == State::Owed;
            *state = if owed { State::Free } else { State::Reserved };
            owed
        };
        self.change_one(id, unsent) == Some(true)
    }

    /// A message that was [not sent](Self::set_unsent) is about to be sent again; false if it was
    /// cancelled.
    pub(crate) fn resume(&self, id: SlotId) -> bool {
        let resume = |_: &mut InFlight, state: &mut State| {
            let reserved = *state == State::Reserved;
            if reserved {
                *state = State::Sent;
            }
            reserved
        };
        self.change_one(id, resume) == Some(true)
    }

    /// A process whose answer is outstanding, of those counted in `pending`: another one at each
    /// turn. `None` also if answers come just now.
    pub(crate) fn debtor(&self, pending: &Arc<Pending>, turn: usize) -> Option<WorldRank> {
        let mut debtors = Vec::new();
        self.change_all(|message, _| {
            debtors.extend(message.is_counted_in(pending).then_some(message.peer));
        });
        debtors.get(turn.checked_rem(debtors.len())?).copied()
    }

    /// The peers of all slots, if fewer than `needed` are free.
    pub(crate) fn keepers(&self, needed: usize) -> Option<Vec<WorldRank>> {
        if self.budget.free_slots() >= needed {
            return None;
        }
        let mut keepers = Vec::new();
        self.change_all(|message, _| keepers.push(message.peer));
        keepers.sort_unstable();
        keepers.dedup();
        Some(keepers)
    }

    /// Gives back every slot of a peer that has left and answers nothing any more, as if it had
    /// said so; false if there are none.
    pub(crate) fn end(&self, peer: WorldRank) -> bool {
        let mut ended = false;
        self.change_all(|message, state| {
            if message.peer == peer {
                let failure = u64::from(peer.0) << 32 | Status::HolderLeft as u64;
                message.pending.iter().for_each(|pending| pending.fail(failure));
                (*state, ended) = (State::Free, true);
            }
        });
        ended
    }

    /// Does not wait any more for what is counted in `pending`: nothing is written to its buffers
    /// afterwards. Slots of messages that were not sent are given back; others, with their credit,
    /// when the answer comes.
    pub(crate) fn cancel(&self, pending: &Arc<Pending>) {
        for index in 0..self.slots.len() {
            if pending.is_done() {
                break;
            }
            let wanted = |_, state: State| state.is_waited_for();
            self.change(index, wanted, |message, state| {
                if message.is_counted_in(pending) {
                    pending.fail(CANCELLED);
                    *state = state.cancelled();
                }
            });
        }
    }

    /// As [`cancel`](Self::cancel), of one message, without a word to the others that are waited
    /// for with it; false if it was answered or cancelled before.
    pub(crate) fn cancel_one(&self, id: SlotId) -> bool {
        let cancel = |_: &mut InFlight, state: &mut State| {
            let before = state.is_waited_for();
            if before {
                *state = state.cancelled();
            }
            before
        };
        self.change_one(id, cancel) == Some(true)
    }

    /// Takes the CTS of a rendezvous.
    pub(crate) fn handle_cts(&self, from: WorldRank, id: SlotId, bytes: u64) -> Clearance {
        let handle = |message: &mut InFlight, state: &mut State| {
            if message.peer != from || !state.is_waited_for() {
                return Clearance::Unknown;
            }
            let sender = message.expected.sender.as_mut();
            let taken = sender.is_some_and(|sender| sender.handle_cts(bytes));
            if taken { Clearance::Taken } else { Clearance::Wrong }
        };
        self.change_one(id, handle).unwrap_or(Clearance::Unknown)
    }

    /// What a rendezvous does next; a message has at most `max` bytes.
    pub(crate) fn next(&self, id: SlotId, max: u64) -> Next {
        let next = |message: &mut InFlight, state: &mut State| {
            if *state == State::Owed {
                return Next::Cancelled;
            }
            let sender = message.expected.sender.as_mut();
            sender.map_or(Next::Answered, |sender| {
                sender.poll_data(max).map_or(Next::Wait, Next::Data)
            })
        };
        self.change_one(id, next).unwrap_or(Next::Answered)
    }

    /// Takes an answer and its bytes; false if it answers nothing, or not this.
    pub(crate) fn answer(&self, from: WorldRank, id: SlotId, answer: Answer, bytes: &[u8]) -> bool {
        let take = |message: &mut InFlight, state: &mut State| {
            if message.peer != from || !message.admits(&answer, bytes, *state) {
                return false;
            }
            let failed = answer.status != Status::Ok;
            if let Some(pending) = &message.pending {
                if failed {
                    // Of no use in an answer without bytes but here.
                    let holder = u32::try_from(answer.offset).ok();
                    let by = holder.filter(|_| answer.status == Status::HolderLeft);
                    let by = u64::from(by.unwrap_or(from.0));
                    pending.fail(by << 32 | answer.status as u64);
                } else {
                    pending.value.store(answer.value, Relaxed);
                    let buffer = message.expected.buffer;
                    if buffer.len > 0 {
                        // SAFETY: `admits` says that `offset <= len`: inside the buffer that the
                        // caller of `start` vouched for.
                        let at = unsafe { buffer.at.add(answer.offset as usize) };
                        // SAFETY: `offset + bytes.len() <= len`, as `admits` says, and the buffer
                        // is the slot's alone while that is held and waited for.
                        unsafe { at.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
                    }
                }
            }
            message.expected.units -= if failed { message.expected.units } else { answer.units };
            if message.expected.units == 0 {
                *state = State::Free;
            }
            true
        };
        self.change_one(id, take) == Some(true)
    }

    /// Whether no slot and no credit is in use.
    #[cfg(test)]
    pub(crate) fn is_unused(&self) -> bool {
        self.budget.is_unused()
    }
}

#[cfg(all(test, loom))]
#[path = "outstanding_loom_tests.rs"]
mod loom_tests;
