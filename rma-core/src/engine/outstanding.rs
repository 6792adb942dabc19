//! Messages that wait for an answer from afar: a fixed number of slots with generations, each of
//! which takes credit at its target.
//!
//! A slot may hold the address of an origin buffer that an arriving answer is written to. Answers
//! are written under the mutex of their slot, and what counts them is released under it, so when
//! [`Pending::is_done`] says so none is written any more and the buffer may die. So it may when
//! [`OutstandingTable::cancel`] has returned: it takes the mutex of each slot in turn, and leaves
//! none that knows the buffer. No thread waits for another one that has another slot.
#![allow(unsafe_code)]

use super::budget::Budget;
use crate::protocol::message::{Head, Kind, Status};
use crate::protocol::rendezvous::Sender;
use crate::rank::WorldRank;
use crate::thread;
use crate::transport::DeviceError;
use core::any::Any;
use core::ops::Range;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU64};
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
}

impl Pending {
    /// Operations of the calling thread, which hears of a failure from a flush of its own.
    pub(crate) fn of_this_thread() -> Self {
        Self { by: Some(thread::id()), ..Self::default() }
    }

    /// Whose operations these are; `None` if the waiter knows.
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
        self.rare().keep.lock().unwrap_or_else(PoisonError::into_inner).push(owner);
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
    /// Nothing: it was answered or cancelled.
    Ended,
}

struct Slot {
    generation: u32,
    peer: WorldRank,
    expected: Expected,
    /// `None` if the slot is free.
    pending: Option<Arc<Pending>>,
}

// SAFETY: the address in `expected.buffer` is only written through under the mutex of the slot, and
// what it points to is exclusively the slot's while the slot is in use (contract of
// `OutstandingTable::start`).
unsafe impl Send for Slot {}

impl Slot {
    const NOTHING: Expected =
        Expected { kind: Kind::Done, units: 0, buffer: Buffer::NONE, sender: None };

    /// Whether the answer may be taken: it is asked for, and what it says fits.
    fn admits(&self, answer: &Answer, bytes: &[u8]) -> bool {
        let expected = &self.expected;
        let units = answer.units > 0 && answer.units <= expected.units;
        if answer.kind != expected.kind || !units {
            return false;
        }
        if answer.status != Status::Ok || expected.buffer.len == 0 {
            let sent = expected.sender.is_none_or(|sender| sender.is_sent());
            return bytes.is_empty() && (sent || answer.status != Status::Ok);
        }
        let len = bytes.len() as u64;
        let end = answer.offset.checked_add(len);
        len == answer.units && end.is_some_and(|end| end <= expected.buffer.len as u64)
    }
}

/// The slots of one rank.
pub(crate) struct OutstandingTable {
    slots: Box<[Mutex<Slot>]>,
    budget: Budget,
}

impl OutstandingTable {
    /// `count` slots, of which `credit` may wait for one peer.
    pub(crate) fn new(count: usize, credit: usize) -> Self {
        let count = count.clamp(1, SLOTS_MAX);
        let slot =
            |_| Slot { generation: 1, peer: WorldRank(0), expected: Slot::NOTHING, pending: None };
        let slots = (0..count).map(slot).map(Mutex::new).collect();
        Self { slots, budget: Budget::new(count, credit) }
    }

    fn lock(slot: &Mutex<Slot>) -> MutexGuard<'_, Slot> {
        // Nothing in here panics half-way through a change.
        slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The slots one after the other, each while it is locked.
    fn all(&self) -> impl Iterator<Item = (usize, MutexGuard<'_, Slot>)> {
        self.slots.iter().map(Self::lock).enumerate()
    }

    /// The slot with this id, if it is in use.
    fn get(&self, id: SlotId) -> Option<MutexGuard<'_, Slot>> {
        let slot = Self::lock(self.slots.get(id.index())?);
        (slot.generation == id.generation() && slot.pending.is_some()).then_some(slot)
    }

    /// Frees a slot that is in use. Perhaps what is returned is the last reference: what that keeps
    /// is to be dropped when the slot is not locked any more.
    #[must_use]
    fn free(&self, index: usize, slot: &mut Slot) -> Option<Arc<Pending>> {
        let pending = slot.pending.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        slot.expected = Slot::NOTHING;
        // A thread that takes the slot at once waits until it is not locked any more.
        self.budget.give_back(slot.peer, index);
        pending.release();
        Some(pending)
    }

    /// Takes a free slot and credit for a message to `peer`, counted in `pending`; `None` if there
    /// is none.
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
        let mut slot = Self::lock(&self.slots[index]);
        pending.hold();
        (slot.peer, slot.expected) = (peer, expected);
        slot.pending = Some(pending.clone());
        Some(SlotId::new(slot.generation, index))
    }

    /// A process whose answer is outstanding, of those counted in `pending`: another one at each
    /// turn. `None` also if answers come just now.
    pub(crate) fn debtor(&self, pending: &Arc<Pending>, turn: usize) -> Option<WorldRank> {
        let debtors = || {
            let counts = |slot: &Slot| {
                slot.pending.as_ref().is_some_and(|counted| Arc::ptr_eq(counted, pending))
            };
            self.all().filter(move |(_, slot)| counts(slot)).map(|(_, slot)| slot.peer)
        };
        let owe = debtors().count();
        debtors().nth(turn.checked_rem(owe)?)
    }

    /// The peers of all slots, if none is free.
    pub(crate) fn keepers(&self) -> Option<Vec<WorldRank>> {
        if !self.budget.is_used_up() {
            return None;
        }
        let mut keepers: Vec<WorldRank> = self.all().map(|(_, slot)| slot.peer).collect();
        keepers.sort_unstable();
        keepers.dedup();
        Some(keepers)
    }

    /// Gives back every slot of a peer that has left and answers nothing any more, as if it had
    /// said so; false if there are none.
    pub(crate) fn end(&self, peer: WorldRank) -> bool {
        let mut ended = false;
        for (index, mut slot) in self.all() {
            if let Some(pending) = slot.pending.as_ref().filter(|_| slot.peer == peer) {
                pending.fail(u64::from(peer.0) << 32 | Status::HolderLeft as u64);
                let freed = self.free(index, &mut slot);
                drop(slot);
                drop(freed);
                ended = true;
            }
        }
        ended
    }

    /// Gives back every slot counted in `pending`: nothing is written to its buffers afterwards.
    pub(crate) fn cancel(&self, pending: &Arc<Pending>) {
        for (index, mut slot) in self.all() {
            if pending.is_done() {
                break;
            }
            let counted = &slot.pending;
            if counted.as_ref().is_some_and(|counted| Arc::ptr_eq(counted, pending)) {
                pending.fail(CANCELLED);
                // Not the last reference: the caller has one.
                drop(self.free(index, &mut slot));
            }
        }
    }

    /// Whether a slot is still waited for: it was neither answered nor cancelled.
    pub(crate) fn has(&self, id: SlotId) -> bool {
        self.get(id).is_some()
    }

    /// Gives back one slot, whose message was not sent; false if it was answered or cancelled.
    pub(crate) fn cancel_one(&self, id: SlotId) -> bool {
        let Some(mut slot) = self.get(id) else { return false };
        let freed = self.free(id.index(), &mut slot);
        drop(slot);
        freed.is_some()
    }

    /// Takes the CTS of a rendezvous.
    pub(crate) fn handle_cts(&self, from: WorldRank, id: SlotId, bytes: u64) -> Clearance {
        let Some(mut slot) = self.get(id).filter(|slot| slot.peer == from) else {
            return Clearance::Unknown;
        };
        let sender = slot.expected.sender.as_mut();
        let taken = sender.is_some_and(|sender| sender.handle_cts(bytes));
        if taken { Clearance::Taken } else { Clearance::Wrong }
    }

    /// What a rendezvous does next; a message has at most `max` bytes.
    pub(crate) fn next(&self, id: SlotId, max: u64) -> Next {
        let Some(mut slot) = self.get(id) else { return Next::Ended };
        let Some(sender) = slot.expected.sender.as_mut() else { return Next::Ended };
        sender.poll_data(max).map_or(Next::Wait, Next::Data)
    }

    /// Takes an answer and its bytes; false if no thread waits for it, or not for this.
    pub(crate) fn answer(&self, from: WorldRank, id: SlotId, answer: Answer, bytes: &[u8]) -> bool {
        let slot = self.get(id).filter(|slot| slot.peer == from && slot.admits(&answer, bytes));
        let Some(mut slot) = slot else { return false };
        let Some(pending) = &slot.pending else { return false };
        if answer.status == Status::Ok {
            pending.value.store(answer.value, Relaxed);
            if slot.expected.buffer.len > 0 {
                // SAFETY: `admits` says that `offset <= len`: inside the buffer that `start`'s
                // caller vouched for.
                let at = unsafe { slot.expected.buffer.at.add(answer.offset as usize) };
                // SAFETY: `offset + bytes.len() <= len`, as `admits` says, and the buffer is the
                // slot's alone while its mutex is held and it is in use.
                unsafe { at.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            }
            slot.expected.units -= answer.units;
        } else {
            // Of no use in an answer without bytes but here.
            let holder = u32::try_from(answer.offset).ok();
            let by = holder.filter(|_| answer.status == Status::HolderLeft).unwrap_or(from.0);
            pending.fail(u64::from(by) << 32 | answer.status as u64);
            slot.expected.units = 0;
        }
        let complete = slot.expected.units == 0;
        let freed = if complete { self.free(id.index(), &mut slot) } else { None };
        drop(slot);
        // Perhaps the last reference: what it keeps is dropped outside the mutex.
        drop(freed);
        true
    }
}
