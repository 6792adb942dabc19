//! Operations that wait for an answer from afar: a fixed number of slots with generations.
//!
//! A slot may hold the address of an origin buffer that an arriving answer is written to. Answers
//! are written under the mutex of the slots, so when [`Pending::is_done`] says so, or
//! [`Slots::cancel`] has returned, none is written any more and the buffer may die.
#![allow(unsafe_code)]

use crate::protocol::message::Status;
use crate::transport::WorldRank;
use core::any::Any;
use core::sync::atomic::{
    AtomicU8, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    /// The first [`Status`] other than `Ok`.
    status: AtomicU8,
    value: AtomicU64,
    /// Owner of the buffers, if the caller gave them away.
    keep: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Pending {
    /// Whether every operation has its answer.
    pub(crate) fn is_done(&self) -> bool {
        // pairs with the Release in `Slots::free`: what was written to buffers is visible.
        self.outstanding.load(Acquire) == 0
    }

    /// How the operations fared; the first that failed counts.
    pub(crate) fn status(&self) -> Status {
        Status::from_wire(self.status.load(Relaxed))
    }

    /// The value that came back last.
    pub(crate) fn value(&self) -> u64 {
        self.value.load(Relaxed)
    }

    /// Keeps `owner` alive as long as this is.
    pub(crate) fn keep(&self, owner: Box<dyn Any + Send>) {
        *self.keep.lock().unwrap_or_else(PoisonError::into_inner) = Some(owner);
    }
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

/// What came back: which part of the transfer, and how it went.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answer {
    pub(crate) status: Status,
    pub(crate) value: u64,
    /// Units answered: bytes, or 1 for a value.
    pub(crate) units: u64,
    /// Where in the buffer the bytes belong.
    pub(crate) offset: u64,
}

struct Slot {
    generation: u32,
    peer: WorldRank,
    /// Units that have not been answered.
    left: u64,
    buffer: Buffer,
    /// `None` if the slot is free.
    pending: Option<Arc<Pending>>,
}

// SAFETY: the address in `buffer` is only written through under the mutex of `Slots`, and what it
// points to is exclusively the slot's while the slot is in use (contract of `Slots::start`).
unsafe impl Send for Slot {}

/// The slots of one rank.
pub(crate) struct Slots {
    slots: Mutex<Vec<Slot>>,
}

impl Slots {
    pub(crate) fn new(count: usize) -> Self {
        let slot = |_| Slot {
            generation: 1,
            peer: WorldRank(0),
            left: 0,
            buffer: Buffer::NONE,
            pending: None,
        };
        Self { slots: Mutex::new((0..count).map(slot).collect()) }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Slot>> {
        // Nothing in here panics half-way through a change.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a free slot for `units` of answer from `peer`, counted in `pending`; `None` if all
    /// slots are in use.
    ///
    /// # Safety
    ///
    /// The buffer stays valid, and is not touched by anybody else, until `pending` is done or was
    /// [cancelled](Self::cancel); or `pending` [keeps](Pending::keep) its owner.
    pub(crate) unsafe fn start(
        &self,
        peer: WorldRank,
        units: u64,
        buffer: Buffer,
        pending: &Arc<Pending>,
    ) -> Option<SlotId> {
        let mut slots = self.lock();
        let index = slots.iter().position(|slot| slot.pending.is_none())?;
        let slot = &mut slots[index];
        pending.outstanding.fetch_add(1, Relaxed);
        (slot.peer, slot.left, slot.buffer) = (peer, units, buffer);
        slot.pending = Some(pending.clone());
        Some(SlotId::new(slot.generation, index))
    }

    fn free(slot: &mut Slot) -> Option<Arc<Pending>> {
        slot.generation = slot.generation.wrapping_add(1);
        slot.buffer = Buffer::NONE;
        let pending = slot.pending.take()?;
        // pairs with the Acquire load in `Pending::is_done`.
        pending.outstanding.fetch_sub(1, Release);
        Some(pending)
    }

    /// Gives back every slot counted in `pending`: nothing is written to its buffers afterwards.
    pub(crate) fn cancel(&self, pending: &Arc<Pending>) {
        let mut slots = self.lock();
        for slot in slots.iter_mut() {
            if slot.pending.as_ref().is_some_and(|counted| Arc::ptr_eq(counted, pending)) {
                // Not the last reference: the caller has one.
                drop(Self::free(slot));
            }
        }
    }

    /// Takes an answer and its bytes; false if nobody waits for it, or not for this.
    pub(crate) fn answer(&self, from: WorldRank, id: SlotId, answer: Answer, bytes: &[u8]) -> bool {
        let mut slots = self.lock();
        let Some(slot) = slots.get_mut(id.index()) else { return false };
        let Some(pending) = &slot.pending else { return false };
        let expected = slot.generation == id.generation() && slot.peer == from;
        if !expected || answer.units == 0 || answer.units > slot.left {
            return false;
        }
        if answer.status == Status::Ok {
            if slot.buffer.len > 0 {
                let len = bytes.len() as u64;
                let end = answer.offset.checked_add(len);
                if len != answer.units || end.is_none_or(|end| end > slot.buffer.len as u64) {
                    return false;
                }
                // SAFETY: `offset <= len`, inside the buffer that `start`'s caller vouched for.
                let at = unsafe { slot.buffer.at.add(answer.offset as usize) };
                // SAFETY: `offset + bytes.len() <= len`, and the buffer is the slot's alone while
                // the mutex is held and the slot in use.
                unsafe { at.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            }
            pending.value.store(answer.value, Relaxed);
            slot.left -= answer.units;
        } else {
            let status = answer.status as u8;
            _ = pending.status.compare_exchange(0, status, Relaxed, Relaxed);
            slot.left = 0;
        }
        let freed = if slot.left == 0 { Self::free(slot) } else { None };
        drop(slots);
        // Perhaps the last reference: what it keeps is dropped outside the mutex.
        drop(freed);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: WorldRank = WorldRank(1);

    fn ok(offset: u64, units: u64) -> Answer {
        Answer { status: Status::Ok, value: 0, units, offset }
    }

    fn buffer(bytes: &mut [u8]) -> Buffer {
        Buffer { at: bytes.as_mut_ptr(), len: bytes.len() }
    }

    #[test]
    fn pieces_in_any_order_complete_a_get() {
        let (slots, pending) = (Slots::new(2), Arc::default());
        let mut bytes = [0u8; 4];
        // SAFETY: `bytes` outlives the slot, which is freed by its last answer below.
        let id = unsafe { slots.start(PEER, 4, buffer(&mut bytes), &pending) }.unwrap();
        assert!(slots.answer(PEER, id, ok(2, 2), &[3, 4]));
        assert!(!pending.is_done());
        assert!(slots.answer(PEER, id, ok(0, 2), &[1, 2]));
        assert!(pending.is_done());
        assert_eq!(bytes, [1, 2, 3, 4]);
        assert!(!slots.answer(PEER, id, ok(0, 2), &[9, 9]), "a freed slot takes no answer");
    }

    #[test]
    fn answers_that_do_not_fit_are_refused() {
        let (slots, pending) = (Slots::new(1), Arc::default());
        let mut bytes = [0u8; 4];
        // SAFETY: `bytes` outlives the slot, which is cancelled below.
        let id = unsafe { slots.start(PEER, 4, buffer(&mut bytes), &pending) }.unwrap();
        assert!(!slots.answer(WorldRank(2), id, ok(0, 4), &[1; 4]), "from somebody else");
        assert!(!slots.answer(PEER, id, ok(1, 4), &[1; 4]), "past the end");
        assert!(!slots.answer(PEER, id, ok(u64::MAX, 4), &[1; 4]), "overflow");
        assert!(!slots.answer(PEER, id, ok(0, 5), &[1; 5]), "more than asked");
        assert!(!slots.answer(PEER, id, ok(0, 4), &[1; 3]), "length is a lie");
        assert!(!slots.answer(PEER, SlotId(77), ok(0, 4), &[1; 4]), "no such slot");
        slots.cancel(&pending);
        assert!(pending.is_done());
        assert!(!slots.answer(PEER, id, ok(0, 4), &[1; 4]), "cancelled");
        assert_eq!(bytes, [0; 4]);
    }

    #[test]
    fn slots_run_out_and_come_back_with_another_id() {
        let (slots, pending) = (Slots::new(1), Arc::default());
        // SAFETY: no buffer.
        let first = unsafe { slots.start(PEER, 1, Buffer::NONE, &pending) }.unwrap();
        // SAFETY: no buffer.
        assert!(unsafe { slots.start(PEER, 1, Buffer::NONE, &pending) }.is_none());
        slots.cancel(&pending);
        // SAFETY: no buffer.
        let second = unsafe { slots.start(PEER, 1, Buffer::NONE, &pending) }.unwrap();
        assert_ne!(first, second);
        assert!(!slots.answer(PEER, first, ok(0, 1), &[]), "the id of an earlier life");
    }

    #[test]
    fn what_is_kept_lives_until_the_last_answer() {
        let (slots, pending) = (Slots::new(1), Arc::<Pending>::default());
        let owner = Arc::new(0u8);
        let mut owned = vec![0u8; 2];
        // SAFETY: `pending` keeps the buffer.
        let id = unsafe { slots.start(PEER, 2, buffer(&mut owned), &pending) }.unwrap();
        let watch = Arc::downgrade(&owner);
        pending.keep(Box::new((owned, owner)));
        drop(pending);
        assert!(watch.upgrade().is_some());
        assert!(slots.answer(PEER, id, ok(0, 2), &[7, 7]));
        assert!(watch.upgrade().is_none());
    }

    #[test]
    fn the_first_failure_is_remembered() {
        let (slots, pending) = (Slots::new(2), Arc::default());
        let failed = Answer { status: Status::Freed, ..ok(0, 1) };
        // SAFETY: no buffer.
        let id = unsafe { slots.start(PEER, 8, Buffer::NONE, &pending) }.unwrap();
        assert!(slots.answer(PEER, id, failed, &[]));
        assert!(pending.is_done());
        assert_eq!(pending.status(), Status::Freed);
    }
}
