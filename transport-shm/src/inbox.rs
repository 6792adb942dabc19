//! The receiving side of the message ring: one thread of the rank drains it at a time.
#![allow(unsafe_code)] // room: the one caller of `Ring::pop`, and the buffer its lock guards

use core::mem;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use rma_core::transport::WorldRank;

use crate::ring::{Popped, Ring};
use crate::sync::{AtomicU32, AtomicU64, MessageCell};

/// No thread drains.
const FREE: u32 = 0;
/// A thread drains.
const BUSY: u32 = 1;
/// A thread drains, and another one found messages and was turned away.
const AWAITED: u32 = 2;

/// In private memory of the receiver; of a message ring of so many slots of so many bytes, whose
/// longest message has `MAX`.
pub(crate) struct Inbox<const N: usize, const BYTES: usize, const MAX: usize> {
    /// The ring's read position; moved only by the thread that drains.
    head: AtomicU64,
    lock: AtomicU32,
    /// Sinks have returned from all positions below this one; moved as `head` is.
    handled: AtomicU64,
    /// Where a message is while its sink runs; touched only by the thread that drains.
    buffer: MessageCell<[u8; MAX]>,
    corrupt: AtomicU64,
}

// SAFETY: all but `buffer` are atomics, and `buffer` is used only by the one thread that moved
// `lock` away from FREE, until it moves it back.
unsafe impl<const N: usize, const BYTES: usize, const MAX: usize> Sync for Inbox<N, BYTES, MAX> {}

/// The ranks and threads to wake after a drain.
pub(crate) struct Wake {
    /// Senders that found no room, by rank modulo 64.
    pub(crate) refused: u64,
    /// Threads of this rank that were turned away, or wait until all is handled.
    pub(crate) own: bool,
}

impl<const N: usize, const BYTES: usize, const MAX: usize> Inbox<N, BYTES, MAX> {
    /// Slots after which a `poll` ends: half of the message ring, so that refused senders hear of
    /// the room while the other half still keeps the receiver busy.
    const BATCH: u64 = N as u64 / 2;

    pub(crate) fn new() -> Self {
        Self {
            head: AtomicU64::new(0),
            lock: AtomicU32::new(FREE),
            handled: AtomicU64::new(0),
            buffer: MessageCell::new([0; MAX]),
            corrupt: AtomicU64::new(0),
        }
    }

    /// Slots that were dropped because they held nonsense.
    pub(crate) fn corrupt(&self) -> u64 {
        self.corrupt.load(Relaxed)
    }

    /// Whether a message has arrived that is not taken, or is just being taken.
    pub(crate) fn has_messages(&self, ring: &Ring<N, BYTES, MAX>) -> bool {
        ring.has(&self.head)
    }

    /// Whether sinks have returned from all positions below `mark`, or no sink can make sense of
    /// what is there. A thread that parks because they have not is woken after the drain in which
    /// they do: by the caller of [`drain`](Self::drain) if messages were handed out in it, else by
    /// `wake`.
    pub(crate) fn is_handled(&self, mark: u64) -> bool {
        // Acquire pairs with the Release in `Drain::handled`: what the sinks did is visible.
        self.handled.load(Acquire) >= mark
    }

    /// Hands messages of about [`BATCH`](Self::BATCH) slots to `sink`, then says what to wake, also
    /// when `sink` panics.
    ///
    /// A message is copied out before `sink` sees it: it fits the cache of the CPU, `sink` gets
    /// memory that no sender writes, and the slots can be given back while `sink` works.
    #[inline]
    pub(crate) fn drain(
        &self,
        ring: &Ring<N, BYTES, MAX>,
        ranks: u32,
        sink: &mut dyn FnMut(WorldRank, &[u8]),
        wake: impl FnMut(Wake),
    ) -> usize {
        if !ring.has(&self.head) || !self.enter() {
            return 0;
        }
        let start = self.head.load(Relaxed);
        let mut drain = Drain { inbox: self, ring, start, count: 0, unheard: false, wake };
        drain.run(ranks, sink);
        drain.count
    }

    /// Takes the lock, or leaves word for its holder. One word says both, so the holder cannot
    /// miss it.
    fn enter(&self) -> bool {
        loop {
            // Acquire pairs with the Release in `leave`.
            match self.lock.compare_exchange(FREE, BUSY, Acquire, Relaxed) {
                Ok(_) => return true,
                Err(AWAITED) => return false,
                Err(_) => {}
            }
            // Release pairs with the Acquire in `leave`: the holder sees this thread armed.
            if self.lock.compare_exchange(BUSY, AWAITED, Release, Relaxed) != Err(FREE) {
                return false;
            }
        }
    }

    /// Gives the lock back; true if a thread was turned away.
    fn leave(&self) -> bool {
        // Pairs with `enter` in both directions.
        self.lock.swap(FREE, AcqRel) == AWAITED
    }
}

/// Holds the lock.
struct Drain<'a, W: FnMut(Wake), const N: usize, const BYTES: usize, const MAX: usize> {
    inbox: &'a Inbox<N, BYTES, MAX>,
    ring: &'a Ring<N, BYTES, MAX>,
    /// The read position at which this drain started.
    start: u64,
    /// Sinks that returned.
    count: usize,
    /// Whether something was taken of which the caller does not hear: nonsense, or a message whose
    /// sink panicked.
    unheard: bool,
    wake: W,
}

impl<W: FnMut(Wake), const N: usize, const BYTES: usize, const MAX: usize>
    Drain<'_, W, N, BYTES, MAX>
{
    #[inline]
    fn run(&mut self, ranks: u32, sink: &mut dyn FnMut(WorldRank, &[u8])) {
        self.inbox.buffer.with_mut(|buffer| {
            // SAFETY: this drain holds the lock until it is dropped, after `buffer` was used last.
            let buffer = unsafe { &mut *buffer };
            while self.inbox.head.load(Relaxed) - self.start < Inbox::<N, BYTES, MAX>::BATCH {
                // SAFETY: the lock is held, which orders all calls; `drain` is the only caller for
                // the ring of this rank, always with its own `head`.
                match unsafe { self.ring.pop(&self.inbox.head, ranks, buffer) } {
                    Popped::Empty => break,
                    Popped::Corrupt => {
                        self.inbox.corrupt.fetch_add(1, Relaxed);
                        self.unheard = true;
                    }
                    Popped::Message { sender, len } => {
                        let before = mem::replace(&mut self.unheard, true);
                        sink(WorldRank(sender), &buffer[..len]);
                        self.unheard = before;
                        self.count += 1;
                    }
                }
                self.handled(self.inbox.head.load(Relaxed));
            }
        })
    }

    fn handled(&self, head: u64) {
        // Release pairs with the Acquire in `is_handled`.
        self.inbox.handled.store(head, Release);
    }
}

impl<W: FnMut(Wake), const N: usize, const BYTES: usize, const MAX: usize> Drop
    for Drain<'_, W, N, BYTES, MAX>
{
    fn drop(&mut self) {
        let head = self.inbox.head.load(Relaxed);
        // Also a message whose sink panicked.
        self.handled(head);
        let owed = self.ring.owes_look(self.start, head);
        let refused = if owed { self.ring.take_refused(head) } else { 0 };
        let own = self.inbox.leave() || self.unheard;
        if refused != 0 || own {
            (self.wake)(Wake { refused, own });
        }
    }
}

#[cfg(all(test, loom))]
#[path = "inbox_loom_tests.rs"]
mod loom_tests;

#[cfg(all(test, not(loom)))]
#[path = "inbox_tests.rs"]
mod tests;
