//! The mailbox: a bounded ring with many senders and one receiver, inside the receiver's control
//! segment.
//!
//! A sender claims a position by moving `tail`, fills the slot and publishes it by writing the
//! number of its lap, counted from 1, into `turn`: memory that is all zero is an empty ring. The
//! receiver copies the message out and writes nothing to the slot, so a message costs one transfer
//! of its cache line in each direction. How far it has come it publishes in `freed`, once for
//! several messages; senders look there only when the positions up to `limit` are used up.
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
    len: u32,
    bytes: [u8; BYTES],
}

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

/// The shared part. All zero is its initial state; `SLOTS` is a power of two.
#[repr(C)]
pub(crate) struct Ring<const SLOTS: usize, const BYTES: usize> {
    claims: Claims,
    /// The receiver is done with all positions below this one.
    freed: Line,
    refused: Line,
    slots: [Slot<BYTES>; SLOTS],
}

// SAFETY: everything is an atomic but the messages, and a message is touched only by the sender
// that claimed its position or, from its Release of `turn` to that of `freed`, by the receiver.
unsafe impl<const SLOTS: usize, const BYTES: usize> Sync for Ring<SLOTS, BYTES> {}

/// What [`Ring::pop`] found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Popped {
    /// Nothing has been published at the receiver's position.
    Empty,
    /// A slot whose sender or length cannot be; it was skipped.
    Corrupt,
    /// `len` bytes of `sender` are in the buffer now.
    Message { sender: u32, len: usize },
}

/// The ring is full; the sender will be found by [`Ring::take_refused`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full;

impl<const SLOTS: usize, const BYTES: usize> Ring<SLOTS, BYTES> {
    const MASK: u64 = {
        assert!(SLOTS.is_power_of_two());
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

    /// Appends `head` and `body` as one message of `sender`; together they fit `BYTES`.
    #[inline]
    pub(crate) fn push(&self, sender: u32, head: &[u8], body: &[u8]) -> Result<(), Full> {
        assert!(head.len() <= BYTES && body.len() <= BYTES - head.len(), "message too long");
        match self.claim().or_else(|| self.claim_or_refuse(sender)) {
            None => Err(Full),
            Some(position) => {
                self.fill(position, sender, head, body);
                Ok(())
            }
        }
    }

    /// Takes the next position if its slot is free.
    #[inline]
    fn claim(&self) -> Option<u64> {
        let Claims { tail, limit } = &self.claims;
        let mut position = tail.load(Relaxed);
        loop {
            // Acquire pairs with the Release in `raise_limit`, which passes on what that sender
            // acquired: the receiver is done with this slot.
            if position >= limit.load(Acquire) && position >= self.raise_limit() {
                return None;
            }
            match tail.compare_exchange_weak(position, position + 1, Relaxed, Relaxed) {
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
    fn claim_or_refuse(&self, sender: u32) -> Option<u64> {
        self.refused.0.fetch_or(1 << (sender % 64), Relaxed);
        // Pairs with the fence in `take_refused`: it finds the bit, or `claim` finds room.
        fence(SeqCst);
        self.claim()
    }

    #[inline]
    fn fill(&self, position: u64, sender: u32, head: &[u8], body: &[u8]) {
        let slot = self.slot(position);
        slot.message.with_mut(|message| {
            // SAFETY: `claim` gave this position to this call alone, after the receiver was done
            // with its slot, and the receiver does not look before `turn` says so.
            unsafe { (*message).sender = sender };
            // SAFETY: as above.
            unsafe { (*message).len = (head.len() + body.len()) as u32 };
            // SAFETY: as above; only computes an address inside the message.
            let bytes = unsafe { addr_of_mut!((*message).bytes) }.cast::<u8>();
            // SAFETY: `push` checked that both fit; a borrowed slice cannot overlap the slot,
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
        buffer: &mut [u8; BYTES],
    ) -> Popped {
        let position = head.load(Relaxed);
        let slot = self.slot(position);
        // Acquire pairs with the Release in `fill`.
        if slot.turn.load(Acquire) != Self::published(position) {
            return Popped::Empty;
        }
        let popped = slot.message.with(|message| {
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
            if sender >= senders || len > BYTES {
                return Popped::Corrupt;
            }
            // SAFETY: as above; only computes an address inside the message.
            let bytes = unsafe { addr_of!((*message).bytes) }.cast::<u8>();
            // SAFETY: `len` fits both sides; `buffer` is borrowed, and no borrow of a slot exists.
            unsafe { buffer.as_mut_ptr().copy_from_nonoverlapping(bytes, len) };
            Popped::Message { sender, len }
        });
        head.store(position + 1, Relaxed);
        if (position + 1).is_multiple_of(Self::STEP) {
            self.publish_freed(position + 1);
        }
        popped
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
