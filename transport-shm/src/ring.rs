//! The message ring: bounded, with many senders and one receiver, inside the receiver's control
//! segment.
//!
//! A sender claims a position by moving `tail`, fills the slot and publishes it by writing the
//! number of its lap, counted from 1, into `turn`: memory that is all zero is an empty ring. The
//! receiver copies the message out and writes nothing to the slot, so a message costs one transfer
//! of its cache line in each direction. How far it has come it publishes in `freed`, once for
//! several messages; senders look there only when the positions up to `limit` are used up.
//!
//! A message that is longer than a slot goes on in those behind it, which are claimed with the
//! first and published before it: a receiver that finds the first finds all.
//!
//! A sender that finds the ring full leaves a bit in `refused` and looks again; the receiver looks
//! at `refused` after it published `freed`. Both pass a sequentially consistent fence in between,
//! so either the sender finds the room or the receiver finds the bit, and rings that sender.
//!
//! A sender that is stopped between claim and publication holds up the messages behind it until
//! it runs again, and for good if it is killed there; the job of a killed rank ends anyway.
#![allow(unsafe_code)] // room: the payload of a slot

use core::ptr::{addr_of, addr_of_mut};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use crate::sync::{AtomicU32, AtomicU64, MessageCell, fence};

#[repr(C)]
struct Message<const BYTES: usize> {
    sender: u32,
    /// Of all of the message.
    len: u32,
    bytes: [u8; BYTES],
}

/// In place of the sender, where a message goes on: no message begins there.
const CONTINUED: u32 = u32::MAX;

#[repr(C, align(64))]
struct Slot<const BYTES: usize> {
    turn: AtomicU32,
    message: MessageCell<Message<BYTES>>,
}

/// Words that senders write: they share two cache lines.
#[repr(C, align(128))]
struct Claims {
    /// The next position to claim.
    tail: AtomicU64,
    /// Positions below this one are known to be free or claimed.
    limit: AtomicU64,
}

/// A word on cache lines of its own.
#[repr(C, align(128))]
struct Line(AtomicU64);

/// The shared part. All zero is its initial state; `SLOTS` is a power of two, `BYTES` are those of
/// a slot, `MAX` those of the longest message.
#[repr(C)]
pub(crate) struct Ring<const SLOTS: usize, const BYTES: usize, const MAX: usize> {
    claims: Claims,
    /// The receiver is done with all positions below this one.
    freed: Line,
    refused: Line,
    slots: [Slot<BYTES>; SLOTS],
}

// SAFETY: everything is an atomic but the messages, and a message is touched only by the sender
// that claimed its position or, from its Release of `turn` to that of `freed`, by the receiver.
unsafe impl<const SLOTS: usize, const BYTES: usize, const MAX: usize> Sync
    for Ring<SLOTS, BYTES, MAX>
{
}

/// What [`Ring::pop`] found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Popped {
    /// Nothing has been published at the receiver's position.
    Empty,
    /// A slot whose sender or length cannot be, or that goes on in slots which no sender has
    /// published; it was skipped.
    Corrupt,
    /// `len` bytes of `sender` are in the buffer now.
    Message { sender: u32, len: usize },
}

/// The ring is full; the sender will be found by [`Ring::take_refused`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full;

impl<const SLOTS: usize, const BYTES: usize, const MAX: usize> Ring<SLOTS, BYTES, MAX> {
    const MASK: u64 = {
        assert!(SLOTS.is_power_of_two());
        // A sender that is refused has found more than half of the ring occupied, as `owes_look`
        // asks.
        assert!(MAX >= BYTES && MAX.div_ceil(BYTES) <= SLOTS.div_ceil(2));
        SLOTS as u64 - 1
    };

    /// Messages between two publications of `freed`.
    const STEP: u64 = {
        let quarter = SLOTS as u64 / 4;
        if quarter == 0 { 1 } else { quarter }
    };

    #[cfg(any(loom, test))]
    pub(crate) fn new() -> Self {
        Self {
            claims: Claims { tail: AtomicU64::new(0), limit: AtomicU64::new(0) },
            freed: Line(AtomicU64::new(0)),
            refused: Line(AtomicU64::new(0)),
            slots: core::array::from_fn(|_| Slot {
                turn: AtomicU32::new(0),
                message: MessageCell::new(Message { sender: 0, len: 0, bytes: [0; BYTES] }),
            }),
        }
    }

    #[inline]
    fn slot(&self, position: u64) -> &Slot<BYTES> {
        &self.slots[(position & Self::MASK) as usize]
    }

    /// `turn` of a slot whose message at `position` is published. Wraps, as `turn` does.
    #[inline]
    fn published(position: u64) -> u32 {
        ((position / SLOTS as u64) as u32).wrapping_add(1)
    }

    /// Slots of a message of so many bytes.
    #[inline]
    fn slots_of(len: usize) -> u64 {
        if len <= BYTES { 1 } else { len.div_ceil(BYTES) as u64 }
    }

    /// Appends `head` and `body` as one message of `sender`; together they fit `MAX`. Gives the
    /// position behind it.
    #[inline]
    pub(crate) fn push(&self, sender: u32, head: &[u8], body: &[u8]) -> Result<u64, Full> {
        assert!(head.len() <= MAX && body.len() <= MAX - head.len(), "message too long");
        let slots = Self::slots_of(head.len() + body.len());
        let Some(position) = self.claim(slots).or_else(|| self.claim_or_refuse(slots, sender))
        else {
            return Err(Full);
        };
        if slots > 1 {
            self.fill_long(position, sender, head, body);
        } else {
            self.fill(position, [sender, (head.len() + body.len()) as u32], head, body);
        }
        Ok(position + slots)
    }

    /// Takes the next `slots` positions, if their slots are free; gives the first.
    #[inline]
    fn claim(&self, slots: u64) -> Option<u64> {
        let Claims { tail, limit } = &self.claims;
        let mut position = tail.load(Relaxed);
        loop {
            let end = position.checked_add(slots)?;
            // Acquire pairs with the Release in `raise_limit`, which passes on what that sender
            // acquired: the receiver is done with these slots.
            if end > limit.load(Acquire) && end > self.raise_limit() {
                return None;
            }
            match tail.compare_exchange_weak(position, end, Relaxed, Relaxed) {
                Ok(_) => return Some(position),
                Err(now) => position = now,
            }
        }
    }

    #[cold]
    fn raise_limit(&self) -> u64 {
        // Acquire pairs with the Release in `publish_freed`.
        let limit = self.freed.0.load(Acquire).saturating_add(SLOTS as u64);
        // Release pairs with the Acquire in `claim`.
        self.claims.limit.fetch_max(limit, Release);
        limit
    }

    #[cold]
    fn claim_or_refuse(&self, slots: u64, sender: u32) -> Option<u64> {
        self.refused.0.fetch_or(1 << (sender % 64), Relaxed);
        // Pairs with the fence in `take_refused`: it finds the bit, or `claim` finds room.
        fence(SeqCst);
        self.claim(slots)
    }

    /// Fills and publishes the slots of a message that is longer than one: the first comes last.
    #[cold]
    #[inline(never)]
    fn fill_long(&self, position: u64, sender: u32, head: &[u8], body: &[u8]) {
        let len = head.len() + body.len();
        for i in (1..Self::slots_of(len)).chain([0]) {
            let from = i as usize * BYTES;
            let part = from..len.min(from + BYTES);
            let of_head = part.start.min(head.len())..part.end.min(head.len());
            let of_body =
                part.start.max(head.len()) - head.len()..part.end.max(head.len()) - head.len();
            let sender = if i == 0 { sender } else { CONTINUED };
            self.fill(position + i, [sender, len as u32], &head[of_head], &body[of_body]);
        }
    }

    /// Fills one slot, and publishes it; `head` and `body` together fit `BYTES`.
    #[inline]
    fn fill(&self, position: u64, [sender, len]: [u32; 2], head: &[u8], body: &[u8]) {
        assert!(head.len() <= BYTES && body.len() <= BYTES - head.len(), "more than a slot");
        let slot = self.slot(position);
        slot.message.with_mut(|message| {
            // SAFETY: `claim` gave this position to this call alone, after the receiver was done
            // with its slot, and the receiver does not look before `turn` says so.
            unsafe { (*message).sender = sender };
            // SAFETY: as above.
            unsafe { (*message).len = len };
            // SAFETY: as above; only computes an address inside the message.
            let bytes = unsafe { addr_of_mut!((*message).bytes) }.cast::<u8>();
            // SAFETY: both fit, as is checked above; a borrowed slice cannot overlap the slot,
            // because no reference to a slot's bytes is ever made.
            unsafe { bytes.copy_from_nonoverlapping(head.as_ptr(), head.len()) };
            // SAFETY: `head.len() <= BYTES` keeps the address inside the message.
            let rest = unsafe { bytes.add(head.len()) };
            // SAFETY: as for `head`.
            unsafe { rest.copy_from_nonoverlapping(body.as_ptr(), body.len()) };
        });
        // Release pairs with the Acquire in `pop` and `has`.
        slot.turn.store(Self::published(position), Release);
    }

    /// All positions below this one are claimed: those of a sender whose word the caller has
    /// acquired since among them.
    pub(crate) fn claimed(&self) -> u64 {
        self.claims.tail.load(Acquire)
    }

    /// Whether a message is published at the receiver's position `head`. Another thread of the
    /// receiver may be moving it; then this may say yes to a message that is taken already.
    #[inline]
    pub(crate) fn has(&self, head: &AtomicU64) -> bool {
        let mut position = head.load(Relaxed);
        loop {
            // Acquire pairs with the Release in `fill`: a reader that sees the message of a later
            // lap sees the head that moved past this one.
            let turn = self.slot(position).turn.load(Acquire);
            if turn == Self::published(position) {
                return true;
            }
            let now = head.load(Relaxed);
            if now == position {
                return false;
            }
            position = now;
        }
    }

    /// Moves the next message to `buffer`. Only one thread at a time calls this, which `head`
    /// being the receiver's does not enforce: the caller holds its lock.
    ///
    /// # Safety
    ///
    /// All calls of `pop` and `take_refused` on this ring are ordered by happens-before, and pass
    /// the same `head`.
    #[inline]
    pub(crate) unsafe fn pop(
        &self,
        head: &AtomicU64,
        senders: u32,
        buffer: &mut [u8; MAX],
    ) -> Popped {
        let position = head.load(Relaxed);
        if !self.is_published(position) {
            return Popped::Empty;
        }
        let popped = self.slot(position).message.with(|message| {
            // Read once: what was checked is what is used, whatever a peer writes meanwhile.
            // SAFETY: only computes an address inside the cell.
            let sender = unsafe { addr_of!((*message).sender) };
            // SAFETY: `turn` says that its sender is done with the cell, and the next one waits
            // for `freed` to pass `position`; this is the only receiver by contract.
            let sender = unsafe { sender.read_volatile() };
            // SAFETY: only computes an address inside the cell.
            let len = unsafe { addr_of!((*message).len) };
            // SAFETY: as for `sender`.
            let len = unsafe { len.read_volatile() } as usize;
            if sender >= senders || len > MAX {
                return Popped::Corrupt;
            }
            let first = &mut buffer[..len.min(BYTES)];
            // SAFETY: as above; only computes an address inside the message.
            let bytes = unsafe { addr_of!((*message).bytes) }.cast::<u8>();
            // SAFETY: as long as a slot at most; `buffer` is borrowed, and no borrow of a slot
            // exists.
            unsafe { first.as_mut_ptr().copy_from_nonoverlapping(bytes, first.len()) };
            Popped::Message { sender, len }
        });
        let (mut popped, mut next) = (popped, position + 1);
        if let Popped::Message { len, .. } = popped
            && len > BYTES
        {
            // SAFETY: forwarded to the caller.
            match unsafe { self.pop_rest(position, &mut buffer[..len]) } {
                Some(end) => next = end,
                None => popped = Popped::Corrupt,
            }
        }
        head.store(next, Relaxed);
        if position / Self::STEP != next / Self::STEP {
            self.publish_freed(next);
        }
        popped
    }

    /// Takes what a message has in the slots behind its first; gives the position behind them, or
    /// nothing if they are not what they should be.
    ///
    /// # Safety
    ///
    /// As [`pop`](Self::pop).
    #[cold]
    #[inline(never)]
    unsafe fn pop_rest(&self, position: u64, message: &mut [u8]) -> Option<u64> {
        let slots = Self::slots_of(message.len());
        // Its sender has published them before: that a peer claims otherwise is found out here.
        if !(1..slots).all(|i| self.is_published(position + i)) {
            return None;
        }
        for (i, part) in (0..).zip(message.chunks_mut(BYTES)).skip(1) {
            self.slot(position + i).message.with(|message| {
                // SAFETY: only computes an address inside the cell.
                let bytes = unsafe { addr_of!((*message).bytes) }.cast::<u8>();
                // SAFETY: `turn` says that its sender is done with the cell, and the next one
                // waits for `freed` to pass it; this is the only receiver by contract. As long as
                // a slot at most, and no borrow of a slot exists.
                unsafe { part.as_mut_ptr().copy_from_nonoverlapping(bytes, part.len()) };
            });
        }
        Some(position + slots)
    }

    #[inline]
    fn is_published(&self, position: u64) -> bool {
        // Acquire pairs with the Release in `fill`.
        self.slot(position).turn.load(Acquire) == Self::published(position)
    }

    fn publish_freed(&self, head: u64) {
        // Release pairs with the Acquire in `raise_limit`.
        self.freed.0.store(head, Release);
    }

    /// Whether the receiver, which moved its position from `before` to `now`, shall call
    /// [`take_refused`](Self::take_refused): a sender asks for it, or enough has been freed.
    ///
    /// The look is a hint and may come too early for a sender's bit. That sender saw more than
    /// half of the ring occupied, so it is found after a further step at the latest.
    #[inline]
    pub(crate) fn owes_look(&self, before: u64, now: u64) -> bool {
        before / Self::STEP != now / Self::STEP || self.refused.0.load(Relaxed) != 0
    }

    /// Publishes the receiver's position, and returns the senders that were refused since the last
    /// call, as bits of their rank modulo 64.
    pub(crate) fn take_refused(&self, head: u64) -> u64 {
        self.publish_freed(head);
        // Pairs with the fence in `claim_or_refuse`.
        fence(SeqCst);
        if self.refused.0.load(Relaxed) == 0 {
            return 0;
        }
        self.refused.0.swap(0, Relaxed)
    }
}

#[cfg(all(test, loom))]
#[path = "ring_loom_tests.rs"]
mod loom_tests;

#[cfg(all(test, not(loom)))]
#[path = "ring_tests.rs"]
mod tests;
